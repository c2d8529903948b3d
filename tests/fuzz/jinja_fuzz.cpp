// Any bytes as a chat template over a fixed conversation: a clear error or a prompt whose spans cover it,
// within small limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "text/chat_template.h"

using headrace::text::ChatTemplate;
using headrace::text::RenderOptions;
using Json = nlohmann::ordered_json;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Json messages = Json::parse(R"([
    {"role": "system", "content": "Be <brief>."},
    {"role": "user", "content": "  Grüße 世界 \n{}%s"},
    {"role": "assistant", "content": "Hi", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]},
    {"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]}])");
  static const Json tools = Json::parse(R"([{"name": "f", "parameters": {"b": 1, "a": [true, null, 1e30, "é"]}}])");
  static const Json kwargs = Json::parse(R"({"items": [3, 1, 2], "s": "Hello", "big": 18446744073709551615, "n": -7})");
  const auto parsed = ChatTemplate::parse({reinterpret_cast<const char*>(data), size}, {{"bos_token", "<s>"}});
  if (!parsed.ok()) return 0;
  RenderOptions options;
  options.now_unix_seconds = 1741338303;
  options.max_output_bytes = 1 << 16;
  options.max_steps = 100'000;
  options.max_depth = 50;
  const auto result = (*parsed)->render(messages, tools, kwargs, options);
  if (!result.ok()) return 0;
  size_t end = 0;
  for (const auto& span : result->spans) {
    if (span.begin != end || span.end <= span.begin) std::abort();
    end = span.end;
  }
  if (end != result->text.size() || end > options.max_output_bytes) std::abort();
  return 0;
}
