// Tuning a loaded model's products.
#include <functional>
#include <memory>

#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

extern "C" {

headrace_status headrace_tuning_create(const headrace_model* model, double seconds, const char* table,
                                       size_t table_size, headrace_progress_callback progress, void* user,
                                       headrace_tuning** tuning, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (tuning == nullptr) return null_argument("tuning");
    if (!(seconds > 0 && seconds <= 86400)) return invalid_argument("seconds", "{} is not in (0, 86400]", seconds);
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view known, text_argument("table", table, table_size));
    // Kept until the end: the callback may destroy the handle.
    const std::shared_ptr<const LoadedModel> loaded = model->loaded;
    std::function<bool(double)> report;
    if (progress != nullptr) report = [&](double fraction) { return progress(user, fraction) == 0; };
    HEADRACE_ASSIGN_OR_RETURN(std::string text, loaded->engine->executor->tune({seconds, std::string(known)}, report));
    *tuning = new headrace_tuning{std::move(text)};
    return Status();
  });
}

void headrace_tuning_destroy(headrace_tuning* tuning) { delete tuning; }

headrace_status headrace_tuning_describe(const headrace_tuning* tuning, char* buffer, size_t capacity, size_t* needed,
                                         headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (tuning == nullptr) return null_argument("tuning");
    return copy_text(tuning->table, buffer, capacity, needed);
  });
}

}  // extern "C"
