// A model's weights in a backend's own order, loaded tensor by tensor from a file.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "formats/tensor_file.h"
#include "model/linear_weight.h"
#include "model/model_spec.h"
#include "model/recurrent_weights.h"
#include "ops/backend.h"

namespace headrace {

class PackedCache;

// One weight the spec asks for. Names are the same for both file kinds: embed.weight, layers.N.q_proj.weight,
// layers.N.attention_norm.weight, final_norm.weight, lm_head.weight.
struct WeightEntry {
  std::string name;
  std::string file_name;  // of the tensor in the file
  std::vector<uint64_t> shape;
  // Where the same elements in the same order may have other axes in the file: these. Axes of one say nothing in either.
  std::vector<uint64_t> file_shape = {};
  bool integers = false;  // the tensor may be of an integer type
  // Which of how many alike (experts, heads) it is, where one tensor of the file may hold them all.
  uint64_t index = 0, count = 1;
  // Where it lies in that tensor, in elements: row r, column c at offset + r * row_stride + c * col_stride. A vector is
  // one row.
  uint64_t offset = 0, row_stride = 0, col_stride = 1;
  // Where the tensor's rows come in groups that hold a run of each of its weights: rows of this weight's run; 0: not.
  uint64_t row_block = 0;
  uint64_t head_rows = 0;    // rows (of a vector: elements) of one head of q, k or v
  uint64_t head_stride = 0;  // elements between heads, where they do not follow each other; 0: they do
};

struct NormWeight {
  std::vector<float> weight, bias;  // [size]; both empty: no norm; bias empty: none

