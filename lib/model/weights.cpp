#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "model/dflash_head.h"
#include "model/eagle3_head.h"
#include "model/encoder_weights.h"
#include "model/fused_head.h"
#include "model/medusa_heads.h"
#include "model/mixer_weights.h"
#include "model/packed_cache.h"
#include "model/position_buckets.h"
#include "model/vision_weights.h"
#include "model/weight_layout.h"
#include "tensor/column_order.h"
#include "tensor/dequantize.h"

namespace headrace {

namespace {

// Loads one entry after the other and reports how far it is, in bytes of the file.
class Loader {
 public:
  Loader(const std::vector<WeightEntry>& entries, const TensorFile& file, const PackOptions& options,
         const LoadProgress& progress, Backend& backend, PackedCache* cache, uint64_t& packed_bytes)
      : file_(file),
        options_(options),
        progress_(progress),
        backend_(backend),
        cache_(cache),
        packed_bytes_(packed_bytes) {
    for (const WeightEntry& entry : entries) {
      entries_.emplace(entry.name, &entry);
      if (const TensorEntry* tensor = file.find(entry.file_name)) total_bytes_ += bytes_in_file(entry, *tensor);
    }
  }

  Status report() {
    if (!progress_) return {};
    const double share = total_bytes_ == 0 ? 1.0 : static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_);
    if (!progress_(share)) return cancelled("", "loading was cancelled");
    return {};
  }

  Status linear(const std::string& name, LinearWeight& out) {
    HEADRACE_ASSIGN_OR_RETURN(const Found found, find(name + ".weight"));
    const auto& [entry, tensor] = found;
    if (entry->shape.size() != 2) return internal_error(name, "not a matrix");
    WeightSource source;
    source.name = tensor->name;
    source.dtype = across_blocks(*entry, *tensor) ? DType::kF32 : tensor->dtype;
    source.rows = static_cast<int64_t>(entry->shape[0]);
    source.cols = static_cast<int64_t>(entry->shape[1]);
    if (!across_blocks(*entry, *tensor)) source.column_order = tensor->column_order;
    if (cache_ != nullptr) out.weight = cache_->find(name, source, options_, backend_);
    if (out.weight == nullptr) HEADRACE_RETURN_IF_ERROR(pack(*entry, *tensor, source, out.weight));
    if (cache_ != nullptr) cache_->add(name, *out.weight);
    packed_bytes_ += out.weight->bytes();
    products.push_back(out.weight.get());
    HEADRACE_RETURN_IF_ERROR(finish(*entry, *tensor));
    return has(name + ".bias") ? vector(name + ".bias", out.bias) : Status();
  }

  // A matrix whose rows are looked up and never multiplied by.
  Status table(const std::string& name, LinearWeight& out) {
    HEADRACE_RETURN_IF_ERROR(linear(name, out));
    products.pop_back();
    return {};
  }

  Status vector(const std::string& name, std::vector<float>& out) {
    HEADRACE_ASSIGN_OR_RETURN(const Found found, find(name));
    const auto& [entry, tensor] = found;
    if (entry->shape.size() != 1 || entry->shape[0] > (uint64_t{1} << 32))
      return malformed(tensor->name, "not a vector");
    WeightEntry as_row = *entry;
    as_row.shape.insert(as_row.shape.begin(), 1);
    if (entry->head_stride != 0) {  // a row for each head
      as_row.shape = {entry->shape[0] / entry->head_rows, entry->head_rows};
      as_row.row_stride = entry->head_stride;
      as_row.head_stride = 0;
    }
    std::vector<std::byte> bytes;
    HEADRACE_RETURN_IF_ERROR(gather(as_row, *tensor, bytes));
    out.resize(entry->shape[0]);
    const Status decoded = dequantize_row(tensor->dtype, bytes.data(), out.data(), static_cast<int64_t>(out.size()));
    if (!decoded.ok()) return decoded.within(tensor->name);
    for (size_t i = 0; i < out.size(); ++i) {
      if (!std::isfinite(out[i])) return malformed(tensor->name, "element {} is not finite", i);
    }
    packed_bytes_ += out.size() * sizeof(float);
    return finish(*entry, *tensor);
  }

  // Leaves `out` empty when the spec has no such norm.
  Status norm(const std::string& name, NormWeight& out) {
    HEADRACE_RETURN_IF_ERROR(optional_vector(name + ".weight", out.weight));
    for (float& weight : out.weight) weight += layer_norm_offset;
    return optional_vector(name + ".bias", out.bias);
  }

