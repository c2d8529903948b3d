#include "base/cpu_features.h"
#include "capi/guard.h"
#include "formats/json_writer.h"
#include "model/families/family.h"
#include "model/families/registry.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

void write_architectures(JsonWriter& out) {
  out.key("architectures");
  out.begin_array();
  for (const Family* family : all_families()) {
    out.begin_object();
    out.member("name", family->name);
    out.member("model_type", family->hf_model_type);
    out.member("class", family->hf_architecture);
    out.member("gguf", family->gguf_architecture);
    out.end_object();
  }
  out.end_array();
}

}  // namespace

extern "C" {

uint32_t headrace_abi_version(void) { return HEADRACE_ABI_VERSION; }

const char* headrace_version(void) { return HEADRACE_VERSION; }

headrace_status headrace_system_describe(char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    JsonWriter out;
    out.begin_object();
    out.member("version", HEADRACE_VERSION);
    out.member("abi_version", HEADRACE_ABI_VERSION);
    out.key("isas");
    out.begin_array();
    for (const Isa isa : available_isas()) out.value(isa_name(isa));
    out.end_array();
    out.member("processors", usable_processors());
    write_architectures(out);
    out.end_object();
    return copy_text(out.text(), buffer, capacity, needed);
  });
}

}  // extern "C"
