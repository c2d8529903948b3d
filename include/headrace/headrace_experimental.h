/* Functions of Headrace that may still change: everything here may be renamed, altered or dropped in any version, while
 * headrace.h stays. The conventions are those of headrace.h. */
#ifndef HEADRACE_HEADRACE_EXPERIMENTAL_H
#define HEADRACE_HEADRACE_EXPERIMENTAL_H

#include <headrace/headrace.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Several models in one program -------------------------------------------------------------------------------- */

/* Threads and memory that models share. Forward passes of its models take turns on its threads: of those that wait the highest
 * "engine.priority" goes first, and one that was passed "runtime.max_overtakes" times goes before all. While a model of higher
 * priority has requests, others leave it the threads for "runtime.patience_us" after each of its passes. A model has its own
 * caches, schedulers and embedders, and what it gives does not depend on the others. [any] */
typedef struct headrace_runtime headrace_runtime;

/* Options "engine.threads", "engine.affinity" and "runtime.*". */
HEADRACE_API headrace_status headrace_runtime_create(const headrace_options* options, headrace_runtime** runtime,
                                                     headrace_error** error);
/* Models keep what they share alive. */
HEADRACE_API void headrace_runtime_destroy(headrace_runtime* runtime);
/* [object] Models loaded with these options belong to the runtime, with all that is made of them; NULL: to none, the default.
 * Weights, the pools of caches and the workspaces of schedulers count against "runtime.max_bytes": a load or create call that
 * finds too little left is HEADRACE_RESOURCE_EXHAUSTED with the counts. A load is HEADRACE_INVALID_ARGUMENT where "engine.threads"
 * or "engine.affinity" are set to what the runtime does not have. */
HEADRACE_API headrace_status headrace_options_set_runtime(headrace_options* options, const headrace_runtime* runtime,
                                                          headrace_error** error);

typedef struct headrace_runtime_stats {
  uint32_t struct_size;
  int32_t num_threads;
  uint64_t max_bytes;  /* 0: no limit */
  uint64_t used_bytes; /* granted, whether written yet or not */
  uint64_t peak_bytes; /* the most at once */
  uint64_t turns;      /* forward passes, and weights packed while models load */
  uint64_t overtakes;  /* a waiting one passed by one of higher priority */
} headrace_runtime_stats;

HEADRACE_API void headrace_runtime_stats_init(headrace_runtime_stats* stats);
HEADRACE_API headrace_status headrace_runtime_get_stats(const headrace_runtime* runtime, headrace_runtime_stats* stats,
                                                        headrace_error** error);

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

/* ---- Pinned sessions -------------------------------------------------------------------------------------------- */

/* [object] 1: while it is idle the session keeps its cached values, whoever needs the room; 0, the default: it may lose them, and
 * computes them again. A request that pinned sessions leave no room for fails with HEADRACE_RESOURCE_EXHAUSTED. */
HEADRACE_API headrace_status headrace_session_set_pinned(headrace_session* session, int32_t pinned,
                                                         headrace_error** error);

/* [object] What the session's cached values are found under, as headrace_request_set_cache_salt says of a request's: sessions and
 * requests of other salts cannot find them, nor see by their times what is there. Requests on the session have its salt. Empty
 * is the default; forks have their origin's; a restored session has none. Values of another salt are forgotten, tokens stay. */
HEADRACE_API headrace_status headrace_session_set_cache_salt(headrace_session* session, const char* salt,
                                                             size_t salt_size, headrace_error** error);

/* ---- Images in messages of a session ---------------------------------------------------------------------------------- */

/* [object] An image for the next headrace_session_append_parts; arguments and errors as headrace_request_add_image. */
HEADRACE_API headrace_status headrace_session_add_image(headrace_session* session, const uint8_t* rgb, size_t rgb_size,
                                                        uint32_t height, uint32_t width, headrace_error** error);
/* [object] As headrace_session_append_message, of a content in parts: a JSON array of objects as the model's template reads them
 * ({"type": "text", "text": "..."}, {"type": "image"}). The images added since the last call are those of its parts of the type
 * "image", in order; other numbers of them are HEADRACE_INVALID_ARGUMENT ("images"), and they are forgotten where the call fails. A
 * session with such a message cannot be saved. */
