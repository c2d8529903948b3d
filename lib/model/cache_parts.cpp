// What the layers of a spec keep of a sequence: parts of the paged cache, and recurrent state.
#include <algorithm>

#include "model/mixer.h"
#include "model/model_spec.h"

namespace headrace {

namespace {

struct CachedPart {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvContent content = KvContent::kKeysAndValues;
  int32_t tokens_per_row = 1;
};

struct LayerCacheSizes {
  uint64_t state_floats = 0;
  std::optional<CachedPart> attention = CachedPart();
  std::optional<CachedPart> runs, indexer;

  template <class Spec>
  void operator()(const Spec& spec) {
    const MixerSizes sizes = mixer_sizes(spec);
    state_floats += static_cast<uint64_t>(sizes.conv_state + sizes.state);
  }
  void operator()(const GqaAttention& spec) {
    attention.reset();
    if (spec.kv_layer < 0) attention = CachedPart{spec.num_kv_heads, spec.head_dim};
  }
  void operator()(const LatentAttention& spec) { attention = CachedPart{1, spec.key_dim()}; }
  void operator()(const SparseLatentAttention& spec) {
    attention = CachedPart{1, spec.latent.key_dim(), KvContent::kRows};
    if (spec.indexer) indexer = CachedPart{1, spec.indexer->head_dim, KvContent::kKeys};
  }
  void operator()(const CompressedAttention& spec) {
    attention = CachedPart{1, spec.head_dim, KvContent::kRows};
    if (!spec.compressor) return;
    const auto add = [&](int32_t head_dim, std::optional<CachedPart>& part) {
      part = CachedPart{1, head_dim, KvContent::kRows, spec.compressor->run};
      state_floats += static_cast<uint64_t>(spec.compressor->state_floats(head_dim));
    };
    add(spec.head_dim, runs);
    if (spec.indexer) add(spec.indexer->head_dim, indexer);
  }
  void operator()(const AttentionBesideMamba& spec) {
    (*this)(spec.attention);
    (*this)(spec.mamba);
  }
};

LayerCacheSizes cache_sizes(const LayerSpec& layer) {
  LayerCacheSizes sizes;
  std::visit([&](const auto& spec) { sizes(spec); }, layer.attention);
  return sizes;
}

}  // namespace

std::vector<KvLayout> kv_layouts(const ModelSpec& spec, KvDType dtype, int32_t block_size) {
  std::vector<KvLayout> layouts;
  layouts.reserve(spec.layers.size());
  const auto add = [&](const CachedPart& part) {
    layouts.push_back({dtype, part.num_kv_heads, part.head_dim, block_size, part.content, part.tokens_per_row});
  };
  for (const LayerSpec& layer : spec.layers) {
    const LayerCacheSizes sizes = cache_sizes(layer);
    if (sizes.attention) add(*sizes.attention);
    if (sizes.runs) add(*sizes.runs);
    if (sizes.indexer) add(*sizes.indexer);
  }
  return layouts;
}

std::vector<KvLayout> memory_layouts(const ModelSpec& spec, KvDType dtype, int32_t block_size) {
  std::vector<KvLayout> layouts;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.cross) layouts.push_back({dtype, layer.cross->num_heads, layer.cross->head_dim, block_size});
  }
  return layouts;
}

bool has_cross_attention(const ModelSpec& spec) {
  return std::ranges::any_of(spec.layers, [](const LayerSpec& layer) { return layer.cross.has_value(); });
}

size_t num_cache_parts(const LayerSpec& layer) {
  const LayerCacheSizes sizes = cache_sizes(layer);
  return (sizes.attention ? 1u : 0u) + (sizes.runs ? 1u : 0u) + (sizes.indexer ? 1u : 0u);
}

bool keeps_nothing(const LayerSpec& layer) {
  const LayerCacheSizes sizes = cache_sizes(layer);
  return sizes.state_floats == 0 && !sizes.indexer && (!sizes.attention || sizes.attention->num_kv_heads == 0);
}

uint64_t state_floats(const LayerSpec& layer) { return cache_sizes(layer).state_floats; }

uint64_t state_floats(const ModelSpec& spec) {
  uint64_t total = 0;
  for (const LayerSpec& layer : spec.layers) total += state_floats(layer);
  return total;
}

uint64_t kv_bytes_per_token(const ModelSpec& spec, KvDType dtype) {
  uint64_t block = 0;
  for (const KvLayout& layout : kv_layouts(spec, dtype)) block += layout.block_bytes();
  return (block + 15) / 16;
}

}  // namespace headrace
