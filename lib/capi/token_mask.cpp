#include "sampling/token_mask.h"

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/host_user.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

constexpr size_t kTokenMaskSize1 = offsetof(headrace_token_mask, release) + sizeof(headrace_release_callback);

class HostWalk : public TokenMask {
 public:
  HostWalk(const headrace_token_mask& mask, std::shared_ptr<const HostUser> user)
      : mask_(mask), user_(std::move(user)), walk_(mask_.start(user_->get())) {}
  ~HostWalk() override {
    if (walk_ != nullptr) mask_.end(walk_);
  }
  HostWalk(const HostWalk&) = delete;
  HostWalk& operator=(const HostWalk&) = delete;

  // A walk that was not started allows nothing.
  bool fill(std::span<const float>, std::span<uint32_t> words) override {
    return walk_ == nullptr || mask_.fill(walk_, words.data(), words.size()) != 0;
  }
  bool advance(int32_t token) override { return walk_ != nullptr && mask_.advance(walk_, token) != 0; }
  void retreat(int32_t num_tokens) override {
    if (walk_ != nullptr && num_tokens > 0) mask_.retreat(walk_, num_tokens);
  }

 private:
  const headrace_token_mask mask_;
  const std::shared_ptr<const HostUser> user_;
  void* const walk_;
};

Status check(const headrace_token_mask& mask) {
  if (mask.reserved != 0) return invalid_argument("mask.reserved", "must be 0");
  const bool set = mask.start != nullptr && mask.fill != nullptr && mask.advance != nullptr &&
                   mask.retreat != nullptr && mask.end != nullptr;
  return set ? Status() : invalid_argument("mask", "start, fill, advance, retreat and end must be set");
}

}  // namespace

extern "C" {

void headrace_token_mask_init(headrace_token_mask* mask) { init_struct(mask); }

headrace_status headrace_request_set_token_mask(headrace_request* request, const headrace_token_mask* mask,
                                                headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (mask == nullptr) {
      request->params.token_mask = nullptr;
      return Status();
    }
    HEADRACE_ASSIGN_OR_RETURN(const headrace_token_mask given, read_struct("mask", mask, kTokenMaskSize1));
    HEADRACE_RETURN_IF_ERROR(check(given));
    const auto user = std::make_shared<HostUser>(given.user);
    request->params.token_mask = [given, user] { return std::make_unique<HostWalk>(given, user); };
    user->release_at_end(given.release);
    return Status();
  });
}

}  // extern "C"
