#include "model/weight_names.h"

#include <algorithm>
#include <unordered_set>

namespace headrace {

namespace {

using Shape = std::vector<uint64_t>;

uint64_t size(int64_t value) { return static_cast<uint64_t>(value); }

void add_linear(std::vector<WeightEntry>& out, const std::string& name, uint64_t rows, uint64_t cols, bool bias) {
  out.push_back({name + ".weight", "", {rows, cols}});
  if (bias) out.push_back({name + ".bias", "", {rows}});
}

void add_attention(std::vector<WeightEntry>& out, const std::string& prefix, const GqaAttention& attention,
                   uint64_t hidden) {
  const uint64_t q_rows = size(attention.num_heads) * size(attention.head_dim);
  const uint64_t kv_rows = size(attention.num_kv_heads) * size(attention.head_dim);
  add_linear(out, prefix + "q_proj", q_rows, hidden, attention.qkv_bias);
  add_linear(out, prefix + "k_proj", kv_rows, hidden, attention.qkv_bias);
  add_linear(out, prefix + "v_proj", kv_rows, hidden, attention.qkv_bias);
  add_linear(out, prefix + "o_proj", hidden, q_rows, attention.output_bias);
  if (attention.qk_norm) {
    out.push_back({prefix + "q_norm.weight", "", {size(attention.head_dim)}});
    out.push_back({prefix + "k_norm.weight", "", {size(attention.head_dim)}});
  }
}

void add_feed_forward(std::vector<WeightEntry>& out, const std::string& prefix, const DenseFeedForward& dense,
                      uint64_t hidden) {
  add_linear(out, prefix + "gate_proj", size(dense.intermediate_size), hidden, dense.bias);
  add_linear(out, prefix + "up_proj", size(dense.intermediate_size), hidden, dense.bias);
  add_linear(out, prefix + "down_proj", hidden, size(dense.intermediate_size), dense.bias);
}

// "layers.3.q_proj.weight" -> "model.layers.3.self_attn.q_proj.weight"
std::string file_name(const std::string& ours, const WeightNaming& naming) {
  const size_t last_dot = ours.rfind('.');
  std::string_view module = std::string_view(ours).substr(0, last_dot);
  const std::string suffix = ours.substr(last_dot);
  std::string prefix;
  std::span<const NamePair> table = naming.top;
  constexpr std::string_view kLayers = "layers.";
  if (module.starts_with(kLayers)) {
    const size_t dot = module.find('.', kLayers.size());
    prefix = fmt::format("{}{}.", naming.layer_prefix, module.substr(kLayers.size(), dot - kLayers.size()));
    module = module.substr(dot + 1);
    table = naming.layer;
  }
  for (const NamePair& pair : table) {
    if (pair.ours == module) return prefix + std::string(pair.theirs) + suffix;
  }
  return {};
}

bool ignored(const std::string& name, const WeightNaming& naming) {
  const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  return std::any_of(naming.ignored_prefixes.begin(), naming.ignored_prefixes.end(), starts) ||
         std::any_of(naming.ignored_suffixes.begin(), naming.ignored_suffixes.end(), ends);
}

}  // namespace

std::vector<WeightEntry> list_weights(const ModelSpec& spec) {
  std::vector<WeightEntry> out;
  const uint64_t hidden = size(spec.hidden_size);
  out.push_back({"embed.weight", "", {size(spec.vocab_size), hidden}});
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const std::string prefix = fmt::format("layers.{}.", i);
    const Shape vector_shape = {hidden};
    out.push_back({prefix + "attention_norm.weight", "", vector_shape});
    std::visit([&](const auto& attention) { add_attention(out, prefix, attention, hidden); }, layer.attention);
    if (layer.post_attention_norm) out.push_back({prefix + "post_attention_norm.weight", "", vector_shape});
    out.push_back({prefix + "feed_forward_norm.weight", "", vector_shape});
    std::visit([&](const auto& dense) { add_feed_forward(out, prefix, dense, hidden); }, layer.feed_forward);
    if (layer.post_feed_forward_norm) out.push_back({prefix + "post_feed_forward_norm.weight", "", vector_shape});
  }
  out.push_back({"final_norm.weight", "", {hidden}});
  if (!spec.head.tied) out.push_back({"lm_head.weight", "", {size(spec.vocab_size), hidden}});
  return out;
}

Result<std::vector<WeightEntry>> resolve_weights(const ModelSpec& spec, const WeightNaming& naming,
                                                 const TensorFile& file) {
  std::vector<WeightEntry> entries = list_weights(spec);
  std::unordered_set<std::string_view> used;
  for (WeightEntry& entry : entries) {
    entry.file_name = file_name(entry.name, naming);
    if (entry.file_name.empty()) return internal_error(entry.name, "no name in this kind of file");
    const TensorEntry* tensor = file.find(entry.file_name);
    if (tensor == nullptr) return not_found(entry.file_name, "the file has no such tensor");
    if (tensor->shape != entry.shape) {
      return malformed(entry.file_name, "shape [{}], expected [{}]", fmt::join(tensor->shape, ", "),
                       fmt::join(entry.shape, ", "));
    }
    used.insert(tensor->name);
  }
  for (const TensorEntry& tensor : file.tensors()) {
    if (used.contains(tensor.name) || ignored(tensor.name, naming)) continue;
    return unsupported(tensor.name, "a tensor that {} models have no place for", spec.architecture);
  }
  return entries;
}

}  // namespace headrace
