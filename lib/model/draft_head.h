// Heads that guess a model's next tokens from its own hidden states.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache.h"
#include "model/batch.h"

namespace headrace {

struct ForwardWorkspace;
struct ModelFolder;
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

// The files of a head: kNotFound where the folder lacks weights in safetensors, or an object in config.json.
Result<ModelFolder> open_head_folder(const std::string& folder);

// Positions of a head's layers. Rows are rotated as those of a short sequence are, where the model's rotation follows the length.
int64_t longest_head_sequence(const ModelSpec& body);

// Buffers for rows through layers of GqaAttention and DenseFeedForward, all of the first one's sizes. Throws std::bad_alloc.
void resize_layer_buffers(ForwardWorkspace& work, const ModelSpec& body, int64_t num_rows);

// own [num_rows, token_ids.size()] into logits [num_rows, vocab_size] at the tokens that its columns stand for; others are
// -infinity.
void spread_logits(std::span<const float> own, std::span<const int32_t> token_ids, int64_t num_rows, int32_t vocab_size,
                   float* logits);

// norm(x), or x where the norm is empty, of rows [n, hidden_size] into the first (half 0) or the second half of each row of
// joined [n, 2 hidden_size]. normed [n, hidden_size]: where norm(x) is left.
void join_normed(const StepContext& step, const NormWeight& norm, const float* x, int64_t half, float* normed,
                 float* joined);

}  // namespace headrace
