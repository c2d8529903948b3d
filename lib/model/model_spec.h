// A model as data: what the forward pass executes. It knows no family; importers (families/) fill it from a
// Hugging Face config.json or GGUF metadata. A new kind of block is a new alternative of a variant, not
// another flag.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "tensor/kv_layout.h"
#include "tensor/op_params.h"

namespace headrace {

class JsonWriter;

// Rotary positions of one layer. The frequencies are final: every scaling is already in them.
struct RopeSpec {
  std::string type = "default";   // default, linear, llama3, yarn, factors (a tensor of the file); for people
  double theta = 10000.0;         // likewise: inv_freq is what counts
  int32_t rotary_dim = 0;         // leading dims of a head that rotate, even; 0: no rotation
  std::vector<float> inv_freq;    // [rotary_dim / 2], radians per position
  float attention_factor = 1.0f;  // multiplies cos and sin
  bool interleaved = false;       // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  bool operator==(const RopeSpec&) const = default;
};

// Softmax attention, num_heads / num_kv_heads query heads per key/value head (multi-head when they are
// equal).
struct GqaAttention {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 0.0f;          // of q k^T
  int32_t window = 0;          // keys a row sees, itself included; 0: all before it
  float logit_softcap = 0.0f;  // 0: none
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;  // RMS norm of each head of q and k, before the rotation
  RopeSpec rope;
  bool operator==(const GqaAttention&) const = default;
};
using AttentionSpec = std::variant<GqaAttention>;

// down(activation(gate(x)) * up(x)).
struct DenseFeedForward {
  int32_t intermediate_size = 0;
  Activation activation = Activation::kSilu;
  bool bias = false;
  bool operator==(const DenseFeedForward&) const = default;
};
using FeedForwardSpec = std::variant<DenseFeedForward>;

// x += [post_attention_norm](attention(norm(x))); x += [post_feed_forward_norm](feed_forward(norm(x))).
struct LayerSpec {
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
  bool post_attention_norm = false;
  bool post_feed_forward_norm = false;
  bool operator==(const LayerSpec&) const = default;
};

struct HeadSpec {
  bool tied = false;           // the output matrix is the embedding table
  float logit_softcap = 0.0f;  // 0: none
  bool operator==(const HeadSpec&) const = default;
};

struct ModelSpec {
  std::string architecture;  // the family's name: llama, qwen2, qwen3, gemma3
  int32_t vocab_size = 0;    // rows of the embedding and of the head
  int32_t hidden_size = 0;
  int32_t max_position_embeddings = 0;  // longest sequence the file claims
  float embedding_scale = 1.0f;
  float norm_eps = 0.0f;            // of every RMS norm
  float norm_weight_offset = 0.0f;  // 1 where norm weights are stored minus one
  std::vector<LayerSpec> layers;
  HeadSpec head;
  int32_t bos_token_id = -1;           // -1: none
  std::vector<int32_t> eos_token_ids;  // of the config or metadata, ascending
  bool operator==(const ModelSpec&) const = default;
};

// "silu", "gelu_tanh", ...
std::string_view activation_name(Activation activation);

// kMalformed with the offending field as place when a size is absurd or sizes contradict each other. What
// passes can be multiplied out in int64 without overflow.
Status validate_spec(const ModelSpec& spec);

// Layouts for a KvCacheConfig, one per layer.
std::vector<KvLayout> kv_layouts(const ModelSpec& spec, KvDType dtype, int32_t block_size = 16);
// Cache bytes of one position over all layers.
uint64_t kv_bytes_per_token(const ModelSpec& spec, KvDType dtype);

// The spec for people and for hashing: every field that changes the computation, in a fixed order.
std::string spec_to_json(const ModelSpec& spec);
// The same as members of the open object. The frequencies follow from the other fields of most models, and make a table for
// people unreadable.
void write_spec(JsonWriter& out, const ModelSpec& spec, bool with_frequencies);

}  // namespace headrace
