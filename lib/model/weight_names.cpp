#include "model/weight_names.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "base/format_full.h"
#include "model/mixer_weights.h"

namespace headrace {

namespace {

using Shape = std::vector<uint64_t>;

uint64_t size(int64_t value) { return static_cast<uint64_t>(value); }

void add_linear(std::vector<WeightEntry>& out, const std::string& name, uint64_t rows, uint64_t cols, bool bias) {
  out.push_back({name + ".weight", "", {rows, cols}});
  if (bias) out.push_back({name + ".bias", "", {rows}});
}

void add_norm(std::vector<WeightEntry>& out, const std::string& name, const ModelSpec& spec) {
  out.push_back({name + ".weight", "", {size(spec.hidden_size)}});
  if (spec.norm_bias) out.push_back({name + ".bias", "", {size(spec.hidden_size)}});
}

void add_qk_norm(std::vector<WeightEntry>& out, const std::string& name, const GqaAttention& attention, int32_t heads) {
  const bool shared =
      attention.qk_norm_kind == QkNormKind::kHead || attention.qk_norm_kind == QkNormKind::kHeadAfterRotation;
  WeightEntry entry{name + ".weight", "", {size(attention.head_dim) * (shared ? 1 : size(heads))}};
  if (attention.qk_norm_kind == QkNormKind::kHeadLayer) entry.file_shape = {size(heads), size(attention.head_dim)};
  out.push_back(std::move(entry));
}

void add_attention(std::vector<WeightEntry>& out, const std::string& prefix, const GqaAttention& attention,
                   uint64_t hidden) {
  const bool own = attention.kv_layer < 0;  // keys and values
  const uint64_t q_rows = size(attention.num_heads) * size(attention.head_dim);
  const uint64_t kv_rows = size(attention.num_kv_heads) * size(attention.head_dim);
  const size_t first = out.size();
  add_linear(out, prefix + "q_proj", q_rows, hidden, attention.qkv_bias);
  if (attention.output_gate) {
    out.back().row_block = size(attention.head_dim);
    add_linear(out, prefix + "q_gate", q_rows, hidden, false);
    out.back().row_block = size(attention.head_dim);
  }
  if (own) add_linear(out, prefix + "k_proj", kv_rows, hidden, attention.qkv_bias && attention.key_bias);
  const uint64_t v_rows = size(attention.num_kv_heads) * size(attention.value_dim());
  if (own && !attention.values_from_keys) add_linear(out, prefix + "v_proj", v_rows, hidden, attention.qkv_bias);
  for (size_t i = first; i < out.size(); ++i) out[i].head_rows = size(attention.head_dim);
  const uint64_t o_cols = size(attention.num_heads) * size(attention.value_dim());
  add_linear(out, prefix + "o_proj", hidden, o_cols, attention.output_bias);
  if (attention.qk_norm && attention.qk_norm_kind != QkNormKind::kHeadAfterRotationUnweighted) {
    add_qk_norm(out, prefix + "q_norm", attention, attention.num_heads);
    if (own) add_qk_norm(out, prefix + "k_norm", attention, attention.num_kv_heads);
  }
  if (attention.sinks) out.push_back({prefix + "sinks.weight", "", {size(attention.num_heads)}});
  if (attention.position_buckets && attention.position_buckets->layer < 0) {
    out.push_back({prefix + "position_bias.weight",
                   "",
                   {size(attention.position_buckets->num_buckets), size(attention.num_heads)}});
  }
}

void add_cross(std::vector<WeightEntry>& out, const std::string& prefix, const LayerSpec& layer,
               const ModelSpec& spec) {
  if (!layer.cross) return;
  const CrossAttention& cross = *layer.cross;
  const uint64_t hidden = size(spec.hidden_size), rows = size(cross.num_heads) * size(cross.head_dim);
  add_norm(out, prefix + "cross_norm", spec);
  add_linear(out, prefix + "cross.q_proj", rows, hidden, cross.qkv_bias);
  add_linear(out, prefix + "cross.k_proj", rows, hidden, cross.qkv_bias && cross.key_bias);
  add_linear(out, prefix + "cross.v_proj", rows, hidden, cross.qkv_bias);
  add_linear(out, prefix + "cross.o_proj", hidden, rows, cross.output_bias);
}

void add_attention(std::vector<WeightEntry>& out, const std::string& prefix, const LatentAttention& attention,
                   uint64_t hidden) {
  const uint64_t heads = size(attention.num_heads), rank = size(attention.rank);
  uint64_t q_cols = hidden;
  if (attention.q_rank > 0) {
    q_cols = size(attention.q_rank);
    add_linear(out, prefix + "q_down", q_cols, hidden, attention.latent_bias);
    out.push_back({prefix + "q_latent_norm.weight", "", {q_cols}});
  }
  add_linear(out, prefix + "q_proj", heads * size(attention.nope_dim + attention.rope_dim), q_cols, false);
  add_linear(out, prefix + "latent", rank, hidden, attention.latent_bias);
  add_linear(out, prefix + "k_rope", size(attention.rope_dim), hidden, attention.latent_bias);
  out.push_back({prefix + "latent_norm.weight", "", {rank}});
  for (uint64_t h = 0; h < heads; ++h) {
    for (const auto& [name, rows, cols] :
         {std::tuple("k_up", rank, size(attention.nope_dim)), std::tuple("v_up", size(attention.v_dim), rank)}) {
      WeightEntry entry{fmt::format("{}heads.{}.{}.weight", prefix, h, name), "", {rows, cols}};
      entry.index = h;
      entry.count = heads;
      out.push_back(std::move(entry));
    }
  }
  add_linear(out, prefix + "o_proj", hidden, heads * size(attention.v_dim), attention.output_bias);
}

void add_attention(std::vector<WeightEntry>& out, const std::string& prefix, const SparseLatentAttention& spec,
                   uint64_t hidden) {
  add_attention(out, prefix, spec.latent, hidden);
  if (!spec.indexer) return;
  const uint64_t heads = size(spec.indexer->num_heads), head_dim = size(spec.indexer->head_dim);
  add_linear(out, prefix + "indexer.q_proj", heads * head_dim, size(spec.latent.q_rank), false);
  add_linear(out, prefix + "indexer.k_proj", head_dim, hidden, false);
  add_linear(out, prefix + "indexer.head_weights", heads, hidden, false);
  out.push_back({prefix + "indexer.k_norm.weight", "", {head_dim}});
  out.push_back({prefix + "indexer.k_norm.bias", "", {head_dim}});
}

void add_compressor(std::vector<WeightEntry>& out, const std::string& prefix, const Compressor& spec, uint64_t head_dim,
                    uint64_t hidden) {
  const auto values = static_cast<uint64_t>(spec.values(static_cast<int64_t>(head_dim)));
  add_linear(out, prefix + "value", values, hidden, false);
  add_linear(out, prefix + "gate", values, hidden, false);
  WeightEntry bias{prefix + "bias", "", {size(spec.run) * values}};
  bias.file_shape = {size(spec.run), values};
  out.push_back(std::move(bias));
  out.push_back({prefix + "norm.weight", "", {head_dim}});
}

void add_attention(std::vector<WeightEntry>& out, const std::string& prefix, const CompressedAttention& spec,
                   uint64_t hidden) {
  const uint64_t head_dim = size(spec.head_dim), q_rank = size(spec.q_rank), groups = size(spec.output_groups);
  const uint64_t width = size(spec.num_heads) * head_dim, group_rank = size(spec.output_rank);
  add_linear(out, prefix + "q_down", q_rank, hidden, false);
  out.push_back({prefix + "q_latent_norm.weight", "", {q_rank}});
  add_linear(out, prefix + "q_proj", width, q_rank, false);
  add_linear(out, prefix + "k_proj", head_dim, hidden, false);
  out.push_back({prefix + "k_norm.weight", "", {head_dim}});
  out.push_back({prefix + "sinks", "", {size(spec.num_heads)}});
  for (uint64_t group = 0; group < groups; ++group) {
    WeightEntry entry{fmt::format("{}groups.{}.weight", prefix, group), "", {group_rank, width / groups}};
    entry.index = group;
    entry.count = groups;
    out.push_back(std::move(entry));
  }
  add_linear(out, prefix + "o_proj", hidden, groups * group_rank, false);
  if (!spec.compressor) return;
  add_compressor(out, prefix + "compressor.", *spec.compressor, head_dim, hidden);
  if (!spec.indexer) return;
  const uint64_t heads = size(spec.indexer->num_heads), index_dim = size(spec.indexer->head_dim);
  add_compressor(out, prefix + "indexer.compressor.", *spec.compressor, index_dim, hidden);
  add_linear(out, prefix + "indexer.q_proj", heads * index_dim, q_rank, false);
  add_linear(out, prefix + "indexer.head_weights", heads, hidden, false);
}

template <class Spec>
void add_attention(std::vector<WeightEntry>& out, const std::string& prefix, const Spec& spec, uint64_t hidden) {
  add_mixer(out, prefix, spec, static_cast<int64_t>(hidden));
}

void add_attention(std::vector<WeightEntry>& out, const std::string& prefix, const AttentionBesideMamba& spec,
                   uint64_t hidden) {
  add_attention(out, prefix, spec.attention, hidden);
  add_attention(out, prefix, spec.mamba, hidden);
}

void add_feed_forward(std::vector<WeightEntry>&, const std::string&, const NoFeedForward&, uint64_t, uint64_t) {}

void add_feed_forward(std::vector<WeightEntry>& out, const std::string& prefix, const DenseFeedForward& dense,
                      uint64_t hidden, uint64_t /*vocab_size*/ = 0) {
  if (dense.gated) add_linear(out, prefix + "gate_proj", size(dense.intermediate_size), hidden, dense.bias);
  add_linear(out, prefix + "up_proj", size(dense.intermediate_size), hidden, dense.bias);
  add_linear(out, prefix + "down_proj", hidden, size(dense.intermediate_size), dense.bias);
}

void add_feed_forward(std::vector<WeightEntry>& out, const std::string& prefix, const MixtureOfExperts& moe,
                      uint64_t hidden, uint64_t vocab_size) {
  const uint64_t experts = size(moe.router.num_experts);
  DenseFeedForward expert, shared;
  expert.intermediate_size = moe.intermediate_size;
  expert.bias = moe.bias;
  expert.gated = shared.gated = moe.gated;
  shared.intermediate_size = moe.shared_intermediate_size;
  add_linear(out, prefix + "router", experts, hidden, moe.router.bias);
  if (moe.router.correction) out.push_back({prefix + "router.correction", "", {experts}});
  if (moe.router.expert_scale) out.push_back({prefix + "router.expert_scale", "", {experts}});
  if (moe.router.by_token) {
    WeightEntry table{prefix + "router.by_token", "", {vocab_size * size(moe.router.top_k)}};
    table.file_shape = {vocab_size, size(moe.router.top_k)};
    table.integers = true;
    out.push_back(std::move(table));
  }
  for (uint64_t e = 0; e < experts; ++e) {
    const size_t first = out.size();
    add_feed_forward(out, fmt::format("{}experts.{}.", prefix, e), expert, hidden);
    for (size_t i = first; i < out.size(); ++i) {
      out[i].index = e;
      out[i].count = experts;
    }
  }
  if (moe.shared_intermediate_size > 0) {
    add_feed_forward(out, prefix + "shared.", shared, hidden);
    if (moe.shared_gate) add_linear(out, prefix + "shared.router", 1, hidden, false);
  }
}

void add_feed_forward(std::vector<WeightEntry>& out, const std::string& prefix, const DenseBesideExperts& both,
                      uint64_t hidden, uint64_t vocab_size) {
  add_feed_forward(out, prefix, both.dense, hidden);
  add_feed_forward(out, prefix, both.experts, hidden, vocab_size);
  for (const char* norm : {"dense_post_norm", "experts_norm", "experts_post_norm", "router_norm"}) {
    out.push_back({prefix + norm + ".weight", "", {hidden}});
  }
}

void add_altup(std::vector<WeightEntry>& out, const std::string& prefix, const AltUp& altup, const ModelSpec& spec) {
  const uint64_t count = size(altup.num_streams), hidden = size(spec.hidden_size);
  add_norm(out, prefix + "router_norm", spec);
  add_linear(out, prefix + "router", count, hidden, false);
  add_linear(out, prefix + "prediction", count * count, count, false);
  add_linear(out, prefix + "correction", count, count, false);
  if (altup.output_scale) out.push_back({prefix + "output_scale.weight", "", {hidden}});
}

// parts: of the coefficients, 3 or the first alone.
void add_stream_gates(std::vector<WeightEntry>& out, const std::string& prefix, const HyperConnections& spec,
                      uint64_t parts, uint64_t hidden) {
  const uint64_t count = size(spec.num_streams), gates = parts == 1 ? count : count * (count + 2);
  out.push_back({prefix + "fn.weight", "", {gates, count * hidden}});
  out.push_back({prefix + "base", "", {gates}});
  out.push_back({prefix + "scale", "", {parts}});
}

// Matrices of all streams but the first.
void add_streams(std::vector<WeightEntry>& out, const AltUp& altup, uint64_t hidden) {
  const uint64_t count = size(altup.num_streams) - 1;
  for (const char* name : {"stream_projections", "stream_unprojections"}) {
    for (uint64_t i = 0; i < count; ++i) {
      WeightEntry entry{fmt::format("{}.{}.weight", name, i), "", {hidden, hidden}};
      entry.index = i;
      entry.count = count;
      out.push_back(std::move(entry));
    }
  }
}

// The number of an expert or a head becomes `*`: "experts.12.up_proj" -> "experts.*.up_proj".
std::string without_number(std::string_view name) {
  std::string out;
  bool replaced = false;
  for (size_t i = 0; i < name.size();) {
    const bool starts_number = (i == 0 || name[i - 1] == '.') && name[i] >= '0' && name[i] <= '9';
    if (!starts_number || replaced) {
      out += name[i++];
      continue;
    }
    replaced = true;
    out += '*';
    while (i < name.size() && name[i] >= '0' && name[i] <= '9') ++i;
  }
  return out;
}

struct FoundName {
  std::string name;
  const NamePair* pair = nullptr;
  bool stacked = false;  // the tensor holds all experts or heads
};

// "layers.3.q_proj.weight" -> "model.layers.3.self_attn.q_proj.weight": the name that the file has, or else every name
// that files have for it.
std::vector<FoundName> file_names(const WeightEntry& entry, const WeightNaming& naming, const TensorFile& file) {
  std::string_view full = entry.name;
  std::string prefix;
  std::span<const NamePair> table = naming.top;
  constexpr std::string_view kLayers = "layers.";
  if (full.starts_with(kLayers)) {
    const size_t dot = full.find('.', kLayers.size());
    prefix = fmt::format("{}{}.", naming.layer_prefix, full.substr(kLayers.size(), dot - kLayers.size()));
    full = full.substr(dot + 1);
    table = naming.layer;
  }
  const std::string pattern = without_number(full);
  const size_t last_dot = pattern.rfind('.');
  const auto found = [&](const NamePair& pair, std::string_view suffix) {
    const size_t star = pair.theirs.find('*');
    std::string name = prefix + std::string(pair.theirs.substr(0, star));
    if (star != std::string_view::npos) {
      name += std::to_string(entry.index);
      name += pair.theirs.substr(star + 1);
    }
    name += suffix;
    return FoundName{name, &pair, star == std::string_view::npos && pattern.find('*') != std::string::npos};
  };
  std::vector<FoundName> missing;
  for (const bool whole : {true, false}) {
    if (!whole && last_dot == std::string::npos) break;  // a name without a suffix
    const size_t end = whole ? pattern.size() : last_dot;
    for (const NamePair& pair : table) {
      if (pair.ours != std::string_view(pattern).substr(0, end)) continue;
      FoundName name = found(pair, std::string_view(pattern).substr(end));
      if (file.find(name.name) != nullptr) return {std::move(name)};
      missing.push_back(std::move(name));
    }
  }
  return missing;
}

uint64_t product(const Shape& shape) {
  uint64_t count = 1;
  for (const uint64_t size : shape) count *= size;  // checked when the file was opened
  return count;
}

// Leading dimensions of one say nothing.
Shape trimmed(const Shape& shape) {
  size_t first = 0;
  while (first + 1 < shape.size() && shape[first] == 1) ++first;
  return {shape.begin() + static_cast<int64_t>(first), shape.end()};
}

// No axis of one says anything.
Shape without_ones(Shape shape) {
  std::erase(shape, 1);
  return shape;
}

// Divides tensors that hold several weights, in the order in which they ask.
class Divider {
  struct Next {
    uint64_t rows = 0, uses = 0;
  };
  struct Shares {
    uint64_t uses = 0, used = 0, total = 0;
    std::vector<Next> next;  // of each expert or head
  };