  std::vector<const PackedWeight*> products;  // what linear made
  float layer_norm_offset = 0.0f;             // of the weights of layer norms, which the op leaves alone

  bool has(const std::string& name) const { return entries_.contains(name); }
  // Of a weight that the spec has.
  const std::string& file_name(const std::string& name) const { return entries_.at(name)->file_name; }
  // Leaves `out` empty when the spec has no such weight.
  Status optional_vector(const std::string& name, std::vector<float>& out) {
    return has(name) ? vector(name, out) : Status();
  }

 private:
  struct Found {
    const WeightEntry* entry;
    const TensorEntry* tensor;
  };
  Result<Found> find(const std::string& name) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) return internal_error(name, "the spec has no such weight");
    const TensorEntry* tensor = file_.find(it->second->file_name);
    if (tensor == nullptr) return not_found(it->second->file_name, "the file has no such tensor");
    return Found{it->second, tensor};
  }

  Status pack(const WeightEntry& entry, const TensorEntry& tensor, WeightSource& source,
              std::unique_ptr<PackedWeight>& out) {
    std::vector<std::byte> gathered;
    if (entry.row_stride == entry.shape[1] && entry.col_stride == 1 && entry.head_stride == 0) {
      const auto start = row_bytes(tensor.dtype, entry.offset);
      if (!start) return malformed(tensor.name, "its parts are no whole blocks of {}", dtype_name(tensor.dtype));
      source.read = [this, &tensor, start = *start](uint64_t offset, std::span<std::byte> destination) {
        return file_.read(tensor, start + offset, destination);
      };
    } else {
      HEADRACE_RETURN_IF_ERROR(gather(entry, tensor, gathered));
      source.read = [&gathered](uint64_t offset, std::span<std::byte> destination) {
        std::memcpy(destination.data(), gathered.data() + offset, destination.size());
        return Status();
      };
    }
    HEADRACE_ASSIGN_OR_RETURN(out, backend_.pack(source, options_));
    return {};
  }

  // The entry's rows one after the other, in the file's type.
  Status gather(const WeightEntry& entry, const TensorEntry& tensor, std::vector<std::byte>& out) const {
    const uint64_t rows = entry.shape[0], cols = entry.shape[1];
    const auto bytes_per_row = row_bytes(tensor.dtype, cols);
    if (!bytes_per_row) return malformed(tensor.name, "its rows are no whole blocks of {}", dtype_name(tensor.dtype));
    out.resize(rows * *bytes_per_row);
    if (entry.col_stride == 1) {
      for (uint64_t row = 0; row < rows; ++row) {
        const auto start = row_bytes(tensor.dtype, row_start(entry, row));
        if (!start) return malformed(tensor.name, "its parts are no whole blocks of {}", dtype_name(tensor.dtype));
        HEADRACE_RETURN_IF_ERROR(
            file_.read(tensor, *start, std::span(out).subspan(row * *bytes_per_row, *bytes_per_row)));
      }
      return {};
    }
    if (across_blocks(entry, tensor)) return gather_decoded(entry, tensor, out);
    const uint64_t element = *bytes_per_row / cols;
    std::vector<std::byte> span(((rows - 1) * entry.row_stride + (cols - 1) * entry.col_stride + 1) * element);
    HEADRACE_RETURN_IF_ERROR(file_.read(tensor, entry.offset * element, span));
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t col = 0; col < cols; ++col) {
        std::memcpy(out.data() + (row * cols + col) * element,
                    span.data() + (row * entry.row_stride + col * entry.col_stride) * element, element);
      }
    }
    return {};
  }

  // Whether each block of the tensor has elements of several of the entry's rows. Such weights, the keys' half of latent
  // attention's kv_b_proj, are kept decoded: there is no scale for the columns of a row.
  static bool across_blocks(const WeightEntry& entry, const TensorEntry& tensor) {
    return is_block_format(tensor.dtype) && entry.col_stride != 1;
  }

  Status gather_decoded(const WeightEntry& entry, const TensorEntry& tensor, std::vector<std::byte>& out) const {
    const uint64_t rows = entry.shape[0], cols = entry.shape[1], width = tensor.shape.back();
    const uint64_t last = entry.offset + (rows - 1) * entry.row_stride + (cols - 1) * entry.col_stride;
    const uint64_t first_row = entry.offset / width, num_rows = last / width + 1 - first_row;
    const uint64_t row_size = *row_bytes(tensor.dtype, width);  // checked when the file was opened
    std::vector<std::byte> bytes(num_rows * row_size);
    HEADRACE_RETURN_IF_ERROR(file_.read(tensor, first_row * row_size, bytes));
    std::vector<float> decoded(num_rows * width), stored(width);
    for (uint64_t row = 0; row < num_rows; ++row) {
      float* const values = decoded.data() + row * width;
      HEADRACE_RETURN_IF_ERROR(
          dequantize_row(tensor.dtype, bytes.data() + row * row_size, values, static_cast<int64_t>(width)));
      if (tensor.column_order == nullptr) continue;
      std::copy_n(values, width, stored.begin());
      put_in_order(*tensor.column_order, stored.data(), values);
    }
    out.resize(rows * cols * sizeof(float));
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t col = 0; col < cols; ++col) {
        const uint64_t at = entry.offset + row * entry.row_stride + col * entry.col_stride - first_row * width;
        std::memcpy(out.data() + (row * cols + col) * sizeof(float), &decoded[at], sizeof(float));
      }
    }
    return {};
  }

  Status finish(const WeightEntry& entry, const TensorEntry& tensor) {
    done_bytes_ += bytes_in_file(entry, tensor);
    return report();
  }

  const TensorFile& file_;
  const PackOptions& options_;
  const LoadProgress& progress_;
  Backend& backend_;
  PackedCache* const cache_;
  uint64_t& packed_bytes_;
  std::unordered_map<std::string_view, const WeightEntry*> entries_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
};

