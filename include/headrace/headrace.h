/* Headrace: large-language-model inference inside the program that links it. This header is the whole stable surface.
 *
 * Conventions, valid for every function below unless it says otherwise:
 * - Fallible calls return a headrace_status (0 is success) and, when `error` is not NULL, store there a
 *   headrace_error that the caller destroys (*error is set to NULL on success). Nothing is stored elsewhere: there is
 *   no last error. Outputs are written on success only.
 * - Handles are opaque. Functions named create, load, open, restore, fork or next give a handle that the caller
 *   destroys; functions named get give something borrowed that lives as long as its parent. Children keep their parents
 *   alive, so handles may be destroyed in any order. destroy(NULL) does nothing.
 * - Strings in are UTF-8 with a length in bytes; no terminating zero is needed. Text out goes to (buffer, capacity,
 *   *needed): `needed` (not NULL) always receives the size in bytes (or elements) of the whole result; when that is more than
 *   capacity, nothing is written and HEADRACE_BUFFER_TOO_SMALL is returned. A NULL buffer with capacity 0 asks for the size.
 * - Open structs begin with struct_size and are filled by their headrace_<struct>_init first; fields are only ever
 *   appended. A size that was never set, or an unknown non-zero tail, is HEADRACE_INVALID_ARGUMENT.
 * - Thread tags: [any] any thread at any time; [object] one thread at a time per object; [callback] only inside
 *   the callback named. No lock of the library is held while a callback runs.
 * - The library never prints, aborts, reads the environment or installs a signal handler.
 */
#ifndef HEADRACE_HEADRACE_H
#define HEADRACE_HEADRACE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define HEADRACE_API
#else
#define HEADRACE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ------------------------------------------------------------------------------------------ */

typedef int32_t headrace_status;

#define HEADRACE_OK 0
#define HEADRACE_INVALID_ARGUMENT 1    /* the call's arguments, an option or a request's field */
#define HEADRACE_NOT_FOUND 2           /* a file, a tensor, a key, a handle's part that is not there */
#define HEADRACE_IO_ERROR 3            /* the operating system or the host's callback could not read or write */
#define HEADRACE_MALFORMED 4           /* a file, template or JSON text breaks its format */
#define HEADRACE_UNSUPPORTED 5         /* well formed, but not something this build runs */
#define HEADRACE_OUT_OF_MEMORY 6       /* an allocation failed */
#define HEADRACE_RESOURCE_EXHAUSTED 7  /* a configured limit: KV blocks, context, queue length */
#define HEADRACE_FAILED_PRECONDITION 8 /* not in this state: a busy session, a cache of another model */
#define HEADRACE_CANCELLED 9           /* by the host */
#define HEADRACE_DEADLINE_EXCEEDED 10  /* the request's deadline passed */
#define HEADRACE_BUFFER_TOO_SMALL 11   /* see `needed` */
#define HEADRACE_INTERNAL 12           /* a defect of the library; please report it */

typedef struct headrace_error headrace_error;

/* [any] The code, what happened in words, and the place it speaks of (a tensor, a key, a JSON pointer, "line 3, column
 * 9"; may be empty). Zero-terminated, borrowed from the error. A NULL error gives 0 and "". */
HEADRACE_API headrace_status headrace_error_get_code(const headrace_error* error);
HEADRACE_API const char* headrace_error_get_message(const headrace_error* error);
HEADRACE_API const char* headrace_error_get_place(const headrace_error* error);
HEADRACE_API void headrace_error_destroy(headrace_error* error);

/* [any] A code's name, "HEADRACE_MALFORMED"; "HEADRACE_UNKNOWN" for others. Static. */
HEADRACE_API const char* headrace_status_get_name(headrace_status status);

/* ---- Version ---------------------------------------------------------------------------------------------------- */

#define HEADRACE_ABI_VERSION 1

/* [any] The ABI of the loaded library: equal to HEADRACE_ABI_VERSION of a compatible header. */
HEADRACE_API uint32_t headrace_abi_version(void);
/* [any] "0.1.0". Static. */
HEADRACE_API const char* headrace_version(void);
/* [any] JSON: {"version", "abi_version", "isas", "processors", "architectures"}; keys as in docs/c-abi.md. */
HEADRACE_API headrace_status headrace_system_describe(char* buffer, size_t capacity, size_t* needed, headrace_error** error);

/* ---- Options ---------------------------------------------------------------------------------------------------- */

/* Named settings for what is rarely set: "engine.threads", "model.activations", "kv.dtype", ... Each create or load
 * function reads those it knows; docs/c-abi.md lists them, and headrace_options_get_info enumerates them. */
typedef struct headrace_options headrace_options;

HEADRACE_API headrace_status headrace_options_create(headrace_options** options, headrace_error** error);
/* [object] value is text: "4", "true", "f16". An unknown key, an unreadable value or one out of range is an error that
 * names the key. */
HEADRACE_API headrace_status headrace_options_set(headrace_options* options, const char* key, size_t key_size,
                                                  const char* value, size_t value_size, headrace_error** error);
HEADRACE_API void headrace_options_destroy(headrace_options* options);

