// The blocks that the forward pass is made of, one file per kind. Each works on the first num_rows rows of
// the workspace; a new kind of attention or feed-forward is another overload.
#pragma once

#include <cstdint>
#include <span>

#include "kv/kv_cache.h"
#include "model/batch.h"
#include "model/forward.h"
#include "model/model_spec.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace headrace {

// What every block of a step sees.
struct StepContext {
  const ModelSpec& spec;
  Backend& backend;
  ForwardWorkspace& work;
  int64_t num_rows;                            // rows of work.x
  std::span<const AdapterRows> adapters = {};  // rising, of those rows
};

// Of buffers that ops see, which do not overlap.
void copy_floats(const StepContext& step, const float* from, int64_t count, float* to);
// work.x = the tokens' embeddings, or those that the batch gives, with those of positions and segments, normalised, as the
// spec has them.
void embed_tokens(const StepContext& step, const ModelWeights& weights, const Batch& batch);
// work.x += what the batch's embeddings have for the output of this layer.
void add_deep_embeddings(const StepContext& step, const Batch& batch, int32_t layer);
// out [num_rows, head_width(spec)] of rows [num_rows, hidden_size], which are not work.branch.
void apply_head(const StepContext& step, const ModelWeights& weights, const float* rows, float* out);
// work.x = norm(work.x), or as it is where there is no norm.
void normalize_stream(const StepContext& step, const NormWeight& norm);

// Rows that a block reads: those of work.x normalised into work.normed, or as they are where there is no norm. Where the
// residual is the normalised rows, work.x becomes what of them is kept.
const float* block_input(const StepContext& step, const NormWeight& norm, const ResidualSpec& residual);

// Products of x [num_rows, in_features] with weights, and what adapters add to them.
void linear(const StepContext& step, const float* x, int64_t in_features, std::span<const LinearOutput> outputs);
// Likewise of any rows that one adapter serves.
void linear(const StepContext& step, const Adapter& adapter, const float* x, int64_t num_rows, int64_t in_features,
            std::span<const LinearOutput> outputs);
// out [num_rows, intermediate_size] = activation(x W_gate) * (x W_up), x [num_rows, hidden_size].
void gated_linear(const StepContext& step, const float* x, const DenseWeights& weights, Activation activation,
                  float limit, float* out);
// out [num_rows, size] = activation(x W), likewise.
void activated_linear(const StepContext& step, const float* x, const LinearWeight& weight, Activation activation,
                      int64_t size, float* out);

// input [num_rows, hidden_size], what block_input() gives -> keys and values of every row into the layer's blocks, and
// (with_output) attention's result, before the output projection, into work.attention.
void attend(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights, const float* input,
            const Batch& batch, const KvLayout& layout, std::byte* cache, bool with_output);
// work.x += scale [post_norm](work.attention W_o); post_norm may be empty.
void project_attention(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights,
                       const NormWeight& post_norm, float scale);

// The sequences of a batch with their states, of which the layer's part begins at `offset`.
StateRows state_rows(const Batch& batch, int64_t offset);
// Of all rows of the batch or, not null, of the listed ones (ascending), as they follow each other.
MemoryRows memory_rows(const Batch& batch, const std::vector<int32_t>* rows = nullptr);
// work.x += cross-attention of norm(work.x) to the part of this number of work.memory.
void cross_attend(const StepContext& step, const CrossAttention& spec, const CrossWeights& weights, int32_t part);

// work.normed [num_rows, hidden_size] -> work.mixed [num_rows, mixer_sizes(spec).out], before the output projection; the
// states of the batch's sequences, where the layer's part begins at `offset`, go on.
void mix(const StepContext& step, const ShortConv& spec, const ShortConvWeights& weights, const Batch& batch,
         int64_t offset);
void mix(const StepContext& step, const Mamba& spec, const MambaWeights& weights, const Batch& batch, int64_t offset);
void mix(const StepContext& step, const Mamba2& spec, const Mamba2Weights& weights, const Batch& batch, int64_t offset);
void mix(const StepContext& step, const GatedDelta& spec, const GatedDeltaWeights& weights, const Batch& batch,
         int64_t offset);
void mix(const StepContext& step, const KimiDelta& spec, const KimiDeltaWeights& weights, const Batch& batch,
         int64_t offset);
void mix(const StepContext& step, const LightningAttention& spec, const LightningWeights& weights, const Batch& batch,
         int64_t offset);

// What a layer has for attention, of any kind: its inputs of work.x up to the output projection, then that.
struct CachePart {
  KvLayout layout;
  std::byte* blocks;
};
struct LayerCache {
  std::span<const CachePart> parts;  // as kv_layouts() lists them
  int64_t state_offset;
  const KvLayout& layout() const { return parts[0].layout; }
  std::byte* blocks() const { return parts[0].blocks; }
};
void attend(const StepContext& step, const LayerSpec& spec, const LayerWeights& weights, const Batch& batch,
            const LayerCache& cache, bool with_output);
// Likewise of latent attention alone; input is what block_input() gives.
void attend(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights, const float* input,
            const Batch& batch, const LayerCache& cache, bool with_output);
void project_attention(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights,
                       const NormWeight& post_norm, float scale);
// The first part of that: queries in the space of the keys into work.latent_q, their latents, keys stored.
void project_latent(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights,
                    const float* input, const Batch& batch, const LayerCache& cache);