HEADRACE_API headrace_status headrace_session_append_parts(headrace_session* session, const char* role,
                                                           size_t role_size, const char* parts, size_t parts_size,
                                                           headrace_error** error);

/* ---- Conversations that are edited, and that outgrow their context ---------------------------------------------------- */

/* [object] Another content of message `index` (a text, from 0), those behind it stay; and only the first num_messages messages
 * stay, of none of them no token either. The next request computes from the first token that differs on.
 * HEADRACE_INVALID_ARGUMENT with "index" or "num_messages" as place. */
HEADRACE_API headrace_status headrace_session_set_message(headrace_session* session, size_t index, const char* content,
                                                          size_t content_size, headrace_error** error);
HEADRACE_API headrace_status headrace_session_truncate_messages(headrace_session* session, size_t num_messages,
                                                                headrace_error** error);

#define HEADRACE_OVERFLOW_REFUSE 0    /* the request is refused with the counts: the default */
#define HEADRACE_OVERFLOW_DROP 1      /* the oldest messages, or tokens, behind the first keep_first go */
#define HEADRACE_OVERFLOW_SUMMARIZE 2 /* likewise, and what `summarize` makes of them takes their place */

typedef struct headrace_summary headrace_summary; /* what goes, and what comes; inside `summarize` only */

/* What a session does where a request's prompt and output would exceed its context. */
typedef struct headrace_overflow {
  uint32_t struct_size;
  int32_t kind;
  int64_t keep_first;  /* messages of a conversation, else tokens: a system prompt, say */
  int64_t free_tokens; /* of the context that are free afterwards, as far as that can be had; 0: half of it */
  void* user;
  /* Called by the thread that submits, with the session busy. 0: the summary was set; another code fails the request. */
  headrace_status (*summarize)(void* user, headrace_summary* summary);
  /* `user` is needed no more; may be NULL. Any thread. */
  headrace_release_callback release;
} headrace_overflow;

HEADRACE_API void headrace_overflow_init(headrace_overflow* overflow);
/* [object] NULL: refuse. Whole messages go, up to one of the role "user"; the last one never does. A session of tokens may be
 * appended to beyond its context, and is shortened when a request runs; evaluate refuses in any case, and save what could not be
 * restored, with HEADRACE_RESOURCE_EXHAUSTED. Where nothing that may go makes the request fit, it is refused and nothing goes.
 * What went stays away though the request should fail. Forks have the policy too; files have it not. HEADRACE_INVALID_ARGUMENT
 * with the field as place. */
HEADRACE_API headrace_status headrace_session_set_overflow(headrace_session* session, const headrace_overflow* overflow,
                                                           headrace_error** error);
/* [callback] What goes, as a JSON array: objects with "role" and "content" (a text, or an array of parts), or token ids. Borrowed
 * until the callback returns, and zero-terminated. */
HEADRACE_API const char* headrace_summary_get_dropped(const headrace_summary* summary, size_t* size);
/* [callback] What takes its place, as such an array; parts are refused. HEADRACE_MALFORMED ("json") for anything else. */
HEADRACE_API headrace_status headrace_summary_set(headrace_summary* summary, const char* json, size_t json_size,
                                                  headrace_error** error);

typedef struct headrace_dropped {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t times;    /* that the context was exceeded */
  int64_t messages; /* that went */
  int64_t tokens;   /* likewise, of a session without messages */
} headrace_dropped;

HEADRACE_API void headrace_dropped_init(headrace_dropped* dropped);
/* [any] Of the session since it was made; a fork goes on from what its origin had. */
HEADRACE_API headrace_status headrace_session_get_dropped(const headrace_session* session, headrace_dropped* dropped,
                                                          headrace_error** error);

/* ---- Values on disk, and none kept ------------------------------------------------------------------------------- */

/* [object] As headrace_session_save, also of more tokens than the context, and gives the session's blocks back. The next request on
 * it, evaluation or save reads the file, in the calling thread; one that is gone or not as it was costs computing the values again.
 * Another process goes on with headrace_session_restore. */
HEADRACE_API headrace_status headrace_session_park(headrace_session* session, const char* path, size_t path_size,
                                                   headrace_error** error);
/* [any] Waits until all prefixes that the cache knows are in the folder of the option "kv.disk_path", as far as "kv.disk_bytes"
 * allows: blocks go there by themselves once nothing uses them, but a process may end before. Nothing without the option. */
