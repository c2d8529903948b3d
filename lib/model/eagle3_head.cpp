#include "model/eagle3_head.h"

#include <algorithm>
#include <new>
#include <utility>

#include "formats/model_folder.h"
#include "model/blocks.h"
#include "model/config_reader.h"
#include "model/families/family.h"
#include "model/weight_names.h"

namespace headrace {

namespace {

const GqaAttention& attention_of(const ModelSpec& body) { return std::get<GqaAttention>(body.layers[0].attention); }
const DenseFeedForward& feed_forward_of(const ModelSpec& body) {
  return std::get<DenseFeedForward>(body.layers[0].feed_forward);
}

ModelSpec widened(ModelSpec body) {
  body.hidden_size *= 2;
  return body;
}

// Of either layout.
constexpr NamePair kNames[] = {
    {"fc", "fc"},
    {"embed", "embed_tokens"},
    {"embedding_norm", "midlayer.input_layernorm"},
    {"embedding_norm", "layers.0.input_layernorm"},
    {"hidden_norm", "midlayer.hidden_norm"},
    {"hidden_norm", "layers.0.hidden_norm"},
    {"q_proj", "midlayer.self_attn.q_proj"},
    {"q_proj", "layers.0.self_attn.q_proj"},
    {"k_proj", "midlayer.self_attn.k_proj"},
    {"k_proj", "layers.0.self_attn.k_proj"},
    {"v_proj", "midlayer.self_attn.v_proj"},
    {"v_proj", "layers.0.self_attn.v_proj"},
    {"o_proj", "midlayer.self_attn.o_proj"},
    {"o_proj", "layers.0.self_attn.o_proj"},
    {"feed_forward_norm", "midlayer.post_attention_layernorm"},
    {"feed_forward_norm", "layers.0.post_attention_layernorm"},
    {"gate_proj", "midlayer.mlp.gate_proj"},
    {"gate_proj", "layers.0.mlp.gate_proj"},
    {"up_proj", "midlayer.mlp.up_proj"},
    {"up_proj", "layers.0.mlp.up_proj"},
    {"down_proj", "midlayer.mlp.down_proj"},
    {"down_proj", "layers.0.mlp.down_proj"},
    {"norm", "norm"},
    {"lm_head", "lm_head"},
};

// Keys of the head; the others are of its layer, as Llama's.
constexpr std::string_view kOwnKeys[] = {
    "draft_vocab_size",     "target_hidden_size",  "eagle_config",           "eagle_aux_hidden_state_layer_ids",
    "norm_before_residual", "speculators_config",  "speculators_model_type", "speculators_version",
    "embed_requires_grad",  "has_own_embed_tokens"};

std::vector<WeightEntry> list_entries(const Eagle3Spec& spec) {
  const auto hidden = static_cast<uint64_t>(spec.body.hidden_size);
  const uint64_t features = spec.feature_layers.size() * static_cast<uint64_t>(spec.model_size);
  std::vector<WeightEntry> out = {{"fc.weight", "", {hidden, features}}};
  constexpr std::string_view kLayer = "layers.0.";
  const auto take = [&](const ModelSpec& from, bool inputs) {
    for (WeightEntry& entry : list_weights(from)) {
      if (!entry.name.starts_with(kLayer)) continue;
      entry.name = entry.name.substr(kLayer.size());
      const bool input = entry.name[0] == 'q' || entry.name[0] == 'k' || entry.name[0] == 'v';
      if (input == inputs && !entry.name.starts_with("attention_norm")) out.push_back(std::move(entry));
    }
  };
  take(widened(spec.body), true);
  take(spec.body, false);
  for (const char* norm : {"embedding_norm.weight", "hidden_norm.weight", "norm.weight"}) {
    out.push_back({norm, "", {hidden}});
  }
  out.push_back({"lm_head.weight", "", {spec.token_ids.size(), hidden}});
  return out;
}

// The ids of the model that the output matrix's rows stand for: row i is i + d2t[i].
Result<std::vector<int32_t>> read_token_ids(const TensorFile& file, int64_t count, int32_t vocab_size) {
  std::vector<int64_t> offsets(static_cast<size_t>(count), 0);
  if (const TensorEntry* entry = file.find("d2t")) {
    if (entry->dtype != DType::kI64 || entry->shape != std::vector<uint64_t>{static_cast<uint64_t>(count)}) {
      return malformed("d2t", "expected I64 [{}]", count);
    }
    HEADRACE_RETURN_IF_ERROR(file.read(*entry, 0, std::as_writable_bytes(std::span(offsets))));
  } else if (count != vocab_size) {
    return not_found("d2t", "the head guesses {} tokens of {}, and the file does not say which", count, vocab_size);
  }
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t offset = offsets[static_cast<size_t>(i)];
    const bool fits = offset >= 0 && offset < vocab_size && i + offset < vocab_size;
    if (!fits || (!ids.empty() && i + offset <= ids.back())) {
      return malformed("d2t", "entry {}: {} gives no id of the model behind the one before", i, offset);
    }
    ids.push_back(static_cast<int32_t>(i + offset));
  }
  return ids;
}

// What enters three layers: of the key, or the third, the middle one and the third from the end.
Result<std::vector<int32_t>> read_feature_layers(const ConfigReader& config, const ModelSpec& model) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader eagle, config.object("eagle_config"));
  const ConfigReader& holder = eagle.has("eagle_aux_hidden_state_layer_ids") ? eagle : config;
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> given, holder.integers("eagle_aux_hidden_state_layer_ids"));
  const auto count = static_cast<int32_t>(model.layers.size());
  std::vector<int32_t> layers = {2, count / 2, count - 3};
  if (!given.empty()) layers.clear();
  for (const int64_t layer : given) layers.push_back(static_cast<int32_t>(std::clamp<int64_t>(layer, -1, INT32_MAX)));
  const Status status = check_hidden_layers(model, layers);
  return status.ok() ? Result<std::vector<int32_t>>(std::move(layers))
                     : status.within(holder.place_of("eagle_aux_hidden_state_layer_ids"));
}

