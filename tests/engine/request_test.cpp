// Fields of a request, options, and the text that events carry.
#include <catch2/catch.hpp>

#include <limits>

#include "engine/toy_engine.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

namespace {

std::vector<int32_t> ids_of(const std::vector<std::string>& pieces) {
  std::vector<int32_t> out;
  for (const auto& piece : pieces) out.push_back(id_of(piece));
  return out;
}

// The output that `pieces`, drawn one after the other, give.
Outcome scripted_run(const std::vector<std::string>& pieces, RequestParams params) {
  params.prompt = ids_of({"a", "b"});
  Toy toy(scripted(2, ids_of(pieces)), 1 << 20, true);
  return run_one(*toy.scheduler(), params);
}

}  // namespace

TEST_CASE("each field out of range is refused by its name") {
  const auto place = [](auto change) {
    RequestParams params = request({1, 2}, 5);
    change(params);
    const Status status = params.validate(kVocabSize);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    return status.place();
  };
  REQUIRE(request({1, 2}, 5).validate(kVocabSize).ok());
  CHECK(place([](auto& p) { p.prompt = {1, -1}; }) == "prompt[1]");
  CHECK(place([](auto& p) { p.n = 0; }) == "n");
  CHECK(place([](auto& p) { p.n = 129; }) == "n");
  CHECK(place([](auto& p) { p.num_logprobs = 129; }) == "num_logprobs");
  CHECK(place([](auto& p) { p.num_logprobs = -2; }) == "num_logprobs");
  CHECK(place([](auto& p) { p.num_prompt_logprobs = 129; }) == "num_prompt_logprobs");
  CHECK(place([](auto& p) { p.stop_strings = {"a", ""}; }) == "stop_strings[1]");
  CHECK(place([](auto& p) { p.stop_strings = {"\xff"}; }) == "stop_strings[0]");
  CHECK(place([](auto& p) { p.stop_tokens = {kVocabSize}; }) == "stop_tokens[0]");
  CHECK(place([](auto& p) { p.min_tokens = -1; }) == "min_tokens");
  CHECK(place([](auto& p) { p.min_tokens = 6; }) == "min_tokens");
  CHECK(place([](auto& p) { p.max_tokens = -1; }) == "max_tokens");
  CHECK(place([](auto& p) { p.deadline_ms = -1; }) == "deadline_ms");
  CHECK(place([](auto& p) { p.sampling.temperature = -1.0f; }) == "temperature");
  CHECK(place([](auto& p) { p.sampling.top_p = 0.0f; }) == "top_p");
  CHECK(place([](auto& p) { p.sampling.logit_bias = {{kVocabSize, 1.0f}}; }).find("logit_bias") == 0);
}

TEST_CASE("options are read by the table, and errors name the key") {
  for (const OptionInfo& info : option_table()) {
    INFO(info.key);
    EngineOptions options;
    CHECK(options.set(info.key, info.default_value).ok());
    for (const char* wrong : {"", "x", "-1", "1e3", " 1", "true ", "99999999999999999999"}) {
      if (info.default_value == wrong) continue;  // an empty list
      if (std::string_view(wrong) == "-1" && info.range.front() == '-') continue;
      if (info.type == "text" && *wrong != '\0') continue;  // a path may be anything
      const Status status = options.set(info.key, wrong);
      INFO(wrong);
      CHECK(status.code() == StatusCode::kInvalidArgument);
      CHECK(status.place() == info.key);
    }
  }
  EngineOptions options;
  CHECK(options.set("engine.threads", "4").ok());
  CHECK(options.threads == 4);
  CHECK(options.set("model.activations", "int16").ok());
  CHECK(options.activations == ActivationType::kInt16);
  CHECK(options.set("kv.dtype", "q8").ok());
  CHECK(options.kv_dtype == KvDType::kQ8);
  CHECK(options.set("kv.max_tokens", "8192").ok());
  CHECK(options.kv_max_tokens == 8192);
  CHECK_FALSE(options.set("kv.block_size", "24").ok());
  CHECK(options.set("kv.block_size", "64").ok());
  CHECK(options.set("kv.prefix_index", "false").ok());
  CHECK_FALSE(options.kv_prefix_index);
  CHECK(options.set("scheduler.max_num_seqs", "3").ok());
  CHECK(options.max_num_seqs == 3);
  const Status unknown = options.set("engine.thread", "1");
  CHECK(unknown.code() == StatusCode::kInvalidArgument);
  CHECK(unknown.place() == "engine.thread");
  CHECK(unknown.message().find("engine.threads") != std::string::npos);
  CHECK_FALSE(options.set("", "1").ok());
}