HEADRACE_API headrace_status headrace_kv_cache_flush(headrace_kv_cache* kv_cache, headrace_error** error);
/* [object] 1: what the request computes is found by no other one, never goes to disk, and is wiped from the cache when the request
 * ends. Submit refuses it for a request on a session, which keeps its tokens; the option "kv.zero_retention" is for all requests
 * and sessions of a cache. */
HEADRACE_API headrace_status headrace_request_set_zero_retention(headrace_request* request, int32_t zero_retention,
                                                                 headrace_error** error);

/* ---- Tenants ---------------------------------------------------------------------------------------------------- */

/* [object] On whose behalf the request runs; empty is the default, a tenant like others. Tenants that wait share a scheduler's
 * service by their weights. At most 256 bytes without a zero byte. No part of what cached prefixes are found by: that is
 * headrace_request_set_cache_salt. */
HEADRACE_API headrace_status headrace_request_set_tenant(headrace_request* request, const char* tenant,
                                                         size_t tenant_size, headrace_error** error);

typedef struct headrace_tenant_limits {
  uint32_t struct_size;
  uint32_t reserved;
  double weight;        /* share of the service among those that wait, 0.001 to 1000; 1 at first */
  int64_t max_num_seqs; /* sequences that run at once; 0: as many as there is room for */
  int64_t
      max_queue; /* requests that wait; a further submit is HEADRACE_RESOURCE_EXHAUSTED with the place "tenant"; 0: no limit */
  double
      tokens_per_second; /* computed prompt tokens and weighted output tokens, on average; requests wait meanwhile; 0: no limit */
} headrace_tenant_limits;

HEADRACE_API void headrace_tenant_limits_init(headrace_tenant_limits* limits);
/* [any] Holds from the next submit and step on, for a tenant that was never seen too. The options "scheduler.tenant_max_num_seqs",
 * "scheduler.tenant_max_queue" and "scheduler.tenant_tokens_per_second" give the limits of tenants without a call.
 * HEADRACE_RESOURCE_EXHAUSTED with the place "scheduler.max_tenants" where no more are kept. */
HEADRACE_API headrace_status headrace_scheduler_set_tenant(headrace_scheduler* scheduler, const char* tenant,
                                                           size_t tenant_size, const headrace_tenant_limits* limits,
                                                           headrace_error** error);

/* ---- Metrics ---------------------------------------------------------------------------------------------------- */