// The last: attention of work.latent_q into work.attention, over all positions or those selected.
void attend_latent(const StepContext& step, const LatentAttention& spec, const Batch& batch, const LayerCache& cache,
                   const SelectedPositions& selected);
// Rotates and stores the rows that params describe but for what the rotation says, each by its sequence's length.
void rotate_rows(const StepContext& step, const RopeSpec& rope, RopeStoreParams params, const Batch& batch);
// Rotates q [num_rows, num_heads, head_dim] and k, of the part's one head, in place and stores k and, where there is one, v.
void rotate_and_store(const StepContext& step, const RopeSpec& rope, int32_t num_heads, float* q, float* k,
                      const float* v, const Batch& batch, const CachePart& part);
// The same over the positions that the layer's indexer, or that of a layer before, chose into work.selected.
void attend(const StepContext& step, const SparseLatentAttention& spec, const SparseLatentWeights& weights,
            const float* input, const Batch& batch, const LayerCache& cache, bool with_output);
// Likewise of compressed attention; the batch's states, where the layer's part begins at cache.state_offset, go on.
void attend(const StepContext& step, const CompressedAttention& spec, const CompressedWeights& weights,
            const float* input, const Batch& batch, const LayerCache& cache, bool with_output);
void project_attention(const StepContext& step, const CompressedAttention& spec, const CompressedWeights& weights,
                       const NormWeight& post_norm, float scale);
void project_attention(const StepContext& step, const LayerSpec& spec, const LayerWeights& weights);
// Floats of a row in work.attention and work.mixed between the two.
int64_t attention_width(const AttentionSpec& spec);
int64_t mixed_width(const AttentionSpec& spec);

// work.x += scale [post_norm](feed_forward(input)); input is what block_input() gives.
void feed_forward(const StepContext& step, const DenseFeedForward& spec, const DenseWeights& weights,
                  const float* input, const NormWeight& post_norm, float scale);
void feed_forward(const StepContext& step, const MixtureOfExperts& spec, const MoeWeights& weights, const float* input,
                  const NormWeight& post_norm, float scale);

// out (+)= the experts of one adapter's rows, which adapts some of them, without the shared feed-forward: out and input are
// [num_rows, hidden_size] of the step.
void visit_adapted(const StepContext& step, const AdapterRows& rows, const MixtureOfExperts& spec,
                   const MoeWeights& weights, const float* input, bool accumulate, float* out);

// `input` is of work.normed: the experts see the stream with a norm of their own.
void feed_forward(const StepContext& step, const DenseBesideExperts& spec, const DenseBesideExpertsWeights& weights,
                  const float* input, const NormWeight& post_norm, float scale);

// Models with one stream have nothing to do in these three: embedding and layers work on work.x. AltUp's streams are
// work.streams [num_streams, stream_rows, hidden_size].
// The streams of the embeddings in work.x.
void expand_streams(const StepContext& step, const AltUp& spec, const ModelWeights& weights, int64_t stream_rows);
// Streams -> their prediction, its active one in work.x too.
void predict_streams(const StepContext& step, const AltUp& spec, const AltUpWeights& weights, int64_t stream_rows);
// The streams corrected by work.x, with the layer's own inputs.
void correct_streams(const StepContext& step, const AltUp& spec, const LayerWeights& weights, const float* inputs,
                     int64_t stream_rows);
// work.x = the mean of what the streams are brought back to.
void join_streams(const StepContext& step, const AltUp& spec, const ModelWeights& weights, int64_t stream_rows);
// HyperConnections: work.streams [num_rows, num_streams, hidden_size]. The streams of the embeddings in work.x.
void expand_streams(const StepContext& step, const HyperConnections& spec);
// work.x = what a block sees of the streams; leave_block needs work.coefficients and work.modalities as they are then.
void enter_block(const StepContext& step, const HyperConnections& spec, const StreamGateWeights& weights);
// The streams mixed, with the block's output in work.x added to all.
void leave_block(const StepContext& step, const HyperConnections& spec);
// work.x = the sum behind the last layer.
void join_streams(const StepContext& step, const HyperConnections& spec, const StreamGateWeights& weights);
// work.x = (work.x + n + norm(right(left(n)))) / sqrt 2, n: what attention saw, in work.normed.
void add_laurel(const StepContext& step, const LaurelWeights& weights, int64_t rank);

// work.per_layer [num_layers, num_rows, size] of the tokens whose embeddings work.x holds.
void project_per_layer(const StepContext& step, const PerLayerInputs& spec, const ModelWeights& weights,
                       const Batch& batch);
// work.branch = the layer's share of rows x [num_rows, hidden_size], with `inputs` [num_rows, size] of it.
void gate_per_layer(const StepContext& step, const PerLayerInputs& spec, const PerLayerWeights& weights, const float* x,
                    const float* inputs);

// out = norm(x), of the spec's kind; rows of hidden_size.
void apply_norm(const StepContext& step, const float* x, const NormWeight& norm, float* out);
// work.x += scale x W^T, through the post norm when there is one.
void add_branch(const StepContext& step, const float* x, int64_t in_features, const LinearWeight& weight,
                const NormWeight& post_norm, float scale);
// Whether a block's output may be added to work.x at once, or goes to work.branch and then through finish_branch().
inline bool adds_directly(const NormWeight& post_norm, float scale) { return post_norm.empty() && scale == 1.0f; }
// work.x += scale [post_norm](work.branch).
void finish_branch(const StepContext& step, const NormWeight& post_norm, float scale);

}  // namespace headrace