/* Receives whole lines without newline; level 0 debug, 1 info, 2 warning, 3 error. Called from any thread. */
typedef void (*headrace_log_callback)(void* user, int32_t level, const char* component, const char* line);
/* [object] Where objects made with these options log; silent by default. */
HEADRACE_API headrace_status headrace_options_set_log(headrace_options* options, headrace_log_callback callback, void* user,
                                                      headrace_error** error);

/* [any] The number of known options, and the one at index as JSON: {"key", "type", "default", "range", "doc"}. */
HEADRACE_API size_t headrace_options_get_count(void);
HEADRACE_API headrace_status headrace_options_get_info(size_t index, char* buffer, size_t capacity, size_t* needed,
                                                       headrace_error** error);

/* ---- Sources of bytes ------------------------------------------------------------------------------------------- */

/* A file's bytes, wherever they are. Kept alive by what was loaded from it as long as that needs it. `release` is called
 * once, when nothing needs the source any more; where the opening call fails it is not called. */
typedef struct headrace_source headrace_source;

/* Fills size bytes from offset; returns 0, or anything else for failure. Called from several threads at once. */
typedef int32_t (*headrace_read_callback)(void* user, uint64_t offset, void* destination, uint64_t size);
typedef void (*headrace_release_callback)(void* user);

HEADRACE_API headrace_status headrace_source_open_path(const char* path, size_t path_size, headrace_source** source,
                                                       headrace_error** error);
/* The descriptor stays the caller's and must stay open until `release` is called (may be NULL). */
HEADRACE_API headrace_status headrace_source_open_descriptor(int32_t descriptor, headrace_release_callback release, void* user,
                                                             headrace_source** source, headrace_error** error);
/* The memory must stay unchanged until `release` is called (may be NULL: it then outlives everything). */
HEADRACE_API headrace_status headrace_source_open_memory(const void* data, size_t size, headrace_release_callback release,
                                                         void* user, headrace_source** source, headrace_error** error);
HEADRACE_API headrace_status headrace_source_open_reader(uint64_t size, headrace_read_callback read,
                                                         headrace_release_callback release, void* user,
                                                         headrace_source** source, headrace_error** error);
HEADRACE_API void headrace_source_destroy(headrace_source* source);

/* ---- Models ----------------------------------------------------------------------------------------------------- */

typedef struct headrace_model headrace_model;

/* fraction in [0, 1]; a return value other than 0 cancels the load within 200 ms (HEADRACE_CANCELLED, all freed). */
typedef int32_t (*headrace_progress_callback)(void* user, double fraction);

/* [any] Loads a GGUF file (v2, v3; the first of split files finds the others), a safetensors file or a Hugging Face
 * folder. options and progress may be NULL. Errors name the key, tensor or file they speak of. */
HEADRACE_API headrace_status headrace_model_load(const char* path, size_t path_size, const headrace_options* options,
                                                 headrace_progress_callback progress, void* user, headrace_model** model,
                                                 headrace_error** error);
/* [any] The same from GGUF sources: one, or all parts of a split file in any order. */
HEADRACE_API headrace_status headrace_model_load_sources(headrace_source* const* sources, size_t num_sources,
                                                         const headrace_options* options,
                                                         headrace_progress_callback progress, void* user,
                                                         headrace_model** model, headrace_error** error);
HEADRACE_API void headrace_model_destroy(headrace_model* model);

typedef struct headrace_model_info {
  uint32_t struct_size;
  int32_t vocab_size;
  int32_t hidden_size;
  int32_t num_layers;
  int64_t max_position_embeddings; /* longest context of the model, tokens; 2^28 where its rotation grows with the text */
  int64_t num_parameters;
  uint64_t weight_bytes;           /* held in memory */
  uint64_t kv_bytes_per_token;     /* with float16 keys and values */
  int32_t num_threads;
  uint32_t has_chat_template;      /* 0 or 1; 1 also where the files hold only named templates, and opening one fails */
} headrace_model_info;

HEADRACE_API void headrace_model_info_init(headrace_model_info* info);
HEADRACE_API headrace_status headrace_model_get_info(const headrace_model* model, headrace_model_info* info,
                                                     headrace_error** error);
/* [any] JSON: architecture, layers, tensor types, sizes, instruction set. Keys as in docs/c-abi.md. */
HEADRACE_API headrace_status headrace_model_describe(const headrace_model* model, char* buffer, size_t capacity,
                                                     size_t* needed, headrace_error** error);
/* [any] The same for a file that is not loaded (headers are read, weights are not), with a plan for memory_bytes of
 * memory (0: none asked): bytes of weights, KV bytes per token for each KV type, largest context and batch that fit. */
HEADRACE_API headrace_status headrace_model_inspect(const char* path, size_t path_size, uint64_t memory_bytes, char* buffer,
                                                    size_t capacity, size_t* needed, headrace_error** error);

/* [any] JSON: calls, nanoseconds, bytes and multiply-adds of each kind of op since the model was loaded; keys as in
 * docs/c-abi.md. HEADRACE_FAILED_PRECONDITION where it was loaded with the option "engine.profile" off, the default. */
HEADRACE_API headrace_status headrace_model_describe_profile(const headrace_model* model, char* buffer, size_t capacity,
                                                             size_t* needed, headrace_error** error);
