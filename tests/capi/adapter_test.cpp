// Low-rank adapters through the C ABI: the base with the product merged in is the oracle (PEFT's formula, W + s B A); who
// shares a batch changes no bit; cached values are the content's; what is not built is refused by name.
#include <algorithm>
#include <functional>
#include <limits>

#include "capi/adapter_files.h"

namespace {

using namespace capi_test;
using headrace::Adapter;
using headrace::KVCache;
using headrace::Model;
using headrace::Options;
using headrace::Request;
using headrace::Scheduler;
using headrace::Session;

constexpr size_t kVocabSize = 96;

Options exact_cache() {
  Options options;
  options.set("kv.dtype", "f32").set("engine.threads", "2");
  return options;
}

std::vector<int32_t> prompt(int32_t first, size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(3 + (static_cast<size_t>(first) + 11 * i) % 90));
  return tokens;
}

std::vector<float> evaluate(Session& session, const std::vector<int32_t>& tokens, size_t vocab_size = kVocabSize) {
  std::vector<float> logits(tokens.size() * vocab_size);
  session.evaluate(tokens.data(), tokens.size(), logits.data(), logits.size());
  return logits;
}

std::vector<float> logits_of(const Model& model, const std::vector<int32_t>& tokens, const Adapter* adapter = nullptr) {
  Session session(model, exact_cache());
  session.set_adapter(adapter);
  return evaluate(session, tokens, static_cast<size_t>(model.info().vocab_size));
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!std::isnan(worst) && !(difference <= worst)) worst = difference;
  }
  return worst;
}

Request request_of(const Model& model, const std::vector<int32_t>& tokens, const Adapter* adapter, int64_t length = 6) {
  headrace::Sampling sampling;
  sampling.num_logprobs = static_cast<int32_t>(kVocabSize);
  Request request(model);
  request.add_tokens(tokens).set_sampling(sampling).set_length(0, length).set_ignore_eos(true);
  if (adapter != nullptr) request.set_adapter(*adapter);
  return request;
}

bool same(const Output& a, const Output& b) {
  return a.tokens == b.tokens && a.logprobs == b.logprobs && a.top == b.top;
}

const Model& base() {
  static const Model model = Model::load(golden_folder("qwen3"), exact_cache());
  return model;
}

Adapter load_adapter(const AdapterFiles& files, const Model& model = base()) {
  const TemporaryFolder folder;
  files.write(folder / "adapter");
  return Adapter::load(model, folder / "adapter");
}

}  // namespace

TEST_CASE("a model with an adapter computes what the merged weights compute") {
  struct Case {
    std::string name;
    std::function<void(nlohmann::json&)> change;
    std::map<std::string, size_t> ranks;
    std::function<double(const std::string&, size_t)> scale;
  };
  const std::vector<Case> cases = {
      {"alpha",
       [](nlohmann::json&) {},
       {},
       [](const std::string&, size_t rank) { return 6.0 / static_cast<double>(rank); }},
      {"rank-stabilised",
       [](nlohmann::json& config) { config["use_rslora"] = true; },
       {},
       [](const std::string&, size_t rank) { return 6.0 / std::sqrt(static_cast<double>(rank)); }},
      {"patterns",
       [](nlohmann::json& config) {
         config["rank_pattern"] = {{"v_proj", 3}, {"^model.layers.*.mlp.down_proj", 19}};
         config["alpha_pattern"] = {{"model.layers.1.self_attn.q_proj", 11}, {"(up|gate)_proj", 2.5}};
       },
       {{"v_proj", 3}, {"down_proj", 19}},
       [](const std::string& module, size_t rank) {
         double alpha = 6;
         if (module == "model.layers.1.self_attn.q_proj") alpha = 11;
         if (module.ends_with("up_proj") || module.ends_with("gate_proj")) alpha = 2.5;
         return alpha / static_cast<double>(rank);
       }}};
  for (const std::string name : {"llama", "qwen2", "qwen3", "gemma3"}) {
    const Model model = Model::load(golden_folder(name), exact_cache());
    const std::vector<int32_t> tokens = prompt(5, 40);
    const std::vector<float> plain = logits_of(model, tokens);
    for (const Case& given : cases) {
      INFO(name << ", " << given.name);
      AdapterFiles files(name, 7, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
                         given.ranks);
      given.change(files.config);
      const TemporaryFolder folder;
      write_merged(name, files, given.scale, folder / "merged");
      const Adapter adapter = load_adapter(files, model);
      const std::vector<float> merged = logits_of(Model::load(folder / "merged", exact_cache()), tokens);
      const std::vector<float> adapted = logits_of(model, tokens, &adapter);
      CHECK(largest_difference(adapted, merged) <= 1e-4);
      CHECK(largest_difference(adapted, plain) > 0.1);
      CHECK(logits_of(model, tokens) == plain);
    }
  }
}