Status load_attention(Loader& loader, const std::string& prefix, GqaWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "q_proj", out.q));
  if (loader.has(prefix + "q_gate.weight")) HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "q_gate", out.gate));
  if (loader.has(prefix + "k_proj.weight")) HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "k_proj", out.k));
  if (loader.has(prefix + "v_proj.weight")) HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "v_proj", out.v));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "o_proj", out.o));
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(prefix + "q_norm.weight", out.q_norm));
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(prefix + "k_norm.weight", out.k_norm));
  return loader.optional_vector(prefix + "sinks.weight", out.sinks);
}

Status load_feed_forward(Loader& loader, const std::string& prefix, DenseWeights& out) {
  if (loader.has(prefix + "gate_proj.weight")) HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "gate_proj", out.gate));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "up_proj", out.up));
  return loader.linear(prefix + "down_proj", out.down);
}

// Rows of top_k different experts each, put in ascending order.
Status load_experts_by_token(Loader& loader, const std::string& name, const RouterSpec& spec,
                             std::vector<int32_t>& out) {
  std::vector<float> table;
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(name, table));
  for (size_t i = 0; i < table.size(); ++i) {
    const auto expert = static_cast<int32_t>(std::clamp(table[i], -1.0f, static_cast<float>(spec.num_experts)));
    if (static_cast<float>(expert) != table[i] || expert < 0 || expert >= spec.num_experts) {
      return malformed(loader.file_name(name), "element {} is {}, none of {} experts", i, table[i], spec.num_experts);
    }
    out.push_back(expert);
  }
  for (auto row = out.begin(); row != out.end(); row += spec.top_k) {
    std::sort(row, row + spec.top_k);
    if (std::adjacent_find(row, row + spec.top_k) != row + spec.top_k) {
      return malformed(loader.file_name(name), "token {} has an expert twice", (row - out.begin()) / spec.top_k);
    }
  }
  return {};
}

Status load_feed_forward(Loader& loader, const std::string& prefix, const MixtureOfExperts& moe, MoeWeights& out) {
  const RouterSpec& spec = moe.router;
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "router", out.router));
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(prefix + "router.correction", out.correction));
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(prefix + "router.expert_scale", out.expert_scales));
  HEADRACE_RETURN_IF_ERROR(load_experts_by_token(loader, prefix + "router.by_token", spec, out.by_token));
  out.experts.resize(static_cast<size_t>(out.router.weight->rows()));
  const auto bias = [](const LinearWeight& weight) { return weight.bias.empty() ? nullptr : weight.bias.data(); };
  for (size_t e = 0; e < out.experts.size(); ++e) {
    DenseWeights& expert = out.experts[e];
    HEADRACE_RETURN_IF_ERROR(load_feed_forward(loader, fmt::format("{}experts.{}.", prefix, e), expert));
    out.table.push_back({expert.gate.weight.get(), expert.up.weight.get(), expert.down.weight.get(), bias(expert.gate),
                         bias(expert.up), bias(expert.down)});
  }
  if (!loader.has(prefix + "shared.up_proj.weight")) return {};
  HEADRACE_RETURN_IF_ERROR(load_feed_forward(loader, prefix + "shared.", out.shared));
  return loader.has(prefix + "shared.router.weight") ? loader.linear(prefix + "shared.router", out.shared_gate)
                                                     : Status();
}