/* [any] The steps, passes and ops since then one by one, and what became of each request, as trace events that Perfetto and
 * chrome://tracing show ("engine.profile" must be "trace"). The first 262,144 calls and 131,072 events of requests are kept;
 * "otherData" says how many were not. */
HEADRACE_API headrace_status headrace_model_describe_trace(const headrace_model* model, char* buffer, size_t capacity,
                                                           size_t* needed, headrace_error** error);

/* ---- Tuning ----------------------------------------------------------------------------------------------------- */

/* Measured choices of how this machine computes a model's products. None changes a bit of what the model gives, only the
 * time it takes. Immutable: [any] */
typedef struct headrace_tuning headrace_tuning;

/* [any] Measures for at most about `seconds` (more than 0, at most 86400); forward passes of the model wait meanwhile, and
 * take turns with single measurements. table: what headrace_tuning_describe gave before, to be extended by what it does not
 * have, or empty; HEADRACE_UNSUPPORTED where it is of another processor or instruction set. progress (may be NULL) is called
 * between measurements, which take up to a few seconds each; a value other than 0 cancels. A model with nothing to choose
 * gives a table without entries. The loaded model stays as it is: models loaded with the option "engine.tuning" use the
 * result. */
HEADRACE_API headrace_status headrace_tuning_create(const headrace_model* model, double seconds, const char* table,
                                                    size_t table_size, headrace_progress_callback progress, void* user,
                                                    headrace_tuning** tuning, headrace_error** error);
HEADRACE_API void headrace_tuning_destroy(headrace_tuning* tuning);
/* The table as JSON, which is the content of the file that "engine.tuning" names. Keys as in docs/c-abi.md. */
HEADRACE_API headrace_status headrace_tuning_describe(const headrace_tuning* tuning, char* buffer, size_t capacity,
                                                      size_t* needed, headrace_error** error);

/* ---- Tokenizers ------------------------------------------------------------------------------------------------- */

typedef struct headrace_tokenizer headrace_tokenizer; /* immutable: [any] for every function */

#define HEADRACE_ADD_SPECIAL 1u   /* add what the model's post-processor adds: BOS, EOS, CLS, ... */
#define HEADRACE_PARSE_SPECIAL 2u /* special tokens written in the text count as tokens; otherwise they are plain text */
#define HEADRACE_SKIP_SPECIAL 4u  /* leave special tokens out of decoded text */

/* A GGUF file, or a folder that holds tokenizer.json (weights are not needed). */
HEADRACE_API headrace_status headrace_tokenizer_load(const char* path, size_t path_size, headrace_tokenizer** tokenizer,
                                                     headrace_error** error);
/* A new handle on the model's tokenizer, which the caller destroys; it may outlive the model's handle. */
HEADRACE_API headrace_status headrace_tokenizer_open(const headrace_model* model, headrace_tokenizer** tokenizer,
                                                     headrace_error** error);
HEADRACE_API void headrace_tokenizer_destroy(headrace_tokenizer* tokenizer);

HEADRACE_API int32_t headrace_tokenizer_get_vocab_size(const headrace_tokenizer* tokenizer);
/* -1 where the model has none. */
HEADRACE_API int32_t headrace_tokenizer_get_bos(const headrace_tokenizer* tokenizer);
HEADRACE_API int32_t headrace_tokenizer_get_eos(const headrace_tokenizer* tokenizer);
/* 1 when the id is a special (control or added) token, 0 when not, -1 when there is no such id. */
HEADRACE_API int32_t headrace_tokenizer_get_is_special(const headrace_tokenizer* tokenizer, int32_t token_id);
/* The id of the token spelled exactly so, or -1. */
HEADRACE_API int32_t headrace_tokenizer_get_id(const headrace_tokenizer* tokenizer, const char* token, size_t token_size);

/* flags: HEADRACE_ADD_SPECIAL, HEADRACE_PARSE_SPECIAL. Text that is not UTF-8 is HEADRACE_INVALID_ARGUMENT with
 * "byte N" as place, the offset from 0. tokens: int32 [*needed]. */
HEADRACE_API headrace_status headrace_tokenizer_encode(const headrace_tokenizer* tokenizer, const char* text, size_t text_size,
                                                       uint32_t flags, int32_t* tokens, size_t capacity, size_t* needed,
                                                       headrace_error** error);
/* flags: HEADRACE_SKIP_SPECIAL. The result is valid UTF-8: bytes that are none become U+FFFD. An id outside [0, vocab_size) is
 * HEADRACE_INVALID_ARGUMENT with "tokens[i]" as place; one inside that no token has gives no text. */
HEADRACE_API headrace_status headrace_tokenizer_decode(const headrace_tokenizer* tokenizer, const int32_t* tokens,
                                                       size_t num_tokens, uint32_t flags, char* buffer, size_t capacity,
                                                       size_t* needed, headrace_error** error);
/* The bytes one token stands for, which need not be UTF-8 by themselves. */
HEADRACE_API headrace_status headrace_tokenizer_get_bytes(const headrace_tokenizer* tokenizer, int32_t token_id, char* buffer,
                                                          size_t capacity, size_t* needed, headrace_error** error);

/* Streaming: tokens in, valid UTF-8 out; an incomplete character is held until it is whole. An id that no token has gives no
 * text and is no error: models may have more rows than their tokenizer has tokens. */