/* All sums and counts only grow; two readings subtracted give what lies between. Values are as of the end of the last step. */
typedef struct headrace_scheduler_metrics {
  uint32_t struct_size;
  uint32_t num_tenants;
  /* now */
  int64_t num_waiting;      /* sequences queued or preempted */
  int64_t num_running;      /* sequences */
  int64_t kv_blocks;        /* of the pool */
  int64_t kv_used_blocks;   /* held by requests and sessions */
  int64_t kv_cached_blocks; /* in the prefix index, held or not */
  int64_t step_age_ns;      /* since the last step ended, as of the call; -1: there was none */
  /* requests and their samples */
  uint64_t submitted_requests;
  uint64_t refused_requests;  /* by submit, for whatever reason */
  uint64_t finished_requests; /* with a terminal event */
  uint64_t failed_requests;   /* of those, with HEADRACE_EVENT_FAILED */
  uint64_t stop_samples;      /* samples ended, by the finish reason */
  uint64_t length_samples;
  uint64_t cancelled_samples;
  uint64_t deadline_samples;
  /* tokens */
  uint64_t prompt_tokens; /* of scheduled requests, cached ones included */
  uint64_t cached_tokens; /* of those, found in the prefix index or the session */
  uint64_t output_tokens;
  uint64_t lookup_tokens; /* asked of the cache's prefix index, by all that share the cache */
  uint64_t hit_tokens;
  /* steps: occupancy is step_sequences / num_steps out of max_num_seqs, and step_rows likewise */
  uint64_t num_steps; /* forward passes */
  uint64_t step_ns;   /* in them */
  uint64_t step_rows;
  uint64_t step_sequences;
  int64_t max_num_batched_tokens;
  int64_t max_num_seqs;
  uint64_t preemptions;
  uint64_t evictions;    /* cached blocks whose contents gave way, of the cache */
  uint64_t prefix_waits; /* requests that waited for a prefix which another one of the tenant was computing */
  /* values beyond the pool ("kv.host_bytes", "kv.disk_path"), of the cache; all 0 without */
  int64_t num_loading;     /* now; sequences whose values are on their way from there */
  uint64_t disk_tokens;    /* of this scheduler's sequences, read from there in place of being computed */
  uint64_t disk_max_bytes; /* "kv.disk_bytes" */
  uint64_t disk_bytes;     /* now, of the folder */
  int64_t disk_files;      /* now */
  uint64_t disk_written_files;
  uint64_t disk_written_bytes;
  uint64_t disk_read_files;
  uint64_t disk_read_bytes;     /* before compression */
  uint64_t disk_evicted_files;  /* that gave way to others */
  uint64_t disk_dropped_writes; /* blocks lost because too many waited to be written */
  uint64_t disk_failed_writes;  /* because the disk was full, say */
  /* reads that gave nothing, by what the file was; its tokens were computed */
  uint64_t disk_missing_files;
  uint64_t disk_unreadable_files;
  uint64_t disk_truncated_files;
  uint64_t disk_damaged_files;
  uint64_t disk_foreign_files; /* of another model, layout, version or other tokens */
  uint64_t forgone_loads;      /* times that computing was predicted to be sooner than reading ("kv.load") */
  /* copies of blocks in memory */
  uint64_t host_max_bytes;   /* "kv.host_bytes" */
  uint64_t host_bytes;       /* now */
  int64_t host_copies;       /* now */
  uint64_t host_kept_copies; /* made so far */
  uint64_t host_read_copies; /* those that waited to be written to disk among them */
  uint64_t host_read_bytes;
  uint64_t host_evicted_copies; /* that gave way to others */
} headrace_scheduler_metrics;

HEADRACE_API void headrace_scheduler_metrics_init(headrace_scheduler_metrics* metrics);
/* [any] */
HEADRACE_API headrace_status headrace_scheduler_get_metrics(const headrace_scheduler* scheduler,
                                                            headrace_scheduler_metrics* metrics,
                                                            headrace_error** error);

/* How long things took: a histogram with fixed buckets, four to an octave from 100 microseconds to half an hour. */
#define HEADRACE_LATENCY_BUCKETS 96
typedef struct headrace_latency {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t count;
  uint64_t sum_ns;
  uint64_t p50_ns; /* read between the bounds of a bucket, so at most a quarter off; 0 where the count is */
  uint64_t p95_ns;
  uint64_t p99_ns;
  uint64_t
      buckets[HEADRACE_LATENCY_BUCKETS]; /* counts; bucket i has what is below its bound, and not below that of i - 1 */
} headrace_latency;

#define HEADRACE_LATENCY_QUEUE 1       /* of a request: submit to first scheduled */
#define HEADRACE_LATENCY_FIRST_TOKEN 2 /* of a sample: submit to its first token */
#define HEADRACE_LATENCY_INTER_TOKEN 3 /* of a sample: one token to the next */
#define HEADRACE_LATENCY_STEP 4        /* of a forward pass */

HEADRACE_API void headrace_latency_init(headrace_latency* latency);
/* [any] The bound of a bucket in nanoseconds; UINT64_MAX for the last one and beyond. */
HEADRACE_API uint64_t headrace_latency_get_bound(uint32_t bucket);
/* [any] kind: HEADRACE_LATENCY_*. */
HEADRACE_API headrace_status headrace_scheduler_get_latency(const headrace_scheduler* scheduler, int32_t kind,
                                                            headrace_latency* latency, headrace_error** error);

/* [any] The names of the tenants known, each followed by a zero byte, in order. */
HEADRACE_API headrace_status headrace_scheduler_get_tenants(const headrace_scheduler* scheduler, char* buffer,
                                                            size_t capacity, size_t* needed, headrace_error** error);

/* Of one tenant, since it is known: one without requests and without a call to set_tenant is forgotten when the option
 * "scheduler.max_tenants" asks for it. */
