#include "engine/session_overflow.h"

#include <string>
#include <utility>

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/host_user.h"
#include "formats/json.h"
#include "formats/json_writer.h"

using namespace headrace;
using namespace headrace::capi;

struct headrace_summary {
  bool of_messages = false;
  std::string dropped;
  bool is_set = false;
  engine::SessionOverflow::Part part;
};

namespace {

using Kind = engine::SessionOverflow::Kind;
using Part = engine::SessionOverflow::Part;

constexpr size_t kOverflowSize1 = offsetof(headrace_overflow, release) + sizeof(headrace_release_callback);
constexpr size_t kDroppedSize1 = offsetof(headrace_dropped, tokens) + sizeof(int64_t);

std::string describe(const Part& part) {
  JsonWriter json;
  json.begin_array();
  for (const engine::SessionMessage& message : part.messages) {
    json.begin_object();
    json.key("role");
    json.value(message.role);
    json.key("content");
    if (message.has_parts) {
      json.raw(message.content);
    } else {
      json.value(message.content);
    }
    json.end_object();
  }
  for (const int32_t id : part.tokens) json.value(id);
  json.end_array();
  return json.take();
}

Result<Part> read_part(std::string_view text, bool of_messages) {
  HEADRACE_ASSIGN_OR_RETURN(const auto json, parse_json(text, "json"));
  if (!json.is_array()) return malformed("json", "is no array");
  Part part;
  for (const auto& item : json) {
    if (!of_messages) {
      const auto id = json_integer(item);
      if (!id || *id < 0 || *id > INT32_MAX) return malformed("json", "holds what is no token id");
      part.tokens.push_back(static_cast<int32_t>(*id));
      continue;
    }
    const auto text_of = [&](const char* name) {
      return item.is_object() && item.contains(name) ? item.at(name).get_ptr<const std::string*>() : nullptr;
    };
    const std::string* const role = text_of("role");
    const std::string* const content = text_of("content");
    if (role == nullptr || content == nullptr || item.size() != 2) {
      return malformed("json", "holds what is no object of the texts \"role\" and \"content\" alone");
    }
    part.messages.push_back({*role, *content});
  }
  return part;
}

Result<Part> summarize(decltype(headrace_overflow::summarize) function, void* user, const Part& dropped) {
  headrace_summary summary;
  summary.of_messages = !dropped.messages.empty();
  summary.dropped = describe(dropped);
  const headrace_status status = function(user, &summary);
  if (status != HEADRACE_OK) {
    const bool known = status > HEADRACE_OK && status <= HEADRACE_INTERNAL;
    return Status(known ? static_cast<StatusCode>(status) : StatusCode::kInternal, "the host's function failed");
  }
  if (!summary.is_set) return failed_precondition("", "the host's function set no summary");
  return std::move(summary.part);
}

}  // namespace

extern "C" {

void headrace_overflow_init(headrace_overflow* overflow) { init_struct(overflow); }

headrace_status headrace_session_set_overflow(headrace_session* session, const headrace_overflow* overflow,
                                              headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (overflow == nullptr) return session->session->set_overflow({});
    HEADRACE_ASSIGN_OR_RETURN(const headrace_overflow given, read_struct("overflow", overflow, kOverflowSize1));
    if (given.kind < HEADRACE_OVERFLOW_REFUSE || given.kind > HEADRACE_OVERFLOW_SUMMARIZE) {
      return invalid_argument("overflow.kind", "{} is none of the kinds", given.kind);
    }
    const auto user = std::make_shared<HostUser>(given.user);
    engine::SessionOverflow policy;
    policy.kind = static_cast<Kind>(given.kind);
    policy.keep_first = given.keep_first;
    policy.free_tokens = given.free_tokens;
    if (const auto function = given.summarize) {
      policy.summarize = [function, user](const Part& dropped) { return summarize(function, user->get(), dropped); };
    }
    HEADRACE_RETURN_IF_ERROR(session->session->set_overflow(std::move(policy)));
    user->release_at_end(given.release);
    return Status();
  });
}

const char* headrace_summary_get_dropped(const headrace_summary* summary, size_t* size) {
  if (size != nullptr) *size = summary == nullptr ? 0 : summary->dropped.size();
  return summary == nullptr ? "" : summary->dropped.c_str();
}

headrace_status headrace_summary_set(headrace_summary* summary, const char* json, size_t json_size,
                                     headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (summary == nullptr) return null_argument("summary");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, text_argument("json", json, json_size));
    HEADRACE_ASSIGN_OR_RETURN(summary->part, read_part(text, summary->of_messages));
    summary->is_set = true;
    return Status();
  });
}

void headrace_dropped_init(headrace_dropped* dropped) { init_struct(dropped); }

headrace_status headrace_session_get_dropped(const headrace_session* session, headrace_dropped* dropped,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    const engine::SessionDropped now = session->session->dropped();
    headrace_dropped values = {};
    values.times = now.times;
    values.messages = now.messages;
    values.tokens = now.tokens;
    return write_struct("dropped", values, dropped, kDroppedSize1);
  });
}

headrace_status headrace_session_set_message(headrace_session* session, size_t index, const char* content,
                                             size_t content_size, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, text_argument("content", content, content_size));
    return session->session->set_message(index, text);
  });
}

headrace_status headrace_session_truncate_messages(headrace_session* session, size_t num_messages,
                                                   headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    return session->session->truncate_messages(num_messages);
  });
}

}  // extern "C"
