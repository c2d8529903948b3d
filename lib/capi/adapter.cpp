#include "model/adapter.h"

#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

extern "C" {

headrace_status headrace_adapter_load(const headrace_model* model, const char* path, size_t path_size,
                                      headrace_adapter** adapter, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (adapter == nullptr) return null_argument("adapter");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view folder, path_argument(path, path_size));
    HEADRACE_ASSIGN_OR_RETURN(auto loaded, model->loaded->engine->executor->load_adapter(std::string(folder)));
    *adapter = new headrace_adapter{model->loaded, std::move(loaded)};
    return Status();
  });
}

void headrace_adapter_destroy(headrace_adapter* adapter) { delete adapter; }

headrace_status headrace_adapter_describe(const headrace_adapter* adapter, char* buffer, size_t capacity,
                                          size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (adapter == nullptr) return null_argument("adapter");
    return copy_text(adapter->adapter->describe(), buffer, capacity, needed);
  });
}

}  // extern "C"
