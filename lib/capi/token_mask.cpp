#include "sampling/token_mask.h"

#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

constexpr size_t kTokenMaskSize1 = offsetof(headrace_token_mask, release) + sizeof(headrace_release_callback);

// The caller's functions and `user`, which is released with the last that uses them.
class HostMask {
 public:
  explicit HostMask(const headrace_token_mask& functions) : functions_(functions) {}
  ~HostMask() {
    if (functions_.release != nullptr) functions_.release(functions_.user);
  }
  HostMask(const HostMask&) = delete;
  HostMask& operator=(const HostMask&) = delete;
  const headrace_token_mask& functions() const { return functions_; }
  void release_at_end(headrace_release_callback release) { functions_.release = release; }

 private:
  headrace_token_mask functions_;
};

class HostWalk : public TokenMask {
 public:
  explicit HostWalk(std::shared_ptr<const HostMask> mask)
      : mask_(std::move(mask)), walk_(mask_->functions().start(mask_->functions().user)) {}
  ~HostWalk() override {
    if (walk_ != nullptr) mask_->functions().end(walk_);
  }
  HostWalk(const HostWalk&) = delete;
  HostWalk& operator=(const HostWalk&) = delete;

  // A walk that was not started allows nothing.
  bool fill(std::span<const float>, std::span<uint32_t> words) override {
    return walk_ == nullptr || mask_->functions().fill(walk_, words.data(), words.size()) != 0;
  }
  bool advance(int32_t token) override { return walk_ != nullptr && mask_->functions().advance(walk_, token) != 0; }
  void retreat(int32_t num_tokens) override {
    if (walk_ != nullptr && num_tokens > 0) mask_->functions().retreat(walk_, num_tokens);
  }

 private:
  const std::shared_ptr<const HostMask> mask_;
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
    HEADRACE_ASSIGN_OR_RETURN(headrace_token_mask given, read_struct("mask", mask, kTokenMaskSize1));
    HEADRACE_RETURN_IF_ERROR(check(given));
    const headrace_release_callback release = std::exchange(given.release, nullptr);
    const auto host = std::make_shared<HostMask>(given);
    request->params.token_mask = [host] { return std::make_unique<HostWalk>(host); };
    host->release_at_end(release);  // nothing can fail any more
    return Status();
  });
}

}  // extern "C"
