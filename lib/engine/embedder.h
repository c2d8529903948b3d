// What a model makes of whole texts instead of continuing them: embeddings, scores, masked-language logits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/executor.h"
#include "model/model_spec.h"

namespace headrace::engine {

// Sequences, one after the other.
struct EmbeddingInput {
  std::span<const int32_t> tokens;
  std::span<const int32_t> token_types;  // segment of each token, or empty: all 0
  std::span<const size_t> starts;        // where each sequence begins, and then the end of the last
  size_t num_sequences() const { return starts.size() - 1; }
  size_t length(size_t sequence) const { return starts[sequence + 1] - starts[sequence]; }
};

// What becomes of the rows [hidden_size] behind the last layer.
struct EmbeddingKind {
  enum class Head { kNone, kPerSequence, kPerToken };
  Pooling pooling = Pooling::kUnknown;  // to one row for each sequence; kUnknown: the rows of all tokens stay
  bool normalize = false;               // each row to length 1
  Head head = Head::kNone;              // of the model, on what pooling gives
  int64_t row_size = 0;                 // floats of a row of the result
};

// Keeps no keys and values between calls; within one they are float32. A sequence's result is a function of its own
// tokens alone, bit for bit. Thread rule: calls are serialised inside.
class Embedder {
 public:
  // kInvalidArgument with the option as place where pooling or normalisation are not the model's to give; kUnsupported
  // where its files name a pooling that is not known here.
  static Result<std::shared_ptr<Embedder>> create(std::shared_ptr<const EngineModel> model,
                                                  const EngineOptions& options);

  const std::shared_ptr<const EngineModel>& model() const { return model_; }
  const EmbeddingKind& kind() const { return kind_; }
  // Rows of the result: one for each sequence, or one for each token.
  size_t num_rows(const EmbeddingInput& input) const {
    return kind_.pooling == Pooling::kUnknown ? input.tokens.size() : input.num_sequences();
  }

  // kInvalidArgument for starts that do not rise ("sequence_starts"), an empty sequence ("sequences[i]"), an id outside the
  // vocabulary ("tokens[i]") and a segment the model does not have ("token_types[i]"), kResourceExhausted for a sequence
  // longer than the context ("sequences[i]").
  Status check(const EmbeddingInput& input) const;
  // out [num_rows(input), row_size] float32. Input is checked before anything is computed.
  Status embed(const EmbeddingInput& input, float* out);

 private:
  Embedder(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> scratch, EmbeddingKind kind,
           int32_t step_rows);

  const std::shared_ptr<const EngineModel> model_;
  const std::shared_ptr<KvCache> scratch_;
  const EmbeddingKind kind_;
  const int32_t step_rows_;
  std::mutex mutex_;  // held while embed computes
};

}  // namespace headrace::engine
