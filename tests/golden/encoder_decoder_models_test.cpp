// Models with an encoder in front of their decoder against transformers' float32 results, on every backend of this machine.
#include <cstring>

#include "golden/converted_file.h"
#include "golden/golden_checks.h"
#include "media/log_mel.h"
#include "model/input_encoder.h"
#include "model/model_header.h"
#include "model/position_buckets.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kShipped = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/";
const std::vector<std::string> kNames = {"t5", "whisper"};

bool have_data() { return have_golden(kModels + "t5"); }

// The encoder's and the decoder's tokens, or features, of a case.
struct Case {
  EncoderInput input;
  std::vector<int32_t> prompt;
};

Case read_case(const Model& model, const Golden& golden, const std::string& name) {
  Case out;
  out.prompt = golden.ids(name + ".input_ids");
  if (model.encoder()->audio) {
    const Tensor features = golden.floats("input_features");
    auto input = make_encoder_input(*model.encoder(), features.values, static_cast<int64_t>(features.shape[1]),
                                    static_cast<int64_t>(features.shape[2]));
    INFO(input.status().to_string());
    REQUIRE(input.ok());
    out.input = input.take();
    return out;
  }
  auto input = make_encoder_input(*model.encoder(), model.spec().vocab_size, out.prompt);
  REQUIRE(input.ok());
  out.input = input.take();
  if (golden.has(name + ".decoder_input_ids")) {
    out.prompt = golden.ids(name + ".decoder_input_ids");
    return out;
  }
  // As the goldens' README has it.
  out.prompt.resize(std::min<size_t>(out.prompt.size(), 12));
  out.prompt[0] = model.encoder()->start_token_id;
  return out;
}

struct Runner {
  const Model& model;
  Backend& backend;
  ForwardPass forward{model.spec(), model.weights(), backend};
  InputEncoder encoder{*model.encoder(), model.encoder_weights(), model.spec(), model.weights(), backend};

  std::vector<float> encode(const EncoderInput& input) {
    std::vector<float> rows;
    const Status status = encoder.encode(input, rows);
    INFO(status.to_string());
    REQUIRE(status.ok());
    return rows;
  }

  EncoderMemory remember(const EncoderInput& input, KvDType dtype) {
    auto memory = encoder.remember(encode(input), dtype, 16);
    INFO(memory.status().to_string());
    REQUIRE(memory.ok());
    return memory.take();
  }

  PromptResult prompt(KvCache& cache, const EncoderMemory& memory, const std::vector<int32_t>& ids, int64_t chunk = 0) {
    const auto total = static_cast<int64_t>(ids.size()), vocab = int64_t{model.spec().vocab_size};
    PromptResult out;
    out.logits.resize(ids.size() * static_cast<size_t>(vocab));
    out.hidden.resize(ids.size() * static_cast<size_t>(model.spec().hidden_size));
    KvSequence sequence = cache.new_sequence("cold");
    for (int64_t begin = 0; begin < total;) {
      const int64_t end = chunk == 0 ? total : std::min(total, begin + chunk);
      REQUIRE(cache.reserve(sequence, end).ok());
      Batch batch;
      batch.add_sequence(cache, sequence, ids, end, 0);
      batch.memories = {&memory};
      const Status status = forward.run(batch, cache, out.logits.data() + begin * vocab,
                                        out.hidden.data() + begin * model.spec().hidden_size);
      INFO(status.to_string());
      REQUIRE(status.ok());
      REQUIRE(cache.commit(sequence, ids, end).ok());
      begin = end;
    }
    return out;
  }

  // The start token and what follows it.
  std::vector<int32_t> greedy(KvCache& cache, const EncoderMemory& memory, int count) {
    std::vector<int32_t> ids = {model.encoder()->start_token_id};
    std::vector<float> logits(static_cast<size_t>(model.spec().vocab_size));
    KvSequence sequence = cache.new_sequence("greedy");
    for (int i = 0; i < count; ++i) {
      const auto total = static_cast<int64_t>(ids.size());
      REQUIRE(cache.reserve(sequence, total).ok());
      Batch batch;
      batch.add_sequence(cache, sequence, ids, total, total - 1);
      batch.memories = {&memory};
      REQUIRE(forward.run(batch, cache, logits.data()).ok());
      REQUIRE(cache.commit(sequence, ids, total).ok());
      ids.push_back(argmax(logits.data(), model.spec().vocab_size));
    }
    return ids;
  }
};

