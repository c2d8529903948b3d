// Tiny dense decoders of the smaller families against transformers' float32 logits, on every backend of this machine, from
// HEADRACE_TEST_DATA.
#include <cmath>

#include "golden/converted_file.h"
#include "golden/golden_checks.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kGguf = kData + "/goldens/gguf/";

const std::vector<std::string> kNames = {"phi3",       "gemma2",   "olmo2",    "olmo3",   "granite",
                                         "glm4",       "smollm3",  "cohere",   "cohere2", "exaone4",
                                         "starcoder2", "stablelm", "seed_oss", "arcee",   "hunyuan_v1_dense",
                                         "ministral3", "phi",      "gpt_neox", "gpt2",    "nemotron"};

bool have_data() { return have_golden(kModels + "phi3"); }

GgufMeta gguf_meta(const std::string& name) {
  return {{"general.architecture", name},          {name + ".context_length", 512u},
          {name + ".embedding_length", 64u},       {name + ".block_count", 2u},
          {name + ".feed_forward_length", 112u},   {name + ".attention.head_count", 4u},
          {name + ".attention.head_count_kv", 2u}, {name + ".attention.layer_norm_rms_epsilon", 1e-5f}};
}

}  // namespace

TEST_CASE("dense models from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_source(source_at(kModels + name), Golden(kModels + name), kAllCases); }
  }
}

TEST_CASE("dense models in the older config style") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_older_config(kModels + name); }
  }
}

TEST_CASE("dense models from GGUF") {
  if (!have_data()) return;
  for (const std::string name :
       {"olmo2", "olmo3", "granite", "cohere", "exaone4", "stablelm", "seed_oss", "arcee", "ministral3", "phi"}) {
    DYNAMIC_SECTION(name) { check_source(source_at(kGguf + name + ".gguf"), Golden(kModels + name), kAllCases); }
  }
  // Converted without its window: equal as long as it hides nothing.
  DYNAMIC_SECTION("starcoder2") {
    check_source(source_at(kGguf + "starcoder2.gguf"), Golden(kModels + "starcoder2"), {"p5"});
  }
}

// Files that the goldens lack are written here, with the names and keys that published ones have.
TEST_CASE("phi3 from GGUF") {
  if (!have_data()) return;
  GgufMeta meta = gguf_meta("phi3");
  meta["phi3.rope.dimension_count"] = 16u;
  meta["phi3.rope.freq_base"] = 10000.0f;
  meta["phi3.rope.scaling.original_context_length"] = 64u;
  meta["phi3.rope.scaling.attn_factor"] = static_cast<float>(std::sqrt(1.0 + std::log(512.0 / 64.0) / std::log(64.0)));
  ConvertedFile file(meta);
  file.add("rope_factors_short.weight", {8}, {1.0f, 1.05f, 1.1f, 1.15f, 1.2f, 1.25f, 1.3f, 1.35f});
  file.add("rope_factors_long.weight", {8}, {1.0f, 2.5f, 4.0f, 5.5f, 7.0f, 8.5f, 10.0f, 11.5f});
  file.add_all(kModels + "phi3/model.safetensors",
               {{"model.layers.", "blk."},
                {"model.embed_tokens", "token_embd"},
                {"model.norm", "output_norm"},
                {"lm_head", "output"},
                {"input_layernorm", "attn_norm"},
                {"post_attention_layernorm", "ffn_norm"},
                {"self_attn.qkv_proj", "attn_qkv"},
                {"self_attn.o_proj", "attn_output"},
                {"mlp.gate_up_proj", "ffn_up"},
                {"mlp.down_proj", "ffn_down"}},
               0.0f);
  check_source(file.source(), Golden(kModels + "phi3"), kAllCases);
}

