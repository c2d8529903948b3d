// The draft model of DFlash: a few Qwen3 layers guess a whole block of tokens in one pass, seeing the model's hidden states of all rows
// before it as keys and values. Layout of files and arithmetic: z-lab/dflash, dflash/model.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache.h"
#include "model/batch.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/model_spec.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace headrace {

// Of a row that the model has computed: c = hidden_norm(fc [hidden states]); each layer's keys and values are of c as it is.
// Of a block [last token, mask, mask ..]: x = the model's embedding; layers, in which every row sees all c and all of the block; the
// logits of norm(x) by the model's output matrix are of the token at the row's own position.
struct DflashSpec {
  ModelSpec body;                       // the layers alone; their attention sees both ways
  std::vector<int32_t> feature_layers;  // of the model, as HiddenTap::layers, rising
  int32_t block_size = 0;               // tokens of a block, the last known one among them; at least 2
  int32_t mask_token_id = 0;
};

struct DflashHeader {
  DflashSpec spec;
  std::vector<WeightEntry> weights;
  std::shared_ptr<TensorFile> file;

  // A folder with config.json and safetensors, for this model. kUnsupported, kMalformed and kNotFound with the key or tensor as
  // place, kInvalidArgument where the head is of another model.
  static Result<DflashHeader> read(const std::string& folder, const ModelSpec& model);
};

// Immutable once loaded.
struct DflashWeights {
  ModelWeights body;
  LinearWeight fc;  // [hidden_size, feature layers * hidden_size]
  NormWeight hidden_norm, norm;
  uint64_t bytes = 0;  // of all

  static Result<DflashWeights> load(const DflashHeader& header, const PackOptions& options, Backend& backend);
};

// Thread rule: one call at a time, and none beside other ops of the model's backend.
class DflashHead {
 public:
  // model: whose hidden states these are, on this backend.
  DflashHead(DflashSpec spec, DflashWeights weights, std::shared_ptr<const Model> model,
             std::shared_ptr<Backend> backend);

  const DflashSpec& spec() const { return spec_; }
  int32_t hidden_size() const { return spec_.body.hidden_size; }
  // Of the logits: the model's.
  int32_t vocab_size() const { return model_->spec().vocab_size; }
  int64_t longest_sequence() const;
  // Of weights, and of the buffers for passes of so many rows.
  uint64_t held_bytes(int64_t max_rows) const;
  std::vector<KvLayout> kv_layouts(KvDType dtype, int32_t block_size) const;

  // The model's hidden states [rows, feature_layers, hidden_size] -> c [rows, hidden_size].
  Status project(const float* hidden, int64_t num_rows, float* context);
  // Keys and values of rows that the model has computed, at the batch's positions: context [rows, hidden_size].
  Status store(const Batch& batch, const float* context, KvCache& cache);
  // batch: of each sequence the block behind its stored rows, whole. Of batch.logits_rows: logits [n, vocab_size]. What the block
  // leaves in the cache counts for nothing.
  Status guess(const Batch& batch, KvCache& cache, float* logits);

 private:
  Status grow(int64_t num_rows);

  const DflashSpec spec_;
  const DflashWeights weights_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<Backend> backend_;
  ForwardPass ends_;  // of the model
  ForwardWorkspace work_;
  int64_t capacity_ = 0;
  std::vector<float> wanted_;  // [logits_rows, hidden_size]
};

}  // namespace headrace
