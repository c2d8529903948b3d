#include "capi/guard.h"
#include "capi/handles.h"
#include "formats/json_writer.h"

using namespace headrace;
using namespace headrace::capi;

extern "C" {

headrace_status headrace_options_create(headrace_options** options, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (options == nullptr) return null_argument("options");
    *options = new headrace_options();
    return Status();
  });
}

headrace_status headrace_options_set(headrace_options* options, const char* key, size_t key_size, const char* value,
                                     size_t value_size, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (options == nullptr) return null_argument("options");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view key_text, text_argument("key", key, key_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view value_text, text_argument("value", value, value_size));
    return options->values.set(key_text, value_text);
  });
}

headrace_status headrace_options_set_log(headrace_options* options, headrace_log_callback callback, void* user,
                                         headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (options == nullptr) return null_argument("options");
    if (callback == nullptr) {
      options->values.log = nullptr;
      return Status();
    }
    options->values.log = [callback, user](LogLevel level, std::string_view component, std::string_view line) {
      callback(user, static_cast<int32_t>(level), std::string(component).c_str(), std::string(line).c_str());
    };
    return Status();
  });
}

void headrace_options_destroy(headrace_options* options) { delete options; }

size_t headrace_options_get_count(void) { return engine::option_table().size(); }

headrace_status headrace_options_get_info(size_t index, char* buffer, size_t capacity, size_t* needed,
                                          headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (index >= engine::option_table().size()) return not_found("index", "there is no option {}", index);
    const engine::OptionInfo& info = engine::option_table()[index];
    JsonWriter out;
    out.begin_object();
    out.member("key", info.key);
    out.member("type", info.type);
    out.member("default", info.default_value);
    out.member("range", info.range);
    out.member("doc", info.doc);
    out.end_object();
    return copy_text(out.text(), buffer, capacity, needed);
  });
}

}  // extern "C"