Status load_attention(Loader& loader, const std::string& prefix, const LatentAttention& spec, LatentWeights& out) {
  if (spec.q_rank > 0) {
    HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "q_down", out.q_down));
    HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "q_latent_norm.weight", out.q_norm));
  }
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "q_proj", out.q));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "latent", out.latent));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "k_rope", out.k_rope));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "latent_norm.weight", out.latent_norm));
  out.k_up.resize(static_cast<size_t>(spec.num_heads));
  out.v_up.resize(static_cast<size_t>(spec.num_heads));
  for (size_t h = 0; h < out.k_up.size(); ++h) {
    HEADRACE_RETURN_IF_ERROR(loader.linear(fmt::format("{}heads.{}.k_up", prefix, h), out.k_up[h]));
    HEADRACE_RETURN_IF_ERROR(loader.linear(fmt::format("{}heads.{}.v_up", prefix, h), out.v_up[h]));
  }
  return loader.linear(prefix + "o_proj", out.o);
}

Status load_attention(Loader& loader, const std::string& prefix, const SparseLatentAttention& spec,
                      SparseLatentWeights& out) {
  HEADRACE_RETURN_IF_ERROR(load_attention(loader, prefix, spec.latent, out.latent));
  if (!spec.indexer) return {};
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "indexer.q_proj", out.indexer.q));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "indexer.k_proj", out.indexer.k));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "indexer.head_weights", out.indexer.head_weights));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "indexer.k_norm.weight", out.indexer.k_norm));
  return loader.vector(prefix + "indexer.k_norm.bias", out.indexer.k_norm_bias);
}

Status load_compressor(Loader& loader, const std::string& prefix, CompressorWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "value", out.value));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "gate", out.gate));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "bias", out.bias));
  return loader.vector(prefix + "norm.weight", out.norm);
}

Status load_attention(Loader& loader, const std::string& prefix, const CompressedAttention& spec,
                      CompressedWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "q_down", out.q_down));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "q_latent_norm.weight", out.q_norm));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "q_proj", out.q));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "k_proj", out.k));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "k_norm.weight", out.k_norm));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "sinks", out.sinks));
  out.unit.assign(static_cast<size_t>(spec.head_dim), 1.0f);
  out.groups.resize(static_cast<size_t>(spec.output_groups));
  for (size_t group = 0; group < out.groups.size(); ++group) {
    HEADRACE_RETURN_IF_ERROR(loader.linear(fmt::format("{}groups.{}", prefix, group), out.groups[group]));
  }
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "o_proj", out.o));
  if (!spec.compressor) return {};
  HEADRACE_RETURN_IF_ERROR(load_compressor(loader, prefix + "compressor.", out.compressor));
  if (!spec.indexer) return {};
  HEADRACE_RETURN_IF_ERROR(load_compressor(loader, prefix + "indexer.compressor.", out.index_compressor));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "indexer.q_proj", out.index_q));
  return loader.linear(prefix + "indexer.head_weights", out.index_head_weights);
}

Status load_attention(Loader& loader, const std::string& prefix, const GqaAttention& spec, GqaWeights& out) {
  if (spec.qk_norm && spec.qk_norm_kind == QkNormKind::kHeadAfterRotationUnweighted) {
    out.q_norm.assign(static_cast<size_t>(spec.head_dim), 1.0f);
    out.k_norm = out.q_norm;
  }
  if (spec.value_norm) out.v_norm.assign(static_cast<size_t>(spec.head_dim), 1.0f);
  HEADRACE_RETURN_IF_ERROR(load_attention(loader, prefix, out));
  if (!spec.position_buckets || spec.position_buckets->layer >= 0) return {};
  LinearWeight table;  // [num_buckets, num_heads]
  HEADRACE_RETURN_IF_ERROR(loader.table(prefix + "position_bias", table));
  out.position_bias = std::make_shared<const std::vector<float>>(
      bias_by_distance(*spec.position_buckets, spec.both_ways, *table.weight));
  return {};
}