  bool empty() const { return weight.empty(); }
};

// Bytes of the entry's share of its tensor.
uint64_t bytes_in_file(const WeightEntry& entry, const TensorEntry& tensor);

struct GqaWeights {
  LinearWeight gate;                  // empty without an output gate
  LinearWeight q, k, v, o;            // k and v: empty where the spec has none
  std::vector<float> q_norm, k_norm;  // of the spec's QkNormKind, or empty
  std::vector<float> v_norm;          // ones, or empty
  std::vector<float> sinks;           // [num_heads] or empty
  // Of PagedAttentionParams, with the spec's max_distance as reach, or null. Layers may share it.
  std::shared_ptr<const std::vector<float>> position_bias;
};

struct CrossWeights {
  NormWeight norm;
  LinearWeight q, k, v, o;
};

struct LatentWeights {
  LinearWeight q_down;                   // [q_rank, hidden_size], empty without q_rank
  std::vector<float> q_norm;             // [q_rank], likewise
  LinearWeight q;                        // [num_heads * (nope_dim + rope_dim), q_rank or hidden_size]
  LinearWeight latent;                   // [rank, hidden_size]
  LinearWeight k_rope;                   // [rope_dim, hidden_size]
  std::vector<float> latent_norm;        // [rank]
  std::vector<LinearWeight> k_up, v_up;  // of each head: [rank, nope_dim] and [v_dim, rank]
  LinearWeight o;                        // [hidden_size, num_heads * v_dim]
};

struct IndexerWeights {
  LinearWeight q;                          // [num_heads * head_dim, q_rank]
  LinearWeight k;                          // [head_dim, hidden_size]
  LinearWeight head_weights;               // [num_heads, hidden_size]
  std::vector<float> k_norm, k_norm_bias;  // [head_dim]
};

struct SparseLatentWeights {
  LatentWeights latent;
  IndexerWeights indexer;  // empty where the layer has none
};

struct CompressorWeights {
  LinearWeight value, gate;  // [head_dim or, with overlap, 2 head_dim, hidden_size]
  std::vector<float> bias;   // [run, likewise] of the gate
  std::vector<float> norm;   // [head_dim]
};

struct CompressedWeights {
  LinearWeight q_down;               // [q_rank, hidden_size]
  std::vector<float> q_norm;         // [q_rank]
  LinearWeight q;                    // [num_heads * head_dim, q_rank]
  std::vector<float> unit;           // [head_dim] ones: the weight of a norm without one
  LinearWeight k;                    // [head_dim, hidden_size]
  std::vector<float> k_norm;         // [head_dim]
  std::vector<float> sinks;          // [num_heads]
  std::vector<LinearWeight> groups;  // [output_rank, num_heads * head_dim / output_groups] each
  LinearWeight o;                    // [hidden_size, output_groups * output_rank]
  CompressorWeights compressor;      // empty where the layer has none, and so below
  CompressorWeights index_compressor;
  LinearWeight index_q;             // [indexer.num_heads * indexer.head_dim, q_rank]
  LinearWeight index_head_weights;  // [indexer.num_heads, hidden_size]
};

struct AttentionBesideMambaWeights {
  GqaWeights attention;
  Mamba2Weights mamba;
};

struct DenseWeights {
  LinearWeight gate, up, down;  // gate: empty where the spec has none
};

struct MoeWeights {
  LinearWeight router;
  std::vector<float> correction;     // [num_experts] or empty
  std::vector<float> expert_scales;  // likewise
  std::vector<int32_t> by_token;     // [vocab_size, top_k] ascending in a row, likewise
  std::vector<DenseWeights> experts;
  std::vector<ExpertWeights> table;  // the same as the op sees them
  DenseWeights shared;               // empty without a shared feed-forward
  LinearWeight shared_gate;          // [1, hidden_size], likewise
};

struct DenseBesideExpertsWeights {
  DenseWeights dense;
  MoeWeights experts;
  NormWeight dense_post_norm, experts_norm, experts_post_norm;  // n1, n3 and n2 of the spec
  NormWeight router_norm;                                       // times router_scale
};

struct NoFeedForwardWeights {};

struct LaurelWeights {
  LinearWeight left, right;  // [laurel_rank, hidden_size], [hidden_size, laurel_rank]
  NormWeight norm;
};

// Of a layer, for num_streams streams.
struct AltUpWeights {
  NormWeight router_norm;           // divided by hidden_size
  LinearWeight router;              // [num_streams, hidden_size]
  LinearWeight prediction;          // [num_streams * num_streams, num_streams]
  LinearWeight correction;          // [num_streams, num_streams]
  std::vector<float> output_scale;  // [hidden_size] or empty
};

// The coefficients of streams where a block begins and ends, or of the sum behind the last layer.
struct StreamGateWeights {
  LinearWeight fn;                 // [n (n + 2) or n, n * hidden_size]
  std::vector<float> base, scale;  // [n (n + 2)] and [3], or [n] and [1]
  std::vector<float> unit;         // [n * hidden_size] ones
};

// Of a layer.
struct HyperWeights {
  StreamGateWeights attention, feed_forward;
};

// Of a layer.
struct PerLayerWeights {
  LinearWeight gate;        // [size, hidden_size]
  LinearWeight projection;  // [hidden_size, size]
  NormWeight norm;
};

// The weights of each kind of attention and feed-forward; never defined.
GqaWeights weights_of(const GqaAttention&);
ShortConvWeights weights_of(const ShortConv&);
MambaWeights weights_of(const Mamba&);
Mamba2Weights weights_of(const Mamba2&);
GatedDeltaWeights weights_of(const GatedDelta&);
KimiDeltaWeights weights_of(const KimiDelta&);
LightningWeights weights_of(const LightningAttention&);
NoAttentionWeights weights_of(const NoAttention&);
AttentionBesideMambaWeights weights_of(const AttentionBesideMamba&);
LatentWeights weights_of(const LatentAttention&);
SparseLatentWeights weights_of(const SparseLatentAttention&);
CompressedWeights weights_of(const CompressedAttention&);
DenseWeights weights_of(const DenseFeedForward&);
MoeWeights weights_of(const MixtureOfExperts&);
DenseBesideExpertsWeights weights_of(const DenseBesideExperts&);
NoFeedForwardWeights weights_of(const NoFeedForward&);
template <class Spec>
using WeightsOf = decltype(weights_of(std::declval<Spec>()));

struct LayerWeights {
  NormWeight attention_norm, post_attention_norm;  // [hidden_size]; each may be empty
  NormWeight feed_forward_norm, post_feed_forward_norm;
  NormWeight attention_stream_norm, feed_forward_stream_norm;  // both or neither
  std::variant<GqaWeights, ShortConvWeights, MambaWeights, Mamba2Weights, GatedDeltaWeights, KimiDeltaWeights,
               LightningWeights, NoAttentionWeights, AttentionBesideMambaWeights, LatentWeights, SparseLatentWeights,
               CompressedWeights>
      attention;       // of the kind of the spec's alternative
  CrossWeights cross;  // empty where the layer has none
  std::variant<DenseWeights, MoeWeights, DenseBesideExpertsWeights, NoFeedForwardWeights> feed_forward;
  PerLayerWeights per_layer;        // empty without per-layer inputs
  LaurelWeights laurel;             // empty where the spec has none
  AltUpWeights altup;               // likewise
  HyperWeights hyper;               // likewise
  std::vector<float> output_scale;  // [1] or empty
};

// Called with the share loaded so far, 0 to 1; false cancels the load.
using LoadProgress = std::function<bool(double)>;

// Immutable once loaded; independent of the file, but not of the kind of backend that packed it.
struct ModelWeights {
  LinearWeight embedding;  // no bias
  std::vector<LayerWeights> layers;
  std::optional<LinearWeight> positions;             // [learned_positions, hidden_size]
  std::optional<LinearWeight> token_types;           // [token_types, hidden_size]
  NormWeight embedding_norm;                         // may be empty
  std::optional<LinearWeight> per_layer_table;       // [vocab_size, num_layers * size] of PerLayerInputs
  std::optional<LinearWeight> per_layer_projection;  // [num_layers * size, hidden_size]
  std::vector<float> per_layer_norm;                 // [size]
  // Of AltUp, of all streams but the first.
  std::vector<LinearWeight> stream_projections, stream_unprojections;  // [hidden_size, hidden_size]
  std::optional<StreamGateWeights> stream_head;                        // of HyperConnections
  NormWeight final_norm;                                               // may be empty
  std::optional<LinearWeight> transform;                               // [hidden_size, hidden_size]
  NormWeight transform_norm;                                           // may be empty
  std::optional<LinearWeight> lm_head;  // the output matrix, absent when tied or when the head has none
  std::vector<float> tied_bias;         // of a tied head, or empty
  // Every weight that rows are multiplied by, borrowed from the members above.
  std::vector<const PackedWeight*> products;
  uint64_t bytes = 0;  // packed weights and vectors

  LinearOutput head(float* y) const {
    if (lm_head) return lm_head->to(y);
    LinearOutput tied = embedding.to(y);
    if (!tied_bias.empty()) tied.bias = tied_bias.data();
    return tied;
  }

  // Reads and packs every entry, but for matrices that `cache` has; it is told of all matrices. kCancelled when progress
  // says so, kMalformed for a non-finite norm or bias.
  static Result<ModelWeights> load(const ModelSpec& spec, const std::vector<WeightEntry>& entries,
                                   const TensorFile& file, const PackOptions& options, const LoadProgress& progress,
                                   Backend& backend, PackedCache* cache = nullptr);
};

}  // namespace headrace
