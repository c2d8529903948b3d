#include "model/fused_head.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "formats/model_folder.h"
#include "model/blocks.h"
#include "model/config_reader.h"
#include "model/families/family.h"
#include "model/model_header.h"
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
  if (spec.fuse_bias) out.push_back({"fuse.bias", "", {hidden}});
  if (!spec.norms) return out;
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
  spec.body.layers = {*layer};
  keep_layers_only(spec.body);
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

namespace {

constexpr NamePair kEagleLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
};
constexpr NamePair kEagleTop[] = {{"fuse", "fc"}};

// Layers of the Llama kind, with the biases of Qwen2's where qkv_bias says so; the first has no norm in front of its attention.
Result<FusedHeadSpec> read_eagle_spec(const nlohmann::json& all, const TensorFile& file, const ModelSpec& model) {
  FusedHeadSpec spec;
  nlohmann::json json = all;
  HEADRACE_ASSIGN_OR_RETURN(const bool qwen, ConfigReader(json, "").boolean_or("qkv_bias", false));
  for (const char* key : {"bias", "qkv_bias"}) json.erase(key);
  const ConfigReader config(json, "");
  HEADRACE_ASSIGN_OR_RETURN(const int64_t vocab_size, config.integer("vocab_size", 1, INT32_MAX));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t hidden_size, config.integer("hidden_size", 1, INT32_MAX));
  if (vocab_size != model.vocab_size) {
    return invalid_argument("/vocab_size", "{} tokens, the model has {}", vocab_size, model.vocab_size);
  }
  if (hidden_size != model.hidden_size) {
    return invalid_argument("/hidden_size", "{} values of a row, the model's have {}", hidden_size, model.hidden_size);
  }
  HEADRACE_ASSIGN_OR_RETURN(spec.body, find_family(qwen ? "qwen2" : "llama")->from_config(config, file));
  keep_layers_only(spec.body);
  spec.body.layers.front().attention_norm = false;
  HEADRACE_RETURN_IF_ERROR(validate_spec(spec.body));
  spec.norms = false;
  spec.fuse_bias = file.find("fc.bias") != nullptr;
  spec.feature_layers = {static_cast<int32_t>(model.layers.size())};
  HEADRACE_RETURN_IF_ERROR(check_hidden_layers(model, spec.feature_layers));
  return spec;
}

}  // namespace

Result<FusedHeadHeader> FusedHeadHeader::read_eagle(const std::string& folder, const ModelSpec& model) {
  HEADRACE_ASSIGN_OR_RETURN(const ModelFolder files, open_head_folder(folder));
  FusedHeadHeader out;
  out.file = files.weights;
  auto spec = read_eagle_spec(files.config, *out.file, model);
  if (!spec.ok()) return spec.status().within(folder);
  out.spec = spec.take();
  out.weights = list_around(out.spec);
  std::vector<WeightEntry> layers = list_weights(out.spec.body);
  out.weights.insert(out.weights.end(), layers.begin(), layers.end());
  constexpr std::string_view kIgnored[] = {"embed_tokens."};  // the model's own table, in a copy
  WeightNaming naming;
  naming.layer_prefix = "layers.";
  naming.layer = kEagleLayer;
  naming.top = kEagleTop;
  naming.ignored_prefixes = kIgnored;
  auto resolved = resolve_weights(std::move(out.weights), out.spec.body.layers.size(), "EAGLE", naming, *out.file);
  if (!resolved.ok()) return resolved.status().within(folder);
  out.weights = resolved.take();
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

int64_t FusedHead::longest_sequence() const { return longest_head_sequence(spec_.body); }

uint64_t FusedHead::held_bytes(int64_t max_rows) const {
  const uint64_t buffers = 6 * static_cast<uint64_t>(max_rows * hidden_size()) * sizeof(float);
  return weights_.bytes + ForwardPass::workspace_bytes(spec_.body, max_rows) + buffers;
}

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
  join_normed(step, weights_.token_norm, embeddings_.data(), 0, normed_.data(), joined_.data());
  join_normed(step, weights_.feature_norm, features, 1, normed_.data(), joined_.data());
  const LinearOutput outputs[] = {weights_.fuse.to(fused_.data())};
  linear(step, joined_.data(), 2 * hidden, outputs);

  batch.embed_rows(fused_.data(), hidden);
  HEADRACE_RETURN_IF_ERROR(body_.run(batch, cache, nullptr, hidden_.data()));
  if (wanted == 0) return {};
  if (next != nullptr && !spec_.gives_normed) std::copy_n(hidden_.data(), wanted * hidden, next);
  if (!weights_.norm.empty()) {
    apply_norm({spec_.body, *backend_, none, wanted}, hidden_.data(), weights_.norm, hidden_.data());
  }
  if (next != nullptr && spec_.gives_normed) std::copy_n(hidden_.data(), wanted * hidden, next);
  return logits == nullptr ? Status() : ends_.run_head(hidden_.data(), wanted, logits);
}

}  // namespace headrace
