// What the host gives along with its functions.
#pragma once

#include <headrace/headrace.h>

namespace headrace::capi {

// The host's `user`, released with the last that uses it.
class HostUser {
 public:
  explicit HostUser(void* user) : user_(user) {}
  ~HostUser() {
    if (release_ != nullptr) release_(user_);
  }
  HostUser(const HostUser&) = delete;
  HostUser& operator=(const HostUser&) = delete;
  void* get() const { return user_; }
  // Called when nothing can fail any more: the host keeps `user` of a call that fails.
  void release_at_end(headrace_release_callback release) { release_ = release; }

 private:
  void* const user_;
  headrace_release_callback release_ = nullptr;
};

}  // namespace headrace::capi