 public:
  void count_use(const std::string& file_name) { ++shares_[file_name].uses; }

  Status place(WeightEntry& entry, const FoundName& found, const TensorEntry& tensor) {
    Shares& shares = shares_[entry.file_name];
    if (!entry.file_shape.empty()) {
      const Shape shape = without_ones(tensor.shape);
      if (shape == without_ones(entry.shape) || shape == without_ones(entry.file_shape))
        return place_flat(entry, shares);
      return malformed(entry.file_name, "shape [{}], expected [{}] or [{}]", fmt::join(tensor.shape, ", "),
                       fmt::join(entry.file_shape, ", "), fmt::join(entry.shape, ", "));
    }
    const uint64_t rows = entry.shape.size() == 1 ? 1 : entry.shape[0], cols = entry.shape.back();
    entry.row_stride = cols;
    if (found.pair->form == TensorForm::kRowsByHead) return place_by_head(entry, shares, tensor, rows, cols);
    if (entry.row_block > 0 && found.pair->interleaved) return place_groups(entry, tensor, shares);
    if (shares.uses == 1 && found.pair->form == TensorForm::kRows) {
      if (trimmed(tensor.shape) == trimmed(entry.shape)) return {};
      return malformed(entry.file_name, "shape [{}], expected [{}]", fmt::join(tensor.shape, ", "),
                       fmt::join(entry.shape, ", "));
    }
    const Shape shape = trimmed(tensor.shape);
    const uint64_t total = product(shape), stack = found.stacked ? entry.count : 1;
    const uint64_t index = found.stacked ? entry.index : 0, last = shape.empty() ? 1 : shape.back();
    const auto refuse = [&] {
      return malformed(entry.file_name, "shape [{}] does not divide into {} of [{}] and the like",
                       fmt::join(tensor.shape, ", "), stack, fmt::join(entry.shape, ", "));
    };
    if (total % stack != 0 || total == 0) return refuse();
    const uint64_t item = total / stack;
    // What is stacked has an axis of its own, or its rows follow each other.
    const size_t axes = entry.shape.size();
    if (shape.size() > axes + (stack > 1 ? 1 : 0) || (shape.size() > axes && shape[0] != stack)) return refuse();
    if (axes == 1 && last != item) return refuse();
    shares.next.resize(stack);
    Next& next = shares.next[index];
    const bool interleaved = found.pair->interleaved;
    const uint64_t step = interleaved ? 2 : 1, first = interleaved ? next.uses : next.rows;
    uint64_t taken = 0, length = 0;  // of the axis that is divided
    if (entry.shape.size() == 1) {
      taken = cols;
      length = item;
      entry.offset = index * item + first;
      entry.col_stride = step;
    } else if (found.pair->form == TensorForm::kTransposed) {
      if (item / last != cols || item % last != 0) return refuse();
      taken = rows;
      length = last;
      entry.offset = index * item + first;
      entry.row_stride = step;
      entry.col_stride = last;
    } else {
      const bool swapped = found.pair->form == TensorForm::kSwapped;
      if (last != (swapped ? rows : cols)) return refuse();
      taken = swapped ? cols : rows;
      length = item / last;
      entry.offset = index * item + first * last;
      entry.row_stride = swapped ? 1 : step * last;
      entry.col_stride = swapped ? last : 1;
    }
    next.rows += taken;
    ++next.uses;
    if (next.rows > length || (interleaved && taken * 2 != length)) return refuse();
    shares.used += rows * cols;
    shares.total = total;
    return {};
  }

