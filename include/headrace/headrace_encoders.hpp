// What headrace.hpp ends with: models with an encoder, for speech, and for vectors of texts. It needs the classes before it:
// include headrace.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {
inline namespace api_v1 {

struct SpeechSegment {
  double start = 0, end = 0;  // seconds
  std::string text;
  std::vector<int32_t> tokens;
};

// What is said in audio of any length (headrace_transcription): each request that next() gives is run and its events taken.
// One that fails, is cancelled or runs out of time comes again.
class Transcription {
 public:
  struct Params {
    std::string language, task;         // "": what the model's files say, or what is heard
    bool timestamps = true;             // false: a segment is a window
    std::vector<int32_t> prompt;        // in place of language and task
    const Request* settings = nullptr;  // of every window's request; read by the constructor
    std::vector<float> temperatures;    // of a window, until its text is not rejected; empty: that of settings
    std::optional<double> compression_ratio_threshold, logprob_threshold, no_speech_threshold;
    bool condition_on_prev_tokens = false;
    std::vector<int32_t> prompt_ids;     // text that the first window follows
    bool prompt_in_all_windows = false;  // prompt_condition_type "all-segments"
  };
  // Samples are mono, in [-1, 1].
  Transcription(const Model& model, const float* samples, size_t num_samples, uint32_t sample_rate,
                const Params& params) {
    headrace_transcription_params given;
    headrace_transcription_params_init(&given);
    given.no_timestamps = params.timestamps ? 0 : 1;
    given.language = params.language.data();
    given.language_size = params.language.size();
    given.task = params.task.data();
    given.task_size = params.task.size();
    given.prompt = params.prompt.data();
    given.num_prompt_tokens = params.prompt.size();
    given.settings = params.settings == nullptr ? nullptr : params.settings->get();
    given.temperatures = params.temperatures.data();
    given.num_temperatures = params.temperatures.size();
    given.compression_ratio_threshold = params.compression_ratio_threshold.value_or(0);
    given.logprob_threshold = params.logprob_threshold.value_or(0);
    given.no_speech_threshold = params.no_speech_threshold.value_or(0);
    given.has_compression_ratio_threshold = params.compression_ratio_threshold.has_value() ? 1 : 0;
    given.has_logprob_threshold = params.logprob_threshold.has_value() ? 1 : 0;
    given.has_no_speech_threshold = params.no_speech_threshold.has_value() ? 1 : 0;
    given.condition_on_prev_tokens = params.condition_on_prev_tokens ? 1 : 0;
    given.prompt_ids = params.prompt_ids.data();
    given.num_prompt_ids = params.prompt_ids.size();
    given.prompt_condition_type = params.prompt_in_all_windows ? 1 : 0;
    headrace_transcription* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_transcription_create(model.get(), samples, num_samples, sample_rate, &given, &handle, error);
    });
    handle_.reset(handle);
  }
  // None when all is written.
  std::optional<Request> next() const {
    headrace_request* request = nullptr;
    detail::call([&](headrace_error** error) { return headrace_transcription_next(get(), &request, error); });
    return request ? std::optional<Request>(Request(request)) : std::nullopt;
  }
  void take(const Event& event) {
    detail::call([&](headrace_error** error) { return headrace_transcription_take(get(), event.get(), error); });
  }
  std::string language() const { return headrace_transcription_get_language(get()); }
  size_t num_segments() const { return headrace_transcription_get_num_segments(get()); }
  SpeechSegment segment(size_t index) const {
    headrace_speech_segment found;
    headrace_speech_segment_init(&found);
    detail::call(
        [&](headrace_error** error) { return headrace_transcription_get_segment(get(), index, &found, error); });
    return {found.start, found.end, {found.text, found.text_size}, {found.tokens, found.tokens + found.num_tokens}};
  }
  headrace_transcription* get() const { return handle_.get(); }

 private:
  detail::Unique<headrace_transcription, headrace_transcription_destroy> handle_;
};

// Vectors or scores of whole texts; row_size() floats for each text, or for each of its tokens where pools() is false.
class Embedder {
 public:
  explicit Embedder(const Model& model, const Options& options = Options()) {
    headrace_embedder* handle = nullptr;
    detail::call(
        [&](headrace_error** error) { return headrace_embedder_create(model.get(), options.get(), &handle, error); });
    handle_.reset(handle);
  }
  size_t row_size() const { return headrace_embedder_get_row_size(handle_.get()); }
  bool pools() const { return headrace_embedder_get_pools(handle_.get()) != 0; }

  // float32 [rows, row_size()], one after the other.
  std::vector<float> embed(const std::vector<std::string>& texts, uint32_t flags = HEADRACE_ADD_SPECIAL) {
    std::vector<const char*> pointers;
    std::vector<size_t> sizes;
    for (const std::string& text : texts) {
      pointers.push_back(text.data());
      sizes.push_back(text.size());
    }
    return detail::read_buffer<float>([&](float* rows, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_embedder_embed_texts(handle_.get(), pointers.data(), sizes.data(), texts.size(), flags, rows,
                                           capacity, needed, error);
    });
  }
  // token_types: segments of the tokens of every sequence, or empty.
  std::vector<float> embed(const std::vector<std::vector<int32_t>>& sequences,
                           const std::vector<std::vector<int32_t>>& token_types = {}) {
    std::vector<int32_t> tokens, types;
    std::vector<size_t> starts = {0};
    for (const std::vector<int32_t>& sequence : sequences) {
      tokens.insert(tokens.end(), sequence.begin(), sequence.end());
      starts.push_back(tokens.size());
    }
    for (const std::vector<int32_t>& sequence : token_types)
      types.insert(types.end(), sequence.begin(), sequence.end());
    if (!token_types.empty() && types.size() != tokens.size()) {
      throw Error(HEADRACE_INVALID_ARGUMENT, "not one per token", "token_types");
    }
    return detail::read_buffer<float>([&](float* rows, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_embedder_embed_tokens(handle_.get(), tokens.data(), types.empty() ? nullptr : types.data(),
                                            starts.data(), sequences.size(), rows, capacity, needed, error);
    });
  }
  headrace_embedder* get() const { return handle_.get(); }

 private:
  detail::Unique<headrace_embedder, headrace_embedder_destroy> handle_;
};

}  // namespace api_v1
}  // namespace headrace
