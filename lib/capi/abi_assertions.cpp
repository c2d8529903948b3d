// The layouts that ABI version 1 promises. A field is only ever appended; a failing line here is a broken client.
#include <cstddef>

#include <headrace/headrace.h>

#define HEADRACE_FIELD(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)

HEADRACE_FIELD(headrace_model_info, struct_size, 0);
HEADRACE_FIELD(headrace_model_info, vocab_size, 4);
HEADRACE_FIELD(headrace_model_info, hidden_size, 8);
HEADRACE_FIELD(headrace_model_info, num_layers, 12);
HEADRACE_FIELD(headrace_model_info, max_position_embeddings, 16);
HEADRACE_FIELD(headrace_model_info, num_parameters, 24);
HEADRACE_FIELD(headrace_model_info, weight_bytes, 32);
HEADRACE_FIELD(headrace_model_info, kv_bytes_per_token, 40);
HEADRACE_FIELD(headrace_model_info, num_threads, 48);
HEADRACE_FIELD(headrace_model_info, has_chat_template, 52);
static_assert(sizeof(headrace_model_info) == 56);

HEADRACE_FIELD(headrace_kv_cache_stats, struct_size, 0);
HEADRACE_FIELD(headrace_kv_cache_stats, block_size, 4);
HEADRACE_FIELD(headrace_kv_cache_stats, num_blocks, 8);
HEADRACE_FIELD(headrace_kv_cache_stats, free_blocks, 16);
HEADRACE_FIELD(headrace_kv_cache_stats, cached_blocks, 24);
HEADRACE_FIELD(headrace_kv_cache_stats, lookup_tokens, 32);
HEADRACE_FIELD(headrace_kv_cache_stats, hit_tokens, 40);
HEADRACE_FIELD(headrace_kv_cache_stats, pool_bytes, 48);
static_assert(sizeof(headrace_kv_cache_stats) == 56);

HEADRACE_FIELD(headrace_sampling, struct_size, 0);
HEADRACE_FIELD(headrace_sampling, temperature, 4);
HEADRACE_FIELD(headrace_sampling, top_k, 8);
HEADRACE_FIELD(headrace_sampling, top_p, 12);
HEADRACE_FIELD(headrace_sampling, min_p, 16);
HEADRACE_FIELD(headrace_sampling, typical_p, 20);
HEADRACE_FIELD(headrace_sampling, repetition_penalty, 24);
HEADRACE_FIELD(headrace_sampling, frequency_penalty, 28);
HEADRACE_FIELD(headrace_sampling, presence_penalty, 32);
HEADRACE_FIELD(headrace_sampling, n, 36);
HEADRACE_FIELD(headrace_sampling, seed, 40);
HEADRACE_FIELD(headrace_sampling, has_seed, 48);
HEADRACE_FIELD(headrace_sampling, num_logprobs, 52);
HEADRACE_FIELD(headrace_sampling, num_prompt_logprobs, 56);
HEADRACE_FIELD(headrace_sampling, reserved, 60);
static_assert(sizeof(headrace_sampling) == 64);

HEADRACE_FIELD(headrace_scheduler_stats, struct_size, 0);
HEADRACE_FIELD(headrace_scheduler_stats, num_waiting, 8);
HEADRACE_FIELD(headrace_scheduler_stats, num_running, 16);
HEADRACE_FIELD(headrace_scheduler_stats, num_steps, 24);
HEADRACE_FIELD(headrace_scheduler_stats, prefill_tokens, 32);
HEADRACE_FIELD(headrace_scheduler_stats, cached_tokens, 40);
HEADRACE_FIELD(headrace_scheduler_stats, decode_tokens, 48);
HEADRACE_FIELD(headrace_scheduler_stats, preemptions, 56);
HEADRACE_FIELD(headrace_scheduler_stats, finished_requests, 64);
static_assert(sizeof(headrace_scheduler_stats) == 72);

HEADRACE_FIELD(headrace_usage, struct_size, 0);
HEADRACE_FIELD(headrace_usage, prompt_tokens, 8);
HEADRACE_FIELD(headrace_usage, cached_tokens, 16);
HEADRACE_FIELD(headrace_usage, output_tokens, 24);
HEADRACE_FIELD(headrace_usage, queue_ns, 32);
HEADRACE_FIELD(headrace_usage, first_token_ns, 40);
HEADRACE_FIELD(headrace_usage, total_ns, 48);
static_assert(sizeof(headrace_usage) == 56);