typedef struct headrace_tenant_metrics {
  uint32_t struct_size;
  uint32_t reserved;
  double weight;
  double service;      /* computed prompt tokens and weighted output tokens */
  int64_t num_waiting; /* sequences */
  int64_t num_running;
  uint64_t submitted_requests;
  uint64_t refused_requests; /* by the tenant's own limits */
  uint64_t finished_requests;
  uint64_t prompt_tokens;
  uint64_t cached_tokens;
  uint64_t output_tokens;
  uint64_t preemptions;
} headrace_tenant_metrics;

HEADRACE_API void headrace_tenant_metrics_init(headrace_tenant_metrics* metrics);
/* [any] HEADRACE_NOT_FOUND for a tenant that is not known. */
HEADRACE_API headrace_status headrace_scheduler_get_tenant_metrics(const headrace_scheduler* scheduler,
                                                                   const char* tenant, size_t tenant_size,
                                                                   headrace_tenant_metrics* metrics,
                                                                   headrace_error** error);
/* [any] kind: HEADRACE_LATENCY_QUEUE, _FIRST_TOKEN or _INTER_TOKEN. */
HEADRACE_API headrace_status headrace_scheduler_get_tenant_latency(const headrace_scheduler* scheduler,
                                                                   const char* tenant, size_t tenant_size, int32_t kind,
                                                                   headrace_latency* latency, headrace_error** error);

/* ---- Hidden states ------------------------------------------------------------------------------------------------ */

/* [object] The request gives out hidden states, in events of HEADRACE_EVENT_HIDDEN: of `layers` (rows as transformers numbers them:
 * 0 is what enters the first layer, i what enters layer i, and the number of layers what the head reads, behind the final
 * norm), for positions [begin, end) counted from the request's own prompt on (a session's earlier tokens are not among them);
 * what is generated follows the prompt, and the last token of all is never computed. end: INT64_MAX is all there are. Where the
 * cache holds the prefix of such rows they are computed anew. No layers: none, the default.
 * HEADRACE_INVALID_ARGUMENT for a number that names no layer or one twice; HEADRACE_UNSUPPORTED for models whose rows are
 * several streams between the layers. */
HEADRACE_API headrace_status headrace_request_set_hidden_states(headrace_request* request, const int32_t* layers,
                                                                size_t num_layers, int64_t begin, int64_t end,
                                                                headrace_error** error);

#define HEADRACE_EVENT_HIDDEN 5 /* hidden states of a sample's next rows; prompt rows come with index 0 */

typedef struct headrace_hidden_states {
  uint32_t struct_size;
  uint32_t num_layers;
  const float*
      values; /* [num_layers, num_rows, hidden_size], in the order of the layers asked for; borrowed from the event */
  const int32_t* layers;  /* [num_layers]; borrowed from the event */
  int64_t first_position; /* of the rows in the sample's sequence, a session's tokens included */
  int64_t num_rows;
  int64_t hidden_size;
} headrace_hidden_states;

HEADRACE_API void headrace_hidden_states_init(headrace_hidden_states* hidden_states);
/* Of HEADRACE_EVENT_HIDDEN; HEADRACE_FAILED_PRECONDITION for other events. */
HEADRACE_API headrace_status headrace_event_get_hidden_states(const headrace_event* event,
                                                              headrace_hidden_states* hidden_states,
                                                              headrace_error** error);

/* ---- Progress of a prompt ------------------------------------------------------------------------------------------ */

/* More of the prompt is computed: an event of requests that ask for it, after each step that had rows of the prompt and before the
 * first tokens. A step that computes again what a preempted request had says nothing. */
#define HEADRACE_EVENT_PROGRESS 6

/* [object] 1: with such events; 0, the default: without. */
HEADRACE_API headrace_status headrace_request_set_progress(headrace_request* request, int32_t progress,
                                                           headrace_error** error);

typedef struct headrace_prompt_progress {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t total;    /* tokens of the prompt, a session's earlier ones included */
  int64_t cached;   /* of those, found in the prefix index or the session */
  int64_t computed; /* with their values in the cache, the found ones included; the last event has all */
} headrace_prompt_progress;

HEADRACE_API void headrace_prompt_progress_init(headrace_prompt_progress* progress);
/* [any] HEADRACE_FAILED_PRECONDITION for events of another type. */
HEADRACE_API headrace_status headrace_event_get_progress(const headrace_event* event,
                                                         headrace_prompt_progress* progress, headrace_error** error);