typedef struct headrace_detokenizer headrace_detokenizer;

HEADRACE_API headrace_status headrace_detokenizer_create(const headrace_tokenizer* tokenizer, uint32_t flags,
                                                         headrace_detokenizer** detokenizer, headrace_error** error);
/* [object] *text (borrowed until the next call on this object, zero-terminated) is what became complete; may be empty. */
HEADRACE_API headrace_status headrace_detokenizer_push(headrace_detokenizer* detokenizer, int32_t token_id, const char** text,
                                                       size_t* text_size, headrace_error** error);
/* [object] The held rest (U+FFFD for an incomplete character); the object starts anew. */
HEADRACE_API headrace_status headrace_detokenizer_flush(headrace_detokenizer* detokenizer, const char** text,
                                                        size_t* text_size, headrace_error** error);
HEADRACE_API void headrace_detokenizer_destroy(headrace_detokenizer* detokenizer);

/* ---- Chat templates --------------------------------------------------------------------------------------------- */

typedef struct headrace_chat_template headrace_chat_template; /* immutable: [any] */

/* source: a Jinja template as models ship them; special_tokens: JSON object such as {"bos_token": "<s>"}, or empty.
 * Errors have "line L, column C" as place. */
HEADRACE_API headrace_status headrace_chat_template_create(const char* source, size_t source_size, const char* special_tokens,
                                                           size_t special_tokens_size, headrace_chat_template** chat_template,
                                                           headrace_error** error);
/* The template of a GGUF file or a Hugging Face folder, whose weights are not read. */
HEADRACE_API headrace_status headrace_chat_template_load(const char* path, size_t path_size,
                                                         headrace_chat_template** chat_template, headrace_error** error);
/* The model's own template; HEADRACE_NOT_FOUND where the file has none (none is ever guessed). */
HEADRACE_API headrace_status headrace_chat_template_open(const headrace_model* model, headrace_chat_template** chat_template,
                                                         headrace_error** error);
HEADRACE_API void headrace_chat_template_destroy(headrace_chat_template* chat_template);

/* A rendered prompt: text, and which parts of it the caller's messages wrote. */
typedef struct headrace_prompt headrace_prompt;

/* messages: JSON array of {"role", "content", ...}; tools: JSON array, or empty for none; variables: JSON object of further
 * template variables ("enable_thinking": false), or empty; "messages", "tools" and "add_generation_prompt" are refused there.
 * add_generation_prompt is 0 or 1; now_unix_seconds is what strftime_now sees (UTC), a negative value asks the clock. Fails
 * with the template's own message where it raises one. */
HEADRACE_API headrace_status headrace_chat_template_render(const headrace_chat_template* chat_template, const char* messages,
                                                           size_t messages_size, const char* tools, size_t tools_size,
                                                           const char* variables, size_t variables_size,
                                                           int32_t add_generation_prompt, int64_t now_unix_seconds,
                                                           headrace_prompt** prompt, headrace_error** error);
HEADRACE_API void headrace_prompt_destroy(headrace_prompt* prompt);
/* Borrowed from the prompt; zero-terminated. */
HEADRACE_API const char* headrace_prompt_get_text(const headrace_prompt* prompt, size_t* text_size);
/* Spans cover the text in order: bytes [*begin, *end) came from the caller (*is_content 1) or the template (0). */
HEADRACE_API size_t headrace_prompt_get_span_count(const headrace_prompt* prompt);
HEADRACE_API headrace_status headrace_prompt_get_span(const headrace_prompt* prompt, size_t index, size_t* begin, size_t* end,
                                                      int32_t* is_content, headrace_error** error);
/* Tokens of the prompt: special tokens count in the template's parts and never in the caller's. */
HEADRACE_API headrace_status headrace_tokenizer_encode_prompt(const headrace_tokenizer* tokenizer,
                                                              const headrace_prompt* prompt, int32_t* tokens, size_t capacity,
                                                              size_t* needed, headrace_error** error);

/* ---- KV cache --------------------------------------------------------------------------------------------------- */

/* Blocks of keys and values of one model, shared by its sessions and schedulers; a prefix seen before is found there. */
typedef struct headrace_kv_cache headrace_kv_cache; /* [any] */

/* Options "kv.dtype", "kv.max_tokens", "kv.block_size", "kv.prefix_index". */
HEADRACE_API headrace_status headrace_kv_cache_create(const headrace_model* model, const headrace_options* options,
                                                      headrace_kv_cache** kv_cache, headrace_error** error);
HEADRACE_API void headrace_kv_cache_destroy(headrace_kv_cache* kv_cache);

typedef struct headrace_kv_cache_stats {
  uint32_t struct_size;
  int32_t block_size;    /* tokens */
  int64_t num_blocks;
  int64_t free_blocks;   /* held by no session or request */
  int64_t cached_blocks; /* in the prefix index */
  int64_t lookup_tokens; /* asked of the prefix index so far */
  int64_t hit_tokens;    /* found there */
  uint64_t pool_bytes;
} headrace_kv_cache_stats;

HEADRACE_API void headrace_kv_cache_stats_init(headrace_kv_cache_stats* stats);
HEADRACE_API headrace_status headrace_kv_cache_get_stats(const headrace_kv_cache* kv_cache, headrace_kv_cache_stats* stats,
                                                         headrace_error** error);
