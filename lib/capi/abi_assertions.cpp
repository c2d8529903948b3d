// The layouts that ABI version 1 promises. A field is only ever appended; a failing line here is a broken client.
#include <cstddef>

#include <headrace/headrace.h>
#include <headrace/headrace_experimental.h>

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

HEADRACE_FIELD(headrace_hidden_states, struct_size, 0);
HEADRACE_FIELD(headrace_hidden_states, num_layers, 4);
HEADRACE_FIELD(headrace_hidden_states, values, 8);
HEADRACE_FIELD(headrace_hidden_states, layers, 16);
HEADRACE_FIELD(headrace_hidden_states, first_position, 24);
HEADRACE_FIELD(headrace_hidden_states, num_rows, 32);
HEADRACE_FIELD(headrace_hidden_states, hidden_size, 40);
static_assert(sizeof(headrace_hidden_states) == 48);

HEADRACE_FIELD(headrace_token_mask, struct_size, 0);
HEADRACE_FIELD(headrace_token_mask, reserved, 4);
HEADRACE_FIELD(headrace_token_mask, user, 8);
HEADRACE_FIELD(headrace_token_mask, start, 16);
HEADRACE_FIELD(headrace_token_mask, fill, 24);
HEADRACE_FIELD(headrace_token_mask, advance, 32);
HEADRACE_FIELD(headrace_token_mask, retreat, 40);
HEADRACE_FIELD(headrace_token_mask, end, 48);
HEADRACE_FIELD(headrace_token_mask, release, 56);
static_assert(sizeof(headrace_token_mask) == 64);

HEADRACE_FIELD(headrace_transcription_params, struct_size, 0);
HEADRACE_FIELD(headrace_transcription_params, no_timestamps, 4);
HEADRACE_FIELD(headrace_transcription_params, language, 8);
HEADRACE_FIELD(headrace_transcription_params, language_size, 16);
HEADRACE_FIELD(headrace_transcription_params, task, 24);
HEADRACE_FIELD(headrace_transcription_params, task_size, 32);
HEADRACE_FIELD(headrace_transcription_params, prompt, 40);
HEADRACE_FIELD(headrace_transcription_params, num_prompt_tokens, 48);
HEADRACE_FIELD(headrace_transcription_params, settings, 56);
HEADRACE_FIELD(headrace_transcription_params, temperatures, 64);
HEADRACE_FIELD(headrace_transcription_params, num_temperatures, 72);
HEADRACE_FIELD(headrace_transcription_params, compression_ratio_threshold, 80);
HEADRACE_FIELD(headrace_transcription_params, logprob_threshold, 88);
HEADRACE_FIELD(headrace_transcription_params, no_speech_threshold, 96);
HEADRACE_FIELD(headrace_transcription_params, has_compression_ratio_threshold, 104);
HEADRACE_FIELD(headrace_transcription_params, has_logprob_threshold, 108);
HEADRACE_FIELD(headrace_transcription_params, has_no_speech_threshold, 112);
HEADRACE_FIELD(headrace_transcription_params, condition_on_prev_tokens, 116);
HEADRACE_FIELD(headrace_transcription_params, prompt_ids, 120);
HEADRACE_FIELD(headrace_transcription_params, num_prompt_ids, 128);
HEADRACE_FIELD(headrace_transcription_params, prompt_condition_type, 136);
HEADRACE_FIELD(headrace_transcription_params, reserved, 140);
static_assert(sizeof(headrace_transcription_params) == 144);

HEADRACE_FIELD(headrace_speech_segment, struct_size, 0);
HEADRACE_FIELD(headrace_speech_segment, reserved, 4);
HEADRACE_FIELD(headrace_speech_segment, start, 8);
HEADRACE_FIELD(headrace_speech_segment, end, 16);
HEADRACE_FIELD(headrace_speech_segment, text, 24);
HEADRACE_FIELD(headrace_speech_segment, text_size, 32);
HEADRACE_FIELD(headrace_speech_segment, tokens, 40);
HEADRACE_FIELD(headrace_speech_segment, num_tokens, 48);
static_assert(sizeof(headrace_speech_segment) == 56);

HEADRACE_FIELD(headrace_overflow, struct_size, 0);
HEADRACE_FIELD(headrace_overflow, kind, 4);
HEADRACE_FIELD(headrace_overflow, keep_first, 8);
HEADRACE_FIELD(headrace_overflow, free_tokens, 16);
HEADRACE_FIELD(headrace_overflow, user, 24);
HEADRACE_FIELD(headrace_overflow, summarize, 32);
HEADRACE_FIELD(headrace_overflow, release, 40);
static_assert(sizeof(headrace_overflow) == 48);

HEADRACE_FIELD(headrace_dropped, struct_size, 0);
HEADRACE_FIELD(headrace_dropped, reserved, 4);
HEADRACE_FIELD(headrace_dropped, times, 8);
HEADRACE_FIELD(headrace_dropped, messages, 16);
HEADRACE_FIELD(headrace_dropped, tokens, 24);
static_assert(sizeof(headrace_dropped) == 32);

HEADRACE_FIELD(headrace_tenant_limits, struct_size, 0);
HEADRACE_FIELD(headrace_tenant_limits, reserved, 4);
HEADRACE_FIELD(headrace_tenant_limits, weight, 8);
HEADRACE_FIELD(headrace_tenant_limits, max_num_seqs, 16);
HEADRACE_FIELD(headrace_tenant_limits, max_queue, 24);
HEADRACE_FIELD(headrace_tenant_limits, tokens_per_second, 32);
static_assert(sizeof(headrace_tenant_limits) == 40);

