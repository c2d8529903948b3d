// Declarations of this instruction set's kernels; contracts in cpu/kernel_table.h.
#pragma once

#include "cpu/kernel_table.h"
#include "cpu/kernels/isa.h"

namespace headrace::HEADRACE_FLOAT_NAMESPACE {

#if HEADRACE_VECTOR_BITS == 512
constexpr int kTileRows = 12;
#elif HEADRACE_VECTOR_BITS == 256 || HEADRACE_NEON
constexpr int kTileRows = 6;
#else
constexpr int kTileRows = 2;
#endif
static_assert(kTileRows <= kMostTileRows);

// Widest number of panels for a number of rows: enough independent sums to hide the latency of one addition, few
// enough that sums, operands and a broadcast stay in registers.
constexpr int widest_panels(int rows) {
#if HEADRACE_VECTOR_BITS == 512
  return rows == 1 ? 8 : rows <= 6 ? 4 : 2;
#elif HEADRACE_VECTOR_BITS == 256 || HEADRACE_NEON
  return rows == 1 ? 4 : rows == 2 ? 2 : 1;
#else
  return rows == 1 ? 2 : 1;
#endif
}

void matmul_tile(PanelType type, const MatmulTile& tile);
void widen(PanelType type, const void* src, float* dst, int64_t count);
void widen_scaled(ScaledFloat format, const uint8_t* records, int64_t num_records, float* dst);
void multiply_scaled(ScaledFloat format, const ScaledRow& row);
void rms_norm_row(const float* x, const float* weight, int64_t size, float eps, float weight_offset, float* out);
void layer_norm_row(const float* x, const float* weight, const float* bias, int64_t size, float eps, float* out);
void gated_activation(const GatedRows& rows);
void add(const float* x, int64_t count, float* out);
void scale(float factor, int64_t count, float* x);
void softcap(float cap, int64_t count, float* x);
double logit_sum(const float* logits, int64_t count, float* highest_logit, int32_t* argmax);
void rotate_head(float* head, const float* cosine, const float* sine, int32_t rotary_dim, bool interleaved);
void store_kv(int32_t kv_dtype, const float* key, const float* value, int32_t head_dim, int32_t block_size,
              int32_t offset, uint8_t* key_bytes, uint8_t* value_bytes);
int64_t attention_scratch_floats(int32_t head_dim, int32_t num_rows);
void attention_split(const AttentionSplit& split);
void attention_merge(float split_max, float split_sum, const float* split_acc, int32_t padded_dim, float* max,
                     float* sum, float* acc);
void attention_finish(const float* acc, float sum, int32_t head_dim, float* out);
void index_scores(const IndexSpan& span);
void causal_conv(const ConvSpan& span);
void pool_runs(const PoolSpan& span);
void selective_scan(const ScanSpan& span);
void linear_recurrence(const RecurrenceSpan& span);
void decay_gates(const float* raw, const float* bias, const float* rate, float low, float high, int64_t count,
                 float* decay, float* step);

}  // namespace headrace::HEADRACE_FLOAT_NAMESPACE