TEST_CASE("an adapter of some modules leaves the others alone") {
  for (const std::vector<std::string>& ends : std::vector<std::vector<std::string>>{
           {"q_proj"}, {"up_proj"}, {"gate_proj"}, {"down_proj"}, {"k_proj", "o_proj"}}) {
    const AdapterFiles files("qwen3", 3, ends);
    const TemporaryFolder folder;
    write_merged(
        "qwen3", files, [](const std::string&, size_t rank) { return 6.0 / static_cast<double>(rank); },
        folder / "merged");
    const Adapter adapter = load_adapter(files);
    const std::vector<int32_t> tokens = prompt(9, 20);
    const std::vector<float> merged = logits_of(Model::load(folder / "merged", exact_cache()), tokens);
    CHECK(largest_difference(logits_of(base(), tokens, &adapter), merged) <= 1e-4);
  }
}

// Tensors of the base that hold several matrices, or lie beside others: latents, gates of q, shared experts, parallel blocks.
TEST_CASE("adapters of tensors that hold several matrices") {
  const std::string models = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";
  if (!std::filesystem::exists(models + "phi3/config.json")) {
    std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
    return;
  }
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"phi3", {"qkv_proj", "gate_up_proj", "o_proj", "down_proj"}},
      {"deepseek_v3", {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "shared_experts.up_proj"}},
      {"qwen3_next", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "shared_expert.gate_proj"}},
      {"gpt_neox", {"query_key_value", "attention.dense", "dense_h_to_4h", "dense_4h_to_h"}},
      {"falcon_h1", {"self_attn.q_proj", "self_attn.v_proj", "feed_forward.gate_proj", "feed_forward.down_proj"}},
      {"falcon_h1", {"mamba.in_proj", "mamba.out_proj"}},
      {"lfm2", {"conv.in_proj", "conv.out_proj"}},
      {"mamba", {"in_proj", "x_proj", "dt_proj", "out_proj"}},
      {"mamba2", {"in_proj", "out_proj"}},
      {"qwen3_5_text", {"in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "linear_attn.out_proj"}},
      {"qwen3_next", {"in_proj_qkvz", "in_proj_ba", "linear_attn.out_proj", "shared_expert_gate"}},
      {"kimi_linear", {"self_attn.q_proj", "f_a_proj", "f_b_proj", "b_proj", "g_a_proj", "g_b_proj"}},
      {"minimax", {"qkv_proj", "output_gate", "self_attn.out_proj"}},
      {"olmo_hybrid", {"linear_attn.a_proj", "linear_attn.g_proj", "linear_attn.k_proj", "linear_attn.o_proj"}},
      {"deepseek_v32", {"q_b_proj", "kv_a_proj_with_mqa", "indexer.wq_b", "indexer.wk", "indexer.weights_proj"}},
      {"gemma4_moe_text", {"mlp.gate_proj", "mlp.down_proj"}},
      {"cohere", {"q_proj", "v_proj", "up_proj", "down_proj"}},
      {"gemma2", {"q_proj", "o_proj", "gate_proj", "down_proj"}}};
  for (const auto& [name, ends] : cases) {
    INFO(name);
    const AdapterFiles files(models + name, 11, ends);
    REQUIRE_FALSE(files.tensors.empty());
    const TemporaryFolder folder;
    write_merged(
        models + name, files, [](const std::string&, size_t rank) { return 6.0 / static_cast<double>(rank); },
        folder / "merged");
    const Model model = Model::load(models + name, exact_cache());
    const Adapter adapter = load_adapter(files, model);
    const std::vector<int32_t> tokens = prompt(9, 30);
    const std::vector<float> merged = logits_of(Model::load(folder / "merged", exact_cache()), tokens);
    const std::vector<float> adapted = logits_of(model, tokens, &adapter);
    CHECK(largest_difference(adapted, merged) <= 3e-4);
    CHECK(largest_difference(adapted, logits_of(model, tokens)) > 0.05);
  }
  const Model experts = Model::load(models + "deepseek_v3", exact_cache());
  for (const char* end : {"mlp.gate", "kv_b_proj"}) {
    const AdapterFiles files(models + "deepseek_v3", 12, {end});
    const Failure failure = failure_of([&] { load_adapter(files, experts); });
    CHECK(failure.code == HEADRACE_UNSUPPORTED);
    CHECK(failure.place.find(end) != std::string::npos);
  }
}