HEADRACE_FIELD(headrace_scheduler_metrics, struct_size, 0);
HEADRACE_FIELD(headrace_scheduler_metrics, num_tenants, 4);
HEADRACE_FIELD(headrace_scheduler_metrics, num_waiting, 8);
HEADRACE_FIELD(headrace_scheduler_metrics, num_running, 16);
HEADRACE_FIELD(headrace_scheduler_metrics, kv_blocks, 24);
HEADRACE_FIELD(headrace_scheduler_metrics, kv_used_blocks, 32);
HEADRACE_FIELD(headrace_scheduler_metrics, kv_cached_blocks, 40);
HEADRACE_FIELD(headrace_scheduler_metrics, step_age_ns, 48);
HEADRACE_FIELD(headrace_scheduler_metrics, submitted_requests, 56);
HEADRACE_FIELD(headrace_scheduler_metrics, refused_requests, 64);
HEADRACE_FIELD(headrace_scheduler_metrics, finished_requests, 72);
HEADRACE_FIELD(headrace_scheduler_metrics, failed_requests, 80);
HEADRACE_FIELD(headrace_scheduler_metrics, stop_samples, 88);
HEADRACE_FIELD(headrace_scheduler_metrics, length_samples, 96);
HEADRACE_FIELD(headrace_scheduler_metrics, cancelled_samples, 104);
HEADRACE_FIELD(headrace_scheduler_metrics, deadline_samples, 112);
HEADRACE_FIELD(headrace_scheduler_metrics, prompt_tokens, 120);
HEADRACE_FIELD(headrace_scheduler_metrics, cached_tokens, 128);
HEADRACE_FIELD(headrace_scheduler_metrics, output_tokens, 136);
HEADRACE_FIELD(headrace_scheduler_metrics, lookup_tokens, 144);
HEADRACE_FIELD(headrace_scheduler_metrics, hit_tokens, 152);
HEADRACE_FIELD(headrace_scheduler_metrics, num_steps, 160);
HEADRACE_FIELD(headrace_scheduler_metrics, step_ns, 168);
HEADRACE_FIELD(headrace_scheduler_metrics, step_rows, 176);
HEADRACE_FIELD(headrace_scheduler_metrics, step_sequences, 184);
HEADRACE_FIELD(headrace_scheduler_metrics, max_num_batched_tokens, 192);
HEADRACE_FIELD(headrace_scheduler_metrics, max_num_seqs, 200);
HEADRACE_FIELD(headrace_scheduler_metrics, preemptions, 208);
HEADRACE_FIELD(headrace_scheduler_metrics, evictions, 216);
HEADRACE_FIELD(headrace_scheduler_metrics, prefix_waits, 224);
HEADRACE_FIELD(headrace_scheduler_metrics, num_loading, 232);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_tokens, 240);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_max_bytes, 248);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_bytes, 256);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_files, 264);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_written_files, 272);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_written_bytes, 280);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_read_files, 288);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_read_bytes, 296);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_evicted_files, 304);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_dropped_writes, 312);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_failed_writes, 320);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_missing_files, 328);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_unreadable_files, 336);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_truncated_files, 344);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_damaged_files, 352);
HEADRACE_FIELD(headrace_scheduler_metrics, disk_foreign_files, 360);
HEADRACE_FIELD(headrace_scheduler_metrics, forgone_loads, 368);
HEADRACE_FIELD(headrace_scheduler_metrics, host_max_bytes, 376);
HEADRACE_FIELD(headrace_scheduler_metrics, host_bytes, 384);
HEADRACE_FIELD(headrace_scheduler_metrics, host_copies, 392);
HEADRACE_FIELD(headrace_scheduler_metrics, host_kept_copies, 400);
HEADRACE_FIELD(headrace_scheduler_metrics, host_read_copies, 408);
HEADRACE_FIELD(headrace_scheduler_metrics, host_read_bytes, 416);
HEADRACE_FIELD(headrace_scheduler_metrics, host_evicted_copies, 424);
static_assert(sizeof(headrace_scheduler_metrics) == 432);

HEADRACE_FIELD(headrace_latency, struct_size, 0);
HEADRACE_FIELD(headrace_latency, reserved, 4);
HEADRACE_FIELD(headrace_latency, count, 8);
HEADRACE_FIELD(headrace_latency, sum_ns, 16);
HEADRACE_FIELD(headrace_latency, p50_ns, 24);
HEADRACE_FIELD(headrace_latency, p95_ns, 32);
HEADRACE_FIELD(headrace_latency, p99_ns, 40);
HEADRACE_FIELD(headrace_latency, buckets, 48);
static_assert(sizeof(headrace_latency) == 816);

HEADRACE_FIELD(headrace_tenant_metrics, struct_size, 0);
HEADRACE_FIELD(headrace_tenant_metrics, reserved, 4);
HEADRACE_FIELD(headrace_tenant_metrics, weight, 8);
HEADRACE_FIELD(headrace_tenant_metrics, service, 16);
HEADRACE_FIELD(headrace_tenant_metrics, num_waiting, 24);
HEADRACE_FIELD(headrace_tenant_metrics, num_running, 32);
HEADRACE_FIELD(headrace_tenant_metrics, submitted_requests, 40);
HEADRACE_FIELD(headrace_tenant_metrics, refused_requests, 48);
HEADRACE_FIELD(headrace_tenant_metrics, finished_requests, 56);
HEADRACE_FIELD(headrace_tenant_metrics, prompt_tokens, 64);
HEADRACE_FIELD(headrace_tenant_metrics, cached_tokens, 72);
HEADRACE_FIELD(headrace_tenant_metrics, output_tokens, 80);
HEADRACE_FIELD(headrace_tenant_metrics, preemptions, 88);
static_assert(sizeof(headrace_tenant_metrics) == 96);
