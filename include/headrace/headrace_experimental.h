/* Functions of Headrace that may still change: everything here may be renamed, altered or dropped in any version, while
 * headrace.h stays. The conventions are those of headrace.h. */
#ifndef HEADRACE_HEADRACE_EXPERIMENTAL_H
#define HEADRACE_HEADRACE_EXPERIMENTAL_H

#include <headrace/headrace.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Adapters --------------------------------------------------------------------------------------------------- */

/* A low-rank adapter (LoRA) of a model, chosen request by request: one model serves several at once, and requests without one
 * give the same bits as if none were loaded. Cached values are kept apart by the adapter's content. Immutable: [any] */
typedef struct headrace_adapter headrace_adapter;

/* [any] A folder in PEFT's form: adapter_config.json and adapter_model.safetensors; for models in Hugging Face's form.
 * HEADRACE_UNSUPPORTED with the key or tensor as place for what is not the sum of a weight and a low-rank product, and for
 * modules that the model does not have or adapt. May be called while requests run, which wait for the packing alone. */
HEADRACE_API headrace_status headrace_adapter_load(const headrace_model* model, const char* path, size_t path_size,
                                                   headrace_adapter** adapter, headrace_error** error);
/* Requests and sessions that have it keep it alive. */
HEADRACE_API void headrace_adapter_destroy(headrace_adapter* adapter);
/* JSON: {"modules", "max_rank", "parameters", "bytes", "identity"}, the last of its content. */
HEADRACE_API headrace_status headrace_adapter_describe(const headrace_adapter* adapter, char* buffer, size_t capacity,
                                                       size_t* needed, headrace_error** error);

/* [object] NULL: none, the default. A request on a session has the session's, and is refused at submit with one of its own. */
HEADRACE_API headrace_status headrace_request_set_adapter(headrace_request* request, const headrace_adapter* adapter,
                                                          headrace_error** error);
/* [object] The adapter of all that the session computes from here on, requests on it too; NULL: none. Values of another one are
 * forgotten and computed again when they are needed; tokens stay. A session with an adapter cannot be saved. */
HEADRACE_API headrace_status headrace_session_set_adapter(headrace_session* session, const headrace_adapter* adapter,
                                                          headrace_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_HEADRACE_EXPERIMENTAL_H */