TEST_CASE("adapters of experts") {
  const std::string models = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";
  if (!std::filesystem::exists(models + "qwen3_moe/config.json")) {
    std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
    return;
  }
  const auto scale = [](const std::string&, size_t rank) { return 6.0 / static_cast<double>(rank); };
  const auto all_experts = [](const std::vector<std::string>& parts) {
    std::vector<std::string> ends;
    for (int e = 0; e < 8; ++e) {
      for (const std::string& part : parts) ends.push_back("experts." + std::to_string(e) + "." + part);
    }
    return ends;
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"qwen3_moe", all_experts({"gate_proj", "up_proj", "down_proj"})},
      {"mixtral", all_experts({"w1", "w2", "w3"})},
      {"deepseek_v3", all_experts({"down_proj"})},            // shared experts beside them
      {"nemotron_h", all_experts({"up_proj", "down_proj"})},  // not gated
      {"qwen3_moe", {"experts.3.gate_proj", "experts.5.down_proj"}}};
  const std::vector<int32_t> tokens = prompt(9, 30);
  for (const auto& [name, ends] : cases) {
    INFO(name);
    const AdapterFiles files(models + name, 13, ends);
    REQUIRE_FALSE(files.tensors.empty());
    const TemporaryFolder folder;
    write_merged(models + name, files, scale, folder / "merged");
    const Model model = Model::load(models + name, exact_cache());
    const Adapter adapter = load_adapter(files, model);
    const std::vector<float> merged = logits_of(Model::load(folder / "merged", exact_cache()), tokens);
    const std::vector<float> plain = logits_of(model, tokens), adapted = logits_of(model, tokens, &adapter);
    CHECK(largest_difference(adapted, merged) <= 3e-4);
    CHECK(largest_difference(adapted, plain) > 0.01);

    // Alone, in pieces and beside a request without it, the bits are the same.
    const size_t vocab_size = plain.size() / tokens.size(), cut = 7;
    Session session(model, exact_cache());
    session.set_adapter(&adapter);
    std::vector<float> pieces = evaluate(session, {tokens.begin(), tokens.begin() + cut}, vocab_size);
    const std::vector<float> rest = evaluate(session, {tokens.begin() + cut, tokens.end()}, vocab_size);
    pieces.insert(pieces.end(), rest.begin(), rest.end());
    CHECK(pieces == adapted);
    const auto request = [&](const Adapter* chosen) { return request_of(model, tokens, chosen); };
    Scheduler alone(model, exact_cache()), also_alone(model, exact_cache()), together(model, exact_cache());
    const uint64_t ids[] = {together.submit(request(nullptr)), together.submit(request(&adapter)),
                            together.submit(request(nullptr))};
    auto outputs = finish_all(together);
    CHECK(same(outputs.at({ids[1], 0}), generate(alone, request(&adapter))));
    const Output without = generate(also_alone, request(nullptr));
    CHECK((same(outputs.at({ids[0], 0}), without) && same(outputs.at({ids[2], 0}), without)));
  }
}