  static Status place_by_head(WeightEntry& entry, Shares& shares, const TensorEntry& tensor, uint64_t rows,
                              uint64_t cols) {
    const bool vector = entry.shape.size() == 1;
    const uint64_t total = product(tensor.shape), head = entry.head_rows * (vector ? 1 : cols);
    if (head == 0 || total != shares.uses * rows * cols || rows * cols % head != 0 || tensor.shape.empty() ||
        tensor.shape.back() != (vector ? total : cols)) {
      return malformed(entry.file_name, "shape [{}] does not divide into heads of {} times [{}]",
                       fmt::join(tensor.shape, ", "), shares.uses, fmt::join(entry.shape, ", "));
    }
    shares.next.resize(1);
    entry.offset = shares.next[0].uses++ * head;
    entry.head_stride = shares.uses * head;
    shares.used += rows * cols;
    shares.total = total;
    return {};
  }

  // Every group of the tensor's rows holds a run of each weight's, in order.
  static Status place_groups(WeightEntry& entry, const TensorEntry& tensor, Shares& shares) {
    const uint64_t rows = entry.shape[0], cols = entry.shape[1], groups = rows / entry.row_block;
    if (tensor.shape.size() != 2 || tensor.shape[1] != cols || tensor.shape[0] % groups != 0) {
      return malformed(entry.file_name, "shape [{}] does not divide into {} groups of rows of {}",
                       fmt::join(tensor.shape, ", "), groups, cols);
    }
    shares.next.resize(1);
    entry.row_stride = cols;
    entry.offset = shares.next[0].rows / groups * cols;
    entry.head_rows = entry.row_block;
    entry.head_stride = tensor.shape[0] / groups * cols;
    shares.next[0].rows += rows;
    if (shares.next[0].rows > tensor.shape[0]) {
      return malformed(entry.file_name, "{} rows, {} are needed", tensor.shape[0], shares.next[0].rows);
    }
    shares.used += rows * cols;
    shares.total = product(tensor.shape);
    return {};
  }

