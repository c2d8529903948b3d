// Chat templates: a model's Jinja template rendered over a conversation, byte for byte as Hugging Face
// transformers' apply_chat_template renders it (jinja2's ImmutableSandboxedEnvironment with trim_blocks,
// lstrip_blocks, loop controls, the generation tag, and transformers' own tojson, raise_exception and
// strftime_now), and with the origin of every byte of the prompt: what the template's author wrote, or what a
// caller sent.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace headrace::text {

// What one rendering may see and spend. Exceeding a limit is kResourceExhausted (kDeadlineExceeded for the
// deadline).
struct RenderOptions {
  // The template's variable of that name.
  bool add_generation_prompt = true;
  // The clock of strftime_now(format), in this order: the function if given, else these seconds since 1970
  // read as UTC. With neither, a template that calls strftime_now fails: the library reads no clock unasked.
  std::function<std::string(std::string_view format)> strftime_now;
  std::optional<int64_t> now_unix_seconds;

  // Bytes of the prompt, and of every string built on the way to it.
  size_t max_output_bytes = size_t{16} << 20;
  // Steps of the interpreter: expressions evaluated and elements visited. Bounds time and memory.
  uint64_t max_steps = 50'000'000;
  // Nesting of macro calls and recursive loops. (Native stack is bounded apart from that, at 1 MiB.)
  int max_depth = 200;
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

// Bytes [begin, end) of RenderedPrompt::text.
struct RenderedSpan {
  size_t begin = 0;
  size_t end = 0;
  // True for bytes that came from messages, tools or kwargs, or that can't be told apart from such. False
  // (scaffold) for the template's own literals and the special tokens given to parse(): only there may the
  // tokenizer read special tokens.
  bool is_content = false;
};

struct RenderedPrompt {
  std::string text;
  // Cover `text` in order, without gaps; neighbours differ in is_content.
  std::vector<RenderedSpan> spans;
  // Byte ranges [begin, end) written inside {% generation %} ... {% endgeneration %}: the assistant's own
  // words.
  std::vector<std::pair<size_t, size_t>> generation_spans;
};

// A parsed template. Immutable: any number of threads may render at once.
class ChatTemplate {
 public:
  // `special_tokens` (bos_token, eos_token, ...) become variables of the template whose text counts as
  // scaffold. Errors: kMalformed with the place "line L, column C" (counted from 1, columns in code points)
  // for what isn't a template, or uses an unknown tag, filter or test; nothing falls back to another
  // template.
  static Result<std::shared_ptr<const ChatTemplate>> parse(std::string_view source,
                                                           std::map<std::string, std::string> special_tokens);

  // Renders the conversation.
  //  messages: an array of objects {"role", "content", ...}. As in transformers (5.24), a message's null
  //  entries are
  //            left out, and the first of reasoning_content, thinking and reasoning that it has becomes its
  //            reasoning_content, and its thinking if it has none. The roles system, developer, user,
  //            assistant, tool and function count as scaffold, since templates build turn markers of them;
  //            other roles are content.
  //  tools:    an array of tool definitions, or null for none.
  //  kwargs:   an object of further variables (enable_thinking, documents, ...), or null. They override
  //  special
  //            tokens of the same name, and then count as content.
  // Errors: kInvalidArgument with the template's own words when it calls raise_exception, or with a
  // description when the conversation doesn't fit the template (an undefined attribute, a wrong type); both
  // name the template's line and column as place. Limits as RenderOptions says.
  Result<RenderedPrompt> render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                                const nlohmann::ordered_json& kwargs, const RenderOptions& options) const;

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace headrace::text
