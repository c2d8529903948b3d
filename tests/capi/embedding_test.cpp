// Embeddings through the C ABI: what pooling gives, bits that depend on a text alone, and what is refused.
#include <cmath>
#include <cstring>
#include <limits>

#include "capi/tiny_encoder.h"

namespace {

using namespace capi_test;
using headrace::Embedder;
using headrace::Model;
using headrace::Options;

using Sequences = std::vector<std::vector<int32_t>>;

Sequences some_sequences() {
  Sequences out;
  for (const size_t length : {7u, 1u, 40u, 16u, 63u, 2u}) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>((length * 31 + i * 17) % 96));
    out.push_back(std::move(tokens));
  }
  return out;
}

Options with(const std::string& pooling, const std::string& normalize = "auto") {
  Options options;
  options.set("embedder.pooling", pooling).set("embedder.normalize", normalize);
  return options;
}

const Model& encoder() {
  static const Model model = TinyEncoder("BertModel").load();
  return model;
}

void check_near(const std::vector<float>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    INFO(i);
    CHECK(std::abs(static_cast<double>(got[i]) - expected[i]) <= 1e-6 * std::max(1.0, std::abs(expected[i])));
  }
}

std::vector<double> to_length_one(std::vector<double> row) {
  double square = 0;
  for (const double x : row) square += x * x;
  for (double& x : row) x /= std::sqrt(square);
  return row;
}

}  // namespace

TEST_CASE("pooling gives the mean, the first or the last of the tokens' rows, at length 1") {
  const Sequences sequences = some_sequences();
  const std::vector<float> all = Embedder(encoder(), with("none")).embed(sequences);
  std::vector<double> means, firsts, lasts;
  size_t row = 0;
  for (const auto& sequence : sequences) {
    std::vector<double> mean(kEncoderSize), first(kEncoderSize), last(kEncoderSize);
    for (size_t t = 0; t < sequence.size(); ++t, ++row) {
      for (size_t i = 0; i < kEncoderSize; ++i) {
        const double value = static_cast<double>(all[row * kEncoderSize + i]);
        mean[i] += value / static_cast<double>(sequence.size());
        if (t == 0) first[i] = value;
        last[i] = value;
      }
    }
    for (auto& [out, of] : {std::pair(&means, mean), {&firsts, first}, {&lasts, last}}) {
      for (const double x : to_length_one(of)) out->push_back(x);
    }
  }
  REQUIRE(all.size() == row * kEncoderSize);
  check_near(Embedder(encoder(), with("mean")).embed(sequences), means);
  check_near(Embedder(encoder(), with("cls")).embed(sequences), firsts);
  check_near(Embedder(encoder(), with("last")).embed(sequences), lasts);
  CHECK(Embedder(encoder(), with("mean")).pools());
  CHECK_FALSE(Embedder(encoder(), with("none")).pools());
  CHECK(Embedder(encoder(), with("none")).row_size() == kEncoderSize);
  const std::vector<float> one_by_one = Embedder(encoder(), with("none", "true")).embed(sequences);
  double square = 0;
  for (size_t i = 0; i < kEncoderSize; ++i) square += std::pow(static_cast<double>(one_by_one[i]), 2);
  CHECK(std::abs(square - 1) < 1e-6);
}

TEST_CASE("an embedding's bits are those of its text, whoever shares the call and on however many threads") {
  const Sequences sequences = some_sequences();
  for (const char* pooling : {"mean", "cls", "last", "none", "pooler"}) {
    INFO(pooling);
    const std::vector<float> expected = Embedder(encoder(), with(pooling)).embed(sequences);
    std::vector<float> alone;
    for (const auto& sequence : sequences) {
      const std::vector<float> rows = Embedder(encoder(), with(pooling)).embed(Sequences{sequence});
      alone.insert(alone.end(), rows.begin(), rows.end());
    }
    CHECK(alone == expected);
    for (const char* rows : {"1", "50", "65536"}) {
      Options options = with(pooling);
      options.set("embedder.max_num_batched_tokens", rows);
      Embedder embedder(encoder(), options);
      CHECK(embedder.embed(sequences) == expected);
      CHECK(embedder.embed(sequences) == expected);  // nothing of the first call is left
    }
    Options three;
    three.set("engine.threads", "3");
    CHECK(Embedder(TinyEncoder("BertModel").load(three), with(pooling)).embed(sequences) == expected);
  }
}

