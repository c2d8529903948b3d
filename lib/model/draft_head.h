// Heads that guess a model's next tokens from its own hidden states.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache.h"
#include "model/batch.h"

namespace headrace {

struct ModelSpec;
struct NormWeight;
struct StepContext;

// Row t of a head has the features of the model's row t and token t + 1, and guesses token t + 2. Thread rule: one run at a
// time, and none beside other ops of the model's backend.
class DraftHead {
 public:
  virtual ~DraftHead() = default;

  // Of the model, as HiddenTap::layers: what hidden states of a row are its features, side by side.
  virtual const std::vector<int32_t>& feature_layers() const = 0;
  virtual int32_t hidden_size() const = 0;
  // Of the logits: the model's.
  virtual int32_t vocab_size() const = 0;
  virtual int64_t longest_sequence() const = 0;
  // Of weights, and of the buffers for passes of so many rows.
  virtual uint64_t held_bytes(int64_t max_rows) const = 0;
  virtual std::vector<KvLayout> kv_layouts(KvDType dtype, int32_t block_size) const = 0;

  // The model's hidden states [rows, feature_layers, model's hidden_size] -> features [rows, hidden_size].
  virtual Status project(const float* hidden, int64_t num_rows, float* features) = 0;
  // batch: as ForwardPass::run, of the tokens t + 1; its embedded rows are filled in here. features [rows, hidden_size]. Of
  // batch.logits_rows: logits [n, vocab_size], when not null, of tokens that the head cannot guess -infinity; and `next`
  // [n, hidden_size], likewise: the features that a row behind this one has, when the model has not computed its own.
  virtual Status run(Batch& batch, const float* features, KvCache& cache, float* logits, float* next) = 0;
};

// Takes from a model's spec all that stands around its layers: rows are given to it, and are taken behind the last.
void keep_layers_only(ModelSpec& spec);

// norm(x), or x where the norm is empty, of rows [n, hidden_size] into the first (half 0) or the second half of each row of
// joined [n, 2 hidden_size]. normed [n, hidden_size]: where norm(x) is left.
void join_normed(const StepContext& step, const NormWeight& norm, const float* x, int64_t half, float* normed,
                 float* joined);

}  // namespace headrace