// The golden's tensors under a converter's names.
ConvertedFile converted_t5(const GgufMeta& more) {
  GgufMeta meta = {{"general.architecture", std::string("t5")},
                   {"t5.context_length", 512u},
                   {"t5.embedding_length", 64u},
                   {"t5.feed_forward_length", 96u},
                   {"t5.block_count", 2u},
                   {"t5.attention.head_count", 4u},
                   {"t5.attention.key_length", 16u},
                   {"t5.attention.value_length", 16u},
                   {"t5.attention.layer_norm_epsilon", 1e-6f},
                   {"t5.attention.layer_norm_rms_epsilon", 1e-6f},
                   {"t5.attention.relative_buckets_count", 32u},
                   {"t5.decoder_start_token_id", 2u}};
  for (const auto& [key, value] : more) meta[key] = value;
  ConvertedFile file(meta);
  file.add_all(kModels + "t5/model.safetensors",
               {{"encoder.block.", "enc.blk."},
                {"decoder.block.", "dec.blk."},
                {"encoder.final_layer_norm", "enc.output_norm"},
                {"decoder.final_layer_norm", "dec.output_norm"},
                {"shared", "token_embd"},
                {"layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"},
                {"layer.0.SelfAttention.", "attn_"},
                {"layer.0.layer_norm", "attn_norm"},
                {"layer.1.EncDecAttention.", "cross_attn_"},
                {"layer.1.DenseReluDense.wi_0", "ffn_gate"},
                {"layer.2.DenseReluDense.wi_0", "ffn_gate"},
                {"layer.1.DenseReluDense.wi_1", "ffn_up"},
                {"layer.2.DenseReluDense.wi_1", "ffn_up"},
                {"layer.1.DenseReluDense.wo", "ffn_down"},
                {"layer.2.DenseReluDense.wo", "ffn_down"},
                {"dec.blk.0.layer.1.layer_norm", "dec.blk.0.cross_attn_norm"},
                {"dec.blk.1.layer.1.layer_norm", "dec.blk.1.cross_attn_norm"},
                {"layer.1.layer_norm", "ffn_norm"},
                {"layer.2.layer_norm", "ffn_norm"}},
               0.0f);
  return file;
}

// The encoder's rows, the decoder's logits and its greedy tokens.
void check_model(const ModelSource& source, const Golden& golden) {
  std::vector<std::string> cases = kAllCases;
  cases.emplace_back("p40");
  for (const auto& backend : all_backends()) {
    const auto model = load_model(read_header(source), *backend);
    Runner runner{*model, *backend};
    for (const std::string& prompt : cases) {
      if (!golden.has(prompt + ".input_ids")) continue;
      INFO(backend->name() << " " << prompt);
      const Case one = read_case(*model, golden, prompt);
      CHECK(max_difference(runner.encode(one.input), golden.floats(prompt + ".encoder_hidden").values) <=
            golden.tolerance());
      const EncoderMemory memory = runner.remember(one.input, KvDType::kF32);
      auto cache = make_cache(model->spec(), KvDType::kF32);
      PromptResult result = runner.prompt(*cache, memory, one.prompt);
      check_logits(golden, prompt, result.logits, model->spec().vocab_size);
      // Of the goldens: what the output matrix sees, scaled where its logits are.
      for (float& value : result.hidden) value *= model->spec().head.logit_scale;
      CHECK(max_difference(result.hidden, golden.floats(prompt + ".hidden").values) <= golden.tolerance());
      if (!golden.has(prompt + ".greedy")) continue;
      // Some goldens have the start token first.
      const std::vector<int32_t> expected = golden.ids(prompt + ".greedy");
      const Tensor margin = golden.floats(prompt + ".greedy_margin");
      const size_t count = margin.values.size();
      const std::vector<int32_t> got = runner.greedy(*cache, memory, static_cast<int>(count));
      REQUIRE(got.size() == count + 1);
      REQUIRE(expected.size() >= count);
      for (size_t i = 0; i < count && margin.values[i] >= 1e-3f; ++i) {
        INFO("token " << i);
        CHECK(got[i + 1] == expected[expected.size() - count + i]);
      }
    }
  }
}

}  // namespace