// GGUF has no place for the golden's attention scale; it is put back.
TEST_CASE("gemma2 from GGUF with the scale of its config") {
  if (!have_data()) return;
  GgufMeta meta = gguf_meta("gemma2");
  meta["gemma2.attention.key_length"] = 16u;
  meta["gemma2.attention.value_length"] = 16u;
  meta["gemma2.attn_logit_softcapping"] = 20.0f;
  meta["gemma2.final_logit_softcapping"] = 10.0f;
  meta["gemma2.attention.sliding_window"] = 32u;
  ConvertedFile file(meta);
  file.add_all(kModels + "gemma2/model.safetensors",
               {{"model.layers.", "blk."},
                {"model.embed_tokens", "token_embd"},
                {"model.norm", "output_norm"},
                {"input_layernorm", "attn_norm"},
                {"post_attention_layernorm", "post_attention_norm"},
                {"pre_feedforward_layernorm", "ffn_norm"},
                {"post_feedforward_layernorm", "post_ffw_norm"},
                {"self_attn.q_proj", "attn_q"},
                {"self_attn.k_proj", "attn_k"},
                {"self_attn.v_proj", "attn_v"},
                {"self_attn.o_proj", "attn_output"},
                {"mlp.gate_proj", "ffn_gate"},
                {"mlp.up_proj", "ffn_up"},
                {"mlp.down_proj", "ffn_down"}},
               1.0f);
  const Golden golden(kModels + "gemma2");
  for (const auto& backend : all_backends()) {
    ModelHeader header = read_header(file.source());
    for (LayerSpec& layer : header.spec.layers) {
      auto& attention = std::get<GqaAttention>(layer.attention);
      CHECK(attention.scale == 0.25f);
      attention.scale = static_cast<float>(std::pow(24.0, -0.5));
    }
    const auto model = load_model(std::move(header), *backend);
    check_case(*model, *backend, golden, "p33");
    if (backend->name() != "reference") check_case(*model, *backend, golden, "p150");
  }
}

// GGUF does not say which layers do not rotate; the spec is data, so the golden's pattern is put in.
TEST_CASE("smollm3 from GGUF with the rotations of its config") {
  if (!have_data()) return;
  const Golden golden(kModels + "smollm3");
  const ModelHeader original = read_header(source_at(kModels + "smollm3"));
  for (const auto& backend : all_backends()) {
    ModelHeader header = read_header(source_at(kGguf + "smollm3.gguf"));
    RopeSpec rope = std::get<GqaAttention>(header.spec.layers[0].attention).rope;
    CHECK(rope.interleaved);
    for (size_t i = 0; i < header.spec.layers.size(); ++i) {
      const bool rotates = std::get<GqaAttention>(original.spec.layers[i].attention).rope.rotary_dim > 0;
      std::get<GqaAttention>(header.spec.layers[i].attention).rope = rotates ? rope : RopeSpec();
    }
    const auto model = load_model(std::move(header), *backend);
    check_case(*model, *backend, golden, "p33");
  }
}

TEST_CASE("layer outputs of dense models") {
  if (!have_data()) return;
  for (const std::string name : {"gemma2", "olmo2", "granite", "glm4", "cohere", "gpt_neox", "gpt2", "nemotron"}) {
    DYNAMIC_SECTION(name) { check_layers(kModels + name, Golden(kModels + name)); }
  }
}

TEST_CASE("dense models do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

// Dynamic NTK changes the rotation of a whole sequence with its length. GGUF does not keep it: those files are plain.
TEST_CASE("a dynamic rope type within the trained length and beyond") {
  if (!have_data()) return;
  const Golden golden(kModels + "llama_dynamic_ntk");
  const ModelSource source = source_at(kModels + "llama_dynamic_ntk");
  CHECK(read_header(source).spec.max_position_embeddings == 64);
  check_source(source, golden, {"p5", "p33"});
  // Greedy tokens past the prompt are not compared: the reference changes the rotation with each of them.
  for (const auto& backend : all_backends()) {
    const auto model = load_model(read_header(source), *backend);
    ForwardPass forward(model->spec(), model->weights(), *backend);
    auto cache = make_cache(model->spec(), KvDType::kF32);
    const PromptResult result = run_prompt(forward, model->spec(), *cache, golden.ids("p150.input_ids"));
    check_logits(golden, "p150", result.logits, model->spec().vocab_size);
    CHECK(max_difference(result.hidden, golden.floats("p150.hidden").values) <= golden.tolerance());
  }
  check_cuts(kModels + "llama_dynamic_ntk", golden.ids("p150.input_ids"));
  check_cached_prefix(kModels + "llama_dynamic_ntk", golden.ids("p150.input_ids"));
  check_source(source_at(kGguf + "llama_dynamic_ntk.gguf"), golden, {"p5", "p33"});
}
