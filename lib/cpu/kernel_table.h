// The kernels of one instruction set: plain functions over raw pointers, without threads and without allocation.
// Included by kernel sources of every instruction set, so nothing here may have inline code.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cpu/kernels/quantized_kernels.h"
#include "cpu/kernels/recurrent_spans.h"

namespace headrace {

// Lanes of a weight panel, of a key tile, and of the kernels' vectors, on every instruction set.
constexpr int kPanel = 16;
// A product sums K in chunks of this many terms from zero and adds the chunks in order.
constexpr int kSumChunk = 256;
// float_tile_rows of any instruction set is at most this.
constexpr int kMostTileRows = 16;

// Element types of panels.
enum class PanelType : int32_t { kF32, kF16, kBF16 };

// Panels of codes under scales (tensor/block_formats.h). A record holds a block of each of the panel's rows: float32
// scales [16], then the blocks' bytes of codes [bytes][16].
enum class ScaledFloat : int32_t { kFp8G32, kFp8G128, kNf4G64 };

// out[r, g, lane] += sum over k of x[k * x_stride + r] * w[g * panel_stride + k * k_stride + lane], k in order from
// an accumulator of zero: the arithmetic of one output is the same for every rows and panels.
struct MatmulTile {
  const float* x;        // [depth][x_stride], the first `rows` of each used
  int64_t x_stride;      // floats
  const void* w;         // first panel
  int64_t panel_stride;  // elements between panels
  int64_t k_stride;      // elements between k
  int64_t depth;
  int32_t rows;        // 1..float_tile_rows
  int32_t panels;      // any
  float* out;          // [rows][out_stride], 16 lanes per panel
  int64_t out_stride;  // floats
};

// One row's products with one or two panels of such codes: the sums of MatmulTile, of kSumChunk terms at most.
struct ScaledRow {
  const uint8_t* records;
  int64_t panel_bytes;  // between panels
  int32_t panels;       // 1 or 2
  int64_t num_records;
  const float* x;
  float* totals;  // [panels][16], added to
};

// One KV head of a block range seen by a tile of query rows, in one split of logical positions.
struct AttentionSplit {
  int32_t kv_dtype;  // KvDType
  int32_t head_dim;
  int32_t padded_dim;  // head_dim rounded up to 16
  int32_t block_size;
  int64_t code_bytes;  // of the keys (or values) of one head in one block
  int64_t half_bytes;
  int32_t scale_groups;  // per token in Q8
  const uint8_t* cache;  // this head's bytes in block 0
  int64_t block_bytes;   // between blocks
  const int32_t* block_table;
  int64_t begin, end;        // logical positions that any row sees in this split: begin < end
  bool starts;               // nothing before it has asked memory for the first chunk
  int64_t ahead_end;         // the same rows will be multiplied up to here next: worth asking memory for
  int32_t num_rows;          // (token, query head) pairs
  int32_t tile_rows;         // of each tile of q but the last, at most float_tile_rows
  const float* q;            // [tiles of tile_rows][head_dim][float_tile_rows]
  const int64_t* row_begin;  // [num_rows] visible positions of each row, not clipped to the split
  const int64_t* row_end;
  float scale;
  // [num_rows] what is added to a row's scaled scores, by logical position; read for whole chunks of 64. Null: nothing.
  const float* const* row_bias;
  float softcap;   // 0: none
  float* max;      // [num_rows] out: -inf where the row sees nothing here
  float* sum;      // [num_rows] out
  float* acc;      // [num_rows][padded_dim] out
  float* scratch;  // attention_scratch_floats(...)
  // Not null: positions are ranks in a list of rows that are keys and values at once, and every rank of the split is
  // seen. Where the row of rank begin + i and (Q8) its scales lie. cache, block_table and half_bytes do not count then.
  const uint8_t* const* rows;
  const uint8_t* const* row_scales;
};

// Scores of an indexer for one row (SelectPositionsParams), positions [begin, end).
struct IndexSpan {
  int32_t kv_dtype;  // KvDType
  int32_t head_dim;
  int32_t block_size;
  int64_t code_bytes;
  int32_t scale_groups;
  const uint8_t* cache;
  int64_t block_bytes;
  const int32_t* block_table;
  int64_t begin, end;  // begin: a multiple of 64
  int32_t num_heads;
  const float* q;        // [tiles of float_tile_rows][head_dim][float_tile_rows]
  const float* weights;  // [num_heads]
  float* scores;         // [end - begin, rounded up to 64]; what lies past the end means nothing
  // As in AttentionSplit: what is scored are rows of a list then, in place of cached keys.
  const uint8_t* const* rows;
  const uint8_t* const* row_scales;
  float* scratch;  // [65 * head_dim] with rows
};

// GatedActivationParams for num_rows rows of `count` elements; strides in floats. out may be gate.
struct GatedRows {
  int32_t activation;  // Activation
  float limit;         // of kClampedSwish and kClampedSilu
  int64_t num_rows, count;
  const float* gate;
  int64_t gate_stride;
  const float* up;  // or null
  int64_t up_stride;
  float* out;
  int64_t out_stride;
};

struct KernelTable {
  const char* name;
  int32_t float_tile_rows;          // most rows of one MatmulTile; x is packed in tiles of this many
  int32_t float_single_row_panels;  // panels that hide the latency of one row's additions

