#include "text/chat_template.h"

#include <algorithm>
#include <new>

#include <nlohmann/json.hpp>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace headrace::text {
namespace {

using jinja::Heap;
using jinja::Value;
using Json = nlohmann::ordered_json;

Status to_status(const jinja::Failure& failure) {
  return Status(failure.code, failure.message, jinja::to_string(failure.position));
}

// Roles name the speaker and are no free text: templates build their turn markers from them ("<|" + role +
// "|>"), so the roles that every API has count as the template's own words.
bool is_known_role(const std::string& role) {
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

constexpr std::string_view kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

// A message as templates see it: without its null entries, and with its reasoning under the names that
// templates read. The order of keys is transformers' too, since a template may print the whole message.
Value to_message(Heap& heap, const Json& message) {
  Json::const_pointer reasoning = nullptr;
  for (const std::string_view field : kReasoningFields) {
    const auto found = message.find(field);
    if (reasoning || found == message.end() || found->is_null()) continue;
    reasoning = &*found;
  }
  auto dict = std::make_shared<jinja::DictObject>();
  const auto set = [&](const std::string& key, const Json& value) {
    const Value name = jinja::from_json(heap, Json(key));
    if (key == "role" && value.is_string() && is_known_role(value.get_ref<const std::string&>())) {
      dict->set(name, jinja::make_string(heap, value.get_ref<const std::string&>(), jinja::kTrusted));
    } else {
      dict->set(name, jinja::from_json(heap, value));
    }
  };
  if (reasoning) set("thinking", *reasoning);
  for (const auto& [key, value] : message.items())
    if (!value.is_null()) set(key, value);
  if (reasoning) set("reasoning_content", *reasoning);
  return jinja::make_dict(heap, std::move(dict));
}

Value to_messages(Heap& heap, const Json& messages) {
  jinja::Values items;
  items.reserve(messages.size());
  for (const Json& message : messages) items.push_back(to_message(heap, message));
  return jinja::make_sequence(heap, jinja::Kind::kList, std::move(items));
}

RenderedPrompt to_prompt(jinja::StyledText text) {
  RenderedPrompt prompt;
  size_t begin = 0;
  for (const jinja::Run& run : text.runs) {
    const bool content = (run.origin & jinja::kContent) != 0;
    if (!prompt.spans.empty() && prompt.spans.back().is_content == content) {
      prompt.spans.back().end = run.end;
    } else {
      prompt.spans.push_back({begin, run.end, content});
    }
    if ((run.origin & jinja::kGenerated) != 0) {
      auto& generated = prompt.generation_spans;
      if (!generated.empty() && generated.back().second == begin) {
        generated.back().second = run.end;
      } else {
        generated.emplace_back(begin, run.end);
      }
    }
    begin = run.end;
  }
  prompt.text = std::move(text.bytes);
  return prompt;
}

Status check_conversation(const Json& messages, const Json& tools, const Json& kwargs) {
  if (!messages.is_array()) return invalid_argument("messages", "must be an array");
  for (size_t i = 0; i < messages.size(); ++i)
    if (!messages[i].is_object()) return invalid_argument(fmt::format("messages[{}]", i), "must be an object");
  if (!tools.is_null()) {
    if (!tools.is_array()) return invalid_argument("tools", "must be an array or null");
    for (size_t i = 0; i < tools.size(); ++i)
      if (!tools[i].is_object()) return invalid_argument(fmt::format("tools[{}]", i), "must be an object");
  }
  if (!kwargs.is_null() && !kwargs.is_object()) return invalid_argument("kwargs", "must be an object or null");
  for (const char* name : {"messages", "tools", "add_generation_prompt"}) {
    if (kwargs.is_object() && kwargs.contains(name)) {
      return invalid_argument(fmt::format("variables.{}", name), "is an argument of its own, and no variable");
    }
  }
  return {};
}

}  // namespace

struct ChatTemplate::Impl {
  std::unique_ptr<const jinja::Template> parsed;
  std::map<std::string, std::string> special_tokens;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(std::string_view source,
                                                                std::map<std::string, std::string> special_tokens) {
  try {
    auto impl = std::make_unique<Impl>();
    impl->parsed = jinja::parse_template(source);
    impl->special_tokens = std::move(special_tokens);
    return std::shared_ptr<const ChatTemplate>(new ChatTemplate(std::move(impl)));
  } catch (const jinja::Failure& failure) {
    return to_status(failure);
  } catch (const std::bad_alloc&) {
    return out_of_memory({}, "no memory for the chat template");
  }
}

Result<RenderedPrompt> ChatTemplate::render(const Json& messages, const Json& tools, const Json& kwargs,
                                            const RenderOptions& options) const {
  HEADRACE_RETURN_IF_ERROR(check_conversation(messages, tools, kwargs));
  try {
    jinja::Limits limits;
    limits.max_steps = options.max_steps;
    limits.max_string_bytes = options.max_output_bytes;
    // Room for the conversation and for what is built on the way, a multiple of the prompt.
    limits.max_live_bytes = std::max<size_t>(options.max_output_bytes, size_t{1} << 20);
    limits.max_live_bytes = limits.max_live_bytes > SIZE_MAX / 16 ? SIZE_MAX : limits.max_live_bytes * 16;
    limits.max_depth = options.max_depth;
    limits.deadline = options.deadline;
    jinja::Interpreter::Clock clock = options.strftime_now;
    if (!clock && options.now_unix_seconds) {
      clock = [now = *options.now_unix_seconds](std::string_view format) { return jinja::format_time(now, format); };
    }
    jinja::Interpreter interpreter(*impl_->parsed, limits, std::move(clock));
    Heap& heap = interpreter.heap();
    for (const auto& [name, token] : impl_->special_tokens)
      interpreter.set_variable(name, jinja::make_string(heap, token, jinja::kTrusted));
    interpreter.set_variable("documents", Value());
    if (kwargs.is_object())
      for (const auto& [name, value] : kwargs.items()) interpreter.set_variable(name, jinja::from_json(heap, value));
    interpreter.set_variable("messages", to_messages(heap, messages));
    interpreter.set_variable("tools", jinja::from_json(heap, tools));
    interpreter.set_variable("add_generation_prompt", Value::boolean(options.add_generation_prompt));
    return to_prompt(interpreter.render());
  } catch (const jinja::Failure& failure) {
    return to_status(failure);
  } catch (const std::bad_alloc&) {
    return out_of_memory({}, "no memory to render the chat template");
  }
}

}  // namespace headrace::text