TEST_CASE("models that generate embed too, whatever the cut into steps") {
  const Sequences sequences = some_sequences();
  for (const char* pooling : {"last", "mean", "none", "logits"}) {
    INFO(pooling);
    const std::vector<float> expected = Embedder(text_model(), with(pooling)).embed(sequences);
    for (const char* rows : {"1", "13", "4096"}) {
      Options options = with(pooling);
      options.set("embedder.max_num_batched_tokens", rows);
      CHECK(Embedder(text_model(), options).embed(sequences) == expected);
    }
  }
  // The rows' logits are those that a session computes with cached values of the same type.
  Options options;
  options.set("kv.dtype", "f32");
  headrace::Session session(text_model(), options);
  std::vector<float> logits(sequences[2].size() * 96);
  session.evaluate(sequences[2].data(), sequences[2].size(), logits.data(), logits.size());
  CHECK(Embedder(text_model(), with("logits")).embed(Sequences{sequences[2]}) == logits);
}

TEST_CASE("texts give what their tokens give") {
  const std::vector<std::string> texts = {"hello", "abc DEF", "\xc3\xa9"};
  Sequences with_special, without;
  for (const std::string& text : texts) {
    with_special.push_back(encoder().tokenizer().encode(text, false, true));
    without.push_back(encoder().tokenizer().encode(text, false, false));
  }
  Embedder embedder(encoder(), with("mean"));
  CHECK(embedder.embed(texts) == embedder.embed(with_special));
  CHECK(embedder.embed(texts, 0) == embedder.embed(without));
  CHECK(embedder.embed(std::vector<std::string>()).empty());
  CHECK(embedder.embed(Sequences()).empty());
}

TEST_CASE("segments are added to their tokens") {
  Embedder embedder(encoder(), with("mean"));
  const Sequences sequences = {{4, 5, 6}, {7, 8}};
  const std::vector<float> plain = embedder.embed(sequences);
  CHECK(embedder.embed(sequences, {{0, 0, 0}, {0, 0}}) == plain);
  const std::vector<float> second = embedder.embed(sequences, {{0, 0, 0}, {0, 1}});
  CHECK(std::equal(plain.begin(), plain.begin() + kEncoderSize, second.begin()));
  CHECK_FALSE(std::equal(plain.begin() + kEncoderSize, plain.end(), second.begin() + kEncoderSize));
}

TEST_CASE("heads: pooler, scores and masked-language logits") {
  const TinyEncoder plain("BertModel"), labels("BertForSequenceClassification"), masked("BertForMaskedLM");
  const Model scorer = labels.load(), filler = masked.load();
  const Sequences sequences = some_sequences();

  Embedder pooler(encoder(), with("pooler")), score(scorer, with("auto")), logits(filler, with("logits"));
  CHECK(pooler.row_size() == kEncoderSize);
  CHECK(score.row_size() == kEncoderLabels);
  CHECK(score.pools());
  CHECK(logits.row_size() == kEncoderVocab);
  CHECK_FALSE(logits.pools());

  const std::vector<float> pooled = pooler.embed(sequences), scores = score.embed(sequences);
  const std::vector<float> rows = Embedder(encoder(), with("cls", "false")).embed(sequences);
  const std::vector<float>&dense = plain.values("pooler.dense.weight"), &bias = plain.values("pooler.dense.bias");
  std::vector<double> expected;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (size_t i = 0; i < kEncoderSize; ++i) {
      double sum = static_cast<double>(bias[i]);
      for (size_t j = 0; j < kEncoderSize; ++j) {
        sum += static_cast<double>(dense[i * kEncoderSize + j]) * static_cast<double>(rows[s * kEncoderSize + j]);
      }
      expected.push_back(std::tanh(sum));
    }
  }
  REQUIRE(pooled.size() == expected.size());
  // Sums of 32 products of at most about 1 in float32, where 1e-6 is ten roundings of the largest.
  for (size_t i = 0; i < pooled.size(); ++i) {
    CHECK(std::abs(static_cast<double>(pooled[i]) - expected[i]) < 5e-6);
  }

  // The two models have equal weights but for the classifier, which sees what the pooler gives.
  const std::vector<float>&matrix = labels.values("classifier.weight"), &offset = labels.values("classifier.bias");
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (size_t label = 0; label < kEncoderLabels; ++label) {
      double sum = static_cast<double>(offset[label]);
      for (size_t j = 0; j < kEncoderSize; ++j) {
        sum +=
            static_cast<double>(matrix[label * kEncoderSize + j]) * static_cast<double>(pooled[s * kEncoderSize + j]);
      }
      CHECK(std::abs(static_cast<double>(scores[s * kEncoderLabels + label]) - sum) < 5e-6);
    }
  }
  CHECK(logits.embed(sequences).size() == (7 + 1 + 40 + 16 + 63 + 2) * kEncoderVocab);
}

