#include "capi/guard.h"

extern "C" {

headrace_status headrace_error_get_code(const headrace_error* error) { return error ? error->code : HEADRACE_OK; }

const char* headrace_error_get_message(const headrace_error* error) { return error ? error->message.c_str() : ""; }

const char* headrace_error_get_place(const headrace_error* error) { return error ? error->place.c_str() : ""; }

void headrace_error_destroy(headrace_error* error) { delete error; }

const char* headrace_status_get_name(headrace_status status) {
  switch (status) {
    case HEADRACE_OK: return "HEADRACE_OK";
    case HEADRACE_INVALID_ARGUMENT: return "HEADRACE_INVALID_ARGUMENT";
    case HEADRACE_NOT_FOUND: return "HEADRACE_NOT_FOUND";
    case HEADRACE_IO_ERROR: return "HEADRACE_IO_ERROR";
    case HEADRACE_MALFORMED: return "HEADRACE_MALFORMED";
    case HEADRACE_UNSUPPORTED: return "HEADRACE_UNSUPPORTED";
    case HEADRACE_OUT_OF_MEMORY: return "HEADRACE_OUT_OF_MEMORY";
    case HEADRACE_RESOURCE_EXHAUSTED: return "HEADRACE_RESOURCE_EXHAUSTED";
    case HEADRACE_FAILED_PRECONDITION: return "HEADRACE_FAILED_PRECONDITION";
    case HEADRACE_CANCELLED: return "HEADRACE_CANCELLED";
    case HEADRACE_DEADLINE_EXCEEDED: return "HEADRACE_DEADLINE_EXCEEDED";
    case HEADRACE_BUFFER_TOO_SMALL: return "HEADRACE_BUFFER_TOO_SMALL";
    case HEADRACE_INTERNAL: return "HEADRACE_INTERNAL";
    default: return "HEADRACE_UNKNOWN";
  }
}

}  // extern "C"