  // All of a tensor, row after row.
  static Status place_flat(WeightEntry& entry, Shares& shares) {
    entry.row_stride = entry.shape.back();
    shares.used += product(entry.shape);
    shares.total = product(entry.shape);
    return {};
  }

  Status check_used_up() const {
    for (const auto& [name, shares] : shares_) {
      if (shares.used == shares.total) continue;
      return malformed(name, "{} elements, of which the model has a place for {}", shares.total, shares.used);
    }
    return {};
  }

 private:
  std::map<std::string, Shares> shares_;
};

// Whether the name is of a layer past the last.
bool past_last_layer(const std::string& name, const WeightNaming& naming, size_t num_layers) {
  if (!naming.more_layers || !name.starts_with(naming.layer_prefix)) return false;
  size_t number = 0;
  for (size_t i = naming.layer_prefix.size(); i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i) {
    number = std::min<size_t>(number * 10 + static_cast<size_t>(name[i] - '0'), size_t{1} << 32);
  }
  return number >= num_layers;
}

bool ignored(const std::string& name, const WeightNaming& naming) {
  const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (!naming.own_prefixes.empty() && std::ranges::none_of(naming.own_prefixes, starts)) return true;
  return std::any_of(naming.ignored_prefixes.begin(), naming.ignored_prefixes.end(), starts) ||
         std::any_of(naming.ignored_suffixes.begin(), naming.ignored_suffixes.end(), ends);
}

bool is_integer(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 || dtype == DType::kI64 ||
         dtype == DType::kU8;
}

// A missing tensor has the name that others of its kind have in this file.
FoundName likeliest(std::vector<FoundName> names, const std::map<const NamePair*, uint64_t>& found) {
  const auto times = [&](const FoundName& name) {
    const auto it = found.find(name.pair);
    return it == found.end() ? 0 : it->second;
  };
  return std::move(*std::ranges::max_element(names, {}, times));
}

// Names each entry's tensor, and finds its place in those that are in the file.
Status place_weights(std::vector<WeightEntry>& entries, const WeightNaming& naming, const TensorFile& file) {
  std::vector<std::vector<FoundName>> candidates;
  std::map<const NamePair*, uint64_t> found;
  for (WeightEntry& entry : entries) {
    candidates.push_back(file_names(entry, naming, file));
    if (candidates.back().empty()) return unsupported(entry.name, "a weight that files of this kind have no name for");
    if (file.find(candidates.back()[0].name) != nullptr) ++found[candidates.back()[0].pair];
  }
  Divider divider;
  std::vector<FoundName> names;
  for (size_t i = 0; i < entries.size(); ++i) {
    names.push_back(likeliest(std::move(candidates[i]), found));
    entries[i].file_name = names.back().name;
    divider.count_use(entries[i].file_name);
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorEntry* tensor = file.find(entries[i].file_name);
    if (tensor == nullptr) continue;
    if (is_integer(tensor->dtype) && !entries[i].integers) {
      return unsupported(tensor->name, "its values are integers, {}", dtype_name(tensor->dtype));
    }
    HEADRACE_RETURN_IF_ERROR(divider.place(entries[i], names[i], *tensor));
  }
  return divider.check_used_up();
}

// Names the tensor as it was looked for, in every form that files have.
Status missing(const WeightEntry& entry, const WeightNaming& naming, const TensorFile& file) {
  std::string others;
  for (const FoundName& name : file_names(entry, naming, file)) {
    if (name.name != entry.file_name) others += ", nor " + name.name;
  }
  return not_found(entry.file_name, "the file has no such tensor{}", others);
}

}  // namespace

std::vector<WeightEntry> list_weights(const ModelSpec& spec) {
  std::vector<WeightEntry> out;
  const uint64_t hidden = size(spec.hidden_size);
  if (spec.vocab_size > 0) out.push_back({"embed.weight", "", {size(spec.vocab_size), hidden}});
  if (spec.learned_positions > 0) out.push_back({"positions.weight", "", {size(spec.learned_positions), hidden}});
  if (spec.token_types > 0) out.push_back({"token_types.weight", "", {size(spec.token_types), hidden}});
  if (spec.embedding_norm) add_norm(out, "embedding_norm", spec);
  if (spec.per_layer_inputs) {
    const uint64_t width = size(spec.per_layer_inputs->size), all = spec.layers.size() * width;
    out.push_back({"per_layer_table.weight", "", {size(spec.per_layer_inputs->vocab_size), all}});
    out.push_back({"per_layer_projection.weight", "", {all, hidden}});
    out.push_back({"per_layer_projection_norm.weight", "", {width}});
  }
  if (const auto* altup = std::get_if<AltUp>(&spec.streams)) add_streams(out, *altup, hidden);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const std::string prefix = fmt::format("layers.{}.", i);
    if (layer.attention_norm && !std::holds_alternative<NoAttention>(layer.attention)) {
      add_norm(out, prefix + "attention_norm", spec);
    }
    std::visit([&](const auto& attention) { add_attention(out, prefix, attention, hidden); }, layer.attention);
    if (layer.post_attention_norm) add_norm(out, prefix + "post_attention_norm", spec);
    add_cross(out, prefix, layer, spec);
    if (layer.feed_forward_norm && !std::holds_alternative<NoFeedForward>(layer.feed_forward)) {
      add_norm(out, prefix + "feed_forward_norm", spec);
    }
    std::visit([&](const auto& block) { add_feed_forward(out, prefix, block, hidden, size(spec.vocab_size)); },
               layer.feed_forward);
    if (layer.post_feed_forward_norm) add_norm(out, prefix + "post_feed_forward_norm", spec);
    if (spec.per_layer_inputs) {
      const uint64_t width = size(spec.per_layer_inputs->size);
      out.push_back({prefix + "per_layer_gate.weight", "", {width, hidden}});
      out.push_back({prefix + "per_layer_projection.weight", "", {hidden, width}});
      add_norm(out, prefix + "per_layer_norm", spec);
    }
    if (layer.output_scale) out.push_back({prefix + "output_scale.weight", "", {1}});
    if (layer.laurel_rank > 0) {
      add_linear(out, prefix + "laurel.left", size(layer.laurel_rank), hidden, false);
      add_linear(out, prefix + "laurel.right", hidden, size(layer.laurel_rank), false);
      add_norm(out, prefix + "laurel.norm", spec);
    }
    if (const auto* altup = std::get_if<AltUp>(&spec.streams)) add_altup(out, prefix + "altup.", *altup, spec);
    if (const auto* hyper = std::get_if<HyperConnections>(&spec.streams)) {
      add_stream_gates(out, prefix + "hyper.attention.", *hyper, 3, hidden);
      add_stream_gates(out, prefix + "hyper.feed_forward.", *hyper, 3, hidden);
    }
    if (layer.stream_norms) {
      add_norm(out, prefix + "attention_stream_norm", spec);
      add_norm(out, prefix + "feed_forward_stream_norm", spec);
    }
  }
  if (const auto* hyper = std::get_if<HyperConnections>(&spec.streams)) {
    add_stream_gates(out, "stream_head.", *hyper, 1, hidden);
  }
  if (spec.final_norm) add_norm(out, "final_norm", spec);
  if (spec.head.transform) {
    add_linear(out, "transform", hidden, hidden, spec.head.transform->bias);
    if (spec.head.transform->norm) add_norm(out, "transform_norm", spec);
  }
  if (spec.head.kind != HeadKind::kVocabulary && spec.head.kind != HeadKind::kLabels) return out;
  if (!spec.head.tied) {
    add_linear(out, "lm_head", size(head_width(spec)), hidden, spec.head.bias);
  } else if (spec.head.bias) {
    out.push_back({"lm_head.bias", "", {size(spec.vocab_size)}});
  }
  return out;
}