Result<Eagle3Spec> read_spec(const nlohmann::json& json, const TensorFile& file, const ModelSpec& model) {
  const ConfigReader config(json, "");
  Eagle3Spec spec;
  spec.model_size = model.hidden_size;
  // The layer's keys stand beside the head's, or in an object of their own.
  const bool nested = config.has("transformer_layer_config");
  nlohmann::json layer_json = nested ? *config.find("transformer_layer_config") : json;
  if (!layer_json.is_object()) return malformed("/transformer_layer_config", "not an object");
  if (!nested) {
    for (const std::string_view key : kOwnKeys) layer_json.erase(std::string(key));
  }
  layer_json["num_hidden_layers"] = 1;
  const ConfigReader layer(layer_json, nested ? "/transformer_layer_config" : "");
  HEADRACE_ASSIGN_OR_RETURN(const std::string type, layer.text_or("model_type", "llama"));
  if (type != "llama") return unsupported(layer.place_of("model_type"), "a head of {} layers", type);
  HEADRACE_ASSIGN_OR_RETURN(spec.body, find_family("llama")->from_config(layer, file));
  keep_layers_only(spec.body);
  HEADRACE_RETURN_IF_ERROR(validate_spec(widened(spec.body)));

  HEADRACE_ASSIGN_OR_RETURN(const int64_t vocab_size, layer.integer("vocab_size", 1, INT32_MAX));
  if (vocab_size != model.vocab_size) {
    return invalid_argument(layer.place_of("vocab_size"), "{} tokens, the model has {}", vocab_size, model.vocab_size);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t model_size,
                            config.integer_or("target_hidden_size", 1, INT32_MAX, spec.body.hidden_size));
  if (model_size != model.hidden_size) {
    return invalid_argument("/target_hidden_size", "{} values of a row, the model's have {}", model_size,
                            model.hidden_size);
  }
  HEADRACE_ASSIGN_OR_RETURN(spec.feature_layers, read_feature_layers(config, model));
  HEADRACE_ASSIGN_OR_RETURN(spec.normed_residual, config.boolean_or("norm_before_residual", false));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t count, config.integer_or("draft_vocab_size", 1, vocab_size, vocab_size));
  HEADRACE_ASSIGN_OR_RETURN(spec.token_ids, read_token_ids(file, count, model.vocab_size));
  spec.own_embedding = file.find("embed_tokens.weight") != nullptr;
  if (!spec.own_embedding && spec.body.hidden_size != model.hidden_size) {
    return not_found("embed_tokens.weight", "the model's embeddings have {} values, the head's rows {}",
                     model.hidden_size, spec.body.hidden_size);
  }
  return spec;
}

}  // namespace

Result<Eagle3Header> Eagle3Header::read(const std::string& folder, const ModelSpec& model) {
  HEADRACE_ASSIGN_OR_RETURN(const ModelFolder files, open_model_folder(folder));
  if (files.weights == nullptr) return not_found(folder, "holds no safetensors");
  if (files.config.is_null()) return not_found(folder, "holds no config.json");
  Eagle3Header out;
  out.file = files.weights;
  auto spec = read_spec(files.config, *out.file, model);
  if (!spec.ok()) return spec.status().within(folder);
  out.spec = spec.take();
  out.weights = list_entries(out.spec);
  if (out.spec.own_embedding) {
    out.weights.push_back(
        {"embed.weight",
         "",
         {static_cast<uint64_t>(model.vocab_size), static_cast<uint64_t>(out.spec.body.hidden_size)}});
  }
  constexpr std::string_view kIgnored[] = {"d2t", "t2d"};
  WeightNaming naming;
  naming.top = kNames;
  naming.ignored_prefixes = kIgnored;
  auto resolved = resolve_weights(std::move(out.weights), 1, "EAGLE-3", naming, *out.file);
  if (!resolved.ok()) return resolved.status().within(folder);
  out.weights = resolved.take();
  return out;
}

