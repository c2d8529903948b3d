#include "engine/embedder.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "model/batch.h"
#include "model/model.h"

namespace headrace::engine {
namespace {

using Head = EmbeddingKind::Head;

// Rows of one sequence in a step.
struct Piece {
  size_t sequence;
  int64_t begin, end;   // positions
  size_t first_wanted;  // of the step's wanted rows, the first of this piece
  size_t num_wanted;
};

// One call: sequences are cut into steps, and rows become results as steps end.
class EmbeddingRun {
 public:
  EmbeddingRun(const EngineModel& model, KvCache& scratch, const EmbeddingKind& kind, int64_t step_rows,
               const EmbeddingInput& input, float* out)
      : model_(model),
        spec_(model.model->spec()),
        scratch_(scratch),
        kind_(kind),
        step_rows_(step_rows),
        input_(input),
        hidden_size_(static_cast<size_t>(spec_.hidden_size)),
        row_size_(static_cast<size_t>(kind.row_size)),
        out_(out) {}

  Status run() {
    const bool whole = computes_whole_sequences(spec_);
    while (sequence_ < input_.num_sequences()) {
      Batch batch;
      std::vector<Piece> pieces;
      HEADRACE_RETURN_IF_ERROR(fill(batch, pieces, whole));
      rows_.resize(batch.logits_rows.size() * hidden_size_);
      HEADRACE_RETURN_IF_ERROR(model_.executor->run_hidden(batch, scratch_, rows_.data()));
      HEADRACE_RETURN_IF_ERROR(take(pieces));
      // Of the last sequence the next step may have more rows.
      while (kv_.size() > (position_ > 0 ? 1u : 0u)) kv_.pop_front();
    }
    return {};
  }

 private:
  // Rows for a step: sequences in order, as many as fit; one that is computed whole may exceed what a step should have.
  Status fill(Batch& batch, std::vector<Piece>& pieces, bool whole) {
    while (sequence_ < input_.num_sequences()) {
      const auto length = static_cast<int64_t>(input_.length(sequence_));
      const int64_t room = step_rows_ - batch.num_tokens();
      const int64_t end = whole ? length : std::min(length, position_ + room);
      if (!pieces.empty() && (room <= 0 || end - position_ > room)) return {};
      if (position_ == 0) kv_.push_back(scratch_.new_sequence({}, model_.executor->rope_length(length)));
      const Status reserved = scratch_.reserve(kv_.back(), end);
      if (!reserved.ok()) {
        if (pieces.empty() || reserved.code() != StatusCode::kResourceExhausted) return reserved;
        if (position_ == 0) kv_.pop_back();
        return {};
      }
      add(batch, pieces, length, end);
    }
    return {};
  }

  void add(Batch& batch, std::vector<Piece>& pieces, int64_t length, int64_t end) {
    const int64_t first_row = batch.num_tokens() - position_;  // of position 0, were it here
    const std::span<const int32_t> tokens = input_.tokens.subspan(input_.starts[sequence_], input_.length(sequence_));
    batch.add_sequence(scratch_, kv_.back(), tokens, end, /*first_logits=*/end, model_.own_adapter.get());
    if (!input_.token_types.empty()) {
      const auto types = input_.token_types.subspan(input_.starts[sequence_], input_.length(sequence_));
      batch.token_types.insert(batch.token_types.end(), types.begin() + position_, types.begin() + end);
    }
    Piece piece{sequence_, position_, end, batch.logits_rows.size(), 0};
    for (int64_t position = position_; position < end; ++position) {
      if (kind_.pooling == Pooling::kFirst && position != 0) continue;
      if (kind_.pooling == Pooling::kLast && position != length - 1) continue;
      batch.logits_rows.push_back(static_cast<int32_t>(first_row + position));
      ++piece.num_wanted;
    }
    pieces.push_back(piece);
    position_ = end;
    if (position_ < length) return;
    ++sequence_;
    position_ = 0;
  }

  // The rows of a step that was run.
  Status take(const std::vector<Piece>& pieces) {
    // Those that come from this step's pieces are the newest.
    size_t held = kv_.size() - pieces.size();
    std::vector<float> pooled;
    size_t first_pooled = 0;
    for (const Piece& piece : pieces) {
      const auto tokens = input_.tokens.subspan(input_.starts[piece.sequence], input_.length(piece.sequence));
      HEADRACE_RETURN_IF_ERROR(scratch_.commit(kv_[held++], tokens, piece.end));
      const float* rows = rows_.data() + piece.first_wanted * hidden_size_;
      if (kind_.pooling == Pooling::kUnknown) {
        const size_t row = input_.starts[piece.sequence] + static_cast<size_t>(piece.begin);
        HEADRACE_RETURN_IF_ERROR(finish(rows, piece.num_wanted, out_ + row * row_size_));
        continue;
      }
      if (!pool(piece, rows)) continue;
      if (pooled.empty()) first_pooled = piece.sequence;
      pooled.insert(pooled.end(), row_.begin(), row_.end());
    }
    return finish(pooled.data(), pooled.size() / hidden_size_, out_ + first_pooled * row_size_);
  }

