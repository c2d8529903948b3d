#include "model/fused_head.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "model/blocks.h"
#include "model/families/family.h"
#include "model/rope_length.h"
#include "model/weight_names.h"

namespace headrace {

namespace {

// How files name what stands around the layers.
struct AheadLayout {
  std::string_view layer_prefix;  // of the naming; the layer's number follows
  std::vector<NamePair> around;   // fuse, token_norm, feature_norm and norm
  bool in_layer = false;          // their names begin as the layer's do
  bool gives_normed = false;
};

const AheadLayout kDeepseekLayout = {
    "model.layers.",
    {{"fuse", "eh_proj"}, {"token_norm", "enorm"}, {"feature_norm", "hnorm"}, {"norm", "shared_head.norm"}},
    true,
    false};
const AheadLayout kQwenLayout = {"mtp.layers.",
                                 {{"fuse", "mtp.fc"},
                                  {"token_norm", "mtp.pre_fc_norm_embedding"},
                                  {"feature_norm", "mtp.pre_fc_norm_hidden"},
                                  {"norm", "mtp.norm"}},
                                 false,
                                 true};

std::vector<WeightEntry> list_around(const FusedHeadSpec& spec) {
  const auto hidden = static_cast<uint64_t>(spec.body.hidden_size);
  std::vector<WeightEntry> out = {{"fuse.weight", "", {hidden, 2 * hidden}}};
  for (const std::string norm : {"token_norm", "feature_norm", "norm"}) {
    out.push_back({norm + ".weight", "", {hidden}});
    if (spec.body.norm_bias) out.push_back({norm + ".bias", "", {hidden}});
  }
  return out;
}

// "layers.0.q_proj.weight" -> "layers.61.q_proj.weight" and back.
void renumber(std::vector<WeightEntry>& entries, const std::string& from, const std::string& to) {
  for (WeightEntry& entry : entries) {
    if (entry.name.starts_with(from)) entry.name = to + entry.name.substr(from.size());
  }
}

// The kind of the layers ahead: the last of the model's that sees the whole sequence.
const LayerSpec* ahead_layer(const ModelSpec& spec) {
  for (auto layer = spec.layers.rbegin(); layer != spec.layers.rend(); ++layer) {
    const auto* gqa = std::get_if<GqaAttention>(&layer->attention);
    const bool whole = gqa != nullptr ? gqa->window == 0 && gqa->kv_layer < 0
                                      : std::holds_alternative<LatentAttention>(layer->attention);
    if (whole) return &*layer;
  }
  return nullptr;
}

}  // namespace

Result<FusedHeadHeader> FusedHeadHeader::read_ahead_layer(const ModelHeader& model, int32_t number) {
  if (model.folder.config.is_null()) return unsupported("mtp", "files of this kind say nothing of layers ahead");
  const auto behind = static_cast<int64_t>(model.spec.layers.size()) + number;
  const bool qwen = model.file->find("mtp.fc.weight") != nullptr;
  if (!qwen && model.file->find(fmt::format("model.layers.{}.eh_proj.weight", behind)) == nullptr) {
    return not_found("mtp", "the model's files hold no layer {} that predicts further ahead", number);
  }
  const AheadLayout& layout = qwen ? kQwenLayout : kDeepseekLayout;
  const LayerSpec* const layer = ahead_layer(model.spec);
  if (layer == nullptr || !std::holds_alternative<OneStream>(model.spec.streams) || model.spec.per_layer_inputs) {
    return unsupported("mtp", "layers of {} that predict further ahead", model.spec.architecture);
  }

  FusedHeadHeader out;
  out.file = model.file;
  FusedHeadSpec& spec = out.spec;
  spec.body = model.spec;
  spec.body.vocab_size = 0;
  spec.body.embedding_norm = false;
  spec.body.learned_positions = spec.body.token_types = 0;
  spec.body.layers = {*layer};
  spec.body.final_norm = false;
  spec.body.head = HeadSpec{};
  spec.body.head.kind = HeadKind::kNone;
  spec.body.bos_token_id = -1;
  spec.body.eos_token_ids.clear();
  HEADRACE_RETURN_IF_ERROR(validate_spec(spec.body));
  spec.feature_layers = {static_cast<int32_t>(model.spec.layers.size())};
  spec.gives_normed = layout.gives_normed;

  HEADRACE_ASSIGN_OR_RETURN(const FamilyReading reading, read_config(model.folder.config, *model.file));
  const std::string ours = fmt::format("layers.{}.", qwen ? number : behind);
  std::vector<NamePair> in_layer(reading.naming.layer.begin(), reading.naming.layer.end());
  if (layout.in_layer) in_layer.insert(in_layer.end(), layout.around.begin(), layout.around.end());
  WeightNaming naming = reading.naming;
  naming.layer_prefix = layout.layer_prefix;
  naming.layer = in_layer;
  naming.top = layout.around;
  out.weights = list_around(spec);
  if (layout.in_layer) {
    for (WeightEntry& entry : out.weights) entry.name = ours + entry.name;
  }
  std::vector<WeightEntry> layers = list_weights(spec.body);
  renumber(layers, "layers.0.", ours);
  out.weights.insert(out.weights.end(), layers.begin(), layers.end());
  HEADRACE_ASSIGN_OR_RETURN(out.weights, resolve_listed(std::move(out.weights), naming, *out.file));
  for (const WeightEntry& entry : out.weights) {
    if (out.file->find(entry.file_name) == nullptr) return not_found(entry.file_name, "the file has no such tensor");
  }
  renumber(out.weights, ours, "layers.0.");
  for (const NamePair& pair : layout.around) {
    renumber(out.weights, fmt::format("layers.0.{}.", pair.ours), fmt::format("{}.", pair.ours));
  }
  return out;
}

FusedHead::FusedHead(FusedHeadSpec spec, FusedHeadWeights weights, std::shared_ptr<const Model> model,
                     std::shared_ptr<Backend> backend)
    : spec_(std::move(spec)),
      weights_(std::move(weights)),
      model_(std::move(model)),
      backend_(std::move(backend)),
      ends_(model_->spec(), model_->weights(), *backend_),
      body_(spec_.body, weights_.body, *backend_) {}

int64_t FusedHead::longest_sequence() const { return headrace::longest_sequence(spec_.body); }

std::vector<KvLayout> FusedHead::kv_layouts(KvDType dtype, int32_t block_size) const {
  return headrace::kv_layouts(spec_.body, dtype, block_size);
}

Status FusedHead::project(const float* hidden, int64_t num_rows, float* features) {
  std::copy_n(hidden, num_rows * hidden_size(), features);
  return {};
}

Status FusedHead::run(Batch& batch, const float* features, KvCache& cache, float* logits, float* next) {
  const int64_t rows = batch.num_tokens(), hidden = hidden_size();
  const auto wanted = static_cast<int64_t>(batch.logits_rows.size());
  try {
    for (auto* buffer : {&embeddings_, &normed_, &fused_}) buffer->resize(static_cast<size_t>(rows * hidden));
    joined_.resize(static_cast<size_t>(rows * 2 * hidden));
    hidden_.resize(static_cast<size_t>(wanted * hidden));
  } catch (const std::bad_alloc&) {
    return out_of_memory("workspace", "not enough memory for a step of {} rows", rows);
  }
  HEADRACE_RETURN_IF_ERROR(ends_.run_embedding(batch.token_ids, embeddings_.data()));
  ForwardWorkspace none;
  const StepContext step{spec_.body, *backend_, none, rows};
  // The first or the second half of each row of joined_.
  const auto join = [&](const float* x, const NormWeight& norm, int64_t half) {
    apply_norm(step, x, norm, normed_.data());
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(normed_.data() + row * hidden, hidden, joined_.data() + (2 * row + half) * hidden);
    }
  };
  join(embeddings_.data(), weights_.token_norm, 0);
  join(features, weights_.feature_norm, 1);
  const LinearOutput outputs[] = {weights_.fuse.to(fused_.data())};
  linear(step, joined_.data(), 2 * hidden, outputs);

  batch.embedded_rows.resize(static_cast<size_t>(rows));
  batch.embeddings.resize(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    batch.embedded_rows[static_cast<size_t>(row)] = static_cast<int32_t>(row);
    batch.embeddings[static_cast<size_t>(row)] = fused_.data() + row * hidden;
  }
  HEADRACE_RETURN_IF_ERROR(body_.run(batch, cache, nullptr, hidden_.data()));
  if (wanted == 0) return {};
  if (next != nullptr && !spec_.gives_normed) std::copy_n(hidden_.data(), wanted * hidden, next);
  apply_norm({spec_.body, *backend_, none, wanted}, hidden_.data(), weights_.norm, hidden_.data());
  if (next != nullptr && spec_.gives_normed) std::copy_n(hidden_.data(), wanted * hidden, next);
  return logits == nullptr ? Status() : ends_.run_head(hidden_.data(), wanted, logits);
}

}  // namespace headrace
