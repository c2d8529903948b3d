#include "speculation/model_drafter.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "model/rope_length.h"

namespace headrace::speculation {
namespace {

constexpr size_t kMostHinted = 16;  // each takes a row of logits

}  // namespace

Status check_same_vocabulary(const text::Tokenizer* target, int32_t target_size, const text::Tokenizer* draft,
                             int32_t draft_size) {
  if (target == nullptr || draft == nullptr) {
    if (target_size == draft_size) return {};
    return invalid_argument(
        "drafter",
        "its vocabulary has {} tokens, the model's {}, and not both have a tokenizer to go from one to the other",
        draft_size, target_size);
  }
  const int32_t size = std::max(target->vocab_size(), draft->vocab_size());
  for (int32_t id = 0; id < size; ++id) {
    const std::string_view of_target = target->id_to_token(id), of_draft = draft->id_to_token(id);
    if (of_target == of_draft && target->is_special(id) == draft->is_special(id)) continue;
    return invalid_argument("drafter", "token {} is \"{}\" there and \"{}\" in the model's vocabulary", id, of_draft,
                            of_target);
  }
  return {};
}

struct ModelDrafter::Line {
  GuessChain chain;
  DraftSequence& sequence;
  std::span<const int32_t> hint;  // tokens at the sequence's end that this pass checks

  int64_t num_hinted() const { return static_cast<int64_t>(hint.size()); }

  // Rows from `position` on are to be computed again, of other tokens.
  void go_back(KvCache& cache, int64_t position) {
    sequence.tokens.resize(static_cast<size_t>(position));
    if (sequence.kv.num_tokens() > position) cache.rewind(sequence.kv, position);
    hint = {};
  }
  // Guesses by the rows of logits behind the last token and each of the hint, for as long as those are the hint's. Whether
  // another pass is to come.
  bool take(KvCache& cache, float* logits, const LogitStats* stats, size_t vocab_size, int64_t longest);
};

ModelDrafter::ModelDrafter(std::string name, std::shared_ptr<const Model> model, std::shared_ptr<Backend> backend,
                           int32_t vocab_size, const ModelDrafterOptions& options, std::shared_ptr<KvCache> cache,
                           MemoryShare memory)
    : name_(std::move(name)),
      model_(std::move(model)),
      backend_(std::move(backend)),
      vocab_size_(vocab_size),
      options_(options),
      memory_(std::move(memory)),
      sequences_(std::move(cache)),
      turn_(options_.turns ? options_.turns : std::make_shared<TurnQueue>(), options_.priority),
      forward_(model_->spec(), model_->weights(), *backend_) {}

Result<std::unique_ptr<ModelDrafter>> ModelDrafter::create(std::string name, std::shared_ptr<const Model> model,
                                                           std::shared_ptr<Backend> backend, int32_t vocab_size,
                                                           const ModelDrafterOptions& options) {
  const ModelSpec& spec = model->spec();
  if (attends_both_ways(spec) || spec.head.kind != HeadKind::kVocabulary || model->encoder() != nullptr) {
    return unsupported("drafter", "{} models do not continue a text alone", spec.architecture);
  }
  if (state_floats(spec) > 0) {
    return unsupported("drafter", "the recurrent state of {} cannot go back over guesses that were wrong",
                       spec.architecture);
  }
  if (longest_of_rope_length(spec, 0) != std::numeric_limits<int64_t>::max()) {
    return unsupported("drafter", "{} rotates a sequence by its length", spec.architecture);
  }
  KvCacheConfig config;
  config.layers = kv_layouts(spec, options.kv_dtype, options.block_size);
  config.num_blocks = (std::max<int64_t>(options.max_tokens, 2) + options.block_size - 1) / options.block_size;
  config.memory = backend->memory();
  config.identity = model->identity();
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, KvCache::create(std::move(config)));
  MemoryShare memory(options.memory, "drafter");
  HEADRACE_RETURN_IF_ERROR(memory.resize(model->weight_bytes() + cache->stats().pool_bytes +
                                         ForwardPass::workspace_bytes(spec, options.max_rows)));
  return std::unique_ptr<ModelDrafter>(new ModelDrafter(std::move(name), std::move(model), std::move(backend),
                                                        vocab_size, options, std::move(cache), std::move(memory)));
}

