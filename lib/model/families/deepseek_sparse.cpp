// DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose rows see only positions that an indexer chose; in GLM-5.2 some layers see
// what the indexer of a layer before chose. Reference: transformers models/deepseek_v32, glm_moe_dsa. The makers' own
// code rotates queries and keys of the indexer by a Hadamard matrix and rounds them to FP8; like transformers, this does
// not: the first changes no product.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "model/families/deepseek.h"
#include "model/families/moe_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kIndexerKeys[] = {
    "index_head_dim",
    "index_n_heads",
    "index_share_for_mtp_iteration",  // of layers that predict further ahead, which the decoder does without
    "index_skip_topk_offset",
    "index_topk",
    "index_topk_freq",
    "index_topk_pattern",
    "indexer_rope_interleave",
    "indexer_types",
    "layer_types",
    "moe_router_dtype",
    "num_experts",
};

// Whether each layer has an indexer of its own: indexer_types, a pattern of F and S, or every freq-th layer.
Result<std::vector<bool>> read_indexer_types(const ConfigReader& config, size_t num_layers) {
  std::vector<bool> own;
  HEADRACE_ASSIGN_OR_RETURN(std::vector<std::string> types, config.texts("indexer_types"));
  const char* key = "indexer_types";
  if (types.empty() && config.has("index_topk_pattern")) {
    key = "index_topk_pattern";
    if (!config.find(key)->is_string()) {
      HEADRACE_ASSIGN_OR_RETURN(types, config.texts(key));
    } else {
      HEADRACE_ASSIGN_OR_RETURN(const std::string pattern, config.text_or(key, ""));
      for (const char letter : pattern) {
        types.push_back(letter == 'F' ? "full" : letter == 'S' ? "shared" : std::string(1, letter));
      }
    }
  }
  if (types.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t frequency, config.integer_or("index_topk_freq", 0, INT32_MAX, 1));
    HEADRACE_ASSIGN_OR_RETURN(const int64_t offset, config.integer_or("index_skip_topk_offset", 0, INT32_MAX, 2));
    for (int64_t i = 0; i < static_cast<int64_t>(num_layers); ++i) {
      own.push_back(std::max<int64_t>(i - offset + 1, 0) % std::max<int64_t>(frequency, 1) == 0);
    }
    return own;
  }
  for (const std::string& type : types) {
    if (type != "full" && type != "shared") return unsupported(config.place_of(key), "unknown type '{}'", type);
    own.push_back(type == "full");
  }
  if (own.size() != num_layers) {
    return malformed(config.place_of(key), "{} entries for {} layers", own.size(), num_layers);
  }
  return own;
}

// Puts indexers into the layers, whose attention is latent.
void set_sparse(ModelSpec& spec, const Indexer& indexer, int64_t top_k, const std::vector<bool>& own) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    SparseLatentAttention sparse;
    sparse.latent = std::get<LatentAttention>(spec.layers[i].attention);
    sparse.top_k = static_cast<int32_t>(top_k);
    if (own[i]) sparse.indexer = indexer;
    spec.layers[i].attention = sparse;
  }
}

// rope: of the latent attention, which the indexer shares but for the pairs.
Result<Indexer> read_indexer(const ConfigReader& config, int64_t num_heads, RopeSpec rope, bool interleaved) {
  HEADRACE_RETURN_IF_ERROR(config.only("indexer_rope_interleave", interleaved));
  Indexer out;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, config.integer_or("index_n_heads", 1, 1 << 14, num_heads));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t head_dim, config.integer_or("index_head_dim", rope.rotary_dim, 1 << 12, 128));
  out.num_heads = static_cast<int32_t>(heads);
  out.head_dim = static_cast<int32_t>(head_dim);
  out.rope = std::move(rope);
  out.rope.interleaved = interleaved;
  return out;
}

struct SparseDefaults {
  LatentDefaults latent;
  GroupedExpertDefaults experts;
  int64_t index_heads;
  bool interleaved;  // rotation of the indexer
};

