// A draft head of layers behind a fusion of the next token's embedding with a row's features: multi-token prediction (DeepSeek-V3,
// GLM-4.5, Qwen3-Next) and EAGLE-1 and 2 (Li et al. 2024, arXiv 2401.15077 and 2406.16858, whose heads are alike). The embedding
// table and the output matrix are the model's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/draft_head.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/model_header.h"
#include "model/model_spec.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace headrace {

// x = fuse [n_e(embedding), n_f(features)] (+ b); layers; logits = output matrix (norm(x))
struct FusedHeadSpec {
  ModelSpec body;  // its rows are given, so vocab_size is 0; what follows its layers is below
  std::vector<int32_t> feature_layers;
  bool norms = true;          // n_e, n_f and norm; else none of them
  bool fuse_bias = false;     // b
  bool gives_normed = false;  // features of a row behind a guess: norm(x), or x
};

// What a file says of a head; tensors checked when they are loaded.
struct FusedHeadHeader {
  FusedHeadSpec spec;
  std::vector<WeightEntry> weights;
  std::shared_ptr<TensorFile> file;

  // Layer `number` (from 0) of those that a model's own files have behind its last, to predict further ahead (multi-token
  // prediction). kNotFound where there is none; kUnsupported for a model whose layers of that kind are not known.
  static Result<FusedHeadHeader> read_ahead_layer(const ModelHeader& model, int32_t number = 0);
  // An EAGLE-1 or EAGLE-2 head of this model in SafeAILab's layout: a folder with config.json and safetensors. kUnsupported,
  // kMalformed and kNotFound with the key or tensor as place, kInvalidArgument where the head is of another model.
  static Result<FusedHeadHeader> read_eagle(const std::string& folder, const ModelSpec& model);
};

// Immutable once loaded.
struct FusedHeadWeights {
  ModelWeights body;
  NormWeight token_norm, feature_norm, norm;  // empty where the spec has none
  LinearWeight fuse;                          // [hidden_size, 2 hidden_size]
  uint64_t bytes = 0;                         // of all

  static Result<FusedHeadWeights> load(const FusedHeadHeader& header, const PackOptions& options, Backend& backend);
};

class FusedHead : public DraftHead {
 public:
  // model: whose hidden states these are, on this backend.
  FusedHead(FusedHeadSpec spec, FusedHeadWeights weights, std::shared_ptr<const Model> model,
            std::shared_ptr<Backend> backend);

  const std::vector<int32_t>& feature_layers() const override { return spec_.feature_layers; }
  int32_t hidden_size() const override { return spec_.body.hidden_size; }
  int32_t vocab_size() const override { return model_->spec().vocab_size; }
  int64_t longest_sequence() const override;
  uint64_t held_bytes(int64_t max_rows) const override;
  std::vector<KvLayout> kv_layouts(KvDType dtype, int32_t block_size) const override;
  Status project(const float* hidden, int64_t num_rows, float* features) override;
  Status run(Batch& batch, const float* features, KvCache& cache, float* logits, float* next) override;

 private:
  const FusedHeadSpec spec_;
  const FusedHeadWeights weights_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<Backend> backend_;
  ForwardPass ends_;  // of the model
  ForwardPass body_;
  std::vector<float> embeddings_, normed_, joined_, fused_, hidden_;
};

}  // namespace headrace