Status load_cross(Loader& loader, const std::string& prefix, CrossWeights& out) {
  if (!loader.has(prefix + "cross.q_proj.weight")) return {};
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "cross_norm", out.norm));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "cross.q_proj", out.q));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "cross.k_proj", out.k));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "cross.v_proj", out.v));
  return loader.linear(prefix + "cross.o_proj", out.o);
}

template <class Spec, class Weights>
Status load_attention(Loader& loader, const std::string& prefix, const Spec& spec, Weights& out) {
  return load_mixer(loader, prefix, spec, out);
}

Status load_attention(Loader& loader, const std::string& prefix, const AttentionBesideMamba& spec,
                      AttentionBesideMambaWeights& out) {
  HEADRACE_RETURN_IF_ERROR(load_attention(loader, prefix, spec.attention, out.attention));
  return load_mixer(loader, prefix, spec.mamba, out.mamba);
}

Status load_feed_forward(Loader& loader, const std::string& prefix, const DenseFeedForward&, DenseWeights& out) {
  return load_feed_forward(loader, prefix, out);
}

Status load_feed_forward(Loader&, const std::string&, const NoFeedForward&, NoFeedForwardWeights&) { return {}; }

Status load_feed_forward(Loader& loader, const std::string& prefix, const DenseBesideExperts& spec,
                         DenseBesideExpertsWeights& out) {
  HEADRACE_RETURN_IF_ERROR(load_feed_forward(loader, prefix, out.dense));
  HEADRACE_RETURN_IF_ERROR(load_feed_forward(loader, prefix, spec.experts, out.experts));
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "dense_post_norm", out.dense_post_norm));
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "experts_norm", out.experts_norm));
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "experts_post_norm", out.experts_post_norm));
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "router_norm", out.router_norm));
  for (float& weight : out.router_norm.weight) weight *= spec.router_scale;
  return {};
}

Status load_laurel(Loader& loader, const std::string& prefix, LaurelWeights& out) {
  if (!loader.has(prefix + "left.weight")) return {};
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "left", out.left));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "right", out.right));
  return loader.norm(prefix + "norm", out.norm);
}

Status load_altup(Loader& loader, const std::string& prefix, AltUpWeights& out) {
  if (!loader.has(prefix + "router.weight")) return {};
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "router_norm", out.router_norm));
  for (float& weight : out.router_norm.weight) weight /= static_cast<float>(out.router_norm.weight.size());
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "router", out.router));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "prediction", out.prediction));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "correction", out.correction));
  return loader.optional_vector(prefix + "output_scale.weight", out.output_scale);
}

Status load_stream_gates(Loader& loader, const std::string& prefix, StreamGateWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "fn", out.fn));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "base", out.base));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "scale", out.scale));
  out.unit.assign(static_cast<size_t>(out.fn.weight->cols()), 1.0f);
  return {};
}

Status load_hyper(Loader& loader, const std::string& prefix, HyperWeights& out) {
  if (!loader.has(prefix + "attention.fn.weight")) return {};
  HEADRACE_RETURN_IF_ERROR(load_stream_gates(loader, prefix + "attention.", out.attention));
  return load_stream_gates(loader, prefix + "feed_forward.", out.feed_forward);
}

Status load_per_layer(Loader& loader, const std::string& prefix, PerLayerWeights& out) {
  if (!loader.has(prefix + "per_layer_gate.weight")) return {};
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "per_layer_gate", out.gate));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "per_layer_projection", out.projection));
  return loader.norm(prefix + "per_layer_norm", out.norm);
}

Status load_streams(Loader& loader, size_t count, ModelWeights& out) {
  out.stream_projections.resize(count);
  out.stream_unprojections.resize(count);
  for (size_t i = 0; i < count; ++i) {
    HEADRACE_RETURN_IF_ERROR(loader.linear(fmt::format("stream_projections.{}", i), out.stream_projections[i]));
    HEADRACE_RETURN_IF_ERROR(loader.linear(fmt::format("stream_unprojections.{}", i), out.stream_unprojections[i]));
  }
  return {};
}

