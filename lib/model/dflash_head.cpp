#include "model/dflash_head.h"

#include <algorithm>
#include <new>
#include <utility>

#include "formats/model_folder.h"
#include "model/blocks.h"
#include "model/config_reader.h"
#include "model/draft_head.h"
#include "model/families/family.h"
#include "model/weight_names.h"

namespace headrace {

namespace {

const GqaAttention& attention_of(const LayerSpec& layer) { return std::get<GqaAttention>(layer.attention); }
const DenseFeedForward& feed_forward_of(const LayerSpec& layer) {
  return std::get<DenseFeedForward>(layer.feed_forward);
}

constexpr NamePair kLayer[] = {
    {"attention_norm", "input_layernorm"}, {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},        {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},        {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},        {"feed_forward_norm", "post_attention_layernorm"},
    {"gate_proj", "mlp.gate_proj"},        {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
};
constexpr NamePair kTop[] = {{"fc", "fc"}, {"hidden_norm", "hidden_norm"}, {"norm", "norm"}};

// Keys of the head; the others are of its layers, as Qwen3's.
constexpr std::string_view kOwnKeys[] = {"auto_map", "block_size", "dflash_config", "num_target_layers"};
constexpr std::string_view kDflashKeys[] = {"block_size", "mask_token_id", "target_layer_ids"};

// Entry l is what leaves layer l.
Result<std::vector<int32_t>> read_feature_layers(const ConfigReader& dflash, const ModelSpec& model) {
  constexpr std::string_view kKey = "target_layer_ids";
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> given, dflash.integers(kKey));
  if (given.empty()) return not_found(dflash.place_of(kKey), "which hidden states the head reads is not said");
  const auto count = static_cast<int64_t>(model.layers.size());
  std::vector<int32_t> layers;
  for (const int64_t id : given) {
    if (id < 0 || id >= count) {
      return invalid_argument(dflash.place_of(kKey), "{} is no layer of the model, which has {}", id, count);
    }
    const auto layer = static_cast<int32_t>(id + 1);
    if (!layers.empty() && layer <= layers.back()) return unsupported(dflash.place_of(kKey), "{} does not rise", id);
    layers.push_back(layer);
  }
  const Status status = check_hidden_layers(model, layers);
  return status.ok() ? Result<std::vector<int32_t>>(std::move(layers)) : status.within(dflash.place_of(kKey));
}

Status check_equal(const ConfigReader& config, std::string_view key, int64_t of_model) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t given, config.integer_or(key, 1, INT32_MAX, of_model));
  if (given != of_model) return invalid_argument(config.place_of(key), "{}, the model has {}", given, of_model);
  return {};
}

Result<DflashSpec> read_spec(const nlohmann::json& json, const TensorFile& file, const ModelSpec& model) {
  const ConfigReader config(json, "");
  nlohmann::json layer_json = json;
  for (const std::string_view key : kOwnKeys) layer_json.erase(std::string(key));
  const ConfigReader layers(layer_json, "");
  DflashSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(const std::string type, layers.text_or("model_type", "qwen3"));
  if (type != "qwen3") return unsupported("/model_type", "a head of {} layers", type);
  HEADRACE_RETURN_IF_ERROR(check_equal(config, "vocab_size", model.vocab_size));
  HEADRACE_RETURN_IF_ERROR(check_equal(config, "hidden_size", model.hidden_size));
  HEADRACE_RETURN_IF_ERROR(check_equal(config, "num_target_layers", static_cast<int64_t>(model.layers.size())));
  HEADRACE_ASSIGN_OR_RETURN(spec.body, find_family("qwen3")->from_config(layers, file));
  if (spec.body.hidden_size != model.hidden_size) {
    return invalid_argument("/hidden_size", "{}, the model has {}", spec.body.hidden_size, model.hidden_size);
  }
  keep_layers_only(spec.body);
  HEADRACE_RETURN_IF_ERROR(validate_spec(spec.body));
  for (LayerSpec& layer : spec.body.layers) {
    auto& attention = std::get<GqaAttention>(layer.attention);
    if (attention.window > 0) return unsupported("/layer_types", "layers with a sliding window");
    attention.both_ways = true;
  }

  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader dflash, config.object("dflash_config"));
  HEADRACE_RETURN_IF_ERROR(dflash.check_known(kDflashKeys));
  HEADRACE_ASSIGN_OR_RETURN(spec.feature_layers, read_feature_layers(dflash, model));
  const ConfigReader& holder = config.has("block_size") ? config : dflash;
  constexpr int64_t kMostTokens = 1024;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t block_size, holder.integer("block_size", 2, kMostTokens));
  spec.block_size = static_cast<int32_t>(block_size);
  HEADRACE_ASSIGN_OR_RETURN(const int64_t mask, dflash.integer("mask_token_id", 0, model.vocab_size - 1));
  spec.mask_token_id = static_cast<int32_t>(mask);
  return spec;
}

}  // namespace