TEST_CASE("adapters in GGUF add to models in GGUF what PEFT's add to the same model in its form") {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"model.layers.", "blk."},           {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},      {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},           {"mlp.down_proj", "ffn_down"},       {".lora_A.weight", ".weight.lora_a"},
      {".lora_B.weight", ".weight.lora_b"}};
  const auto keys_of = [](const std::string& architecture) {
    return std::map<std::string, std::string>{{"general.type", "adapter"},
                                              {"general.architecture", architecture},
                                              {"adapter.type", "lora"},
                                              {"adapter.lora.task_name", "a test"}};
  };
  const std::vector<int32_t> tokens = prompt(5, 40);
  const TemporaryFolder folder;
  for (const std::string name : {"llama", "qwen3"}) {
    INFO(name);
    const AdapterFiles files(name, 21);
    std::map<std::string, size_t> heads;
    if (name == "llama") {
      const nlohmann::json config = nlohmann::json::parse(read_file(golden_folder(name) + "/config.json"));
      heads = {{"attn_q", config["num_attention_heads"]}, {"attn_k", config["num_key_value_heads"]}};
    }
    write_file(folder / "adapter.gguf", gguf_adapter(files, keys_of(name), 6.0f, names, heads));
    const Model gguf = Model::load(golden_path(name), exact_cache());
    const Model model = Model::load(golden_folder(name), exact_cache());
    const Adapter adapter = Adapter::load(gguf, folder / "adapter.gguf"), same_in_peft = load_adapter(files, model);
    const std::vector<float> adapted = logits_of(gguf, tokens, &adapter);
    CHECK(largest_difference(adapted, logits_of(model, tokens, &same_in_peft)) <= 1e-4);
    CHECK(largest_difference(adapted, logits_of(gguf, tokens)) > 0.1);
  }

  const Model model = Model::load(golden_path("qwen3"), exact_cache());
  const AdapterFiles files("qwen3", 22, {"q_proj"});
  const auto refused = [&](const std::map<std::string, std::string>& keys, float alpha,
                           const std::vector<std::pair<std::string, std::string>>& renames) {
    write_file(folder / "bad.gguf", gguf_adapter(files, keys, alpha, renames));
    return failure_of([&] { Adapter::load(model, folder / "bad.gguf"); });
  };
  CHECK(refused(keys_of("qwen3"), 0.0f, names).code == HEADRACE_OK);  // an alpha of 0 means a factor of 1
  for (const auto& [key, value] : std::map<std::string, std::string>{{"general.type", "model"},
                                                                     {"adapter.type", "loha"},
                                                                     {"general.architecture", "llama"},
                                                                     {"adapter.alora.invocation_tokens", "x"}}) {
    auto keys = keys_of("qwen3");
    keys[key] = value;
    const Failure failure = refused(keys, 1.0f, names);
    INFO(key << ": " << failure.place << ": " << failure.message);
    CHECK((failure.code == HEADRACE_UNSUPPORTED && failure.place.find(key) != std::string::npos));
  }
  CHECK(refused(keys_of("qwen3"), std::numeric_limits<float>::infinity(), names).place.find("adapter.lora.alpha") !=
        std::string::npos);
  auto elsewhere = names;
  elsewhere[1].second = "attn_unknown";
  const Failure unknown = refused(keys_of("qwen3"), 1.0f, elsewhere);
  CHECK(
      (unknown.code == HEADRACE_UNSUPPORTED && unknown.place.find("attn_unknown.weight.lora_a") != std::string::npos));
  elsewhere = names;
  elsewhere.back().second = ".weight.lora_c";
  CHECK(refused(keys_of("qwen3"), 1.0f, elsewhere).place.find("lora_") != std::string::npos);
  elsewhere = names;
  elsewhere[1].second = "attn_k";
  CHECK(refused(keys_of("qwen3"), 1.0f, elsewhere).code == HEADRACE_MALFORMED);
  CHECK(failure_of([&] { Adapter::load(base(), folder / "adapter.gguf"); }).code == HEADRACE_UNSUPPORTED);

  const std::string data = std::string(HEADRACE_TEST_DATA) + "/goldens/";
  if (!std::filesystem::exists(data + "gguf/mixtral.gguf")) {
    std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
    return;
  }
  const AdapterFiles experts(data + "models/mixtral", 23, {"w1", "w2", "w3"});
  auto stacks = names;
  for (const auto& [from, to] : std::map<std::string, std::string>{
           {"w1.", "ffn_gate_exps."}, {"w2.", "ffn_down_exps."}, {"w3.", "ffn_up_exps."}}) {
    stacks.emplace_back(from, to);
  }
  write_file(folder / "experts.gguf", gguf_adapter(experts, keys_of("llama"), 6.0f, stacks));
  const Model stacked = Model::load(data + "gguf/mixtral.gguf", exact_cache());
  const Model apart = Model::load(data + "models/mixtral", exact_cache());
  const Adapter adapter = Adapter::load(stacked, folder / "experts.gguf"), in_peft = load_adapter(experts, apart);
  const std::vector<float> adapted = logits_of(stacked, tokens, &adapter);
  CHECK(largest_difference(adapted, logits_of(apart, tokens, &in_peft)) <= 3e-4);
  CHECK(largest_difference(adapted, logits_of(stacked, tokens)) > 0.05);
}

