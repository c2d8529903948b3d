#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <string>

#include "text/onig_pattern.h"
#include "text/utf8.h"

namespace headrace::text {

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = nullptr;
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;

Result<Regex> Regex::compile(std::string_view pattern, std::string_view place) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string rewritten, onig_to_pcre2(pattern, place));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code->code == nullptr) {
    PCRE2_UCHAR message[160] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return unsupported(std::string(place), "pattern {}: {} (at byte {} of {})", pattern,
                       reinterpret_cast<const char*>(message), offset, rewritten);
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  Regex regex;
  regex.code_ = std::move(code);
  return regex;
}

Status Regex::split(std::string_view text, size_t base, std::vector<Stretch>& out, RegexScratch& scratch) const {
  if (text.empty()) return {};
  RegexScratch::State& state = *scratch.state_;
  if (state.data == nullptr || state.context == nullptr) return out_of_memory("regex", "no memory for a match");
  // A linear pattern takes a few steps a byte; an exponential one meets this bound instead of running for
  // hours.
  pcre2_set_match_limit(state.context,
                        static_cast<uint32_t>(std::min<size_t>(10'000'000 + 64 * text.size(), 1u << 31)));
  pcre2_set_heap_limit(state.context, 512 * 1024);  // KiB

  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t previous_end = 0;  // of the last match, or 0
  bool matched = false;
  size_t from = 0;
  bool interpret = !code_->jit;
  while (from <= text.size()) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (!interpret) {
      rc = pcre2_jit_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, state.data, state.context);
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT && state.stack == nullptr) {
        // The default stack is the 32 KiB of the machine stack; patterns with repeated groups want more.
        state.stack = pcre2_jit_stack_create(64 * 1024, 64 * 1024 * 1024, nullptr);
        if (state.stack != nullptr) {
          pcre2_jit_stack_assign(state.context, nullptr, state.stack);
          continue;
        }
      }
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT) interpret = true;
    }
    if (interpret) {
      rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data,
                       state.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      PCRE2_UCHAR message[160] = {};
      pcre2_get_error_message(rc, message, sizeof message);
      return resource_exhausted("regex", "the pre-tokenizer's pattern gave up at byte {} of {}: {}", from, text.size(),
                                reinterpret_cast<const char*>(message));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data);
    const size_t begin = range[0], end = range[1];
    if (begin > end || end > text.size())
      return internal_error("regex", "a match of negative length");  // \K in look-ahead
    if (begin == end && matched && previous_end == end) {
      // An empty match right behind a match does not count; look one character further.
      if (from >= text.size()) break;
      from += utf8_length(text[from]);
      continue;
    }
    if (begin < previous_end) return internal_error("regex", "a match before the last one");
    if (begin > previous_end) out.push_back({base + previous_end, base + begin, false});
    out.push_back({base + begin, base + end, true});
    previous_end = end;
    matched = true;
    from = end;
  }
  if (previous_end < text.size()) out.push_back({base + previous_end, base + text.size(), false});
  return {};
}

}  // namespace headrace::text