/* Forgets cached prefixes that nothing holds. */
HEADRACE_API headrace_status headrace_kv_cache_clear(headrace_kv_cache* kv_cache, headrace_error** error);

/* ---- Sessions --------------------------------------------------------------------------------------------------- */

/* A conversation: its tokens are the truth, cached keys and values follow them. [object] for all functions. A session
 * that a running request uses is busy: calls that change it give HEADRACE_FAILED_PRECONDITION. */
typedef struct headrace_session headrace_session;

/* kv_cache may be NULL: the session then makes one of its own with `options`. */
HEADRACE_API headrace_status headrace_session_create(const headrace_model* model, headrace_kv_cache* kv_cache,
                                                     const headrace_options* options, headrace_session** session,
                                                     headrace_error** error);
HEADRACE_API void headrace_session_destroy(headrace_session* session);

HEADRACE_API headrace_status headrace_session_append_tokens(headrace_session* session, const int32_t* tokens,
                                                            size_t num_tokens, headrace_error** error);
/* flags: HEADRACE_ADD_SPECIAL, HEADRACE_PARSE_SPECIAL. */
HEADRACE_API headrace_status headrace_session_append_text(headrace_session* session, const char* text, size_t text_size,
                                                          uint32_t flags, headrace_error** error);
/* Adds a message to the conversation; it is rendered with the model's template when a request runs on this session, and
 * the reply is appended as a message of the role "assistant". Not to be mixed with append_text and append_tokens. */
HEADRACE_API headrace_status headrace_session_append_message(headrace_session* session, const char* role, size_t role_size,
                                                             const char* content, size_t content_size,
                                                             headrace_error** error);
HEADRACE_API headrace_status headrace_session_get_tokens(const headrace_session* session, int32_t* tokens, size_t capacity,
                                                         size_t* needed, headrace_error** error);
/* Appends tokens and computes their logits: float32 [num_tokens, vocab_size], row t scores the token after tokens[t].
 * capacity and *needed count floats; logits may be NULL with capacity 0 and needed NULL to compute without reading them. */
HEADRACE_API headrace_status headrace_session_evaluate(headrace_session* session, const int32_t* tokens, size_t num_tokens,
                                                       float* logits, size_t capacity, size_t* needed,
                                                       headrace_error** error);
/* Another session with the same past, sharing its cached blocks. */
HEADRACE_API headrace_status headrace_session_fork(const headrace_session* session, headrace_session** forked,
                                                   headrace_error** error);
/* Forgets all but the first num_tokens tokens (and every message, where messages made them). */
HEADRACE_API headrace_status headrace_session_rewind(headrace_session* session, size_t num_tokens, headrace_error** error);
/* Writes tokens, messages and cached keys and values to a file, replacing it only when all was written. A symbolic link is
 * followed; a file that is there keeps its mode, a new one has 0600. HEADRACE_IO for what is there and no regular file. */
HEADRACE_API headrace_status headrace_session_save(const headrace_session* session, const char* path, size_t path_size,
                                                   headrace_error** error);
/* HEADRACE_MALFORMED for a damaged file, HEADRACE_FAILED_PRECONDITION for one of another model or KV type. */
HEADRACE_API headrace_status headrace_session_restore(const headrace_model* model, headrace_kv_cache* kv_cache,
                                                      const headrace_options* options, headrace_source* source,
                                                      headrace_session** session, headrace_error** error);

/* ---- Requests --------------------------------------------------------------------------------------------------- */

/* What to generate and how; copied by submit, so one request may be submitted many times. [object] */
typedef struct headrace_request headrace_request;

HEADRACE_API headrace_status headrace_request_create(const headrace_model* model, headrace_request** request,
                                                     headrace_error** error);
HEADRACE_API void headrace_request_destroy(headrace_request* request);

/* The prompt: parts are appended in order. An empty prompt is refused at submit. */
HEADRACE_API headrace_status headrace_request_add_text(headrace_request* request, const char* text, size_t text_size,
                                                       uint32_t flags, headrace_error** error);
HEADRACE_API headrace_status headrace_request_add_tokens(headrace_request* request, const int32_t* tokens, size_t num_tokens,
                                                         headrace_error** error);
/* Renders with the model's chat template (arguments as headrace_chat_template_render, generation prompt added). */
HEADRACE_API headrace_status headrace_request_add_messages(headrace_request* request, const char* messages,
                                                           size_t messages_size, const char* tools, size_t tools_size,
                                                           const char* variables, size_t variables_size,
                                                           headrace_error** error);
HEADRACE_API headrace_status headrace_request_add_prompt(headrace_request* request, const headrace_prompt* prompt,
                                                         headrace_error** error);
/* An image for the prompt of a model that reads images, as the model's image processor in transformers gives it: float32
 * pixel_values of one image. height and width: of models that take planes [channels, height, width] the pixels, of those that
 * take patches [height * width, values of a patch] (image_grid_thw) the patches. The model's description says which ("vision").
 * The prompt has the model's image token once for each image, or once for each of its rows, in the order of the images.
 * Copied. HEADRACE_UNSUPPORTED where the model reads no images, HEADRACE_INVALID_ARGUMENT ("image") for other sizes than it
 * takes and values that are not finite; a prompt and images that do not go together are refused at submit ("images"), as is a
 * conversation of messages; a session of tokens keeps them. Prompt logprobs score the image's token for each of its rows. */