TEST_CASE("defaults of the table are the defaults of the struct") {
  EngineOptions fresh, set;
  for (const OptionInfo& info : option_table()) REQUIRE(set.set(info.key, info.default_value).ok());
  CHECK(set.threads == fresh.threads);
  CHECK(set.isa == fresh.isa);
  CHECK(set.activations == fresh.activations);
  CHECK(set.exact == fresh.exact);
  CHECK(set.use_mmap == fresh.use_mmap);
  CHECK(set.kv_dtype == fresh.kv_dtype);
  CHECK(set.kv_max_tokens == fresh.kv_max_tokens);
  CHECK(set.kv_block_size == fresh.kv_block_size);
  CHECK(set.kv_prefix_index == fresh.kv_prefix_index);
  CHECK(set.max_num_seqs == fresh.max_num_seqs);
  CHECK(set.max_num_batched_tokens == fresh.max_num_batched_tokens);
  CHECK(set.max_queue == fresh.max_queue);
  CHECK(set.prefill_chunk == fresh.prefill_chunk);
}

TEST_CASE("text arrives with its tokens, the end token without text") {
  const Outcome result = scripted_run({"a", "HI", "c"}, {});
  CHECK(result.only().text == "aHIc");
  CHECK(result.only().tokens.size() == 4);
  CHECK(result.only().reason == FinishReason::kStop);
  REQUIRE(result.all.size() == 5);  // three of text, one with the end token, the end
  CHECK(result.all[1].text == "HI");
  CHECK(result.all[1].tokens == ids_of({"HI"}));
}

TEST_CASE("a stop string over several tokens is never shown") {
  RequestParams params;
  params.stop_strings = {"DEFGHIJ"};
  const Outcome result = scripted_run({"DEF", "G", "HI", "J", "a"}, params);
  CHECK(result.only().text.empty());
  CHECK(result.only().reason == FinishReason::kStop);
  CHECK(result.only().tokens == ids_of({"DEF", "G", "HI", "J"}));
  for (const Event& event : result.all) CHECK(event.text.empty());
}

TEST_CASE("a stop string inside a token cuts the text there") {
  RequestParams params;
  params.stop_strings = {"DE"};
  params.num_logprobs = 0;
  Outcome result = scripted_run({"a", "DEF", "b"}, params);
  CHECK(result.only().text == "a");
  CHECK(result.only().tokens == ids_of({"a", "DEF"}));
  CHECK(result.only().logprobs.size() == 2);
  CHECK(result.only().reason == FinishReason::kStop);
  params.stop_strings = {"EF"};
  result = scripted_run({"a", "DEF", "b"}, params);
  CHECK(result.only().text == "aD");
}

TEST_CASE("text that was held for a stop string that does not come is given, with its tokens") {
  RequestParams params;
  params.stop_strings = {"DEFGHIJ"};
  Outcome result = scripted_run({"DEF", "G", "a"}, params);
  CHECK(result.only().text == "DEFGa");
  REQUIRE_FALSE(result.all.empty());
  CHECK(result.all[0].text == "DEFGa");
  CHECK(result.all[0].tokens == ids_of({"DEF", "G", "a"}));
  params.max_tokens = 2;  // ends while the text is held
  result = scripted_run({"DEF", "G", "a"}, params);
  CHECK(result.only().text == "DEFG");
  CHECK(result.only().reason == FinishReason::kLength);
}

TEST_CASE("a stop string that a longer one might replace is decided at the end") {
  RequestParams params;
  params.stop_strings = {"DE", "DEFGH"};
  params.max_tokens = 2;
  const Outcome result = scripted_run({"a", "DE", "b"}, params);
  CHECK(result.only().text == "a");
  CHECK(result.only().reason == FinishReason::kStop);
}

TEST_CASE("a stop string before min_tokens does not stop") {
  RequestParams params;
  params.stop_strings = {"G"};
  params.min_tokens = 3;
  const Outcome result = scripted_run({"a", "G", "b", "G", "c"}, params);
  CHECK(result.only().text == "aGb");
  CHECK(result.only().tokens == ids_of({"a", "G", "b", "G"}));
  CHECK(result.only().reason == FinishReason::kStop);
}

TEST_CASE("half a character waits for the other half, or for the end") {
  const std::string first = spellings()[8], second = spellings()[9];
  Outcome result = scripted_run({"a", first, second, "b"}, {});
  CHECK(result.only().text ==
        "a\xF0\x9F\x98\x80"
        "b");
  for (const Event& event : result.all) CHECK(event.text.find("\xEF\xBF\xBD") == std::string::npos);
  result = scripted_run({"a", first}, {});
  CHECK(result.only().text == "a\xEF\xBF\xBD");
}

TEST_CASE("control tokens are left out of the text unless they are asked for") {
  RequestParams params;
  CHECK(scripted_run({"a", "<bot>", "b"}, params).only().text == "ab");
  params.skip_special = false;
  CHECK(scripted_run({"a", "<bot>", "b"}, params).only().text == "a<bot>b");
}

TEST_CASE("a stop token's own text is not shown") {
  RequestParams params;
  params.stop_tokens = ids_of({"HI"});
  const Outcome result = scripted_run({"a", "HI", "b"}, params);
  CHECK(result.only().text == "a");
  CHECK(result.only().tokens == ids_of({"a", "HI"}));
}
