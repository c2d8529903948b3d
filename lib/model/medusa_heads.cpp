#include "model/medusa_heads.h"

#include <filesystem>
#include <new>
#include <utility>

#include "base/format_full.h"
#include "formats/model_folder.h"
#include "formats/safetensors.h"
#include "model/blocks.h"
#include "model/config_reader.h"
#include "model/draft_head.h"
#include "model/weight_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnPrefixes[] = {"medusa_head."};
constexpr int32_t kMostHeads = 64, kMostBlocks = 16;

// How a layout names the tensors of a head.
struct MedusaLayout {
  const char* block;   // of head and block
  const char* output;  // of head, and the number of blocks
};
constexpr MedusaLayout kLayouts[] = {
    {"{0}.{1}.linear", "{0}.{1}"},
    {"medusa_head.{0}.{1}.linear", "medusa_head.{0}.{1}"},
    {"blocks.{0}.layers.{1}", "lm_heads.{0}"},
};

std::string name_of(const char* pattern, int32_t head, int32_t block) {
  return fmt::format(fmt::runtime(pattern), head, block);
}

// The consecutive numbers from 0 on that the file has.
template <class Has>
int32_t count_from_zero(int32_t most, const Has& has) {
  int32_t count = 0;
  while (count < most && has(count)) ++count;
  return count;
}

constexpr const char* kTokenMap = "token_map";
constexpr std::string_view kIgnored[] = {kTokenMap};