HEADRACE_API headrace_status headrace_request_add_image_pixels(headrace_request* request, const float* pixels,
                                                               size_t num_pixels, uint32_t height, uint32_t width,
                                                               headrace_error** error);
/* The same from the image itself: rgb [height, width, 3] bytes, processed as preprocessor_config.json says (transformers'
 * processors over Pillow 12: bit for bit). HEADRACE_NOT_FOUND where the model's files hold no such file, HEADRACE_UNSUPPORTED with
 * the key as place where it asks for what is not built. */
HEADRACE_API headrace_status headrace_request_add_image(headrace_request* request, const uint8_t* rgb, size_t rgb_size,
                                                        uint32_t height, uint32_t width, headrace_error** error);
/* What the encoder in front of the model's decoder reads, where it has one (its description has "encoder"): tokens, or text
 * that the model's tokenizer encodes (flags as headrace_request_add_text; most such models want HEADRACE_ADD_SPECIAL). Set again,
 * it is replaced. The prompt is the decoder's then; an empty one is the decoder's first token. Submit refuses a request without
 * ("encoder_input"). HEADRACE_UNSUPPORTED ("encoder_input") where the model has no encoder or one that reads audio,
 * HEADRACE_INVALID_ARGUMENT for no tokens and ids outside the vocabulary ("tokens[i]"). */
HEADRACE_API headrace_status headrace_request_set_encoder_tokens(headrace_request* request, const int32_t* tokens,
                                                                 size_t num_tokens, headrace_error** error);
HEADRACE_API headrace_status headrace_request_set_encoder_text(headrace_request* request, const char* text,
                                                               size_t text_size, uint32_t flags, headrace_error** error);
/* The same of audio: mono float32 samples in [-1, 1], of which preprocessor_config.json says how a log-mel spectrogram is made
 * (transformers' feature extractor in float64). Silence follows up to the length that the model reads (30 seconds of Whisper).
 * Copied. HEADRACE_UNSUPPORTED where the model reads none, HEADRACE_NOT_FOUND where its files do not say how,
 * HEADRACE_INVALID_ARGUMENT ("audio") for another sample_rate than the model's (16000), more samples than it reads at once, none,
 * and values that are not finite. */
HEADRACE_API headrace_status headrace_request_set_audio(headrace_request* request, const float* samples, size_t num_samples,
                                                        uint32_t sample_rate, headrace_error** error);
/* The same of the spectrogram itself: features [num_mels, num_frames]. HEADRACE_INVALID_ARGUMENT ("encoder_input") for other
 * sizes than the model takes and values that are not finite. */
HEADRACE_API headrace_status headrace_request_set_audio_features(headrace_request* request, const float* features,
                                                                 size_t num_features, uint32_t num_mels,
                                                                 uint32_t num_frames, headrace_error** error);
/* The session's tokens come before the prompt, and prompt and output are appended to it (n must be 1). The request keeps the
 * session alive. The scheduler must use the session's KV cache. */
HEADRACE_API headrace_status headrace_request_set_session(headrace_request* request, headrace_session* session,
                                                          headrace_error** error);

/* Names and meanings as in vLLM's SamplingParams. init gives greedy decoding and no limits: every zero means what it says. */
typedef struct headrace_sampling {
  uint32_t struct_size;
  float temperature;        /* 0: greedy */
  int32_t top_k;            /* 0: all */
  float top_p;              /* (0, 1]; init: 1 */
  float min_p;              /* [0, 1] */
  float typical_p;          /* (0, 1]; init: 1 */
  float repetition_penalty; /* > 0; init: 1 */
  float frequency_penalty;  /* [-2, 2] */
  float presence_penalty;   /* [-2, 2] */
  uint32_t n;               /* samples of this prompt, 1..128; init: 1 */
  uint64_t seed;            /* used when has_seed is 1; otherwise drawn anew at each submit */
  uint32_t has_seed;
  int32_t num_logprobs;        /* -1: none (init); 0: the sampled token's; k: and the k most likely, at most 128 */
  int32_t num_prompt_logprobs; /* the same for the prompt's tokens; init: -1 */
  uint32_t reserved;           /* 0 */
} headrace_sampling;

HEADRACE_API void headrace_sampling_init(headrace_sampling* sampling);
/* The model's own recommendation (generation_config.json), greedy where it has none. HEADRACE_MALFORMED with the field as
 * place where a value recommended is out of its range. */
HEADRACE_API headrace_status headrace_model_get_sampling(const headrace_model* model, headrace_sampling* sampling,
                                                         headrace_error** error);
HEADRACE_API headrace_status headrace_request_set_sampling(headrace_request* request, const headrace_sampling* sampling,
                                                           headrace_error** error);
HEADRACE_API headrace_status headrace_request_add_logit_bias(headrace_request* request, int32_t token_id, float bias,
                                                             headrace_error** error);
/* Text is cut before the stop string, wherever token borders fall. */
HEADRACE_API headrace_status headrace_request_add_stop_string(headrace_request* request, const char* text, size_t text_size,
                                                              headrace_error** error);