Result<std::vector<WeightEntry>> resolve_weights(const ModelSpec& spec, const WeightNaming& naming,
                                                 const TensorFile& file) {
  return resolve_weights(list_weights(spec), spec.layers.size(), spec.architecture, naming, file);
}

Result<std::vector<WeightEntry>> resolve_weights(std::vector<WeightEntry> entries, size_t num_layers,
                                                 std::string_view architecture, const WeightNaming& naming,
                                                 const TensorFile& file) {
  HEADRACE_RETURN_IF_ERROR(place_weights(entries, naming, file));
  std::unordered_set<std::string_view> used;
  for (const WeightEntry& entry : entries) {
    const TensorEntry* tensor = file.find(entry.file_name);
    if (tensor == nullptr) return missing(entry, naming, file);
    used.insert(tensor->name);
  }
  for (const TensorEntry& tensor : file.tensors()) {
    if (used.contains(tensor.name) || ignored(tensor.name, naming)) continue;
    if (past_last_layer(tensor.name, naming, num_layers)) continue;
    return unsupported(tensor.name, "a tensor that {} models have no place for", architecture);
  }
  return entries;
}

Result<std::vector<WeightEntry>> resolve_listed(std::vector<WeightEntry> entries, const WeightNaming& naming,
                                                const TensorFile& file) {
  HEADRACE_RETURN_IF_ERROR(place_weights(entries, naming, file));
  return entries;
}

Result<std::vector<WeightEntry>> resolve_layer(const ModelSpec& spec, int64_t layer, const WeightNaming& naming,
                                               const TensorFile& file) {
  std::vector<WeightEntry> entries = list_weights(spec);
  const std::string prefix = fmt::format("layers.{}.", layer);
  std::erase_if(entries, [&](const WeightEntry& entry) { return !entry.name.starts_with(prefix); });
  return resolve_listed(std::move(entries), naming, file);
}

}  // namespace headrace