TEST_CASE("requests with and without adapters share steps and keep their bits") {
  const Adapter first = load_adapter(AdapterFiles("qwen3", 1));
  AdapterFiles of_two_ranks("qwen3", 2, {"q_proj", "down_proj"}, {{"q_proj", 17}});
  of_two_ranks.config["rank_pattern"]["q_proj"] = 17;
  const Adapter second = load_adapter(of_two_ranks);
  for (const char* rows : {"512", "13"}) {
    Options options = exact_cache();
    options.set("scheduler.max_num_batched_tokens", rows).set("kv.prefix_index", "false");
    const std::vector<const Adapter*> adapters = {nullptr, &first, &second, nullptr, &first};
    std::vector<Output> alone;
    for (size_t i = 0; i < adapters.size(); ++i) {
      Scheduler scheduler(base(), exact_cache());
      alone.push_back(generate(scheduler, request_of(base(), prompt(static_cast<int32_t>(i), 23 + i), adapters[i])));
    }
    CHECK_FALSE(same(alone[1], alone[4]));
    Scheduler shared(base(), options);
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < adapters.size(); ++i) {
      ids.push_back(shared.submit(request_of(base(), prompt(static_cast<int32_t>(i), 23 + i), adapters[i])));
    }
    auto outputs = finish_all(shared);
    for (size_t i = 0; i < adapters.size(); ++i) {
      INFO("request " << i << ", " << rows << " rows a step");
      CHECK(same(outputs.at({ids[i], 0}), alone[i]));
    }
  }
}

TEST_CASE("cached prefixes belong to an adapter's content") {
  AdapterFiles files("qwen3", 4);
  const Adapter adapter = load_adapter(files), again = load_adapter(files);
  files.tensors.begin()->second.values[0] += 0.25f;
  const Adapter other = load_adapter(files);
  files.tensors.begin()->second.values[0] -= 0.25f;
  files.config["lora_alpha"] = 7;
  const Adapter scaled = load_adapter(files);
  CHECK(adapter.describe() == again.describe());
  CHECK(adapter.describe() != other.describe());
  CHECK(adapter.describe() != scaled.describe());

  const KVCache cache(base(), exact_cache());
  Scheduler scheduler(base(), cache);
  const std::vector<int32_t> tokens = prompt(1, 50);
  const auto cached = [&](const Adapter* chosen, std::string_view salt = {}) {
    Request request = request_of(base(), tokens, chosen);
    if (!salt.empty()) request.set_cache_salt(salt);
    return generate(scheduler, request).usage.cached_tokens;
  };
  CHECK(cached(nullptr) == 0);
  CHECK(cached(nullptr) == 48);
  for (const Adapter* chosen : {&adapter, &other, &scaled}) CHECK(cached(chosen) == 0);
  CHECK(cached(&again) == 48);
  CHECK(cached(&adapter, "tenant") == 0);
  CHECK(cached(&again, "tenant") == 48);
  // A salt that looks like the key of an adapter's values is not one.
  const nlohmann::json about = nlohmann::json::parse(adapter.describe());
  CHECK(cached(nullptr, std::string(1, '\0') + about["identity"].get<std::string>() + std::string(1, '\0')) == 0);
  Scheduler fresh(base(), exact_cache());
  CHECK(same(generate(scheduler, request_of(base(), tokens, &again)),
             generate(fresh, request_of(base(), tokens, &adapter))));
}