  // Leaves the sequence's row in row_ when this was its last piece. Sums go by position, whatever the cut.
  bool pool(const Piece& piece, const float* rows) {
    const size_t length = input_.length(piece.sequence);
    const bool is_last = static_cast<size_t>(piece.end) == length;
    if (kind_.pooling != Pooling::kMean) {
      if (piece.num_wanted > 0) row_.assign(rows, rows + hidden_size_);
      return is_last;
    }
    if (piece.begin == 0) sums_.assign(hidden_size_, 0.0);
    for (size_t row = 0; row < piece.num_wanted; ++row) {
      for (size_t i = 0; i < hidden_size_; ++i) sums_[i] += static_cast<double>(rows[row * hidden_size_ + i]);
    }
    if (!is_last) return false;
    row_.resize(hidden_size_);
    for (size_t i = 0; i < hidden_size_; ++i) row_[i] = static_cast<float>(sums_[i] / static_cast<double>(length));
    return true;
  }

  // Results of rows [num_rows, hidden_size].
  Status finish(const float* rows, size_t num_rows, float* out) {
    if (kind_.head != Head::kNone) {
      HEADRACE_RETURN_IF_ERROR(model_.executor->run_head(rows, static_cast<int64_t>(num_rows), out));
    } else {
      std::copy_n(rows, num_rows * hidden_size_, out);
    }
    for (size_t row = 0; kind_.normalize && row < num_rows; ++row) normalize(out + row * row_size_);
    return {};
  }

  void normalize(float* row) const {
    constexpr double kShortest = 1e-12;  // a row of zeros stays one
    double square = 0.0;
    for (size_t i = 0; i < row_size_; ++i) square += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    const double length = std::max(std::sqrt(square), kShortest);
    for (size_t i = 0; i < row_size_; ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) / length);
  }

  const EngineModel& model_;
  const ModelSpec& spec_;
  KvCache& scratch_;
  const EmbeddingKind& kind_;
  const int64_t step_rows_;
  const EmbeddingInput& input_;
  const size_t hidden_size_, row_size_;
  float* const out_;

  size_t sequence_ = 0;   // the next to compute,
  int64_t position_ = 0;  // from this position on
  std::deque<KvSequence> kv_;
  std::vector<float> rows_, row_;  // of a step; of a sequence
  std::vector<double> sums_;
};

Status refuse_pooling(std::string_view pooling, std::string_view reason) {
  return invalid_argument("embedder.pooling", "{}: {}", pooling, reason);
}

// The pooling of "auto": what the files recommend.
Result<EmbeddingPooling> recommended(const Model& model) {
  const ModelSpec& spec = model.spec();
  if (spec.head.kind == HeadKind::kLabels) return EmbeddingPooling::kScore;
  switch (spec.pooling) {
    case Pooling::kMean: return EmbeddingPooling::kMean;
    case Pooling::kFirst: return EmbeddingPooling::kCls;
    case Pooling::kLast: return EmbeddingPooling::kLast;
    case Pooling::kUnknown: break;
  }
  HEADRACE_RETURN_IF_ERROR(model.why_no_pooling());
  return refuse_pooling("auto", "the model's files name no pooling; choose mean, cls or last");
}

Result<EmbeddingKind> choose_kind(const Model& model, const EngineOptions& options) {
  const ModelSpec& spec = model.spec();
  EmbeddingPooling pooling = options.embedder_pooling;
  if (pooling == EmbeddingPooling::kAuto) {
    HEADRACE_ASSIGN_OR_RETURN(pooling, recommended(model));
  }
  EmbeddingKind kind;
  kind.row_size = spec.hidden_size;
  bool is_embedding = true;
  switch (pooling) {
    case EmbeddingPooling::kAuto: break;
    case EmbeddingPooling::kMean: kind.pooling = Pooling::kMean; break;
    case EmbeddingPooling::kLast: kind.pooling = Pooling::kLast; break;
    case EmbeddingPooling::kNone: break;
    case EmbeddingPooling::kCls:
      if (!attends_both_ways(spec)) return refuse_pooling("cls", "the model's first token sees no other");
      kind.pooling = Pooling::kFirst;
      break;
    case EmbeddingPooling::kPooler:
    case EmbeddingPooling::kScore: {
      const bool score = pooling == EmbeddingPooling::kScore;
      if (spec.head.kind != (score ? HeadKind::kLabels : HeadKind::kTransform)) {
        return refuse_pooling(score ? "score" : "pooler", score ? "the model has no classifier" : "the model has none");
      }
      kind.pooling = spec.head.pooling;
      kind.head = Head::kPerSequence;
      kind.row_size = head_width(spec);
      is_embedding = false;
      break;
    }
    case EmbeddingPooling::kLogits:
      if (spec.head.kind != HeadKind::kVocabulary) return refuse_pooling("logits", "the model has no output matrix");
      kind.head = Head::kPerToken;
      kind.row_size = head_width(spec);
      is_embedding = false;
      break;
  }
  const bool of_numbers = pooling == EmbeddingPooling::kScore || pooling == EmbeddingPooling::kLogits;
  if (options.embedder_normalize == true && of_numbers) {
    return invalid_argument("embedder.normalize", "scores and logits are no vectors with a length");
  }
  kind.normalize = options.embedder_normalize.value_or(is_embedding && pooling != EmbeddingPooling::kNone);
  return kind;
}

// Sequences that are computed whole and forgotten cost their own length alone: they may be as long as the model allows.
EngineOptions scratch_options(const ModelSpec& spec, EngineOptions options) {
  options.kv_dtype = KvDType::kF32;
  options.kv_prefix_index = false;
  options.kv_snapshot_interval = 0;
  if (options.kv_max_tokens == 0 && attends_both_ways(spec)) options.kv_max_tokens = spec.max_position_embeddings;
  return options;
}

}  // namespace