Status load_layer(Loader& loader, const std::string& prefix, const LayerSpec& spec, LayerWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "attention_norm", out.attention_norm));
  HEADRACE_RETURN_IF_ERROR(std::visit(
      [&](const auto& attention) {
        auto& weights = out.attention.emplace<WeightsOf<std::decay_t<decltype(attention)>>>();
        return load_attention(loader, prefix, attention, weights);
      },
      spec.attention));
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "post_attention_norm", out.post_attention_norm));
  HEADRACE_RETURN_IF_ERROR(load_cross(loader, prefix, out.cross));
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "attention_stream_norm", out.attention_stream_norm));
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "feed_forward_stream_norm", out.feed_forward_stream_norm));
  HEADRACE_RETURN_IF_ERROR(loader.norm(prefix + "feed_forward_norm", out.feed_forward_norm));
  HEADRACE_RETURN_IF_ERROR(std::visit(
      [&](const auto& block) {
        auto& weights = out.feed_forward.emplace<WeightsOf<std::decay_t<decltype(block)>>>();
        return load_feed_forward(loader, prefix, block, weights);
      },
      spec.feed_forward));
  HEADRACE_RETURN_IF_ERROR(load_per_layer(loader, prefix, out.per_layer));
  HEADRACE_RETURN_IF_ERROR(load_laurel(loader, prefix + "laurel.", out.laurel));
  HEADRACE_RETURN_IF_ERROR(load_altup(loader, prefix + "altup.", out.altup));
  HEADRACE_RETURN_IF_ERROR(load_hyper(loader, prefix + "hyper.", out.hyper));
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(prefix + "output_scale.weight", out.output_scale));
  return loader.norm(prefix + "post_feed_forward_norm", out.post_feed_forward_norm);
}

// Biases that are those of a layer before.
void share_position_bias(const LayerSpec& spec, std::vector<LayerWeights>& layers, size_t i) {
  const auto* attention = std::get_if<GqaAttention>(&spec.attention);
  if (attention == nullptr || !attention->position_buckets || attention->position_buckets->layer < 0) return;
  const LayerWeights& owner = layers[static_cast<size_t>(attention->position_buckets->layer)];
  std::get<GqaWeights>(layers[i].attention).position_bias = std::get<GqaWeights>(owner.attention).position_bias;
}

}  // namespace

uint64_t bytes_in_file(const WeightEntry& entry, const TensorEntry& tensor) {
  const DTypeInfo& info = dtype_info(tensor.dtype);
  uint64_t count = 1;
  for (const uint64_t size : entry.shape) count *= size;  // part of a tensor that was checked when it was opened
  return count / static_cast<uint64_t>(info.block_size) * static_cast<uint64_t>(info.block_bytes);
}

Result<ModelWeights> ModelWeights::load(const ModelSpec& spec, const std::vector<WeightEntry>& entries,
                                        const TensorFile& file, const PackOptions& options,
                                        const LoadProgress& progress, Backend& backend, PackedCache* cache) {
  ModelWeights out;
  try {
    Loader loader(entries, file, options, progress, backend, cache, out.bytes);
    if (spec.norm == NormKind::kLayer) loader.layer_norm_offset = spec.norm_weight_offset;
    HEADRACE_RETURN_IF_ERROR(loader.report());
    if (spec.vocab_size > 0) HEADRACE_RETURN_IF_ERROR(loader.linear("embed", out.embedding));
    if (spec.learned_positions > 0) HEADRACE_RETURN_IF_ERROR(loader.linear("positions", out.positions.emplace()));
    if (spec.token_types > 0) HEADRACE_RETURN_IF_ERROR(loader.linear("token_types", out.token_types.emplace()));
    HEADRACE_RETURN_IF_ERROR(loader.norm("embedding_norm", out.embedding_norm));
    if (spec.per_layer_inputs) {
      HEADRACE_RETURN_IF_ERROR(loader.linear("per_layer_table", out.per_layer_table.emplace()));
    }
    loader.products.clear();  // rows of tables are looked up
    if (spec.per_layer_inputs) {
      HEADRACE_RETURN_IF_ERROR(loader.linear("per_layer_projection", out.per_layer_projection.emplace()));
      HEADRACE_RETURN_IF_ERROR(loader.vector("per_layer_projection_norm.weight", out.per_layer_norm));
    }
    if (spec.head.tied) loader.products.push_back(out.embedding.weight.get());
    if (const auto* altup = std::get_if<AltUp>(&spec.streams)) {
      HEADRACE_RETURN_IF_ERROR(load_streams(loader, static_cast<size_t>(altup->num_streams) - 1, out));
    }
    out.layers.resize(spec.layers.size());
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      HEADRACE_RETURN_IF_ERROR(load_layer(loader, fmt::format("layers.{}.", i), spec.layers[i], out.layers[i]));
      share_position_bias(spec.layers[i], out.layers, i);
    }
    if (std::holds_alternative<HyperConnections>(spec.streams)) {
      HEADRACE_RETURN_IF_ERROR(load_stream_gates(loader, "stream_head.", out.stream_head.emplace()));
    }
    HEADRACE_RETURN_IF_ERROR(loader.norm("final_norm", out.final_norm));
    if (spec.head.transform) HEADRACE_RETURN_IF_ERROR(loader.linear("transform", out.transform.emplace()));
    HEADRACE_RETURN_IF_ERROR(loader.norm("transform_norm", out.transform_norm));
    if (loader.has("lm_head.weight")) {
      HEADRACE_RETURN_IF_ERROR(loader.linear("lm_head", out.lm_head.emplace()));
    } else {
      HEADRACE_RETURN_IF_ERROR(loader.optional_vector("lm_head.bias", out.tied_bias));
    }
    out.products = std::move(loader.products);
  } catch (const std::bad_alloc&) {
    return out_of_memory("", "not enough memory for the model's weights");
  }
  return out;
}