bool ModelDrafter::Line::take(KvCache& cache, float* logits, const LogitStats* stats, size_t vocab_size,
                              int64_t longest) {
  const int64_t base = sequence.size() - num_hinted();
  for (size_t i = 0;; ++i) {
    const int64_t at = base + static_cast<int64_t>(i);
    const auto token = chain.guess({logits + i * vocab_size, vocab_size}, stats[i]);
    const bool hinted = i < hint.size() && token == hint[i];
    if (token && hinted && chain.has_room()) continue;  // the next row is there
    const bool next = token && static_cast<size_t>(*token) < vocab_size && !hinted && chain.goes_on() && at < longest;
    go_back(cache, at);
    if (next) sequence.tokens.push_back(*token);
    return next;
  }
}

// One pass over the pending rows of all lines: what room and `max_rows` allow. Leaves those lines whose last row was computed, in
// order of their rows of logits: one, and one for each token of the hint.
Status ModelDrafter::run_rows(std::vector<Line*>& lines, bool catch_up) {
  batch_.clear();
  int64_t rows = 0;
  std::vector<std::pair<Line*, int64_t>> computed;  // and up to where
  for (Line* line : lines) {
    DraftSequence& sequence = line->sequence;
    const int64_t begin = sequence.kv.num_tokens(), most = begin + options_.max_rows - rows;
    if (catch_up && sequence.size() > most) line->go_back(sequences_.cache(), sequence.size() - line->num_hinted());
    const int64_t end = catch_up ? std::min(sequence.size(), most) : sequence.size();
    if (end <= begin || !sequences_.reserve(sequence, end)) continue;
    batch_.add_sequence(sequences_.cache(), sequence.kv, sequence.tokens, end,
                        end == sequence.size() ? end - 1 - line->num_hinted() : end);
    rows += end - begin;
    computed.emplace_back(line, end);
  }
  lines.clear();
  if (computed.empty()) return {};
  const auto vocab_size = static_cast<size_t>(model_->spec().vocab_size);
  logits_.resize(batch_.logits_rows.size() * vocab_size);
  stats_.resize(batch_.logits_rows.size());
  const std::lock_guard lock(turn_);
  HEADRACE_RETURN_IF_ERROR(forward_.run(batch_, sequences_.cache(), logits_.empty() ? nullptr : logits_.data()));
  backend_->logit_stats(
      {logits_.data(), static_cast<int64_t>(stats_.size()), static_cast<int64_t>(vocab_size), stats_.data()});
  for (const auto& [line, end] : computed) {
    HEADRACE_RETURN_IF_ERROR(sequences_.cache().commit(line->sequence.kv, line->sequence.tokens, end));
    if (end == line->sequence.size()) lines.push_back(line);
  }
  return {};
}

Status ModelDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  sequences_.begin_round();
  const ModelSpec& spec = model_->spec();
  const auto readable = [&](int32_t id) { return id >= 0 && id < spec.vocab_size; };
  std::vector<Line> lines;
  lines.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftContext& context = requests[i].context;
    if (context.tokens.empty() || !std::ranges::all_of(context.tokens, readable)) continue;
    if (static_cast<int64_t>(context.tokens.size()) >= longest_sequence(spec)) continue;
    lines.push_back(
        {GuessChain(requests[i], trees[i], vocab_size_, options_.least_survival), sequences_.follow(context), {}});
    std::span<const int32_t> hint = requests[i].hint.first(std::min<size_t>(requests[i].hint.size(), kMostHinted));
    hint = hint.first(static_cast<size_t>(std::ranges::find_if_not(hint, readable) - hint.begin()));
    Line& line = lines.back();
    if (line.sequence.size() + static_cast<int64_t>(hint.size()) > longest_sequence(spec)) continue;
    line.sequence.tokens.insert(line.sequence.tokens.end(), hint.begin(), hint.end());
    line.hint = hint;
  }
  std::vector<Line*> active;
  for (Line& line : lines) active.push_back(&line);
  const auto vocab_size = static_cast<size_t>(spec.vocab_size);
  for (bool catch_up = true; !active.empty(); catch_up = false) {
    HEADRACE_RETURN_IF_ERROR(run_rows(active, catch_up));
    std::vector<Line*> next;
    size_t row = 0;
    for (Line* line : active) {
      const size_t rows = static_cast<size_t>(line->num_hinted()) + 1;
      if (line->take(sequences_.cache(), logits_.data() + row * vocab_size, stats_.data() + row, vocab_size,
                     longest_sequence(spec))) {
        next.push_back(line);
      }
      row += rows;
    }
    active = std::move(next);
  }
  return {};
}

}  // namespace headrace::speculation