/* ---- Events of one request ---------------------------------------------------------------------------------------- */

/* [any] As headrace_event_next, of that request alone; events of others stay. A request whose events nobody takes waits at
 * "scheduler.max_events" of them, and others go on. */
HEADRACE_API headrace_status headrace_event_next_of(headrace_scheduler* scheduler, uint64_t request_id,
                                                    headrace_event** event, headrace_error** error);

/* [any] The same, waited for: the calling thread steps while no other one does (headrace_scheduler_step, _run, or another wait), so
 * that several threads may each wait for their own. HEADRACE_NOT_FOUND ("request_id") where no more comes: the last event was taken, or
 * there is no such request; HEADRACE_FAILED_PRECONDITION with an event callback. Where a step fails its error is this call's; the
 * request goes on. */
HEADRACE_API headrace_status headrace_event_wait(headrace_scheduler* scheduler, uint64_t request_id,
                                                 headrace_event** event, headrace_error** error);

/* Why no more of the prompt than usage.cached_tokens was found in the cache, of HEADRACE_EVENT_FINISHED; "" where all was that can
 * be (the last token is computed always): "short" (less than a block is left), "unseen" (no prompt had these tokens here, with this
 * salt and adapter), "evicted" (one had, and its block gave way), "no_snapshot" (no state was kept there), "prompt_logprobs" and
 * "hidden_states" (they need the rows), "index_off" (the option "kv.prefix_index"), "not_scheduled". Static. */
HEADRACE_API const char* headrace_event_get_reuse_miss(const headrace_event* event);

/* ---- Events by a callback, and a thread for the engine ------------------------------------------------------------------ */

/* The event is the callback's to destroy. 1: it was taken. 0: not now; it and the later events of its request come again after
 * the next step, while others' go on, and a request with "scheduler.max_events" of them waits. So a slow consumer has a bounded
 * queue and holds nobody up. The engine waits for the function, which should hand the event on and return. */
typedef int32_t (*headrace_event_callback)(void* user, headrace_event* event);

/* [any] Each event is given to the callback after the step that made it, by the thread that steps; headrace_event_next gives none.
 * The callback may submit, cancel and destroy; it is part of the step, so a step from it gets HEADRACE_FAILED_PRECONDITION. NULL:
 * events are to be taken again. `release` (may be NULL): `user` is needed no more. Where the call fails it is not called. */
HEADRACE_API headrace_status headrace_scheduler_set_event_callback(headrace_scheduler* scheduler,
                                                                   headrace_event_callback callback, void* user,
                                                                   headrace_release_callback release,
                                                                   headrace_error** error);
/* [one thread at a time] Steps until headrace_scheduler_stop or destroy, and sleeps while there is nothing to do: the body of a
 * thread for the engine. Fails as headrace_scheduler_step does. */
HEADRACE_API headrace_status headrace_scheduler_run(headrace_scheduler* scheduler, headrace_error** error);
/* [any] Ends the run that goes on, after its step; where there is none, the next one ends after its first. */
HEADRACE_API headrace_status headrace_scheduler_stop(headrace_scheduler* scheduler, headrace_error** error);

/* ---- Token masks -------------------------------------------------------------------------------------------------- */

/* Which tokens may come next, by an automaton of the caller's: each sample of a request walks through it. A sampled token is one
 * that the mask allows, and guesses at tokens end where it does not (see Speculation).
 * `start`, `fill`, `advance`, `retreat` and `end` are called on the thread that steps the scheduler, during a step ([callback]), one
 * after the other, and `end` also where the scheduler is destroyed. They must not call the scheduler, nor take long: the whole
 * step waits. A mask whose words allow nothing fails the request, so the automaton allows an end token where the text may end.
 * Tokens that the model's makers suppress in what it writes of speech do not come either. */
