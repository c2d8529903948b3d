// The draft head of EAGLE-3 (Li et al. 2025, arXiv 2503.01840): one Llama layer whose attention sees the next token's embedding
// beside the stream, which begins as a projection of three of the model's hidden states. Layouts of files: SafeAILab's EAGLE and
// SpecForge (midlayer.*), speculators (layers.0.*, transformer_layer_config).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/draft_head.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/model_spec.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace headrace {

// Of a row: x = fc [hidden states], or what the head gave for the row before; h = n_h(x), e = n_e(embedding)
//   x = r + attention([e, h]), r = x or h;  x += feed_forward(norm(x));  logits = output matrix (final norm(x))
struct Eagle3Spec {
  ModelSpec body;                       // one layer, vocab_size and head 0; q, k and v read 2 hidden_size values
  std::vector<int32_t> feature_layers;  // of the model, as HiddenTap::layers
  int32_t model_size = 0;               // hidden_size of the model
  bool own_embedding = false;           // else the model's
  bool normed_residual = false;         // r = h
  std::vector<int32_t> token_ids;       // [rows of the output matrix] of the model, rising
};

struct Eagle3Header {
  Eagle3Spec spec;
  std::vector<WeightEntry> weights;
  std::shared_ptr<TensorFile> file;

  // A folder with config.json and safetensors, for this model. kUnsupported, kMalformed and kNotFound with the key or tensor as
  // place, kInvalidArgument where the head is of another model.
  static Result<Eagle3Header> read(const std::string& folder, const ModelSpec& model);
};

// Immutable once loaded.
struct Eagle3Weights {
  LinearWeight fc;         // [hidden_size, feature layers * model_size]
  LinearWeight embedding;  // [the model's vocab_size, hidden_size], empty without one
  NormWeight embedding_norm, hidden_norm, feed_forward_norm, norm;
  GqaWeights attention;
  DenseWeights feed_forward;
  LinearWeight head;   // [token_ids, hidden_size]
  uint64_t bytes = 0;  // of all

  static Result<Eagle3Weights> load(const Eagle3Header& header, const PackOptions& options, Backend& backend);
};

class Eagle3Head : public DraftHead {
 public:
  // model: whose hidden states these are, on this backend.
  Eagle3Head(Eagle3Spec spec, Eagle3Weights weights, std::shared_ptr<const Model> model,
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
  Status grow(int64_t num_rows);
  Status embed(const std::vector<int32_t>& ids);

  const Eagle3Spec spec_;
  const Eagle3Weights weights_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<Backend> backend_;
  ModelSpec wide_;    // the body as attention's inputs see it
  ForwardPass ends_;  // of the model
  ForwardWorkspace work_;
  int64_t capacity_ = 0;
  std::vector<float> joined_, own_logits_;  // [rows, 2 hidden_size], [rows, token_ids]
};

}  // namespace headrace