HEADRACE_API headrace_status headrace_request_add_stop_token(headrace_request* request, int32_t token_id,
                                                             headrace_error** error);
/* max_tokens 0: until the model ends or the context is full. Before min_tokens no end or stop token is drawn. */
HEADRACE_API headrace_status headrace_request_set_length(headrace_request* request, int64_t min_tokens, int64_t max_tokens,
                                                         headrace_error** error);
/* 1: the model's end-of-generation tokens do not stop. */
HEADRACE_API headrace_status headrace_request_set_ignore_eos(headrace_request* request, int32_t ignore_eos,
                                                             headrace_error** error);
/* Milliseconds after submit; 0: none. */
HEADRACE_API headrace_status headrace_request_set_deadline(headrace_request* request, int64_t milliseconds,
                                                           headrace_error** error);
/* Higher runs first; default 0. */
HEADRACE_API headrace_status headrace_request_set_priority(headrace_request* request, int32_t priority,
                                                           headrace_error** error);
/* Requests with different salts never share cached prefixes (tenants). */
HEADRACE_API headrace_status headrace_request_set_cache_salt(headrace_request* request, const char* salt, size_t salt_size,
                                                             headrace_error** error);

/* ---- Scheduler -------------------------------------------------------------------------------------------------- */

/* Runs requests: many share one step, and each gets exactly one terminal event. Nothing runs by itself: the host calls
 * step. submit, cancel and event_next may be called from any thread while another steps. */
typedef struct headrace_scheduler headrace_scheduler;

/* kv_cache may be NULL: the scheduler then makes one of its own with `options`. Options "scheduler.max_num_seqs",
 * "scheduler.max_num_batched_tokens", "scheduler.max_queue". */
HEADRACE_API headrace_status headrace_scheduler_create(const headrace_model* model, headrace_kv_cache* kv_cache,
                                                       const headrace_options* options, headrace_scheduler** scheduler,
                                                       headrace_error** error);
/* Never waits, may be called anywhere: cancels what runs and frees it at the end of the step in flight. */
HEADRACE_API void headrace_scheduler_destroy(headrace_scheduler* scheduler);

/* [any] Checks the whole request now (too long a prompt, a bad field: error with its name) and queues it. *request_id
 * is unique within the scheduler, starting at 1. */
HEADRACE_API headrace_status headrace_scheduler_submit(headrace_scheduler* scheduler, const headrace_request* request,
                                                       uint64_t* request_id, headrace_error** error);
/* [any] The request ends with a HEADRACE_EVENT_FINISHED of reason "cancelled" at the next step at the latest. HEADRACE_NOT_FOUND
 * for an id that has ended or never was. */
HEADRACE_API headrace_status headrace_scheduler_cancel(headrace_scheduler* scheduler, uint64_t request_id,
                                                       headrace_error** error);
/* [one thread at a time; a second caller gets HEADRACE_FAILED_PRECONDITION] Runs one step. *has_work is 1 while requests are
 * queued or running. Failures of one request become its event; the call itself fails only when nothing can run. */
HEADRACE_API headrace_status headrace_scheduler_step(headrace_scheduler* scheduler, int32_t* has_work, headrace_error** error);

typedef struct headrace_scheduler_stats {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t num_waiting;
  int64_t num_running;
  uint64_t num_steps;
  uint64_t prefill_tokens; /* computed, cached ones left out */
  uint64_t cached_tokens;
  uint64_t decode_tokens;
  uint64_t preemptions;
  uint64_t finished_requests;
} headrace_scheduler_stats;

HEADRACE_API void headrace_scheduler_stats_init(headrace_scheduler_stats* stats);
HEADRACE_API headrace_status headrace_scheduler_get_stats(const headrace_scheduler* scheduler, headrace_scheduler_stats* stats,
                                                          headrace_error** error);

/* ---- Events ----------------------------------------------------------------------------------------------------- */

typedef struct headrace_event headrace_event; /* immutable: [any] */

#define HEADRACE_EVENT_TOKENS 1   /* text and tokens that are certain: nothing in them can still become a stop string */
#define HEADRACE_EVENT_PROMPT 2   /* prompt logprobs, once, before the first tokens */
#define HEADRACE_EVENT_FINISHED 3 /* one of the n samples ended normally; see the finish reason */
#define HEADRACE_EVENT_FAILED 4   /* the whole request failed; see status, message, place */
/* Terminal: FAILED, or FINISHED of the last of n samples (headrace_event_get_is_last). */

/* [any] The next event, or *event = NULL when there is none. The caller destroys it. */
HEADRACE_API headrace_status headrace_event_next(headrace_scheduler* scheduler, headrace_event** event,
                                                 headrace_error** error);
HEADRACE_API void headrace_event_destroy(headrace_event* event);