TEST_CASE("adapters come and go while requests run") {
  Scheduler alone(base(), exact_cache());
  const AdapterFiles files("qwen3", 5), others("qwen3", 6);
  const std::vector<int32_t> tokens = prompt(2, 30);
  const Output expected = [&] {
    const Adapter adapter = load_adapter(files);
    return generate(alone, request_of(base(), tokens, &adapter, 20));
  }();
  Scheduler scheduler(base(), exact_cache());
  uint64_t id = 0;
  {
    const Adapter adapter = load_adapter(files);
    id = scheduler.submit(request_of(base(), tokens, &adapter, 20));
  }  // the request holds it
  for (int i = 0; i < 3; ++i) scheduler.step();
  const Adapter swapped = load_adapter(others);
  const uint64_t next = scheduler.submit(request_of(base(), tokens, &swapped, 20));
  auto outputs = finish_all(scheduler);
  CHECK(outputs.at({id, 0}).tokens == expected.tokens);
  CHECK(outputs.at({id, 0}).logprobs == expected.logprobs);
  CHECK(same(outputs.at({next, 0}), generate(alone, request_of(base(), tokens, &swapped, 20))));
}

TEST_CASE("a session computes with its adapter") {
  const Adapter adapter = load_adapter(AdapterFiles("qwen3", 8));
  const std::vector<int32_t> past = prompt(3, 25), next = prompt(60, 4);
  const KVCache cache(base(), exact_cache());
  Session session(base(), cache);
  evaluate(session, past);
  session.set_adapter(&adapter);
  CHECK(session.tokens() == past);
  const std::vector<float> adapted = evaluate(session, next);
  std::vector<int32_t> all = past;
  all.insert(all.end(), next.begin(), next.end());
  const std::vector<float> whole = logits_of(base(), all, &adapter);
  CHECK(adapted == std::vector<float>(whole.end() - static_cast<ptrdiff_t>(adapted.size()), whole.end()));
  Session forked = session.fork();
  forked.rewind(past.size());
  CHECK(evaluate(forked, next) == adapted);

  Scheduler scheduler(base(), cache);
  Request request(base());
  request.set_session(session).set_length(0, 5).set_ignore_eos(true);
  const Output output = generate(scheduler, request);
  Scheduler alone(base(), exact_cache());
  CHECK(output.tokens == generate(alone, request_of(base(), all, &adapter, 5)).tokens);
  CHECK(output.usage.cached_tokens > 0);

  Request twice(base());
  twice.set_session(session).set_adapter(adapter).set_length(0, 1);
  CHECK(failure_of([&] { scheduler.submit(twice); }).place == "adapter");
  const TemporaryFolder folder;
  const Failure saved = failure_of([&] { session.save(folder / "session"); });
  CHECK(saved.code == HEADRACE_UNSUPPORTED);
  CHECK(saved.place == "adapter");
  session.set_adapter(nullptr);
  session.rewind(past.size());
  std::vector<float> plain = logits_of(base(), all);
  CHECK(evaluate(session, next) ==
        std::vector<float>(plain.end() - static_cast<ptrdiff_t>(adapted.size()), plain.end()));
  session.save(folder / "session");
}

