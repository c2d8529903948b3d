#include "speculation/model_drafter.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "model/rope_length.h"

namespace headrace::speculation {

Status check_same_vocabulary(const text::Tokenizer* target, int32_t target_size, const text::Tokenizer* draft,
                             int32_t draft_size) {
  if (target == nullptr || draft == nullptr) {
    if (target_size == draft_size) return {};
    return invalid_argument("drafter", "its vocabulary has {} tokens, the model's {}", draft_size, target_size);
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
  config.identity = model->identity();
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, KvCache::create(std::move(config)));
  MemoryShare memory(options.memory, "drafter");
  HEADRACE_RETURN_IF_ERROR(memory.resize(model->weight_bytes() + cache->stats().pool_bytes +
                                         ForwardPass::workspace_bytes(spec, options.max_rows)));
  return std::unique_ptr<ModelDrafter>(new ModelDrafter(std::move(name), std::move(model), std::move(backend),
                                                        vocab_size, options, std::move(cache), std::move(memory)));
}

// One pass over the pending rows of all lines: what room and `max_rows` allow. Leaves those lines whose last row was computed,
// in order of their rows of logits.
Status ModelDrafter::run_rows(std::vector<Line*>& lines, bool catch_up) {
  batch_.clear();
  int64_t rows = 0;
  std::vector<std::pair<Line*, int64_t>> computed;  // and up to where
  for (Line* line : lines) {
    DraftSequence& sequence = line->sequence;
    const int64_t begin = sequence.kv.num_tokens();
    const int64_t end = catch_up ? std::min(sequence.size(), begin + options_.max_rows - rows) : sequence.size();
    if (end <= begin || !sequences_.reserve(sequence, end)) continue;
    batch_.add_sequence(sequences_.cache(), sequence.kv, sequence.tokens, end, end == sequence.size() ? end - 1 : end);
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
        {GuessChain(requests[i], trees[i], vocab_size_, options_.least_survival), sequences_.follow(context)});
  }
  std::vector<Line*> active;
  for (Line& line : lines) active.push_back(&line);
  const auto vocab_size = static_cast<size_t>(spec.vocab_size);
  for (bool catch_up = true; !active.empty(); catch_up = false) {
    HEADRACE_RETURN_IF_ERROR(run_rows(active, catch_up));
    std::vector<Line*> next;
    for (size_t row = 0; row < active.size(); ++row) {
      Line& line = *active[row];
      const auto token = line.chain.guess({logits_.data() + row * vocab_size, vocab_size}, stats_[row]);
      if (!token || *token >= spec.vocab_size || !line.chain.goes_on()) continue;
      line.sequence.tokens.push_back(*token);
      if (line.sequence.size() <= longest_sequence(spec)) next.push_back(&line);
    }
    active = std::move(next);
  }
  return {};
}

}  // namespace headrace::speculation