TEST_CASE("what a model cannot give is refused with the option") {
  const Model scorer = TinyEncoder("BertForSequenceClassification").load();
  const auto refused = [](const Model& model, const Options& options, const std::string& place) {
    const Failure failure = failure_of([&] { const Embedder embedder(model, options); });
    INFO(failure.message);
    CHECK(failure.code == HEADRACE_INVALID_ARGUMENT);
    CHECK(failure.place == place);
  };
  refused(encoder(), Options(), "embedder.pooling");  // its files name none
  refused(text_model(), Options(), "embedder.pooling");
  refused(text_model(), with("cls"), "embedder.pooling");
  refused(text_model(), with("pooler"), "embedder.pooling");
  refused(encoder(), with("score"), "embedder.pooling");
  refused(encoder(), with("logits"), "embedder.pooling");
  refused(scorer, with("pooler"), "embedder.pooling");
  refused(scorer, with("score", "true"), "embedder.normalize");
  refused(text_model(), with("logits", "true"), "embedder.normalize");
  CHECK(failure_of([] { with("median"); }).place == "embedder.pooling");
  CHECK(failure_of([] { with("mean", "perhaps"); }).place == "embedder.normalize");
}

TEST_CASE("bad input is refused by name, before anything is computed") {
  Embedder embedder(encoder(), with("mean"));
  const auto refused = [](headrace_status code, const std::string& place, const auto& call) {
    const Failure failure = failure_of(call);
    INFO(failure.message);
    CHECK(failure.code == code);
    CHECK(failure.place == place);
  };
  using Texts = std::vector<std::string>;
  refused(HEADRACE_INVALID_ARGUMENT, "texts[1]", [&] { embedder.embed(Texts{"a", ""}); });
  refused(HEADRACE_INVALID_ARGUMENT, "texts[0]: byte 1", [&] { embedder.embed(Texts{"a\xff"}); });
  refused(HEADRACE_INVALID_ARGUMENT, "flags", [&] { embedder.embed(Texts{"a"}, 64); });
  refused(HEADRACE_INVALID_ARGUMENT, "sequences[1]", [&] { embedder.embed(Sequences{{4}, {}}); });
  refused(HEADRACE_INVALID_ARGUMENT, "tokens[2]", [&] { embedder.embed(Sequences{{4}, {5, 96}}); });
  refused(HEADRACE_INVALID_ARGUMENT, "tokens[0]", [&] { embedder.embed(Sequences{{-1}}); });
  refused(HEADRACE_INVALID_ARGUMENT, "token_types[1]", [&] { embedder.embed(Sequences{{4, 5}}, {{0, 2}}); });
  refused(HEADRACE_INVALID_ARGUMENT, "token_types", [&] { embedder.embed(Sequences{{4, 5}}, {{0}}); });
  const std::vector<int32_t> longest(kEncoderPositions, 9), too_long(kEncoderPositions + 1, 9);
  CHECK(embedder.embed(Sequences{longest}).size() == kEncoderSize);
  refused(HEADRACE_RESOURCE_EXHAUSTED, "sequences[1]", [&] { embedder.embed(Sequences{longest, too_long}); });
  Options shorter = with("last");
  shorter.set("kv.max_tokens", "32");
  Embedder short_embedder(encoder(), shorter);
  refused(HEADRACE_RESOURCE_EXHAUSTED, "sequences[0]", [&] { short_embedder.embed(Sequences{longest}); });

  headrace_embedder* const handle = embedder.get();
  const int32_t tokens[] = {4, 5, 6};
  const size_t falling[] = {0, 2, 1}, late[] = {1, 2}, good[] = {0, 3};
  float rows[kEncoderSize];
  size_t needed = 7;
  const auto call = [&](const size_t* starts, size_t count, size_t capacity, size_t* size) {
    return headrace_embedder_embed_tokens(handle, tokens, nullptr, starts, count, rows, capacity, size, nullptr);
  };
  CHECK(call(falling, 2, kEncoderSize, &needed) == HEADRACE_INVALID_ARGUMENT);
  CHECK(call(late, 1, kEncoderSize, &needed) == HEADRACE_INVALID_ARGUMENT);
  CHECK(call(nullptr, 1, kEncoderSize, &needed) == HEADRACE_INVALID_ARGUMENT);
  CHECK(call(good, 1, kEncoderSize, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(call(good, std::numeric_limits<size_t>::max(), kEncoderSize, &needed) == HEADRACE_INVALID_ARGUMENT);
  CHECK(needed == 7);
  CHECK(call(good, 1, kEncoderSize - 1, &needed) == HEADRACE_BUFFER_TOO_SMALL);
  CHECK(needed == kEncoderSize);
  CHECK(call(good, 1, kEncoderSize, &needed) == HEADRACE_OK);
  CHECK(headrace_embedder_embed_tokens(nullptr, tokens, nullptr, good, 1, rows, kEncoderSize, &needed, nullptr) ==
        HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_embedder_create(nullptr, nullptr, nullptr, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_embedder_get_row_size(nullptr) == 0);
  CHECK(headrace_embedder_get_pools(nullptr) == 0);
  headrace_embedder_destroy(nullptr);
}

TEST_CASE("what an encoder cannot do is refused where it is asked for") {
  for (const char* architecture : {"BertModel", "BertForMaskedLM", "BertForSequenceClassification"}) {
    const Model model = TinyEncoder(architecture).load();
    const Failure failures[] = {failure_of([&] { headrace::Scheduler scheduler(model); }),
                                failure_of([&] { headrace::Session session(model); }),
                                failure_of([&] { headrace::KVCache cache(model); })};
    for (const Failure& failure : failures) {
      INFO(failure.message);
      CHECK(failure.code == HEADRACE_UNSUPPORTED);
      CHECK(failure.place == "model");
      CHECK(failure.message.find("bert") != std::string::npos);
    }
  }
}

TEST_CASE("a folder of sentence-transformers names its pooling") {
  const TinyEncoder tiny("BertModel");
  const TemporaryFolder folder;
  tiny.write(folder);
  write_file(folder / "modules.json", R"([{"path":"","type":"sentence_transformers.models.Transformer"},)"
                                      R"({"path":"1_Pooling","type":"sentence_transformers.models.Pooling"}])");
  std::filesystem::create_directory(folder / "1_Pooling");
  write_file(folder / "1_Pooling/config.json", R"({"pooling_mode_mean_tokens":true})");
  const Sequences sequences = some_sequences();
  const Model model = Model::load(folder.path());
  CHECK(Embedder(model).embed(sequences) == Embedder(model, with("mean")).embed(sequences));
  CHECK(model.describe().find(R"("pooling":"mean")") != std::string::npos);
  write_file(folder / "1_Pooling/config.json", R"({"pooling_mode_max_tokens":true})");
  const Model other = Model::load(folder.path());
  const Failure failure = failure_of([&] { const Embedder embedder(other); });
  CHECK(failure.code == HEADRACE_UNSUPPORTED);
  CHECK(failure.place.find("1_Pooling") != std::string::npos);
  CHECK(Embedder(other, with("cls")).row_size() == kEncoderSize);
}

// The handles may go in any order, and a model may go while its embedder stays.
TEST_CASE("an embedder keeps its model") {
  headrace_model* model = nullptr;
  headrace_embedder* embedder = nullptr;
  const TemporaryFolder folder;
  TinyEncoder("BertModel").write(folder);
  const std::string path = folder.path();
  REQUIRE(headrace_model_load(path.data(), path.size(), nullptr, nullptr, nullptr, &model, nullptr) == HEADRACE_OK);
  REQUIRE(headrace_embedder_create(model, with("mean").get(), &embedder, nullptr) == HEADRACE_OK);
  headrace_model_destroy(model);
  const char* const texts[] = {"abc"};
  const size_t sizes[] = {3};
  float rows[kEncoderSize];
  size_t needed = 0;
  CHECK(headrace_embedder_embed_texts(embedder, texts, sizes, 1, HEADRACE_ADD_SPECIAL, rows, kEncoderSize, &needed,
                                      nullptr) == HEADRACE_OK);
  headrace_embedder_destroy(embedder);
}
