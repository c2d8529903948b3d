// A model as data: what the forward pass executes. It knows no family; importers (families/) fill it from a
// Hugging Face config.json or GGUF metadata. A new kind of block is a new alternative of a variant, not
// another flag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/recurrent_spec.h"
#include "tensor/kv_layout.h"
#include "tensor/op_params.h"
#include "tensor/router_params.h"

namespace headrace {

class JsonWriter;

// Rotary positions of one layer. The frequencies are final: every scaling is already in them.
struct RopeSpec {
  std::string type = "default";   // default, linear, llama3, yarn, factors (a tensor of the file); for people
  double theta = 10000.0;         // likewise: inv_freq is what counts
  int32_t rotary_dim = 0;         // leading dims of a head that rotate, even; 0: no rotation
  std::vector<float> inv_freq;    // [rotary_dim / 2], radians per position
  std::vector<int32_t> axes;      // [rotary_dim / 2] which of a row's positions turns a pair; empty: the first
  float attention_factor = 1.0f;  // multiplies cos and sin
  bool interleaved = false;       // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  // Sequences of more than `short_length` tokens may rotate otherwise, from their first token on (model/rope_length.h): by
  // other frequencies (LongRoPE, Ding et al. 2024), or by those of a theta that grows with their length (dynamic NTK).
  std::vector<float> long_inv_freq;  // [rotary_dim / 2], or empty
  double dynamic_factor = 0.0;       // 0: theta does not grow
  int32_t short_length = 0;
  bool operator==(const RopeSpec&) const = default;
};

enum class NormKind : int32_t { kRms, kLayer };

// What is normalised of q and k where a spec asks for it.
enum class QkNormKind : int32_t {
  kHead,                         // RMS of each head before the rotation, one weight [head_dim] for all heads
  kHeadAfterRotation,            // the same after it
  kHeadAfterRotationUnweighted,  // likewise with a weight of one
  kWhole,                        // RMS over all heads of a row, weight [heads * head_dim], before the rotation
  kHeadLayer,                    // layer norm of each head, a weight of its own for each: [heads, head_dim]
};

// What the rows of a span (of an image, or of a window of one) make of it.
enum class SpanKind : int32_t {
  kIgnored,
  kSeen,   // see on to its end, beside what they would see without
  kAlone,  // see nothing else
};

// Biases of scores by the distance of a key from its query (T5): distances fall into buckets, the nearer half of them of one
// distance each and the others ever wider, up to max_distance; a head has a bias for each bucket. Both ways, half of the
// buckets are for keys behind the query. bucket_of() of position_buckets.h is the definition.
struct PositionBuckets {
  int32_t num_buckets = 0;
  int32_t max_distance = 0;
  int32_t layer = -1;  // the layer before whose biases these are; -1: this layer's own
  bool operator==(const PositionBuckets&) const = default;
};

// Softmax attention, num_heads / num_kv_heads query heads per key/value head (multi-head when they are
// equal). Rows see what is before them; both ways, all of their sequence.
struct GqaAttention {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t v_dim = 0;         // dims of a value, at most head_dim; 0: head_dim. The cache holds zeros past them
  float value_scale = 1.0f;  // of the values
  float scale = 0.0f;        // of q k^T
  bool both_ways = false;
  SpanKind spans = SpanKind::kIgnored;
  int32_t window = 0;          // keys a row sees, itself included, both ways on either side; 0: all
  int32_t chunk = 0;           // keys of a row's own run of so many positions alone; 0: no such cut
  float logit_softcap = 0.0f;  // 0: none
  bool qkv_bias = false;
  bool key_bias = true;  // with qkv_bias: k has one too
  bool output_bias = false;
  bool output_gate = false;  // attention times sigmoid(gate), the gate of a head beside its q in the file
  bool qk_norm = false;
  QkNormKind qk_norm_kind = QkNormKind::kHead;
  // q of position p is scaled by 1 + position_scale ln(1 + floor((p + position_scale_shift) / position_scale_length));
  // 0: not.
  float position_scale = 0.0f;
  int32_t position_scale_length = 0;
  int32_t position_scale_shift = 0;
  bool sinks = false;             // a weight per head that joins its softmax's denominator as one more logit
  bool values_from_keys = false;  // values are what k is before its norm and rotation
  bool value_norm = false;        // RMS of each head of the values, without weights
  int32_t kv_layer = -1;          // the layer before whose cached keys and values are seen; -1: this layer's own
  std::optional<PositionBuckets> position_buckets;
  RopeSpec rope;
  int32_t value_dim() const { return v_dim == 0 ? head_dim : v_dim; }
  bool operator==(const GqaAttention&) const = default;
};

// Multi-head latent attention (DeepSeek-V2): every head's keys and values are projections of one latent per position.
// Only the latent and the rotated part, which all heads share, are cached, as the one KV head [rope_dim | rank] that
// serves as key and as value. Queries are brought into that space and results out of it, for every row alike, so that
// prefill and decoding are one arithmetic.
struct LatentAttention {
  int32_t num_heads = 0;
  int32_t q_rank = 0;    // of the queries' own latent; 0: queries are projected at once
  int32_t rank = 0;      // of the latent of keys and values
  int32_t nope_dim = 0;  // dims of a head's key that do not rotate
  int32_t rope_dim = 0;  // dims that do, or, without rotary_dim, would
  int32_t v_dim = 0;     // of a head's value
  float scale = 0.0f;    // of q k^T
  float latent_norm_eps = 1e-6f;
  bool latent_bias = false;  // of the projections into latents
  bool output_bias = false;
  RopeSpec rope;
  int32_t key_dim() const { return rope_dim + rank; }
  bool operator==(const LatentAttention&) const = default;
};

// The lightning indexer of sparse attention (DeepSeek-V3.2): heads of its own, made of the queries' latent, choose the
// positions that a row sees (SelectPositionsParams). Its keys, one per position for all heads, are another part of the
// layer's cache.
struct Indexer {
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  float norm_eps = 1e-6f;  // of the layer norm of its keys
  RopeSpec rope;           // of leading dims
  bool operator==(const Indexer&) const = default;
};

// Latent attention whose rows see at most top_k positions. The one vector that is cached for a position is read as key
// and as value (KvContent::kRows).
struct SparseLatentAttention {
  LatentAttention latent;
  int32_t top_k = 0;
  std::optional<Indexer> indexer;  // absent: rows see what the last layer before that has one chose
  bool operator==(const SparseLatentAttention&) const = default;
};

// Makes one row of every run of tokens: the pooling of PoolRunsParams, an RMS norm, and a rotation by the position of the
// run's first token.
struct Compressor {
  int32_t run = 0;  // tokens
  bool overlap = false;
  // Of rows of head_dim: what a token adds to each, and what a sequence's open runs take (PoolRunsParams).
  int64_t values(int64_t head_dim) const { return overlap ? 2 * head_dim : head_dim; }
  int64_t state_floats(int64_t head_dim) const { return 3 * values(head_dim); }
  bool operator==(const Compressor&) const = default;
};

// Heads of their own, made of the queries' latent, that choose among the runs (SelectPositionsParams). Their keys are rows
// of a compressor of theirs, like that of the layer.
struct RunIndexer {
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t top_k = 0;
  bool operator==(const RunIndexer&) const = default;
};

// Attention of DeepSeek-V4: queries come from a latent; every position has one row for all heads, which is key and value.
// A row of the batch sees a window of them and, with a compressor, rows of the runs that ended: all, or those an indexer
// chose. Norms are RMS norms with eps: of the queries' latent, each head of the queries without weights, and of the rows.
// The last dims of a head rotate; the result is rotated back by the row's position. Heads in output_groups runs of equal
// length are each brought to output_rank values, and those together to hidden_size.
struct CompressedAttention {
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t q_rank = 0;
  int32_t window = 0;
  int32_t output_groups = 1;
  int32_t output_rank = 0;
  float scale = 0.0f;  // of q k^T; a weight per head joins its softmax's denominator
  float eps = 0.0f;
  RopeSpec rope;  // of positions, and of runs and their indexer
  std::optional<Compressor> compressor;
  std::optional<RunIndexer> indexer;  // with a compressor alone
  bool operator==(const CompressedAttention&) const = default;
};

// Attention and a Mamba-2 layer see the same input; their outputs are added. Reference: transformers models/falcon_h1.
struct AttentionBesideMamba {
  GqaAttention attention;
  Mamba2 mamba;
  float attention_scale = 1.0f;  // of the branches' outputs
  float mamba_scale = 1.0f;
  bool operator==(const AttentionBesideMamba&) const = default;
};

// Softmax attention of a decoder's rows to all that an encoder made of the request's input (EncoderMemory): queries are of the
// stream, keys and values of the encoder's rows.
struct CrossAttention {
  int32_t num_heads = 0;  // of queries, keys and values
  int32_t head_dim = 0;
  float scale = 0.0f;  // of q k^T
  bool qkv_bias = false;
  bool key_bias = true;  // as of GqaAttention
  bool output_bias = false;
  bool operator==(const CrossAttention&) const = default;
};

using AttentionSpec =
    std::variant<GqaAttention, ShortConv, Mamba, Mamba2, GatedDelta, KimiDelta, LightningAttention, NoAttention,
                 AttentionBesideMamba, LatentAttention, SparseLatentAttention, CompressedAttention>;

// down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.
struct DenseFeedForward {
  int32_t intermediate_size = 0;
  Activation activation = Activation::kSilu;
  bool bias = false;
  bool gated = true;
  float gate_scale = 1.0f;   // of gate(x)
  float inner_scale = 1.0f;  // of what down sees
  // gate(x) becomes what of it lies above mean + gate_cutoff deviation of its row, zero below.
  std::optional<float> gate_cutoff;
  bool operator==(const DenseFeedForward&) const = default;
};

// How a row chooses its experts; the meaning of the fields is that of RouteParams.
struct RouterSpec {
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int32_t num_groups = 1;
  int32_t top_groups = 1;
  GroupScore group_score = GroupScore::kTopTwoSum;
  RouterScore score = RouterScore::kSoftmax;
  bool bias = false;        // of the logits
  bool correction = false;  // a weight that is added to the scores for the choice
  bool normalize = false;
  float sum_floor = 0.0f;
  float sum_added = 0.0f;
  float scale = 1.0f;
  bool expert_scale = false;  // a factor of each expert's weight
  bool by_token = false;  // a table has the experts of each token of the vocabulary; scores give their weights alone
  bool operator==(const RouterSpec&) const = default;
};

// The sum of a row's experts and of a feed-forward that every row visits, each as in DenseFeedForward.
struct MixtureOfExperts {
  RouterSpec router;
  int32_t intermediate_size = 0;  // of one expert
  Activation activation = Activation::kSilu;
  float activation_limit = 0.0f;         // kClampedSwish, kClampedSilu
  bool bias = false;                     // of the experts
  bool gated = true;                     // of the experts and of the shared feed-forward
  bool weight_inputs = false;            // weights multiply the experts' inputs, not their outputs
  int32_t shared_intermediate_size = 0;  // 0: no shared feed-forward
  bool shared_gate = false;              // its output times sigmoid(w x)
  bool operator==(const MixtureOfExperts&) const = default;
};

// A feed-forward and experts side by side (Gemma 4): n1(dense(x)) + n2(experts(n3(y))), y being the stream and x what the
// block's norm made of it. The router sees y's RMS norm with weights of its own, times router_scale.
struct DenseBesideExperts {
  DenseFeedForward dense;
  MixtureOfExperts experts;
  float router_scale = 1.0f;
  bool operator==(const DenseBesideExperts&) const = default;
};

// The layer is its attention alone.
struct NoFeedForward {
  bool operator==(const NoFeedForward&) const = default;
};
using FeedForwardSpec = std::variant<DenseFeedForward, MixtureOfExperts, DenseBesideExperts, NoFeedForward>;

// What a block's output is added to: x = keep r + scale block(norm(x)), r = x or, where `normed`, norm(x).
struct ResidualSpec {
  bool normed = false;
  float keep = 1.0f;  // other than 1 only where normed
  float scale = 1.0f;
  bool operator==(const ResidualSpec&) const = default;
};

// x += s [post_attention_norm](attention([attention_norm](x)));
// x += s [post_feed_forward_norm](feed_forward([feed_forward_norm](x))), s the scale of the block's residual.
// Parallel: x += s attention(attention_norm(x)) + s feed_forward(n(x)), n = feed_forward_norm if there is one, else
// attention_norm. With cross-attention, not in parallel layers: x += cross(cross_norm(x)) between the two.
struct LayerSpec {
  AttentionSpec attention;
  std::optional<CrossAttention> cross;
  FeedForwardSpec feed_forward;
  bool post_attention_norm = false;
  bool post_feed_forward_norm = false;
  bool attention_norm = true;
  bool feed_forward_norm = true;
  bool parallel = false;
  // Post-layer-norm: after each of the two sums x = norm(x), with weights of its own. Not of parallel blocks.
  bool stream_norms = false;
  ResidualSpec attention_residual, feed_forward_residual;
  bool output_scale = false;  // in the end x *= a weight [1]
  // Learned augmented residual (Gemma 3n): with n = attention_norm(x), attention's sum becomes
  // (x + attention + n + norm(right(left(n)))) / sqrt 2, left giving laurel_rank values. 0: not.
  int32_t laurel_rank = 0;
  bool operator==(const LayerSpec&) const = default;
};

// How the rows of a sequence become one.
enum class Pooling : int32_t {
  kUnknown,  // the files do not say
  kMean,
  kFirst,  // the row of [CLS]
  kLast,
};

// What the head gives for a row.
enum class HeadKind : int32_t {
  kVocabulary,  // a logit for each token
  kLabels,      // a score for each of num_labels, of a sequence's pooled row
  kTransform,   // its transform alone, of a sequence's pooled row
  kNone,
};

// [norm](activation(W x + b)), hidden_size wide, before the output matrix.
struct TransformSpec {
  Activation activation = Activation::kTanh;
  bool bias = true;
  bool norm = false;
  bool operator==(const TransformSpec&) const = default;
};

struct HeadSpec {
  HeadKind kind = HeadKind::kVocabulary;
  int32_t num_labels = 0;
  Pooling pooling = Pooling::kUnknown;  // of the rows of kLabels and kTransform
  std::optional<TransformSpec> transform;
  bool tied = false;           // the output matrix is the embedding table
  float logit_softcap = 0.0f;  // 0: none
  float logit_scale = 1.0f;    // before the cap
  bool bias = false;
  bool operator==(const HeadSpec&) const = default;
};

// Inputs of their own that layers have (Gemma 3n and 4). Of each token, for all layers together [num_layers, size]:
//   input = sum_scale (rms_norm(projection_scale P e) + table_scale table[token]), e being its row behind embed_tokens
// After its blocks layer l does x += rms_norm(W2 (activation(W1 x) * input[l])).
struct PerLayerInputs {
  int32_t size = 0;
  int32_t vocab_size = 0;  // rows of the table; tokens beyond take the first
  float table_scale = 1.0f, projection_scale = 1.0f, sum_scale = 1.0f;
  Activation activation = Activation::kGeluTanh;
  bool operator==(const PerLayerInputs&) const = default;
};

// The residual stream is one row.
struct OneStream {
  bool operator==(const OneStream&) const = default;
};

// Alternating updates (Baykal et al. 2023, Gemma 3n): several rows, of which a layer's blocks see one. A layer predicts
// all by a map made of that one, computes on, and corrects all by what its blocks changed. Per-layer inputs are added to
// all but the first. The other rows are made of the embedding by a matrix each, and brought back likewise.
struct AltUp {
  int32_t num_streams = 0;
  int32_t active = 0;
  bool output_scale = false;  // per-layer gates see the active row times weights [hidden_size]
  bool operator==(const AltUp&) const = default;
};

// Manifold-constrained hyper-connections (Xie et al. 2025, DeepSeek-V4): several rows, equal at first, of which each block
// sees a sum. Its output is added to all, which a map has mixed before. The coefficients are functions of the rows
// (StreamGatesParams), and so are those of the sum that the final norm sees.
struct HyperConnections {
  int32_t num_streams = 0;
  int32_t iterations = 0;
  float eps = 0.0f;
  bool operator==(const HyperConnections&) const = default;
};
using StreamSpec = std::variant<OneStream, AltUp, HyperConnections>;

struct ModelSpec {
  std::string architecture;  // the family's name: llama, qwen2, qwen3, gemma3
  int32_t vocab_size = 0;    // rows of the embedding and of the head; 0: embeddings are given
  int32_t hidden_size = 0;
  int32_t max_position_embeddings = 0;  // longest sequence the file claims
  float embedding_scale = 1.0f;
  // Rows of a table of position embeddings, added to the tokens'; no sequence may be longer. 0: none.
  int32_t learned_positions = 0;
  // As RoBERTa numbers them: row p of that table is this token's wherever it stands, p its id, and the others take the
  // rows from p + 1 on. -1: every token takes the row of its position.
  int32_t position_padding_id = -1;
  int32_t token_types = 0;      // rows of a table of segments, added likewise; 0: none
  bool embedding_norm = false;  // of these sums
  int32_t position_axes = 1;    // rotary positions of a row
  // Given embeddings have as many further rows, which are added to the outputs of the first layers, one each.
  int32_t deep_embeddings = 0;
  NormKind norm = NormKind::kRms;   // of every norm over hidden_size
  bool norm_bias = false;           // likewise
  float norm_eps = 0.0f;            // of every norm
  float norm_weight_offset = 0.0f;  // 1 where weights of RMS norms are stored minus one
  std::vector<LayerSpec> layers;
  std::optional<PerLayerInputs> per_layer_inputs;
  StreamSpec streams;
  bool final_norm = true;  // of the last layer's output
  HeadSpec head;
  Pooling pooling = Pooling::kUnknown;  // that the files recommend for embeddings
  int32_t bos_token_id = -1;            // -1: none
  std::vector<int32_t> eos_token_ids;   // of the config or metadata, ascending
  bool operator==(const ModelSpec&) const = default;
};

// Whether rows see later ones: keys and values serve one step alone then.
bool attends_both_ways(const ModelSpec& spec);
// Whether rows of an image see later ones of it: those that are not stored yet have to come in one step.
bool has_spans(const ModelSpec& spec);
// Whether a sequence has to come in one step: where rows see later ones, or positions are counted past padding.
bool computes_whole_sequences(const ModelSpec& spec);
// Whether experts are chosen by token: every row has to be one of the vocabulary then.
bool routes_by_token(const ModelSpec& spec);
// Floats of a row of the head's output; 0 for kNone.
int64_t head_width(const ModelSpec& spec);

// "mean", "cls", "last"; "" for kUnknown.
std::string_view pooling_name(Pooling pooling);
// "silu", "gelu_tanh", ...
std::string_view activation_name(Activation activation);

// kMalformed with the offending field as place when a size is absurd or sizes contradict each other. What
// passes can be multiplied out in int64 without overflow.
Status validate_spec(const ModelSpec& spec);

// Layouts for a KvCacheConfig, the parts of each layer's cache in order (num_cache_parts): attention's, without KV heads
// where the layer has none, then the rows of its runs, then its indexer's keys. A layer that sees those of another has none.
std::vector<KvLayout> kv_layouts(const ModelSpec& spec, KvDType dtype, int32_t block_size = 16);
size_t num_cache_parts(const LayerSpec& layer);
// The same of an encoder's output as the decoder's layers see it: a part for each layer with cross-attention.
std::vector<KvLayout> memory_layouts(const ModelSpec& spec, KvDType dtype, int32_t block_size = 16);
// Whether some layer sees an encoder's rows.
bool has_cross_attention(const ModelSpec& spec);
// Whether the layer stores nothing of a row: neither keys and values nor a state.
bool keeps_nothing(const LayerSpec& layer);
// Cache bytes of one position over all layers.
uint64_t kv_bytes_per_token(const ModelSpec& spec, KvDType dtype);

// Floats of one layer's recurrent state, and of one sequence's over all layers in order; 0 where there is none.
uint64_t state_floats(const LayerSpec& layer);
uint64_t state_floats(const ModelSpec& spec);

// The spec for people and for hashing: every field that changes the computation, in a fixed order.
std::string spec_to_json(const ModelSpec& spec);
// The same as members of the open object. The frequencies follow from the other fields of most models, and make a table for
// people unreadable.
void write_spec(JsonWriter& out, const ModelSpec& spec, bool with_frequencies);

}  // namespace headrace