Result<ModelSpec> read_sparse(const ConfigReader& config, const SparseDefaults& defaults, const char* architecture) {
  HEADRACE_RETURN_IF_ERROR(config.only("scoring_func", "sigmoid"));
  HEADRACE_RETURN_IF_ERROR(config.only("topk_method", "noaux_tc"));
  HEADRACE_RETURN_IF_ERROR(config.only("rope_interleave", true));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_deepseek(config, defaults.latent, architecture, kIndexerKeys));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.texts("layer_types"));
  if (!types.empty() && types.size() != spec.layers.size()) {
    return malformed(config.place_of("layer_types"), "{} entries for {} layers", types.size(), spec.layers.size());
  }
  for (const std::string& type : types) {
    if (type == "indexed_attention" || type == "deepseek_sparse_attention") continue;  // which is its first name
    return unsupported(config.place_of("layer_types"), "unknown type '{}'", type);
  }
  HEADRACE_ASSIGN_OR_RETURN(const MixtureOfExperts moe, read_grouped_experts(config, defaults.experts));
  HEADRACE_RETURN_IF_ERROR(config.only("num_experts", moe.router.num_experts));  // the same number once more
  HEADRACE_RETURN_IF_ERROR(config.only("moe_router_dtype", "float32"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_dense, config.integer_or("first_k_dense_replace", 0, INT32_MAX, 3));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> sparse,
                            read_sparse_layers(config, spec.layers.size(), static_cast<size_t>(num_dense)));
  set_experts(spec, moe, [&](size_t layer) { return sparse[layer]; });
  const auto& latent = std::get<LatentAttention>(spec.layers[0].attention);
  HEADRACE_ASSIGN_OR_RETURN(const Indexer indexer,
                            read_indexer(config, defaults.index_heads, latent.rope, defaults.interleaved));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer_or("index_topk", 1, INT32_MAX, 2048));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> own, read_indexer_types(config, spec.layers.size()));
  set_sparse(spec, indexer, top_k, own);
  return spec;
}

Result<ModelSpec> deepseek_v32_from_config(const ConfigReader& config, const TensorFile&) {
  // Sharing is GLM's alone.
  for (const char* key : {"indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"}) {
    HEADRACE_RETURN_IF_ERROR(config.only(key, nullptr));
  }
  return read_sparse(config, {{.max_position_embeddings = 163840}, {256, 8, 2048, 1, 8, 4, 2.5}, 64, false},
                     "deepseek_v32");
}

Result<ModelSpec> glm_moe_dsa_from_config(const ConfigReader& config, const TensorFile&) {
  return read_sparse(config, {{2048, 512, 192, 64, 256, 202752, 1e-5}, {256, 8, 2048, 1, 1, 1, 2.5}, 32, true},
                     "glm_moe_dsa");
}

constexpr std::string_view kGgufIndexerKeys[] = {
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "attention.indexer.types",
};

Result<ModelSpec> read_sparse_gguf(const GgufReader& gguf, bool interleaved) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_deepseek_gguf(gguf, kGgufIndexerKeys));
  spec.architecture = gguf.architecture();
  Indexer indexer;
  indexer.rope = std::get<LatentAttention>(spec.layers[0].attention).rope;
  indexer.rope.interleaved = interleaved;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, gguf.integer("attention.indexer.head_count", 1, 1 << 14));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t head_dim,
                            gguf.integer("attention.indexer.key_length", indexer.rope.rotary_dim, 1 << 12));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, gguf.integer("attention.indexer.top_k", 1, INT32_MAX));
  indexer.num_heads = static_cast<int32_t>(heads);
  indexer.head_dim = static_cast<int32_t>(head_dim);
  std::vector<bool> own(spec.layers.size(), true);
  if (gguf.has("attention.indexer.types")) {
    const std::string key = gguf.key("attention.indexer.types");
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<uint8_t> types, gguf.file().get_bool_array(key));
    if (types.size() != own.size()) return malformed(key, "{} entries for {} layers", types.size(), own.size());
    own.assign(types.begin(), types.end());
  }
  set_sparse(spec, indexer, top_k, own);
  return spec;
}

Result<ModelSpec> deepseek_v32_from_gguf(const GgufReader& gguf) { return read_sparse_gguf(gguf, false); }
Result<ModelSpec> glm_moe_dsa_from_gguf(const GgufReader& gguf) { return read_sparse_gguf(gguf, true); }

}  // namespace

const Family kDeepseekV32Family = {"deepseek_v32",    "DeepseekV32ForCausalLM", "deepseek_v32",
                                   "deepseek32",      deepseek_v32_from_config, deepseek_v32_from_gguf,
                                   deepseek_hf_names, deepseek_gguf_names};
const Family kGlmMoeDsaFamily = {"glm_moe_dsa",     "GlmMoeDsaForCausalLM",  "glm_moe_dsa",
                                 "glm-dsa",         glm_moe_dsa_from_config, glm_moe_dsa_from_gguf,
                                 deepseek_hf_names, deepseek_gguf_names};

}  // namespace headrace
