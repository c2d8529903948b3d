// The kinds of attention, and of what stands in its place, behind one pair of functions.
#include "model/blocks.h"
#include "model/mixer.h"

namespace headrace {

namespace {

template <class Function>
void with_weights(const AttentionSpec& spec, const LayerWeights& weights, const Function& function) {
  std::visit(
      [&](const auto& kind) { function(kind, std::get<WeightsOf<std::decay_t<decltype(kind)>>>(weights.attention)); },
      spec);
}

struct Attend {
  const StepContext& step;
  const LayerWeights& layer;
  const ResidualSpec& residual;
  const Batch& batch;
  const LayerCache& cache;
  bool with_output;

  void operator()(const GqaAttention& spec, const GqaWeights& weights) const {
    attend(step, spec, weights, input(), batch, cache.layout(), cache.blocks(), with_output);
  }
  void operator()(const LatentAttention& spec, const LatentWeights& weights) const {
    attend(step, spec, weights, input(), batch, cache, with_output);
  }
  void operator()(const SparseLatentAttention& spec, const SparseLatentWeights& weights) const {
    attend(step, spec, weights, input(), batch, cache, with_output);
  }
  void operator()(const CompressedAttention& spec, const CompressedWeights& weights) const {
    attend(step, spec, weights, input(), batch, cache, with_output);
  }
  void operator()(const NoAttention&, const NoAttentionWeights&) const {}
  void operator()(const AttentionBesideMamba& spec, const AttentionBesideMambaWeights& weights) const {
    (*this)(spec.attention, weights.attention);
    mix(step, spec.mamba, weights.mamba, batch, cache.state_offset);  // of the rows that attend() normalised
  }
  template <class Spec, class Weights>
  void operator()(const Spec& spec, const Weights& weights) const {
    input();
    mix(step, spec, weights, batch, cache.state_offset);
  }
  const float* input() const { return block_input(step, layer.attention_norm, residual); }
};

void scale_rows(const StepContext& step, float* rows, int64_t width, float factor) {
  if (factor == 1.0f) return;
  ScaleParams params;
  params.x = rows;
  params.num_elements = step.num_rows * width;
  params.factor = factor;
  step.backend.scale(params);
}

struct Project {
  const StepContext& step;
  const LayerWeights& layer;
  float scale;  // of the residual

  void operator()(const GqaAttention& spec, const GqaWeights& weights) const {
    project_attention(step, spec, weights, layer.post_attention_norm, scale);
  }
  void operator()(const LatentAttention& spec, const LatentWeights& weights) const {
    project_attention(step, spec, weights, layer.post_attention_norm, scale);
  }
  void operator()(const SparseLatentAttention& spec, const SparseLatentWeights& weights) const {
    (*this)(spec.latent, weights.latent);
  }
  void operator()(const CompressedAttention& spec, const CompressedWeights& weights) const {
    project_attention(step, spec, weights, layer.post_attention_norm, scale);
  }
  void operator()(const NoAttention&, const NoAttentionWeights&) const {}
  void operator()(const AttentionBesideMamba& spec, const AttentionBesideMambaWeights& weights) const {
    scale_rows(step, step.work.attention.data(), attention_width(spec.attention), spec.attention_scale);
    scale_rows(step, step.work.mixed.data(), spec.mamba.inner(), spec.mamba_scale);
    (*this)(spec.attention, weights.attention);
    (*this)(spec.mamba, weights.mamba);
  }
  template <class Spec, class Weights>
  void operator()(const Spec& spec, const Weights& weights) const {
    add_branch(step, step.work.mixed.data(), mixer_sizes(spec).out, weights.out, layer.post_attention_norm, scale);
  }
};

struct AttentionWidth {
  template <class Spec>
  int64_t operator()(const Spec&) const {
    return 0;
  }
  int64_t operator()(const GqaAttention& spec) const { return int64_t{spec.num_heads} * spec.value_dim(); }
  int64_t operator()(const LatentAttention& spec) const { return int64_t{spec.num_heads} * spec.key_dim(); }
  int64_t operator()(const SparseLatentAttention& spec) const { return (*this)(spec.latent); }
  int64_t operator()(const CompressedAttention& spec) const { return int64_t{spec.num_heads} * spec.head_dim; }
  int64_t operator()(const AttentionBesideMamba& spec) const { return (*this)(spec.attention); }
};

struct MixedWidth {
  template <class Spec>
  int64_t operator()(const Spec& spec) const {
    return mixer_sizes(spec).out;
  }
  int64_t operator()(const GqaAttention&) const { return 0; }
  int64_t operator()(const LatentAttention&) const { return 0; }
  int64_t operator()(const SparseLatentAttention&) const { return 0; }
  int64_t operator()(const CompressedAttention&) const { return 0; }
  int64_t operator()(const AttentionBesideMamba& spec) const { return spec.mamba.inner(); }
};

}  // namespace

void attend(const StepContext& step, const LayerSpec& spec, const LayerWeights& weights, const Batch& batch,
            const LayerCache& cache, bool with_output) {
  with_weights(spec.attention, weights, Attend{step, weights, spec.attention_residual, batch, cache, with_output});
}

void project_attention(const StepContext& step, const LayerSpec& spec, const LayerWeights& weights) {
  with_weights(spec.attention, weights, Project{step, weights, spec.attention_residual.scale});
}

int64_t attention_width(const AttentionSpec& spec) { return std::visit(AttentionWidth(), spec); }
int64_t mixed_width(const AttentionSpec& spec) { return std::visit(MixedWidth(), spec); }

}  // namespace headrace
