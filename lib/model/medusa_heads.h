// Medusa heads (Cai et al. 2024, arXiv 2401.10774): each guesses from a row's last hidden state alone how the text goes on, the
// first the token behind the model's own, the next the one behind that. Layouts of files: FasterDecoding's as safetensors
// (model.safetensors or medusa_lm_head.safetensors, "0.0.linear.weight", also behind "medusa_head."), vLLM's
// ("blocks.0.layers.0.weight").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "model/model_spec.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace headrace {

// Of a head: x = hidden state; x += silu(W x + b) for each block; logits = output matrix x.
struct MedusaSpec {
  int32_t hidden_size = 0, vocab_size = 0;  // the model's
  int32_t num_heads = 0, num_blocks = 0;    // blocks of each head
  bool bias = true;                         // of blocks
  bool one_output = false;                  // an output matrix for all heads, the first one's
  std::vector<int32_t> token_ids;           // that its rows stand for; empty: each for its number
  std::vector<int32_t> feature_layers;      // as HiddenTap::layers: what the model's own head reads
};

struct MedusaHeader {
  MedusaSpec spec;
  std::vector<WeightEntry> weights;
  std::shared_ptr<TensorFile> file;

  // A folder with the heads of this model: as many as its file holds. kNotFound, kUnsupported and kMalformed with the key or
  // tensor as place, kInvalidArgument where the heads are of another model.
  static Result<MedusaHeader> read(const std::string& folder, const ModelSpec& model);
};

// Immutable once loaded.
struct MedusaWeights {
  struct Head {
    std::vector<LinearWeight> blocks;  // [hidden_size, hidden_size]
    LinearWeight output;               // [tokens, hidden_size]; empty where it is the first one's
  };
  std::vector<Head> heads;
  uint64_t bytes = 0;  // of all

  static Result<MedusaWeights> load(const MedusaHeader& header, const PackOptions& options, Backend& backend);
};

// Thread rule: one run at a time, and none beside other ops of the model's backend.
class MedusaHeads {
 public:
  // model: whose hidden states these are; backend: on which the weights were packed.
  MedusaHeads(MedusaSpec spec, MedusaWeights weights, std::shared_ptr<const Model> model,
              std::shared_ptr<Backend> backend);

  const MedusaSpec& spec() const { return spec_; }
  // Of weights, and of the buffers for runs of so many rows.
  uint64_t held_bytes(int64_t max_rows) const;
  // rows [num_rows, hidden_size] -> logits [num_rows, vocab_size] of the head, -infinity of tokens that it has no row for:
  // head h guesses token t + 2 + h of row t.
  Status run(int32_t head, const float* rows, int64_t num_rows, float* logits);

 private:
  const MedusaSpec spec_;
  const MedusaWeights weights_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<Backend> backend_;
  std::vector<float> x_, added_, own_logits_;
};

}  // namespace headrace