TEST_CASE("encoder-decoder models agree with transformers") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_model(source_at(kModels + name), Golden(kModels + name)); }
  }
}

TEST_CASE("T5 from safetensors and from GGUF") {
  check_model(source_at(kShipped + "t5"), Golden(kShipped + "t5"));
  check_model(source_at(kShipped + "t5/model.gguf"), Golden(kShipped + "t5"));
}

TEST_CASE("T5 with a gate and an output of its own from GGUF") {
  if (!have_data()) return;
  ConvertedFile file = converted_t5({});
  auto original = SafetensorsFile::open_path(kModels + "t5/model.safetensors");
  REQUIRE(original.ok());
  const TensorEntry& table = *(*original)->find("shared.weight");
  std::vector<float> values(table.bytes / 4);
  REQUIRE((*original)->read(table, 0, std::as_writable_bytes(std::span(values))).ok());
  file.add("output.weight", table.shape, std::move(values));
  check_model(file.source(), Golden(kModels + "t5"));
}

TEST_CASE("T5 from GGUF: biases of each layer, outputs that are the table, and what is refused") {
  if (!have_data()) return;
  ConvertedFile file = converted_t5({});
  file.add("enc.blk.1.attn_rel_b.weight", {32, 4}, std::vector<float>(128, 0.5f));
  file.add("dec.blk.0.cross_attn_rel_b.weight", {32, 4}, std::vector<float>(128, 0.5f));
  const ModelHeader header = read_header(file.source());
  const auto owner = [](const ModelSpec& spec, size_t layer) {
    return std::get<GqaAttention>(spec.layers[layer].attention).position_buckets->layer;
  };
  CHECK(owner(header.encoder->encoder, 1) == -1);
  CHECK(owner(header.spec, 1) == 0);
  CHECK(header.spec.head.tied);
  CHECK(header.spec.head.logit_scale == 0.125f);
  const auto refused = [](const GgufMeta& more, const std::string& place) {
    const auto result = ModelHeader::read(converted_t5(more).source());
    INFO(place << ": " << result.status().to_string());
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().place().find(place) != std::string::npos);
  };
  refused({{"t5.attention.twist", 2u}}, "t5.attention.twist");
  refused({{"t5.attention.sliding_window", 16u}}, "t5.attention.sliding_window");
  refused({{"t5.attention.relative_buckets_count", 0u}}, "t5.attention.relative_buckets_count");
  refused({{"t5.attention.relative_buckets_count", 34u}}, "attn_rel_b.weight");
  refused({{"t5.decoder_start_token_id", 320u}}, "t5.decoder_start_token_id");
  refused({{"t5.decoder_block_count", 3u}}, "dec.blk.2");
  refused({{"t5.decoder_block_count", 1u}}, "dec.blk.1");
  refused({{"t5.block_count", 3u}, {"t5.decoder_block_count", 2u}}, "enc.blk.2");
  refused({{"t5.attention.layer_norm_rms_epsilon", 0.0f}}, "t5.attention.layer_norm_rms_epsilon");
  refused({{"t5.attention.layer_norm_epsilon", 0.0f}}, "t5.attention.layer_norm_epsilon");
}