TEST_CASE("what is no low-rank adapter of the model is refused by name") {
  const auto refused = [](const std::function<void(AdapterFiles&)>& change) {
    AdapterFiles files("qwen3", 9);
    change(files);
    return failure_of([&] { load_adapter(files); });
  };
  const auto refused_key = [&](const std::string& key, const nlohmann::json& value) {
    const Failure failure = refused([&](AdapterFiles& files) { files.config[key] = value; });
    INFO(key << ": " << failure.place << ": " << failure.message);
    CHECK(failure.place.find("/" + key) != std::string::npos);
    return failure.code;
  };
  CHECK(refused_key("peft_type", "LOHA") == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("use_dora", true) == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("bias", "lora_only") == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("lora_bias", true) == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("modules_to_save", {"lm_head"}) == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("fan_in_fan_out", true) == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("layer_replication", {{0, 1}}) == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("init_lora_weights", "pissa") == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("a_new_key", 3) == HEADRACE_UNSUPPORTED);
  CHECK(refused_key("r", 0) == HEADRACE_MALFORMED);
  CHECK(refused_key("rank_pattern", 3) == HEADRACE_MALFORMED);
  CHECK(refused_key("rank_pattern", {{"q_proj", 1.5}}) == HEADRACE_MALFORMED);
  CHECK(refused_key("alpha_pattern", {{"(q_proj", 2}}) == HEADRACE_UNSUPPORTED);
  CHECK(refused([](AdapterFiles& files) { files.config["init_lora_weights"] = "gaussian"; }).code == HEADRACE_OK);

  const auto refused_tensor = [&](const std::string& tensor, const std::function<void(FloatTensors&)>& change) {
    const Failure failure = refused([&](AdapterFiles& files) { change(files.tensors); });
    INFO(tensor << ": " << failure.place << ": " << failure.message);
    CHECK(failure.place.find(tensor) != std::string::npos);
    return failure.code;
  };
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  CHECK(refused_tensor(q + ".lora_B.weight", [&](FloatTensors& all) { all.erase(q + ".lora_B.weight"); }) ==
        HEADRACE_NOT_FOUND);
  CHECK(refused_tensor(q + ".lora_A.weight", [&](FloatTensors& all) {
          all[q + ".lora_A.weight"].shape = {2, 64};
        }) == HEADRACE_MALFORMED);
  CHECK(refused_tensor(q + ".lora_B.weight", [&](FloatTensors& all) {
          all[q + ".lora_B.weight"].values[3] = std::numeric_limits<float>::quiet_NaN();
        }) == HEADRACE_MALFORMED);
  const auto renamed = [&](const std::string& module) {
    return [&, module](FloatTensors& all) {
      for (const std::string part : {".lora_A.weight", ".lora_B.weight"}) {
        all[module + part] = all[q + part];
        all.erase(q + part);
      }
    };
  };
  for (const std::string module : {"base_model.model.model.layers.7.self_attn.q_proj", "base_model.model.lm_head",
                                   "model.layers.0.self_attn.q_proj", "base_model.model.model.embed_tokens"}) {
    CHECK(refused_tensor(module, renamed(module)) == HEADRACE_UNSUPPORTED);
  }
  CHECK(refused_tensor("lora_magnitude_vector", [&](FloatTensors& all) {
          all[q + ".lora_magnitude_vector"] = all[q + ".lora_B.weight"];
        }) == HEADRACE_UNSUPPORTED);

  const TemporaryFolder folder;
  CHECK(failure_of([&] { Adapter::load(base(), folder.path()); }).code == HEADRACE_NOT_FOUND);
  AdapterFiles("qwen3", 9).write(folder / "adapter");
  const Model gguf = Model::load(golden_folder("qwen3") + "/model.gguf", exact_cache());
  CHECK(failure_of([&] { Adapter::load(gguf, folder / "adapter"); }).code == HEADRACE_UNSUPPORTED);
  const Adapter adapter = Adapter::load(base(), folder / "adapter");
  Request elsewhere(gguf);
  CHECK(failure_of([&] { elsewhere.set_adapter(adapter); }).place == "adapter");
}