HEADRACE_API int32_t headrace_event_get_type(const headrace_event* event);
HEADRACE_API uint64_t headrace_event_get_request_id(const headrace_event* event);
/* Which of the n samples, from 0. */
HEADRACE_API uint32_t headrace_event_get_index(const headrace_event* event);
/* 1 on the request's terminal event, after which none follows. */
HEADRACE_API int32_t headrace_event_get_is_last(const headrace_event* event);
/* Valid UTF-8, borrowed, zero-terminated. Concatenated over a sample's events it is the whole output. */
HEADRACE_API const char* headrace_event_get_text(const headrace_event* event, size_t* text_size);
/* Tokens whose logprobs this event carries, in order; text of a held token may come later. */
HEADRACE_API const int32_t* headrace_event_get_tokens(const headrace_event* event, size_t* num_tokens);
/* Natural logarithms, one for each token; NULL and 0 where none were asked for. In HEADRACE_EVENT_PROMPT the first is 0. */
HEADRACE_API const float* headrace_event_get_logprobs(const headrace_event* event, size_t* num_tokens);
/* The most likely tokens at place `token` (index into the event's tokens), most likely first; borrowed. */
HEADRACE_API headrace_status headrace_event_get_top_logprobs(const headrace_event* event, size_t token,
                                                             const int32_t** token_ids, const float** logprobs,
                                                             size_t* count, headrace_error** error);
/* "stop" (end token, stop token or stop string), "length", "cancelled", "deadline" or "" for other events. Static. */
HEADRACE_API const char* headrace_event_get_finish_reason(const headrace_event* event);
/* What failed: code, message, place of HEADRACE_EVENT_FAILED; 0 and "" otherwise. Borrowed. */
HEADRACE_API headrace_status headrace_event_get_status(const headrace_event* event);
HEADRACE_API const char* headrace_event_get_message(const headrace_event* event);
HEADRACE_API const char* headrace_event_get_place(const headrace_event* event);

typedef struct headrace_usage {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t prompt_tokens;
  int64_t cached_tokens; /* of the prompt, found in the prefix index or the session */
  int64_t output_tokens;
  int64_t queue_ns;       /* submit to first scheduled */
  int64_t first_token_ns; /* submit to first token */
  int64_t total_ns;       /* submit to this event */
} headrace_usage;

HEADRACE_API void headrace_usage_init(headrace_usage* usage);
/* For HEADRACE_EVENT_FINISHED, of its sample. */
HEADRACE_API headrace_status headrace_event_get_usage(const headrace_event* event, headrace_usage* usage,
                                                      headrace_error** error);

/* ---- Embeddings ------------------------------------------------------------------------------------------------- */

/* Makes vectors or scores of whole texts, with models that read a text at once (BERT and its kin, which generate nothing) or
 * that generate (pooling "last" or "mean"). No keys and values are kept between calls. What a sequence gives is a function of
 * its own tokens alone, bit for bit, whoever shares the call and on however many threads. [any]: calls take turns inside. */
typedef struct headrace_embedder headrace_embedder;

/* Options "embedder.pooling", "embedder.normalize" and "embedder.max_num_batched_tokens", and "kv.max_tokens", which bounds
 * the length of a sequence (0: the model's context, of models that generate at most 4096). HEADRACE_INVALID_ARGUMENT with the
 * option as place for a pooling that the model cannot give: "cls" where the first token sees no other, "pooler", "score" and
 * "logits" without the head for it, "auto" where the model's files name none. */
HEADRACE_API headrace_status headrace_embedder_create(const headrace_model* model, const headrace_options* options,
                                                      headrace_embedder** embedder, headrace_error** error);
HEADRACE_API void headrace_embedder_destroy(headrace_embedder* embedder);
/* Floats of one row: the hidden size, for "score" the number of labels, for "logits" the vocabulary. 0 for NULL. */
HEADRACE_API size_t headrace_embedder_get_row_size(const headrace_embedder* embedder);
/* 1 where a sequence gives one row, 0 where each of its tokens gives one ("none" and "logits"). */
HEADRACE_API int32_t headrace_embedder_get_pools(const headrace_embedder* embedder);

/* sequence_starts: [num_sequences + 1], rising from 0; sequence i is tokens[sequence_starts[i]] up to, and without,
 * tokens[sequence_starts[i + 1]]. token_types: int32, the segment of each token, or NULL for all 0. rows: float32 [sequences or
 * tokens, row size] in their order; capacity and *needed count floats, and too small a buffer is found before anything is
 * computed. HEADRACE_INVALID_ARGUMENT with "sequences[i]", "tokens[i]" or "token_types[i]" as place for an empty sequence, an id
 * outside the vocabulary, a segment that the model does not have; HEADRACE_RESOURCE_EXHAUSTED with "sequences[i]" for too long a
 * one: nothing is cut off. */
HEADRACE_API headrace_status headrace_embedder_embed_tokens(headrace_embedder* embedder, const int32_t* tokens,
                                                            const int32_t* token_types, const size_t* sequence_starts,
                                                            size_t num_sequences, float* rows, size_t capacity,
                                                            size_t* needed, headrace_error** error);
/* The same of texts, each encoded by the model's tokenizer. flags: HEADRACE_ADD_SPECIAL (which most models need),
 * HEADRACE_PARSE_SPECIAL. An empty text, or one that is not UTF-8, is HEADRACE_INVALID_ARGUMENT with a place in "texts[i]". */
HEADRACE_API headrace_status headrace_embedder_embed_texts(headrace_embedder* embedder, const char* const* texts,
                                                           const size_t* text_sizes, size_t num_texts, uint32_t flags,
                                                           float* rows, size_t capacity, size_t* needed,
                                                           headrace_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_HEADRACE_H */