TEST_CASE("a decoder behind an encoder does not depend on the cut, on its neighbours or on the number of threads") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const Golden golden(kModels + name);
      for (const auto& backend : all_backends()) {
        const auto model = load_model(read_header(source_at(kModels + name)), *backend);
        Runner runner{*model, *backend};
        const Case one = read_case(*model, golden, "p33"), other = read_case(*model, golden, "p5");
        for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
          INFO(backend->name() << " kv " << kv_dtype_name(dtype));
          const EncoderMemory memory = runner.remember(one.input, dtype);
          const EncoderMemory other_memory = runner.remember(other.input, dtype);
          auto cache = make_cache(model->spec(), dtype);
          const PromptResult whole = runner.prompt(*cache, memory, one.prompt);
          for (const int64_t chunk : {1, 5}) {
            INFO("chunks of " << chunk);
            const PromptResult cut = runner.prompt(*cache, memory, one.prompt, chunk);
            CHECK(cut.logits == whole.logits);
            CHECK(cut.hidden == whole.hidden);
          }
          // Between two others behind another input; of the last layer the wanted rows alone.
          Batch batch;
          std::vector<KvSequence> sequences;
          for (int i = 0; i < 3; ++i) sequences.push_back(cache->new_sequence("batch"));
          for (size_t i = 0; i < 3; ++i) {
            const std::vector<int32_t>& ids = i == 1 ? one.prompt : other.prompt;
            const auto size = static_cast<int64_t>(ids.size());
            REQUIRE(cache->reserve(sequences[i], size).ok());
            batch.add_sequence(*cache, sequences[i], ids, size, i == 1 ? size - 2 : size);
            batch.memories.push_back(i == 1 ? &memory : &other_memory);
          }
          const auto wanted = 2 * static_cast<size_t>(model->spec().vocab_size);
          std::vector<float> logits(wanted);
          REQUIRE(runner.forward.run(batch, *cache, logits.data()).ok());
          CHECK(logits == std::vector<float>(whole.logits.end() - static_cast<int64_t>(wanted), whole.logits.end()));
        }
      }
      for (const Isa isa : available_isas()) {
        std::vector<float> expected;
        for (const int threads : {1, 2, 3}) {
          auto backend = make_cpu_backend({isa, threads});
          REQUIRE(backend.ok());
          const auto model = load_model(read_header(source_at(kModels + name)), **backend);
          Runner runner{*model, **backend};
          const Case one = read_case(*model, golden, "p33");
          auto cache = make_cache(model->spec(), KvDType::kF16);
          const EncoderMemory memory = runner.remember(one.input, KvDType::kF16);
          const std::vector<float> logits = runner.prompt(*cache, memory, one.prompt).logits;
          if (expected.empty()) expected = logits;
          CHECK(logits == expected);
        }
      }
    }
  }
}

TEST_CASE("features of a waveform are those that the reference was given") {
  if (!have_data()) return;
  const std::string npy = read_file(kModels + "whisper/waveform_16k.npy");
  uint16_t header_size = 0;
  REQUIRE(npy.size() > 10);
  std::memcpy(&header_size, npy.data() + 8, 2);
  REQUIRE(npy.find("'<f4'") != std::string::npos);
  std::vector<float> samples((npy.size() - 10 - header_size) / 4);
  std::memcpy(samples.data(), npy.data() + 10 + header_size, samples.size() * 4);
  LogMelSpec spec;
  spec.num_samples = 2 * 16000;
  const auto features = log_mel(spec, samples);
  REQUIRE(features.ok());
  const Golden golden(kModels + "whisper");
  CHECK(max_difference(*features, golden.floats("input_features").values) <= 1e-5);
}

TEST_CASE("buckets of distances are those of T5") {
  // By the reference, for 32 buckets up to 128.
  const PositionBuckets buckets{32, 128, -1};
  const std::pair<int32_t, int32_t> both[] = {{0, 0},   {-1, 1},   {-7, 7},   {-8, 8},   {-11, 8},   {-12, 9},
                                              {-15, 9}, {-16, 10}, {-64, 14}, {-91, 15}, {-128, 15}, {-5000, 15},
                                              {1, 17},  {8, 24},   {16, 26},  {127, 31}, {5000, 31}};
  for (const auto& [distance, bucket] : both) {
    INFO(distance);
    CHECK(bucket_of(buckets, true, distance) == bucket);
  }
  const std::pair<int32_t, int32_t> before[] = {{0, 0},    {3, 0},    {-15, 15},  {-16, 16},
                                                {-31, 21}, {-64, 26}, {-127, 31}, {-1000, 31}};
  for (const auto& [distance, bucket] : before) {
    INFO(distance);
    CHECK(bucket_of(buckets, false, distance) == bucket);
  }
}