typedef struct headrace_token_mask {
  uint32_t struct_size;
  uint32_t reserved;
  void* user;
  /* A walk at its start, once for each sample; NULL fails the request. */
  void* (*start)(void* user);
  /* Token t is bit t % 32 of words[t / 32]; they come zeroed, for all tokens of the model. Sets the bits of the tokens that may come
   * now and returns 1; 0: every token may, and the words are not looked at. */
  int32_t (*fill)(void* walk, uint32_t* words, size_t num_words);
  /* The token comes: 1. 0: it may not, and the walk stands where it stood. */
  int32_t (*advance)(void* walk, int32_t token);
  /* Takes the last num_tokens tokens back, no more than came. */
  void (*retreat)(void* walk, int32_t num_tokens);
  void (*end)(void* walk);
  /* `user` is needed no more: no request has it, and no walk is left. Any thread; may be NULL. */
  headrace_release_callback release;
} headrace_token_mask;

HEADRACE_API void headrace_token_mask_init(headrace_token_mask* mask);
/* [object] Of the request, and of what is submitted of it from now on; NULL: none, the default. All functions but `release` are
 * set; where the call fails, `release` is not called. */
HEADRACE_API headrace_status headrace_request_set_token_mask(headrace_request* request, const headrace_token_mask* mask,
                                                             headrace_error** error);

/* ---- Speech ------------------------------------------------------------------------------------------------------- */

/* What is said in audio of any length, by models that write down speech (Whisper): windows of what the model reads at once
 * (30 seconds), each a request of its own, the next one beginning where the last whole segment ended. The caller runs them:
 *
 *   while (headrace_transcription_next(t, &request, NULL) == HEADRACE_OK && request != NULL) {
 *     ... submit the request, destroy it, step the scheduler, and headrace_transcription_take each of its events ...
 *   }
 *
 * Tokens are those of transformers' WhisperForConditionalGeneration.generate: times come in pairs and do not go back. Where the
 * model knows several languages and none is said, the first request finds it out. A window whose text a threshold rejects is
 * asked for again at the next temperature; the text of the last one stands. */
typedef struct headrace_transcription headrace_transcription;

typedef struct headrace_transcription_params {
  uint32_t struct_size;
  int32_t no_timestamps; /* 1: windows follow each other, and each is one segment */
  const char* language; /* "en", as generation_config.json has it; NULL: what the model's files say, or what is heard */
  size_t language_size;
  const char* task; /* "transcribe", or "translate" into English; NULL: what the model's files say */
  size_t task_size;
  const int32_t* prompt; /* the decoder's first tokens, in place of language and task; NULL: by these */
  size_t num_prompt_tokens;
  const headrace_request* settings; /* sampling, lengths and the like of every window's request; NULL: the defaults */
  /* What follows is as transformers' generate() has it under these names, and holds only where it is set. A text is rejected
   * where zlib makes its tokens smaller than compression_ratio_threshold times, or their log probabilities, among the tokens
   * that could come, have a mean below logprob_threshold; those that events give are of that kind then. no_speech_threshold,
   * beside logprob_threshold: a window with such a text is skipped where silence is likelier than this, which a request for
   * one token finds out. */
  const float* temperatures; /* [num_temperatures], one after the other; NULL: that of settings alone */
  size_t num_temperatures;
  double compression_ratio_threshold;
  double logprob_threshold;
  double no_speech_threshold;
  uint32_t has_compression_ratio_threshold; /* 1: it holds */
  uint32_t has_logprob_threshold;
  uint32_t has_no_speech_threshold;
  /* 1: a window's prompt begins with the end of what was written before, at most half the context, unless the last window's
   * temperature was 0.5 or more. */
  uint32_t condition_on_prev_tokens;
  /* Text that the first window follows, or each that is not told what was written; with or without the token of earlier text
   * in front; NULL: none. */
  const int32_t* prompt_ids;
  size_t num_prompt_ids;
  /* 0: "first-segment"; 1: "all-segments", beside condition_on_prev_tokens: prompt_ids stay before what was written. */
  uint32_t prompt_condition_type;
  uint32_t reserved; /* 0 */
} headrace_transcription_params;

HEADRACE_API void headrace_transcription_params_init(headrace_transcription_params* params);
/* [any] samples: mono float32 in [-1, 1]; read during the call. params may be NULL. HEADRACE_UNSUPPORTED ("model") where it writes
 * down no speech, ("no_timestamps_token_id") where its files do not say which tokens are times or silence, and
 * ("compression_ratio_threshold") of builds without zlib; HEADRACE_NOT_FOUND where the files do not say how audio is read;
 * HEADRACE_INVALID_ARGUMENT ("language", "task") for one that the model has not, ("audio") for another sample_rate than the
 * model's (16000), no samples and values that are not finite, ("params.settings") for settings with a session, a prompt, an
 * encoder's input or several samples, ("temperatures[i]") for one that is negative or not finite,
 * ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold") for what is not finite, and the last without the
 * one before it, ("prompt_condition_type") for 1 without condition_on_prev_tokens, and ("prompt_ids") for more than the
 * context has room for. */