  // Linear layers of float weights and the products of attention.
  void (*matmul_tile)(PanelType type, const MatmulTile& tile);
  // Widens `count` panel elements to float32.
  void (*widen)(PanelType type, const void* src, float* dst, int64_t count);
  // Widens records of a panel to float32 [num_records * block][16].
  void (*widen_scaled)(ScaledFloat format, const uint8_t* records, int64_t num_records, float* dst);
  void (*multiply_scaled)(ScaledFloat format, const ScaledRow& row);

  // One row of RmsNormParams.
  void (*rms_norm_row)(const float* x, const float* weight, int64_t size, float eps, float weight_offset, float* out);

  // One group of LayerNormParams; bias may be null.
  void (*layer_norm_row)(const float* x, const float* weight, const float* bias, int64_t size, float eps, float* out);

  // Elementwise, any count.
  void (*gated_activation)(const GatedRows& rows);
  void (*add)(const float* x, int64_t count, float* out);
  void (*scale)(float factor, int64_t count, float* x);
  void (*softcap)(float cap, int64_t count, float* x);
  // sum e^(logit - max) of count >= 1 logits, max and the first id that has it. NaN for a row with a NaN or +inf, or
  // without a finite value; what the pointers get means nothing then.
  double (*logit_sum)(const float* logits, int64_t count, float* highest_logit, int32_t* argmax);

  // Rotates one head by cos and sin [rotary_dim / 2].
  void (*rotate_head)(float* head, const float* cosine, const float* sine, int32_t rotary_dim, bool interleaved);
  // Stores one head's key and value of one token, of which key_bytes or value_bytes may be null: the head's bytes in the
  // token's block. block_size: rows of a block, of which it is row `offset`.
  void (*store_kv)(int32_t kv_dtype, const float* key, const float* value, int32_t head_dim, int32_t block_size,
                   int32_t offset, uint8_t* key_bytes, uint8_t* value_bytes);

  // Floats of AttentionSplit::scratch for at most num_rows rows.
  int64_t (*attention_scratch_floats)(int32_t head_dim, int32_t num_rows);
  void (*attention_split)(const AttentionSplit& split);
  // Merges one split's partial of one row into the running (max, sum, acc).
  void (*attention_merge)(float split_max, float split_sum, const float* split_acc, int32_t padded_dim, float* max,
                          float* sum, float* acc);
  // out [head_dim] = acc / sum.
  void (*attention_finish)(const float* acc, float sum, int32_t head_dim, float* out);

  void (*index_scores)(const IndexSpan& span);

  // The ops of tensor/recurrent_params.h, for rows of one sequence; states are updated in place.
  void (*causal_conv)(const ConvSpan& span);
  void (*pool_runs)(const PoolSpan& span);
  void (*selective_scan)(const ScanSpan& span);
  void (*linear_recurrence)(const RecurrenceSpan& span);
  void (*decay_gates)(const float* raw, const float* bias, const float* rate, float low, float high, int64_t count,
                      float* decay, float* step);  // step may be null

  QuantizedKernels quantized;
};

// The table of an instruction set, by its number in base/cpu_features.h; the caller has checked that it is available.
const KernelTable& kernel_table(int32_t isa);

}  // namespace headrace
