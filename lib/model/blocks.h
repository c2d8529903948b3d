// The blocks that the forward pass is made of, one file per kind. Each works on the first num_rows rows of
// the workspace; a new kind of attention or feed-forward is another overload.
#pragma once

#include <cstdint>

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
  int64_t num_rows;  // rows of work.x
};

// work.x [num_rows, hidden_size] -> keys and values of every row into the layer's blocks, and (with_output)
// attention's result, before the output projection, into work.attention.
void attend(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights,
            const std::vector<float>& norm, const Batch& batch, const KvLayout& layout, std::byte* cache,
            bool with_output);
// work.x += [post_norm](work.attention W_o); post_norm may be empty.
void project_attention(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights,
                       const std::vector<float>& post_norm);

// work.x += [post_norm](feed_forward(norm(work.x))).
void feed_forward(const StepContext& step, const DenseFeedForward& spec, const DenseWeights& weights,
                  const std::vector<float>& norm, const std::vector<float>& post_norm);

// out = norm(x); rows of hidden_size.
void apply_norm(const StepContext& step, const float* x, const std::vector<float>& weight, float* out);
// work.x += x W^T, through the post norm when there is one.
void add_branch(const StepContext& step, const float* x, int64_t in_features, const LinearWeight& weight,
                const std::vector<float>& post_norm);

}  // namespace headrace
