#include "conformance_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "reference_file.h"

namespace cli {

const std::initializer_list<std::string_view> kConformanceSettings = {
    "kv.max_tokens",    "kv.prefix_index",       "kv.snapshot_interval",
    "embedder.pooling", "embedder.normalize",    "embedder.max_num_batched_tokens",
    "engine.threads",   "session.prefill_chunk", "scheduler.max_num_batched_tokens"};

namespace {

using Tokens = std::vector<int32_t>;
using Rows = std::vector<float>;

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2e", value);
  return text;
}

// All that a request gives.
struct Output {
  Tokens tokens, top_tokens;
  Rows logprobs, top_logprobs;
  int64_t cached_tokens = 0;

  bool same_bits(const Output& other) const {
    return tokens == other.tokens && top_tokens == other.top_tokens && logprobs == other.logprobs &&
           top_logprobs == other.top_logprobs;
  }
};

class Run {
 public:
  Run(const GoldenFolder& golden, const std::string& model_path, const SettingArguments& settings,
      ConformanceResult& result)
      : golden_(golden), model_path_(model_path), settings_(settings), result_(result) {}

  void all() {
    const auto begin = std::chrono::steady_clock::now();
    attempt("", [&] { check_cases(); });
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  // ---- What is run -------------------------------------------------------------------------------------------------

  headrace::Options options() const {
    headrace::Options options = settings_.options(kConformanceSettings);
    if (settings_.kv_dtype.empty()) options.set("kv.dtype", "f32");
    return options;
  }

  headrace::Model load(int threads) const {
    headrace::Options options = this->options();
    if (threads > 0) options.set("engine.threads", std::to_string(threads));
    return headrace::Model::load(model_path_, options);
  }

  void check_cases() {
    model_.emplace(load(settings_.threads));
    const auto about = nlohmann::json::parse(model_->describe());
    if (about.contains("encoder")) start_token_ = about["encoder"]["start_token_id"].get<int32_t>();
    std::string longest;
    for (const std::string& name : golden_.cases()) {
      if (!takes_inputs_of(name)) continue;
      result_.cases.push_back({name, golden_.ids(name + ".input_ids").size(), {}, 0, 0});
      const bool computed = attempt(name, [&] { check_case(result_.cases.back()); });
      if (computed && !has_image(name) && !start_token_) longest = name;
    }
    if (result_.cases.empty() && result_.not_supported.empty()) fail("golden.safetensors holds no input_ids");
    if (!longest.empty()) attempt(longest, [&] { check_threads(longest); });
  }

  void check_case(CaseResult& result) {
    if (has_image(result.name)) return check_image_prompt(result);
    if (start_token_) return check_behind_encoder(result);
    generates(result.name) ? check_decoder(result) : check_encoder(result);
  }

  bool has_image(const std::string& name) const { return golden_.has(name + ".pixel_values"); }
  // Whether the reference went on from the prompt, rather than reading it as a whole.
  bool generates(const std::string& name) const { return golden_.has(name + ".greedy"); }

  // Inputs beside tokens are not the library's to take yet; what is left out is said.
  bool takes_inputs_of(const std::string& name) {
    static const std::set<std::string> known = {"input_ids",      "logits",        "hidden", "layers",
                                                "greedy",         "greedy_margin", "pooler", "logits_bf16_compute",
                                                "mean_embedding", "cls_embedding"};
    // The image, and what the reference makes of it on the way.
    static const std::set<std::string> of_images = {"pixel_values",      "image_grid_thw",     "token_type_ids",
                                                    "mm_token_type_ids", "mrope_position_ids", "image_features"};
    static const std::set<std::string> of_encoders = {"input_features", "decoder_input_ids", "encoder_hidden"};
    std::vector<std::string> parts = golden_.parts(name);
    for (const std::string& part : golden_.parts("")) parts.push_back(part);
    for (const std::string& part : parts) {
      if (known.contains(part)) continue;
      if (has_image(name) && of_images.contains(part)) continue;
      if (start_token_ && of_encoders.contains(part)) continue;
      if (part == "token_type_ids") {
        const Tokens types = golden_.ids(name + "." + part);
        if (std::all_of(types.begin(), types.end(), [](int32_t type) { return type == 0; })) continue;
      }
      result_.not_supported += (result_.not_supported.empty() ? "" : "; ") + name + " needs " + part;
      return false;
    }
    return true;
  }

  // ---- Decoders ----------------------------------------------------------------------------------------------------

  void check_decoder(CaseResult& result) {
    const Tokens ids = golden_.ids(result.name + ".input_ids");
    const Rows whole = evaluate(*model_, ids, ids.size());
    check_logits(result, whole, ids.size());
    if (golden_.has(result.name + ".hidden")) {
      check_rows(result.name + ".hidden", embed(*model_, "none", false, {ids}, ids.size()));
    }
    check_greedy(result, ids);
    check_chunks(result.name, ids, whole);
    check_rewound(result.name, ids);
    check_prefix_index(result.name, ids);
    check_batch(result.name, ids);
  }

  int64_t new_tokens(const Tokens& ids, size_t wanted) const {
    const int64_t room = model_->info().max_position_embeddings - static_cast<int64_t>(ids.size());
    return std::clamp<int64_t>(room, 0, static_cast<int64_t>(wanted));
  }

  // For a cache of this many tokens.
  headrace::Options cache_options(int64_t tokens) const {
    headrace::Options options = this->options();
    options.set("kv.max_tokens", std::to_string(tokens))
        .set("kv.prefix_index", "false")
        .set("kv.snapshot_interval", "32");
    return options;
  }

  int64_t cache_tokens(const std::string& name, const Tokens& ids) const {
    const size_t greedy = golden_.has(name + ".greedy") ? golden_.ids(name + ".greedy").size() : 0;
    return static_cast<int64_t>(ids.size()) + new_tokens(ids, greedy);
  }

  // Logits [tokens, vocab_size], computed in pieces of `chunk` tokens.
  Rows evaluate(const headrace::Model& model, const Tokens& ids, size_t chunk) const {
    headrace::Options options = cache_options(static_cast<int64_t>(ids.size()));
    options.set("session.prefill_chunk", std::to_string(std::min<size_t>(chunk, 65536)));
    headrace::Session session(model, options);
    return evaluate(session, ids, 0);
  }

  // In one call: some models rotate by the length of what is there at its end.
  Rows evaluate(headrace::Session& session, const Tokens& ids, size_t begin) const {
    Rows logits((ids.size() - begin) * static_cast<size_t>(model_->info().vocab_size));
    session.evaluate(ids.data() + begin, ids.size() - begin, logits.data(), logits.size());
    return logits;
  }

  headrace::Request request(const Tokens& ids, int64_t length, bool prompt_logprobs) const {
    return request(*model_, ids, length, prompt_logprobs);
  }

  headrace::Request request(const headrace::Model& model, const Tokens& ids, int64_t length,
                            bool prompt_logprobs) const {
    headrace::Sampling sampling;
    sampling.num_logprobs = std::min(128, model_->info().vocab_size);
    if (prompt_logprobs) sampling.num_prompt_logprobs = sampling.num_logprobs;
    headrace::Request request(model);
    request.add_tokens(ids).set_sampling(sampling).set_length(0, length).set_ignore_eos(true);
    return request;
  }

  // Runs requests side by side.
  static std::vector<Output> generate(headrace::Scheduler& scheduler,
                                      const std::vector<const headrace::Request*>& requests) {
    std::vector<Output> outputs(requests.size());
    std::vector<uint64_t> ids;
    for (const headrace::Request* request : requests) ids.push_back(scheduler.submit(*request));
    for (size_t running = requests.size(); running > 0;) {
      scheduler.step();
      while (const std::optional<headrace::Event> event = scheduler.next_event()) {
        if (event->type() == headrace::EventType::kFailed) throw event->error();
        Output& output =
            outputs[static_cast<size_t>(std::find(ids.begin(), ids.end(), event->request_id()) - ids.begin())];
        const Tokens tokens = event->tokens();
        const std::vector<float> logprobs = event->logprobs();
        output.logprobs.insert(output.logprobs.end(), logprobs.begin(), logprobs.end());
        const bool is_prompt = event->type() == headrace::EventType::kPrompt;
        if (!is_prompt) output.tokens.insert(output.tokens.end(), tokens.begin(), tokens.end());
        for (size_t i = is_prompt ? 1 : 0; i < tokens.size(); ++i) {  // nothing comes before the first of a prompt
          for (const auto& [token, logprob] : event->top_logprobs(i)) {
            output.top_tokens.push_back(token);
            output.top_logprobs.push_back(logprob);
          }
        }
        if (event->type() == headrace::EventType::kFinished) output.cached_tokens = event->usage().cached_tokens;
        if (event->is_last()) --running;
      }
    }
    return outputs;
  }

  static Output generate(headrace::Scheduler& scheduler, const headrace::Request& request) {
    return generate(scheduler, std::vector<const headrace::Request*>{&request}).front();
  }

  void check_greedy(CaseResult& result, const Tokens& ids) {
    const int64_t length = new_tokens(ids, golden_.ids(result.name + ".greedy").size());
    if (length == 0) return;
    headrace::Scheduler scheduler(*model_, cache_options(cache_tokens(result.name, ids)));
    compare_greedy(result, generate(scheduler, request(ids, length, false)).tokens);
  }

  void compare_greedy(CaseResult& result, const Tokens& tokens) {
    Tokens expected = golden_.ids(result.name + ".greedy");
    const Rows margins = golden_.floats(result.name + ".greedy_margin");
    if (start_token_ && expected.size() == margins.size() + 1) expected.erase(expected.begin());
    const size_t most =
        golden_.stable_greedy_tokens(result.name, std::min({tokens.size(), expected.size(), margins.size()}));
    for (size_t i = 0; i < most && margins[i] >= kClearMargin; ++i) {
      ++result.greedy_compared;
      if (tokens[i] != expected[i]) {
        fail(result.name + ": greedy token " + std::to_string(i) + " is " + std::to_string(tokens[i]) + ", not " +
             std::to_string(expected[i]));
        return;
      }
      ++result.greedy_equal;
    }
  }

  // ---- Equal bits --------------------------------------------------------------------------------------------------

  void require_same_bits(const std::string& kind, const std::string& name, bool same) {
    const auto found = std::find_if(result_.same_bits.begin(), result_.same_bits.end(),
                                    [&](const auto& pair) { return pair.first == kind; });
    if (found == result_.same_bits.end()) {
      result_.same_bits.emplace_back(kind, same);
    } else {
      found->second = found->second && same;
    }
    if (!same) fail(name + ": other bits with other " + kind);
  }

  void check_chunks(const std::string& name, const Tokens& ids, const Rows& whole) {
    for (const size_t chunk : {1, 7, 64}) {
      require_same_bits("chunks", name, chunk >= ids.size() || evaluate(*model_, ids, chunk) == whole);
    }
  }

  // A session that goes back and on again, and another that goes on from its past.
  void check_rewound(const std::string& name, const Tokens& ids) {
    headrace::Session session(*model_, cache_options(2 * static_cast<int64_t>(ids.size()) + 32));
    const Rows first = evaluate(session, ids, 0);
    const size_t kept = ids.size() / 2;
    const size_t vocab_size = static_cast<size_t>(model_->info().vocab_size);
    const Rows tail(first.begin() + static_cast<std::ptrdiff_t>(kept * vocab_size), first.end());
    session.rewind(kept);
    headrace::Session forked = session.fork();
    const bool same = evaluate(session, ids, kept) == tail && evaluate(forked, ids, kept) == tail;
    require_same_bits("cache", name, same);
  }

  void check_prefix_index(const std::string& name, const Tokens& ids) {
    const int64_t length = new_tokens(ids, 8);
    if (length == 0) return;
    headrace::Options options = cache_options(static_cast<int64_t>(ids.size()) + length);
    options.set("kv.prefix_index", "true");
    headrace::Scheduler scheduler(*model_, options);
    const Output cold = generate(scheduler, request(ids, length, false));
    const Output warm = generate(scheduler, request(ids, length, false));
    require_same_bits("cache", name, cold.same_bits(warm) && cold.cached_tokens == 0);
    if (warm.cached_tokens == 0 && ids.size() > 64) fail(name + ": its prefix was not found in the index");
  }

  // Beside its reverse and its second half, in steps that cut all three.
  void check_batch(const std::string& name, const Tokens& ids) {
    const int64_t length = new_tokens(ids, 8);
    if (length == 0) return;
    headrace::Options options = cache_options(3 * (static_cast<int64_t>(ids.size()) + length + 16));
    headrace::Scheduler alone(*model_, options);
    options.set("scheduler.max_num_batched_tokens", "24");
    headrace::Scheduler shared(*model_, options);
    const std::vector<headrace::Request> requests = [&] {
      std::vector<headrace::Request> out;
      out.push_back(request(Tokens(ids.rbegin(), ids.rend()), length, true));
      out.push_back(request(ids, length, true));
      out.push_back(
          request(Tokens(ids.begin() + static_cast<std::ptrdiff_t>(ids.size() / 2), ids.end()), length, true));
      return out;
    }();
    const std::vector<Output> outputs = generate(shared, {&requests[0], &requests[1], &requests[2]});
    bool same = true;
    for (size_t i = 0; i < requests.size(); ++i) same = same && generate(alone, requests[i]).same_bits(outputs[i]);
    require_same_bits("batch", name, same);
  }

  // The whole model once more, with another number of threads.
  void check_threads(const std::string& name) {
    const Tokens ids = golden_.ids(name + ".input_ids");
    const auto rows = [&](const headrace::Model& model) {
      return generates(name) ? evaluate(model, ids, ids.size()) : embed(model, "none", false, {ids}, ids.size());
    };
    const Rows expected = rows(*model_);
    const headrace::Model other = load(model_->info().num_threads == 1 ? 3 : 1);
    require_same_bits("threads", name, rows(other) == expected);
  }

  // ---- Prompts with an image ---------------------------------------------------------------------------------------

  // Its images lie behind each other: pictures of one size, or patches whose grids say where one ends.
  headrace::Request image_request(const std::string& name, const Tokens& ids, int64_t length) const {
    const Rows pixels = golden_.floats(name + ".pixel_values");
    const std::vector<uint64_t> shape = golden_.shape(name + ".pixel_values");
    const bool in_patches = golden_.has(name + ".image_grid_thw");
    const Tokens grids = in_patches ? golden_.ids(name + ".image_grid_thw") : Tokens();
    if (in_patches ? grids.empty() || grids.size() % 3 != 0 || shape.size() != 2 : shape.size() != 4 || shape[0] == 0) {
      throw headrace::Error(HEADRACE_UNSUPPORTED, "is not of images", name + ".pixel_values");
    }
    headrace::Request out = request(ids, length, false);
    const size_t num_images = in_patches ? grids.size() / 3 : shape[0];
    size_t begin = 0;
    for (size_t i = 0; i < num_images; ++i) {
      const uint64_t height = in_patches ? static_cast<uint64_t>(grids[3 * i + 1]) : shape[2];
      const uint64_t width = in_patches ? static_cast<uint64_t>(grids[3 * i + 2]) : shape[3];
      const size_t count = height * width * shape[1];  // values of a patch, or channels
      if (count > pixels.size() - begin || (i + 1 == num_images && begin + count != pixels.size())) {
        throw headrace::Error(HEADRACE_MALFORMED, "is not of its images' sizes", name + ".pixel_values");
      }
      out.add_image_pixels(pixels.data() + begin, count, static_cast<uint32_t>(height), static_cast<uint32_t>(width));
      begin += count;
    }
    return out;
  }

  // Requests take images and give the most likely tokens' log-probabilities, which stand for the logits behind the prompt.
  void check_image_prompt(CaseResult& result) {
    const Tokens ids = golden_.ids(result.name + ".input_ids");
    const int64_t length = new_tokens(ids, golden_.ids(result.name + ".greedy").size());
    const headrace::Request asked = image_request(result.name, ids, length);
    headrace::Options options = cache_options(2 * (cache_tokens(result.name, ids) + 32));
    headrace::Scheduler alone(*model_, options);
    const Output output = generate(alone, asked);
    compare_log_probs(result, output, 1);
    compare_greedy(result, output.tokens);

    options.set("scheduler.max_num_batched_tokens", "24");
    headrace::Scheduler cut(*model_, options);
    require_same_bits("chunks", result.name, generate(cut, asked).same_bits(output));
    const headrace::Request text = request({ids.front(), ids.back(), ids.back()}, 8, false);
    headrace::Scheduler shared(*model_, options);
    const std::vector<Output> outputs = generate(shared, {&text, &asked});
    require_same_bits("batch", result.name,
                      outputs[1].same_bits(output) && outputs[0].same_bits(generate(alone, text)));
    options.set("kv.prefix_index", "true");
    headrace::Scheduler again(*model_, options);
    generate(again, asked);
    require_same_bits("cache", result.name, generate(again, asked).same_bits(output));
  }

  // Of the last num_rows rows of the prompt, whose distributions the output begins with. A log-probability moves by at most
  // twice what logits do.
  void compare_log_probs(CaseResult& result, const Output& output, size_t num_rows) {
    const Rows expected = golden_.floats(result.name + ".logits");
    const size_t vocab_size = static_cast<size_t>(model_->info().vocab_size);
    const size_t count = std::min<size_t>(128, vocab_size);
    if (output.top_tokens.size() < num_rows * count || expected.size() < num_rows * vocab_size) {
      return fail(result.name + ": no distributions to compare");
    }
    std::vector<double> log_probs;
    const Rows got(output.top_logprobs.begin(),
                   output.top_logprobs.begin() + static_cast<std::ptrdiff_t>(num_rows * count));
    Rows want;
    for (size_t row = 0; row < num_rows; ++row) {
      log_softmax(expected.data() + expected.size() - (num_rows - row) * vocab_size, vocab_size, log_probs);
      for (size_t i = row * count; i < (row + 1) * count; ++i) {
        want.push_back(static_cast<float>(log_probs[static_cast<size_t>(output.top_tokens[i])]));
      }
    }
    const RowErrors errors = value_errors(got, want);
    result.errors.add(errors);
    if (!(errors.max <= 2 * golden_.tolerance())) {
      fail(result.name + ": log-probabilities differ by " + shown(errors.max) + ", allowed " +
           shown(2 * golden_.tolerance()));
    }
  }

  // ---- Behind an encoder -------------------------------------------------------------------------------------------

  // The decoder's tokens. Where the golden does not say, its first are the start token and some of the encoder's tokens.
  Tokens decoder_ids(const std::string& name) const {
    if (golden_.has(name + ".decoder_input_ids")) return golden_.ids(name + ".decoder_input_ids");
    Tokens ids = golden_.ids(name + ".input_ids");
    if (golden_.has("input_features") || !golden_.has(name + ".logits")) return ids;
    ids.resize(std::min<size_t>(ids.size(), golden_.shape(name + ".logits")[0]));
    ids[0] = *start_token_;
    return ids;
  }

  // A request behind the case's input, or behind another of the kind. No tokens: the decoder begins by itself.
  headrace::Request input_request(const headrace::Model& model, const std::string& name, const Tokens& ids,
                                  int64_t length, bool other = false) const {
    headrace::Request out = request(model, ids, length, !ids.empty());
    if (golden_.has("input_features")) {
      Rows features = golden_.floats("input_features");
      const std::vector<uint64_t> shape = golden_.shape("input_features");
      if (shape.size() != 3 || shape[0] != 1) {
        throw headrace::Error(HEADRACE_UNSUPPORTED, "is not of one input", "input_features");
      }
      if (other) std::reverse(features.begin(), features.end());
      out.set_audio_features(features.data(), features.size(), static_cast<uint32_t>(shape[1]),
                             static_cast<uint32_t>(shape[2]));
      return out;
    }
    Tokens tokens = golden_.ids(name + ".input_ids");
    if (other) std::reverse(tokens.begin(), tokens.end());
    out.set_encoder_tokens(tokens);
    return out;
  }

  void check_behind_encoder(CaseResult& result) {
    const Tokens ids = decoder_ids(result.name);
    const int64_t length = std::max<int64_t>(new_tokens(ids, 8), 1), prompt = static_cast<int64_t>(ids.size());
    const headrace::Request asked = input_request(*model_, result.name, ids, length);
    headrace::Options options = cache_options(3 * (prompt + length + 32));
    headrace::Scheduler alone(*model_, options);
    const Output output = generate(alone, asked);
    compare_log_probs(result, output, ids.size());
    if (generates(result.name)) {
      const int64_t count = static_cast<int64_t>(golden_.floats(result.name + ".greedy_margin").size());
      headrace::Scheduler from_start(*model_, cache_options(count + 32));
      compare_greedy(result, generate(from_start, input_request(*model_, result.name, {}, count)).tokens);
    }
    const headrace::Request other = input_request(*model_, result.name, ids, length, /*other=*/true);
    const Output other_output = generate(alone, other);
    options.set("scheduler.max_num_batched_tokens", "3");
    headrace::Scheduler cut(*model_, options);
    require_same_bits("chunks", result.name, generate(cut, asked).same_bits(output));
    const std::vector<Output> outputs = generate(cut, {&other, &asked});
    require_same_bits("batch", result.name, outputs[0].same_bits(other_output) && outputs[1].same_bits(output));
    // Behind one input nothing is found of what was computed behind another.
    options.set("kv.prefix_index", "true");
    headrace::Scheduler index(*model_, options);
    const Output cold = generate(index, asked), foreign = generate(index, other), warm = generate(index, asked);
    require_same_bits("cache", result.name,
                      cold.same_bits(output) && warm.same_bits(output) && foreign.same_bits(other_output) &&
                          foreign.cached_tokens == 0);
    const headrace::Model threads = load(model_->info().num_threads == 1 ? 3 : 1);
    headrace::Scheduler elsewhere(threads, cache_options(prompt + length));
    require_same_bits("threads", result.name,
                      generate(elsewhere, input_request(threads, result.name, ids, length)).same_bits(output));
  }

  // ---- Encoders ----------------------------------------------------------------------------------------------------

  Rows embed(const headrace::Model& model, const std::string& pooling, bool normalize, const std::vector<Tokens>& texts,
             size_t step_tokens) const {
    size_t longest = 0;
    for (const Tokens& ids : texts) longest = std::max(longest, ids.size());
    headrace::Options options = this->options();
    options.set("embedder.pooling", pooling)
        .set("embedder.normalize", normalize ? "true" : "false")
        .set("embedder.max_num_batched_tokens", std::to_string(step_tokens))
        .set("kv.max_tokens", std::to_string(longest));
    return headrace::Embedder(model, options).embed(texts);
  }

  void check_encoder(CaseResult& result) {
    const Tokens ids = golden_.ids(result.name + ".input_ids");
    const Rows hidden = embed(*model_, "none", false, {ids}, ids.size());
    if (golden_.has(result.name + ".logits")) {
      check_logits(result, embed(*model_, "logits", false, {ids}, ids.size()), ids.size());
    }
    // For an encoder without logits these are what the model gives.
    const RowErrors errors = check_rows(result.name + ".hidden", hidden);
    if (!golden_.has(result.name + ".logits")) result.errors.add(errors);
    if (golden_.has(result.name + ".mean_embedding")) {
      check_rows(result.name + ".mean_embedding", embed(*model_, "mean", true, {ids}, ids.size()));
    }
    if (golden_.has(result.name + ".cls_embedding")) {
      check_rows(result.name + ".cls_embedding", embed(*model_, "cls", true, {ids}, ids.size()));
    }
    if (golden_.has(result.name + ".pooler")) {
      check_rows(result.name + ".pooler", embed(*model_, "pooler", false, {ids}, ids.size()));
    }
    const std::vector<Tokens> texts = {Tokens(ids.rbegin(), ids.rend()), ids, {ids.front()}};
    const Rows shared = embed(*model_, "none", false, texts, 4 * ids.size());
    const auto begin = shared.begin() + static_cast<std::ptrdiff_t>(hidden.size());
    require_same_bits("batch", result.name, Rows(begin, begin + static_cast<std::ptrdiff_t>(hidden.size())) == hidden);
  }

  // ---- Distance from the reference ---------------------------------------------------------------------------------

  bool same_size(const std::string& tensor, const Rows& rows, const Rows& expected) {
    if (rows.size() == expected.size()) return true;
    fail(tensor + " has " + std::to_string(rows.size()) + " values, the reference " + std::to_string(expected.size()));
    return false;
  }

  void require_close(const std::string& tensor, const RowErrors& errors) {
    if (errors.max <= golden_.tolerance()) return;  // NaN is not
    fail(tensor + " differs by " + shown(errors.max) + ", allowed " + shown(golden_.tolerance()));
  }

  RowErrors check_rows(const std::string& tensor, const Rows& rows) {
    const Rows expected = golden_.floats(tensor);
    if (!same_size(tensor, rows, expected)) return {};
    const RowErrors errors = value_errors(rows, expected);
    require_close(tensor, errors);
    return errors;
  }

  void check_logits(CaseResult& result, const Rows& logits, size_t num_rows) {
    const std::string tensor = result.name + ".logits", rounded_tensor = tensor + "_bf16_compute";
    const Rows expected = golden_.floats(tensor);
    if (!same_size(tensor, logits, expected)) return;
    const RowErrors errors = logits_errors(logits, expected, num_rows);
    result.errors.add(errors);
    require_close(tensor, errors);
    if (errors.other_top) {
      fail(result.name + ": another token is the most likely after token " + std::to_string(*errors.other_top));
    }
    // With bfloat16 weights float32 must be closer to the reference's float32 than the reference's bfloat16 is.
    if (!golden_.has(rounded_tensor)) return;
    const Rows rounded = golden_.floats(rounded_tensor);
    if (!same_size(rounded_tensor, logits, rounded)) return;
    const RowErrors least = logits_errors(rounded, expected, num_rows);
    if (!(errors.mean_kl() <= least.mean_kl()) || errors.top1() < least.top1()) {
      fail(result.name + ": mean KL " + shown(errors.mean_kl()) + " and top-1 agreement " +
           std::to_string(errors.top1()) + ", of the reference in bfloat16 " + shown(least.mean_kl()) + " and " +
           std::to_string(least.top1()));
    }
  }

  // ---- Failures ----------------------------------------------------------------------------------------------------

  void fail(const std::string& text) { result_.failures.push_back(text); }

  // False where it was thrown out of the work, which is a failure then.
  bool attempt(const std::string& name, const std::function<void()>& work) {
    std::string message;
    try {
      work();
      return true;
    } catch (const headrace::Error& error) {
      message = error.what();
      if (message.starts_with(model_path_ + ": ")) message.erase(0, model_path_.size() + 2);
      if (error.code() == HEADRACE_UNSUPPORTED && !model_) {
        result_.not_supported = message;
        return false;
      }
    } catch (const std::exception& error) {
      message = error.what();
    }
    fail((name.empty() ? "" : name + ": ") + message);
    return false;
  }

  const GoldenFolder& golden_;
  const std::string& model_path_;
  const SettingArguments& settings_;
  ConformanceResult& result_;
  std::optional<headrace::Model> model_;
  std::optional<int32_t> start_token_;  // of a model with an encoder in front of its decoder
};

}  // namespace

CaseResult ConformanceResult::total() const {
  CaseResult total;
  for (const CaseResult& result : cases) {
    total.num_tokens += result.num_tokens;
    total.errors.add(result.errors);
    total.greedy_compared += result.greedy_compared;
    total.greedy_equal += result.greedy_equal;
  }
  return total;
}

ConformanceResult run_conformance(const GoldenFolder& golden, const std::string& model_path,
                                  const SettingArguments& settings) {
  settings.options(kConformanceSettings);  // throws for bad settings
  ConformanceResult result;
  result.path = model_path;
  result.architecture = golden.architecture();
  result.noise = golden.noise();
  result.tolerance = golden.tolerance();
  Run(golden, model_path, settings, result).all();
  return result;
}

}  // namespace cli