Embedder::Embedder(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> scratch, EmbeddingKind kind,
                   int32_t step_rows)
    : model_(std::move(model)), scratch_(std::move(scratch)), kind_(kind), step_rows_(step_rows) {}

Result<std::shared_ptr<Embedder>> Embedder::create(std::shared_ptr<const EngineModel> model,
                                                   const EngineOptions& options) {
  if (model->model == nullptr) return invalid_argument("model", "an executor alone cannot embed");
  if (model->executor->inputs() != nullptr) {
    return unsupported("model", "{} models have an encoder and a decoder; embeddings of neither are built",
                       model->model->spec().architecture);
  }
  HEADRACE_ASSIGN_OR_RETURN(const EmbeddingKind kind, choose_kind(*model->model, options));
  HEADRACE_ASSIGN_OR_RETURN(auto scratch, make_scratch_cache(*model, scratch_options(model->model->spec(), options)));
  const int32_t rows = std::max(options.embedder_max_num_batched_tokens, 1);
  return std::shared_ptr<Embedder>(new Embedder(std::move(model), std::move(scratch), kind, rows));
}

Status Embedder::check(const EmbeddingInput& input) const {
  if (input.starts.empty() || input.starts.front() != 0 || input.starts.back() != input.tokens.size() ||
      !std::is_sorted(input.starts.begin(), input.starts.end())) {
    return invalid_argument("sequence_starts", "must rise from 0 to the number of tokens");
  }
  if (!input.token_types.empty() && input.token_types.size() != input.tokens.size()) {
    return invalid_argument("token_types", "not one per token");
  }
  const ModelSpec& spec = model_->model->spec();
  const int64_t limit = context_limit(*model_, *scratch_);
  for (size_t i = 0; i < input.num_sequences(); ++i) {
    const auto length = static_cast<int64_t>(input.length(i));
    if (length == 0) return invalid_argument(fmt::format("sequences[{}]", i), "is empty");
    if (length > limit) {
      return resource_exhausted(fmt::format("sequences[{}]", i),
                                "{} tokens exceed the context of {} (the model's is {}, kv.max_tokens allows {})",
                                length, limit, model_->executor->max_context(),
                                scratch_->config().num_blocks * scratch_->block_size());
    }
  }
  for (size_t i = 0; i < input.tokens.size(); ++i) {
    if (input.tokens[i] >= 0 && input.tokens[i] < spec.vocab_size) continue;
    return invalid_argument(fmt::format("tokens[{}]", i), "{} is outside the vocabulary of {}", input.tokens[i],
                            spec.vocab_size);
  }
  const int32_t types = std::max(spec.token_types, 1);
  for (size_t i = 0; i < input.token_types.size(); ++i) {
    if (input.token_types[i] >= 0 && input.token_types[i] < types) continue;
    return invalid_argument(fmt::format("token_types[{}]", i), "the model has no segment {}", input.token_types[i]);
  }
  return {};
}

Status Embedder::embed(const EmbeddingInput& input, float* out) {
  HEADRACE_RETURN_IF_ERROR(check(input));
  const std::lock_guard lock(mutex_);
  return EmbeddingRun(*model_, *scratch_, kind_, step_rows_, input, out).run();
}

}  // namespace headrace::engine