// The tokens that the rows of output matrices stand for, of vLLM's truncated vocabularies.
Result<std::vector<int32_t>> read_token_ids(const TensorFile& file, int32_t count, int32_t vocab_size) {
  const TensorEntry* entry = file.find(kTokenMap);
  if (entry == nullptr) {
    return not_found(kTokenMap, "the heads guess {} tokens of {}, and the file does not say which", count, vocab_size);
  }
  if (entry->dtype != DType::kI64 || entry->shape != std::vector<uint64_t>{static_cast<uint64_t>(count)}) {
    return malformed(kTokenMap, "expected I64 [{}]", count);
  }
  std::vector<int64_t> map(static_cast<size_t>(count));
  HEADRACE_RETURN_IF_ERROR(file.read(*entry, 0, std::as_writable_bytes(std::span(map))));
  std::vector<bool> seen(static_cast<size_t>(vocab_size), false);
  std::vector<int32_t> ids;
  for (const int64_t id : map) {
    if (id < 0 || id >= vocab_size || seen[static_cast<size_t>(id)]) {
      return malformed(kTokenMap, "entry {}: {} is no token of the model, or one that came before", ids.size(), id);
    }
    seen[static_cast<size_t>(id)] = true;
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

Result<MedusaSpec> read_spec(const TensorFile& file, const MedusaLayout& layout, const ConfigReader& config,
                             const ModelSpec& model) {
  const auto has = [&](const std::string& name) { return file.find(name + ".weight") != nullptr; };
  MedusaSpec spec;
  spec.hidden_size = model.hidden_size;
  spec.vocab_size = model.vocab_size;
  spec.num_blocks = count_from_zero(kMostBlocks, [&](int32_t block) { return has(name_of(layout.block, 0, block)); });
  HEADRACE_RETURN_IF_ERROR(config.only("logit_scale", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(spec.one_output, config.boolean_or("original_lm_head", false));
  spec.num_heads = count_from_zero(kMostHeads, [&](int32_t head) {
    return has(name_of(layout.output, spec.one_output ? 0 : head, spec.num_blocks)) &&
           (!spec.one_output || has(name_of(layout.block, head, 0)));
  });
  if (spec.num_heads == 0) return not_found(name_of(layout.output, 0, spec.num_blocks), "the file has no such tensor");
  spec.bias = file.find(name_of(layout.block, 0, 0) + ".bias") != nullptr;
  spec.feature_layers = {static_cast<int32_t>(model.layers.size())};
  HEADRACE_RETURN_IF_ERROR(check_hidden_layers(model, spec.feature_layers));
  const TensorEntry* output = file.find(name_of(layout.output, 0, spec.num_blocks) + ".weight");
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_tokens,
                            config.integer_or("truncated_vocab_size", 1, spec.vocab_size, spec.vocab_size));
  const std::vector<uint64_t> expected = {static_cast<uint64_t>(num_tokens), static_cast<uint64_t>(spec.hidden_size)};
  if (output->shape != expected) {
    return invalid_argument(output->name, "the model has {} tokens and rows of {} values, the heads others", num_tokens,
                            spec.hidden_size);
  }
  if (num_tokens < spec.vocab_size) {
    HEADRACE_ASSIGN_OR_RETURN(spec.token_ids, read_token_ids(file, static_cast<int32_t>(num_tokens), spec.vocab_size));
  }
  return spec;
}

// All weights under our names and the file's.
Result<std::vector<WeightEntry>> list_entries(const MedusaSpec& spec, const MedusaLayout& layout,
                                              const TensorFile& file) {
  const auto hidden = static_cast<uint64_t>(spec.hidden_size);
  const auto num_tokens = spec.token_ids.empty() ? static_cast<uint64_t>(spec.vocab_size) : spec.token_ids.size();
  std::vector<WeightEntry> entries;
  std::vector<std::pair<std::string, std::string>> names;  // ours and theirs
  for (int32_t head = 0; head < spec.num_heads; ++head) {
    for (int32_t block = 0; block < spec.num_blocks; ++block) {
      names.emplace_back(fmt::format("head{}.block{}", head, block), name_of(layout.block, head, block));
      entries.push_back({names.back().first + ".weight", "", {hidden, hidden}});
      if (spec.bias) entries.push_back({names.back().first + ".bias", "", {hidden}});
    }
    if (head > 0 && spec.one_output) continue;
    names.emplace_back(fmt::format("head{}.output", head), name_of(layout.output, head, spec.num_blocks));
    entries.push_back({names.back().first + ".weight", "", {num_tokens, hidden}});
  }
  std::vector<NamePair> pairs;
  for (const auto& [ours, theirs] : names) pairs.push_back({ours, theirs});
  WeightNaming naming;
  naming.top = pairs;
  naming.ignored_prefixes = kIgnored;
  // Those may stand among the tensors of a whole model.
  if (std::string_view(layout.block).starts_with(kOwnPrefixes[0])) naming.own_prefixes = kOwnPrefixes;
  return resolve_weights(std::move(entries), 0, "Medusa", naming, file);
}

}  // namespace

Result<MedusaHeader> MedusaHeader::read(const std::string& folder, const ModelSpec& model) {
  HEADRACE_ASSIGN_OR_RETURN(const ModelFolder files, open_model_folder(folder));
  MedusaHeader out;
  out.file = files.weights;
  if (out.file == nullptr) {
    const std::string beside = (std::filesystem::path(folder) / "medusa_lm_head.safetensors").string();
    HEADRACE_ASSIGN_OR_RETURN(out.file, SafetensorsFile::open_path(beside));
  }
  const auto fill = [&]() -> Status {
    const nlohmann::json empty = nlohmann::json::object();
    const ConfigReader config(files.config.is_null() ? empty : files.config, "");
    for (const MedusaLayout& layout : kLayouts) {
      if (out.file->find(name_of(layout.block, 0, 0) + ".weight") == nullptr) continue;
      HEADRACE_ASSIGN_OR_RETURN(out.spec, read_spec(*out.file, layout, config, model));
      HEADRACE_ASSIGN_OR_RETURN(out.weights, list_entries(out.spec, layout, *out.file));
      return {};
    }
    return not_found(name_of(kLayouts[0].block, 0, 0) + ".weight", "the file has no such tensor");
  };
  const Status status = fill();
  return status.ok() ? Result<MedusaHeader>(std::move(out)) : status.within(folder);
}

MedusaHeads::MedusaHeads(MedusaSpec spec, MedusaWeights weights, std::shared_ptr<const Model> model,
                         std::shared_ptr<Backend> backend)
    : spec_(std::move(spec)), weights_(std::move(weights)), model_(std::move(model)), backend_(std::move(backend)) {}

uint64_t MedusaHeads::held_bytes(int64_t max_rows) const {
  const uint64_t values = 2 * static_cast<uint64_t>(spec_.hidden_size) + spec_.token_ids.size();
  return weights_.bytes + static_cast<uint64_t>(max_rows) * values * sizeof(float);
}

Status MedusaHeads::run(int32_t head, const float* rows, int64_t num_rows, float* logits) {
  const int64_t values = num_rows * spec_.hidden_size;
  try {
    x_.assign(rows, rows + values);
    added_.resize(static_cast<size_t>(values));
    own_logits_.resize(static_cast<size_t>(num_rows) * spec_.token_ids.size());
  } catch (const std::bad_alloc&) {
    return out_of_memory("workspace", "not enough memory for a step of {} rows", num_rows);
  }
  ForwardWorkspace none;
  const StepContext step{model_->spec(), *backend_, none, num_rows};
  const MedusaWeights::Head& weights = weights_.heads[static_cast<size_t>(head)];
  for (const LinearWeight& block : weights.blocks) {
    activated_linear(step, x_.data(), block, Activation::kSilu, spec_.hidden_size, added_.data());
    backend_->add({added_.data(), x_.data(), values});
  }
  const LinearWeight& output = weights_.heads[spec_.one_output ? 0 : static_cast<size_t>(head)].output;
  const LinearOutput outputs[] = {output.to(spec_.token_ids.empty() ? logits : own_logits_.data())};
  linear(step, x_.data(), spec_.hidden_size, outputs);
  if (spec_.token_ids.empty()) return {};
  spread_logits(own_logits_, spec_.token_ids, num_rows, spec_.vocab_size, logits);
  return {};
}

}  // namespace headrace