namespace {

Status load_projector(Loader& loader, const std::string& name, const ProjectorSpec& spec, ProjectorWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.norm(name + ".norm", out.norm));
  HEADRACE_RETURN_IF_ERROR(loader.linear(name + ".linear_1", out.linear_1));
  return spec.inner_size > 0 ? loader.linear(name + ".linear_2", out.linear_2) : Status();
}

}  // namespace

Result<VisionWeights> VisionWeights::load(const VisionSpec& spec, const std::vector<WeightEntry>& entries,
                                          const TensorFile& file, const PackOptions& options, Backend& backend) {
  VisionWeights out;
  HEADRACE_ASSIGN_OR_RETURN(out.encoder, ModelWeights::load(spec.encoder, entries, file, options, {}, backend));
  try {
    const LoadProgress silent;
    Loader loader(entries, file, options, silent, backend, nullptr, out.bytes);
    HEADRACE_RETURN_IF_ERROR(loader.linear("patch", out.patch));
    if (spec.class_row) HEADRACE_RETURN_IF_ERROR(loader.vector("class_row", out.class_row));
    if (spec.num_positions > 0) HEADRACE_RETURN_IF_ERROR(loader.linear("positions", out.positions));
    HEADRACE_RETURN_IF_ERROR(load_projector(loader, "projector", spec.projector, out.projector));
    out.deep.resize(spec.deep_layers.size());
    for (size_t i = 0; i < out.deep.size(); ++i) {
      HEADRACE_RETURN_IF_ERROR(load_projector(loader, fmt::format("deep.{}", i), spec.deep_projector, out.deep[i]));
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory("", "not enough memory for the vision encoder's weights");
  }
  out.bytes += out.encoder.bytes;
  return out;
}

Result<EncoderWeights> EncoderWeights::load(const EncoderSpec& spec, const std::vector<WeightEntry>& entries,
                                            const TensorFile& file, const PackOptions& options, Backend& backend) {
  EncoderWeights out;
  HEADRACE_ASSIGN_OR_RETURN(out.encoder, ModelWeights::load(spec.encoder, entries, file, options, {}, backend));
  try {
    const LoadProgress silent;
    Loader loader(entries, file, options, silent, backend, nullptr, out.bytes);
    if (spec.audio) {
      HEADRACE_RETURN_IF_ERROR(loader.linear("conv_1", out.conv_1));
      HEADRACE_RETURN_IF_ERROR(loader.linear("conv_2", out.conv_2));
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory("", "not enough memory for the encoder's weights");
  }
  out.bytes += out.encoder.bytes;
  return out;
}

Result<FusedHeadWeights> FusedHeadWeights::load(const FusedHeadHeader& header, const PackOptions& options,
                                                Backend& backend) {
  FusedHeadWeights out;
  HEADRACE_ASSIGN_OR_RETURN(out.body,
                            ModelWeights::load(header.spec.body, header.weights, *header.file, options, {}, backend));
  try {
    const LoadProgress silent;
    Loader loader(header.weights, *header.file, options, silent, backend, nullptr, out.bytes);
    if (header.spec.body.norm == NormKind::kLayer) loader.layer_norm_offset = header.spec.body.norm_weight_offset;
    HEADRACE_RETURN_IF_ERROR(loader.linear("fuse", out.fuse));
    HEADRACE_RETURN_IF_ERROR(loader.norm("token_norm", out.token_norm));
    HEADRACE_RETURN_IF_ERROR(loader.norm("feature_norm", out.feature_norm));
    HEADRACE_RETURN_IF_ERROR(loader.norm("norm", out.norm));
  } catch (const std::bad_alloc&) {
    return out_of_memory("", "not enough memory for the draft head's weights");
  }
  out.bytes += out.body.bytes;
  return out;
}

Result<Eagle3Weights> Eagle3Weights::load(const Eagle3Header& header, const PackOptions& options, Backend& backend) {
  Eagle3Weights out;
  const ModelSpec& body = header.spec.body;
  try {
    const LoadProgress silent;
    Loader loader(header.weights, *header.file, options, silent, backend, nullptr, out.bytes);
    HEADRACE_RETURN_IF_ERROR(loader.linear("fc", out.fc));
    if (header.spec.own_embedding) HEADRACE_RETURN_IF_ERROR(loader.table("embed", out.embedding));
    HEADRACE_RETURN_IF_ERROR(loader.norm("embedding_norm", out.embedding_norm));
    HEADRACE_RETURN_IF_ERROR(loader.norm("hidden_norm", out.hidden_norm));
    HEADRACE_RETURN_IF_ERROR(
        load_attention(loader, "", std::get<GqaAttention>(body.layers[0].attention), out.attention));
    HEADRACE_RETURN_IF_ERROR(loader.norm("feed_forward_norm", out.feed_forward_norm));
    HEADRACE_RETURN_IF_ERROR(load_feed_forward(loader, "", out.feed_forward));
    HEADRACE_RETURN_IF_ERROR(loader.norm("norm", out.norm));
    HEADRACE_RETURN_IF_ERROR(loader.linear("lm_head", out.head));
  } catch (const std::bad_alloc&) {
    return out_of_memory("", "not enough memory for the draft head's weights");
  }
  return out;
}

Result<DflashWeights> DflashWeights::load(const DflashHeader& header, const PackOptions& options, Backend& backend) {
  DflashWeights out;
  HEADRACE_ASSIGN_OR_RETURN(out.body,
                            ModelWeights::load(header.spec.body, header.weights, *header.file, options, {}, backend));
  try {
    const LoadProgress silent;
    Loader loader(header.weights, *header.file, options, silent, backend, nullptr, out.bytes);
    HEADRACE_RETURN_IF_ERROR(loader.linear("fc", out.fc));
    HEADRACE_RETURN_IF_ERROR(loader.norm("hidden_norm", out.hidden_norm));
    HEADRACE_RETURN_IF_ERROR(loader.norm("norm", out.norm));
  } catch (const std::bad_alloc&) {
    return out_of_memory("", "not enough memory for the draft head's weights");
  }
  out.bytes += out.body.bytes;
  return out;
}

Result<MedusaWeights> MedusaWeights::load(const MedusaHeader& header, const PackOptions& options, Backend& backend) {
  MedusaWeights out;
  try {
    const LoadProgress silent;
    Loader loader(header.weights, *header.file, options, silent, backend, nullptr, out.bytes);
    out.heads.resize(static_cast<size_t>(header.spec.num_heads));
    for (size_t i = 0; i < out.heads.size(); ++i) {
      Head& head = out.heads[i];
      head.blocks.resize(static_cast<size_t>(header.spec.num_blocks));
      for (size_t j = 0; j < head.blocks.size(); ++j) {
        HEADRACE_RETURN_IF_ERROR(loader.linear(fmt::format("head{}.block{}", i, j), head.blocks[j]));
      }
      if (i > 0 && header.spec.one_output) continue;
      HEADRACE_RETURN_IF_ERROR(loader.linear(fmt::format("head{}.output", i), head.output));
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory("", "not enough memory for the draft heads' weights");
  }
  return out;
}

}  // namespace headrace
