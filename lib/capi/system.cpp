#include <nlohmann/json.hpp>

#include "base/cpu_features.h"
#include "capi/guard.h"

using namespace headrace;
using namespace headrace::capi;

extern "C" {

uint32_t headrace_abi_version(void) { return HEADRACE_ABI_VERSION; }

const char* headrace_version(void) { return HEADRACE_VERSION; }

headrace_status headrace_system_describe(char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    nlohmann::ordered_json isas = nlohmann::ordered_json::array();
    for (Isa isa : available_isas()) isas.push_back(isa_name(isa));
    const nlohmann::ordered_json json = {{"version", HEADRACE_VERSION},
                                         {"abi_version", HEADRACE_ABI_VERSION},
                                         {"isas", isas},
                                         {"processors", usable_processors()}};
    return copy_text(json.dump(), buffer, capacity, needed);
  });
}

}  // extern "C"