TEST_CASE("keys, values and tensors of encoder-decoder models that are not built are refused by name") {
  if (!have_data()) return;
  const auto refused = [](const std::string& name, StatusCode code, const std::string& place,
                          const ConfigChange& change) { check_change_refused(kModels + name, code, place, change); };
  const auto set = [](const char* key, const nlohmann::json& value) {
    return [key, value](nlohmann::json& config) { config[key] = value; };
  };
  constexpr StatusCode kUnsupported = StatusCode::kUnsupported, kMalformed = StatusCode::kMalformed;
  for (const std::string& name : kNames) {
    refused(name, kUnsupported, "/attention_twist", set("attention_twist", 2));
    refused(name, kUnsupported, "/is_encoder_decoder", set("is_encoder_decoder", false));
    refused(name, kMalformed, "/decoder_start_token_id", set("decoder_start_token_id", 320));
  }
  refused("t5", kUnsupported, "/feed_forward_proj", set("feed_forward_proj", "gated-mish"));
  refused("t5", kUnsupported, "/dense_act_fn", set("dense_act_fn", "relu"));
  refused("t5", kUnsupported, "/is_gated_act", set("is_gated_act", false));
  refused("t5", kMalformed, "position_buckets", set("relative_attention_num_buckets", 33));
  refused("t5", kMalformed, "position_buckets", set("relative_attention_max_distance", 4));
  refused("t5", kMalformed, "relative_attention_bias", set("relative_attention_num_buckets", 34));
  refused("t5", kMalformed, "shared.weight", set("vocab_size", 321));
  refused("t5", kUnsupported, "decoder.block.1", set("num_decoder_layers", 1));
  refused("t5", StatusCode::kNotFound, "decoder.block.2", set("num_decoder_layers", 3));
  refused("t5", kUnsupported, "encoder.block.1", [](nlohmann::json& config) {
    config["num_decoder_layers"] = 2;
    config["num_layers"] = 1;
  });
  refused("whisper", kUnsupported, "/activation_function", set("activation_function", "mish"));
  refused("whisper", kMalformed, "conv1", set("num_mel_bins", 128));
  refused("whisper", kMalformed, "embed_positions", set("max_source_positions", 99));
  refused("whisper", kMalformed, "embed_positions", set("max_target_positions", 65));
  refused("whisper", kUnsupported, "decoder.layers.1", set("decoder_layers", 1));
  refused("whisper", kUnsupported, "encoder.layers.1", set("encoder_layers", 1));
  refused("whisper", StatusCode::kNotFound, "encoder.layers.2", set("encoder_layers", 3));
}

TEST_CASE("inputs that an encoder does not take are refused") {
  if (!have_data()) return;
  const ModelHeader t5 = read_header(source_at(kModels + "t5")), whisper = read_header(source_at(kModels + "whisper"));
  const std::vector<int32_t> tokens = {5, 6}, foreign = {5, 320};
  std::vector<float> features(80 * 200, 0.5f);
  CHECK(make_encoder_input(*t5.encoder, 320, {}).status().place() == "encoder_input");
  CHECK(make_encoder_input(*t5.encoder, 320, foreign).status().place() == "tokens[1]");
  CHECK(make_encoder_input(*t5.encoder, features, 80, 200).status().code() == StatusCode::kUnsupported);
  CHECK(make_encoder_input(*whisper.encoder, 320, tokens).status().code() == StatusCode::kUnsupported);
  CHECK(make_encoder_input(*whisper.encoder, features, 80, 200).ok());
  CHECK(make_encoder_input(*whisper.encoder, features, 200, 80).status().place() == "encoder_input");
  CHECK(make_encoder_input(*whisper.encoder, features, 80, 199).status().place() == "encoder_input");
  features[7] = NAN;
  CHECK(make_encoder_input(*whisper.encoder, features, 80, 200).status().place() == "encoder_input");
}

TEST_CASE("a batch without a memory for each sequence is refused") {
  if (!have_data()) return;
  auto backend = make_reference_backend();
  const auto model = load_model(read_header(source_at(kModels + "t5")), *backend);
  Runner runner{*model, *backend};
  const Case one = read_case(*model, Golden(kModels + "t5"), "p5");
  auto cache = make_cache(model->spec(), KvDType::kF32);
  KvSequence sequence = cache->new_sequence();
  REQUIRE(cache->reserve(sequence, 5).ok());
  Batch batch;
  batch.add_sequence(*cache, sequence, one.prompt, 5, 5);
  CHECK(runner.forward.run(batch, *cache, nullptr).place() == "memories");
  const EncoderMemory other_type = runner.remember(one.input, KvDType::kF16);
  batch.memories = {&other_type};
  CHECK(runner.forward.run(batch, *cache, nullptr).place() == "memories");
  const EncoderMemory memory = runner.remember(one.input, KvDType::kF32);
  batch.memories = {&memory};
  CHECK(runner.forward.run(batch, *cache, nullptr).ok());
}