Result<DflashHeader> DflashHeader::read(const std::string& folder, const ModelSpec& model) {
  HEADRACE_ASSIGN_OR_RETURN(const ModelFolder files, open_head_folder(folder));
  DflashHeader out;
  out.file = files.weights;
  auto spec = read_spec(files.config, *out.file, model);
  if (!spec.ok()) return spec.status().within(folder);
  out.spec = spec.take();
  const auto hidden = static_cast<uint64_t>(out.spec.body.hidden_size);
  out.weights = list_weights(out.spec.body);
  out.weights.push_back({"fc.weight", "", {hidden, out.spec.feature_layers.size() * hidden}});
  for (const char* norm : {"hidden_norm.weight", "norm.weight"}) out.weights.push_back({norm, "", {hidden}});
  WeightNaming naming;
  naming.layer_prefix = "layers.";
  naming.layer = kLayer;
  naming.top = kTop;
  auto resolved = resolve_weights(std::move(out.weights), out.spec.body.layers.size(), "DFlash", naming, *out.file);
  if (!resolved.ok()) return resolved.status().within(folder);
  out.weights = resolved.take();
  return out;
}

DflashHead::DflashHead(DflashSpec spec, DflashWeights weights, std::shared_ptr<const Model> model,
                       std::shared_ptr<Backend> backend)
    : spec_(std::move(spec)),
      weights_(std::move(weights)),
      model_(std::move(model)),
      backend_(std::move(backend)),
      ends_(model_->spec(), model_->weights(), *backend_) {}

int64_t DflashHead::longest_sequence() const { return longest_head_sequence(spec_.body); }

uint64_t DflashHead::held_bytes(int64_t max_rows) const {
  const uint64_t wanted = static_cast<uint64_t>(max_rows * hidden_size()) * sizeof(float);
  return weights_.bytes + ForwardPass::workspace_bytes(spec_.body, max_rows) + wanted;
}

std::vector<KvLayout> DflashHead::kv_layouts(KvDType dtype, int32_t block_size) const {
  return headrace::kv_layouts(spec_.body, dtype, block_size);
}

Status DflashHead::grow(int64_t num_rows) {
  if (num_rows <= capacity_) return {};
  try {
    resize_layer_buffers(work_, spec_.body, num_rows);
    wanted_.resize(static_cast<size_t>(num_rows * hidden_size()));
  } catch (const std::bad_alloc&) {
    return out_of_memory("workspace", "not enough memory for a step of {} rows", num_rows);
  }
  capacity_ = num_rows;
  return {};
}

Status DflashHead::project(const float* hidden, int64_t num_rows, float* context) {
  ForwardWorkspace none;
  const StepContext step{spec_.body, *backend_, none, num_rows};
  const LinearOutput outputs[] = {weights_.fc.to(context)};
  linear(step, hidden, static_cast<int64_t>(spec_.feature_layers.size()) * hidden_size(), outputs);
  apply_norm(step, context, weights_.hidden_norm, context);
  return {};
}

Status DflashHead::store(const Batch& batch, const float* context, KvCache& cache) {
  HEADRACE_RETURN_IF_ERROR(grow(batch.num_tokens()));
  const StepContext step{spec_.body, *backend_, work_, batch.num_tokens()};
  for (size_t i = 0; i < spec_.body.layers.size(); ++i) {
    const auto& weights = std::get<GqaWeights>(weights_.body.layers[i].attention);
    attend(step, attention_of(spec_.body.layers[i]), weights, context, batch, cache.config().layers[i],
           cache.layer_data(static_cast<int32_t>(i)), false);
  }
  return {};
}

Status DflashHead::guess(const Batch& batch, KvCache& cache, float* logits) {
  const int64_t rows = batch.num_tokens(), hidden = hidden_size();
  HEADRACE_RETURN_IF_ERROR(grow(rows));
  HEADRACE_RETURN_IF_ERROR(ends_.run_embedding(batch.token_ids, work_.x.data()));
  work_.sequence_ends.clear();
  for (size_t seq = 0; seq < batch.block_tables.size(); ++seq) {
    const auto last = static_cast<size_t>(batch.query_start[seq + 1] - 1);
    work_.sequence_ends.push_back(batch.positions[last] + 1);
  }
  const StepContext step{spec_.body, *backend_, work_, rows};
  for (size_t i = 0; i < spec_.body.layers.size(); ++i) {
    const LayerSpec& layer = spec_.body.layers[i];
    const LayerWeights& weights = weights_.body.layers[i];
    const auto& projections = std::get<GqaWeights>(weights.attention);
    attend(step, attention_of(layer), projections, block_input(step, weights.attention_norm, {}), batch,
           cache.config().layers[i], cache.layer_data(static_cast<int32_t>(i)), true);
    project_attention(step, attention_of(layer), projections, {}, 1.0f);
    const float* const input = block_input(step, weights.feed_forward_norm, {});
    feed_forward(step, feed_forward_of(layer), std::get<DenseWeights>(weights.feed_forward), input, {}, 1.0f);
  }
  apply_norm(step, work_.x.data(), weights_.norm, work_.normed.data());
  float* to = wanted_.data();
  for (const int32_t row : batch.logits_rows) to = std::copy_n(work_.normed.data() + row * hidden, hidden, to);
  return ends_.run_head(wanted_.data(), static_cast<int64_t>(batch.logits_rows.size()), logits);
}

}  // namespace headrace