HEADRACE_API headrace_status headrace_transcription_create(const headrace_model* model, const float* samples,
                                                           size_t num_samples, uint32_t sample_rate,
                                                           const headrace_transcription_params* params,
                                                           headrace_transcription** transcription,
                                                           headrace_error** error);
HEADRACE_API void headrace_transcription_destroy(headrace_transcription* transcription);
/* [object] The request to run next, to be destroyed by the caller; NULL when all is written. It is the same until its last event
 * was taken. */
HEADRACE_API headrace_status headrace_transcription_next(const headrace_transcription* transcription,
                                                         headrace_request** request, headrace_error** error);
/* [object] An event of that request, in their order. After one that failed, was cancelled or ran out of time the same request comes
 * next again: a caller whose settings have a deadline ends the loop where the finish reason says so. */
HEADRACE_API headrace_status headrace_transcription_take(headrace_transcription* transcription,
                                                         const headrace_event* event, headrace_error** error);
/* [object] "en"; "" where it is not known, or not yet. Borrowed until the next call of take. */
HEADRACE_API const char* headrace_transcription_get_language(const headrace_transcription* transcription);
/* [object] Segments found so far. */
HEADRACE_API size_t headrace_transcription_get_num_segments(const headrace_transcription* transcription);

typedef struct headrace_speech_segment {
  uint32_t struct_size;
  uint32_t reserved;
  double start, end;     /* seconds from the beginning of the audio */
  const char* text;      /* without times and control tokens; "" where the model has no tokenizer */
  size_t text_size;      /* bytes */
  const int32_t* tokens; /* [num_tokens], those of times among them */
  size_t num_tokens;
} headrace_speech_segment;

HEADRACE_API void headrace_speech_segment_init(headrace_speech_segment* segment);
/* [object] The segment's text and tokens live as long as the transcription. HEADRACE_NOT_FOUND ("index") beyond the last. */
HEADRACE_API headrace_status headrace_transcription_get_segment(const headrace_transcription* transcription,
                                                                size_t index, headrace_speech_segment* segment,
                                                                headrace_error** error);

/* ---- Speculation -------------------------------------------------------------------------------------------------- */

/* [object] Who guesses at the request's next tokens, so that one step checks several: "off", "auto", or names of the scheduler's
 * drafters with commas between ("ngram,suffix"); "" is what the option "scheduler.drafter" says. Tokens, text and logprobs
 * are the same with any. A name that the scheduler does not have is refused at submit. */
HEADRACE_API headrace_status headrace_request_set_drafter(headrace_request* request, const char* drafter,
                                                          size_t drafter_size, headrace_error** error);
/* What became of guesses at a sample's tokens, of HEADRACE_EVENT_FINISHED, as a JSON object: "state" ("off"; "no_guess": nobody had
 * one; "did_not_pay": none was worth verifying; "drafted"), "chains_because" ("recurrent_state" where no branches are verified, for
 * each would begin with a copy of the model's; else ""), "steps" with guesses to verify, "drafted" and "accepted" guesses,
 * "saved_ns" (won against plain decoding, lost where below 0, by the scheduler's estimate of its steps), and "drafters": of each
 * its "name", "drafted", "accepted", "draft_ns" (spent on guessing), "drafted_at" and "accepted_at" (by how far ahead the guess
 * was, from 1). */
HEADRACE_API headrace_status headrace_event_describe_speculation(const headrace_event* event, char* buffer,
                                                                 size_t capacity, size_t* needed,
                                                                 headrace_error** error);
/* [any] The same of all requests since the scheduler was made, without "state" and "chains_because". */
HEADRACE_API headrace_status headrace_scheduler_describe_speculation(const headrace_scheduler* scheduler, char* buffer,
                                                                     size_t capacity, size_t* needed,
                                                                     headrace_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_HEADRACE_EXPERIMENTAL_H */
