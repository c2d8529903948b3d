#include "engine/session_overflow.h"

#include <algorithm>
#include <utility>

#include "engine/session.h"
#include "text/utf8.h"

namespace headrace::engine {
namespace {

using Kind = SessionOverflow::Kind;
using Part = SessionOverflow::Part;

// Busy while the host's own code runs without the lock.
class Unlocked {
 public:
  Unlocked(std::unique_lock<std::mutex>& lock, bool& busy) : lock_(lock), busy_(busy) {
    busy_ = true;
    lock_.unlock();
  }
  ~Unlocked() {
    lock_.lock();
    busy_ = false;
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
  bool& busy_;
};

Status too_long(int64_t size, int64_t room) {
  return resource_exhausted("summarize", "a summary of {} tokens where there is room for {}", size, room);
}

}  // namespace

Status Session::set_overflow(SessionOverflow overflow) {
  if (overflow.keep_first < 0) return invalid_argument("keep_first", "{} is negative", overflow.keep_first);
  if (overflow.free_tokens < 0) return invalid_argument("free_tokens", "{} is negative", overflow.free_tokens);
  if ((overflow.kind == Kind::kSummarize) != static_cast<bool>(overflow.summarize)) {
    return invalid_argument("summarize", "stands for the kind that summarizes, and for no other");
  }
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  std::swap(overflow_, overflow);  // the old one goes without the lock: what the host releases may call the session
  return Status();
}

SessionDropped Session::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

// Whether a prompt of so many tokens leaves room for the output that is asked for. An output without an end asks for one token,
// and one longer than what an overflow frees for no more than that.
bool Session::fits(int64_t prompt_size, const SessionOutput& output) const {
  const int64_t limit = context_limit(*model_, *kv_cache_);
  const int64_t most = std::min(std::max<int64_t>(output.most, 1), freed(limit));
  return prompt_size <= limit - std::max(most, output.least);
}

int64_t Session::freed(int64_t limit) const {
  return std::clamp<int64_t>(overflow_.free_tokens > 0 ? overflow_.free_tokens : limit / 2, 1, limit);
}

Status Session::shorten(std::unique_lock<std::mutex>& lock, int64_t request_tokens, const SessionOutput& output) {
  const int64_t limit = context_limit(*model_, *kv_cache_);
  const int64_t most = limit - std::max<int64_t>(output.least, 1);
  const int64_t target = std::min(limit - freed(limit), most);
  return conversation_.messages.empty() ? shorten_tokens(lock, request_tokens, target, most)
                                        : shorten_messages(lock, target, most);
}

Result<Part> Session::summary_of(std::unique_lock<std::mutex>& lock, const Part& dropped) {
  if (overflow_.kind != Kind::kSummarize) return Part();
  const auto summarize = overflow_.summarize;
  auto summary = [&]() -> Result<Part> {
    const Unlocked unlocked(lock, busy_);
    return summarize(dropped);
  }();
  if (!summary.ok()) return summary.status().within("summarize");
  if (conversation_.messages.empty() ? !summary->messages.empty() : !summary->tokens.empty()) {
    return invalid_argument("summarize", "{} stand for {}", conversation_.messages.empty() ? "messages" : "tokens",
                            conversation_.messages.empty() ? "tokens" : "messages");
  }
  for (const SessionMessage& message : summary->messages) {
    if (message.role.empty()) return invalid_argument("summarize", "a message has no role");
    for (const std::string* text : {&message.role, &message.content}) {
      if (text::utf8_invalid_offset(*text) != std::string::npos) {
        return invalid_argument("summarize", "a message is not UTF-8");
      }
    }
  }
  return summary;
}

// Whole messages go, up to one of the user's or to the last, which stays: templates want a conversation to begin with the user.
Status Session::shorten_messages(std::unique_lock<std::mutex>& lock, int64_t target, int64_t most) {
  const auto& messages = conversation_.messages;
  const size_t first = std::min(static_cast<size_t>(overflow_.keep_first), messages.size() - 1);
  std::vector<size_t> ends;
  for (size_t end = first + 1; end < messages.size(); ++end) {
    if (end + 1 == messages.size() || messages[end].role == "user") ends.push_back(end);
  }
  const auto without = [&](size_t end, const std::vector<SessionMessage>& put) {
    Conversation rest = conversation_;
    rest.forget_images(first, end);
    const auto place = rest.messages.erase(rest.messages.begin() + static_cast<ptrdiff_t>(first),
                                           rest.messages.begin() + static_cast<ptrdiff_t>(end));
    rest.messages.insert(place, put.begin(), put.end());
    return rest;
  };
  const auto rendered_size = [&](const Conversation& conversation) -> Result<int64_t> {
    Lease lease;
    HEADRACE_RETURN_IF_ERROR(render(conversation, lease));
    return static_cast<int64_t>(lease.prompt.size());
  };
  if (ends.empty()) return Status();  // nothing can go; the request is refused with its counts
  // The first end that leaves a conversation short enough, else the last; the more goes, the shorter.
  size_t low = 0, high = ends.size() - 1;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    HEADRACE_ASSIGN_OR_RETURN(const int64_t size, rendered_size(without(ends[middle], {})));
    if (size <= target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const size_t end = ends[low];
  HEADRACE_ASSIGN_OR_RETURN(const int64_t size, rendered_size(without(end, {})));
  if (size > most) return Status();  // refused as it is, rather than shortened for nothing
  Part dropped;
  dropped.messages.assign(messages.begin() + static_cast<ptrdiff_t>(first),
                          messages.begin() + static_cast<ptrdiff_t>(end));
  HEADRACE_ASSIGN_OR_RETURN(const Part summary, summary_of(lock, dropped));
  Conversation rest = without(end, summary.messages);
  if (!summary.messages.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t size_after, rendered_size(rest));
    if (size_after > most) return too_long(size_after - size, most - size);
  }
  conversation_ = std::move(rest);
  ++dropped_.times;
  dropped_.messages += static_cast<int64_t>(end - first);
  return Status();
}

// Tokens go from the kept front on, and images whole.
Status Session::shorten_tokens(std::unique_lock<std::mutex>& lock, int64_t request_tokens, int64_t target,
                               int64_t most) {
  const auto size = static_cast<int64_t>(tokens_.size());
  const auto end_of_image = [&](int64_t position) {
    for (const PlacedImage& image : images_) {
      if (image.begin < position && position < image.end()) return image.end();
    }
    return position;
  };
  const int64_t begin = end_of_image(std::min(overflow_.keep_first, size));
  const int64_t end = end_of_image(std::clamp(begin + size + request_tokens - target, begin, size));
  const int64_t room = most - (size - (end - begin) + request_tokens);
  if (begin == end || room < 0) return Status();  // refused as it is, with its counts
  Part dropped;
  dropped.tokens.assign(tokens_.begin() + begin, tokens_.begin() + end);
  for (int32_t& id : dropped.tokens) id = shown_token(model_->executor->images(), id);
  HEADRACE_ASSIGN_OR_RETURN(const Part summary, summary_of(lock, dropped));
  const int32_t vocab_size = model_->executor->vocab_size();
  for (const int32_t id : summary.tokens) {
    if (id < 0 || id >= vocab_size) return invalid_argument("summarize", "{} is no token id", id);
  }
  const auto summary_size = static_cast<int64_t>(summary.tokens.size());
  if (summary_size > room) return too_long(summary_size, room);
  std::vector<int32_t> rest(tokens_.begin(), tokens_.begin() + begin);
  rest.insert(rest.end(), summary.tokens.begin(), summary.tokens.end());
  rest.insert(rest.end(), tokens_.begin() + end, tokens_.end());
  const int64_t moved = static_cast<int64_t>(rest.size()) - size;
  unpark();  // while all is as it was: it may lack memory
  std::erase_if(images_, [&](const PlacedImage& image) { return image.begin >= begin && image.end() <= end; });
  for (PlacedImage& image : images_) {
    if (image.begin >= end) image.begin += moved;
  }
  tokens_.swap(rest);
  if (kv_.num_tokens() > begin) kv_cache_->rewind(kv_, begin);
  ++dropped_.times;
  dropped_.tokens += end - begin;
  return Status();
}

}  // namespace headrace::engine