Eagle3Head::Eagle3Head(Eagle3Spec spec, Eagle3Weights weights, std::shared_ptr<const Model> model,
                       std::shared_ptr<Backend> backend)
    : spec_(std::move(spec)),
      weights_(std::move(weights)),
      model_(std::move(model)),
      backend_(std::move(backend)),
      wide_(widened(spec_.body)),
      ends_(model_->spec(), model_->weights(), *backend_) {}

std::vector<KvLayout> Eagle3Head::kv_layouts(KvDType dtype, int32_t block_size) const {
  return headrace::kv_layouts(spec_.body, dtype, block_size);
}

int64_t Eagle3Head::longest_sequence() const { return longest_head_sequence(spec_.body); }

uint64_t Eagle3Head::held_bytes(int64_t max_rows) const {
  const GqaAttention& attention = attention_of(spec_.body);
  const int64_t floats = 5 * int64_t{spec_.body.hidden_size} + 4 * int64_t{attention.num_heads} * attention.head_dim +
                         2 * int64_t{feed_forward_of(spec_.body).intermediate_size} +
                         static_cast<int64_t>(spec_.token_ids.size());
  return weights_.bytes + static_cast<uint64_t>(max_rows * floats) * sizeof(float);
}

Status Eagle3Head::grow(int64_t num_rows) {
  if (num_rows <= capacity_) return {};
  const auto rows = static_cast<size_t>(num_rows), hidden = static_cast<size_t>(spec_.body.hidden_size);
  try {
    resize_layer_buffers(work_, spec_.body, num_rows);
    joined_.resize(rows * 2 * hidden);
    own_logits_.resize(rows * spec_.token_ids.size());
  } catch (const std::bad_alloc&) {
    return out_of_memory("workspace", "not enough memory for a step of {} rows", num_rows);
  }
  capacity_ = num_rows;
  return {};
}

// The tokens' embeddings into work_.branch.
Status Eagle3Head::embed(const std::vector<int32_t>& ids) {
  if (!spec_.own_embedding) return ends_.run_embedding(ids, work_.branch.data());
  EmbedParams params;
  params.table = weights_.embedding.weight.get();
  params.token_ids = ids.data();
  params.num_tokens = static_cast<int64_t>(ids.size());
  params.out = work_.branch.data();
  backend_->embed(params);
  return {};
}

Status Eagle3Head::project(const float* hidden, int64_t num_rows, float* features) {
  ForwardWorkspace none;
  const LinearOutput outputs[] = {weights_.fc.to(features)};
  const auto width = static_cast<int64_t>(spec_.feature_layers.size()) * spec_.model_size;
  linear({spec_.body, *backend_, none, num_rows}, hidden, width, outputs);
  return {};
}

Status Eagle3Head::run(Batch& batch, const float* features, KvCache& cache, float* logits, float* next) {
  const int64_t rows = batch.num_tokens(), hidden = hidden_size();
  const auto wanted = static_cast<int64_t>(batch.logits_rows.size());
  HEADRACE_RETURN_IF_ERROR(grow(rows));
  for (const int32_t id : batch.token_ids) {
    if (id < 0 || id >= vocab_size()) return invalid_argument("token_ids", "{} is outside the vocabulary", id);
  }
  HEADRACE_RETURN_IF_ERROR(embed(batch.token_ids));
  const StepContext wide{wide_, *backend_, work_, rows};
  StepContext step{spec_.body, *backend_, work_, rows};
  float* const normed = work_.normed.data();
  join_normed(step, weights_.embedding_norm, work_.branch.data(), 0, normed, joined_.data());
  join_normed(step, weights_.hidden_norm, features, 1, normed, joined_.data());
  attend(wide, attention_of(spec_.body), weights_.attention, joined_.data(), batch, cache.config().layers[0],
         cache.layer_data(0), wanted > 0);
  if (wanted == 0) return {};

  // Only the rows that are wanted go on.
  const auto width = int64_t{attention_of(spec_.body).num_heads} * attention_of(spec_.body).head_dim;
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t row = batch.logits_rows[static_cast<size_t>(i)];
    const float* const residual = spec_.normed_residual ? normed : features;
    std::copy_n(residual + row * hidden, hidden, work_.x.data() + i * hidden);
    std::copy_n(work_.attention.data() + row * width, width, work_.attention.data() + i * width);
  }
  step.num_rows = wanted;
  project_attention(step, attention_of(spec_.body), weights_.attention, {}, 1.0f);
  const float* const input = block_input(step, weights_.feed_forward_norm, {});
  feed_forward(step, feed_forward_of(spec_.body), weights_.feed_forward, input, {}, 1.0f);
  if (next != nullptr) std::copy_n(work_.x.data(), wanted * hidden, next);
  if (logits == nullptr) return {};

  apply_norm(step, work_.x.data(), weights_.norm, work_.normed.data());
  const LinearOutput outputs[] = {weights_.head.to(own_logits_.data())};
  linear(step, work_.normed.data(), hidden, outputs);
  spread_logits(own_logits_, spec_.token_ids, wanted, vocab_size(), logits);
  return {};
}

}  // namespace headrace
