// Tiny models of tests/data/goldens for the tests of the C ABI: as they are (without a tokenizer), and with a tokenizer,
// a chat template and recommendations written beside a copy. Random weights: what they say means nothing, but it is the
// same on every run.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include <headrace/headrace.hpp>

#include "quantized_model.h"

namespace capi_test {

inline std::string golden_path(const std::string& name) {
  return std::string(HEADRACE_SOURCE_DIR "/tests/data/goldens/") + name + "/model.gguf";
}
inline std::string tiny_path() { return golden_path("llama"); }

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

// A folder that goes when the object goes.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "headrace_capi_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Token ids of the text model: control tokens first, then one token for each character below, in this order, and at last
// one of three characters.
constexpr int32_t kBos = 0, kEos = 1, kUser = 2, kAssistant = 3, kEnd = 4, kFirstCharacter = 5, kDef = 95;
// The spellings of byte-level BPE: G-breve for a space, C-dot for a newline, two tokens for the two bytes of e-acute.
inline std::vector<std::string> characters() {
  std::vector<std::string> all = {"\u0120", "\u010A", "\u00C3", "\u00A9"};
  for (const char c :
       std::string_view("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>|/.,!?'-:;()_*+=#[]{}%")) {
    all.emplace_back(1, c);
  }
  all.emplace_back("DEF");
  return all;
}
constexpr int32_t kSpace = kFirstCharacter, kFirstByte = kFirstCharacter + 2, kSecondByte = kFirstCharacter + 3;
inline int32_t letter(char c) { return kFirstCharacter + 4 + (c - 'a'); }

inline std::string tokenizer_json() {
  const std::vector<std::string> controls = {"<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"};
  std::string added, vocabulary;
  int32_t id = 0;
  for (const std::string& token : controls) {
    added += (id ? "," : "") + std::string("{\"id\":") + std::to_string(id) + ",\"content\":\"" + token +
             "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}";
    vocabulary += (id ? ",\"" : "\"") + token + "\":" + std::to_string(id);
    ++id;
  }
  for (const std::string& token : characters()) vocabulary += ",\"" + token + "\":" + std::to_string(id++);
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added + R"(],"normalizer":null,)" +
         R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false},)" +
         R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)" +
         R"({"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},)" +
         R"({"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[0],"tokens":["<s>"]}}},)" +
         R"("decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false},)" +
         R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)" +
         R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)" +
         vocabulary + R"(},"merges":[]}})";
}

inline const char* chat_template() {
  return "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|user|>{% else %}<|assistant|>{% endif %}"
         "{{ m.content }}<|end|>{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>{% endif %}";
}

// Writes the text model into a folder; generation_config may be empty.
inline void write_text_model(const TemporaryFolder& folder, const std::string& generation_config = "") {
  const std::string golden = HEADRACE_SOURCE_DIR "/tests/data/goldens/llama/";
  for (const char* name : {"config.json", "model.safetensors"}) std::filesystem::copy(golden + name, folder / name);
  write_file(folder / "tokenizer.json", tokenizer_json());
  write_file(folder / "tokenizer_config.json",
             std::string(R"({"bos_token":"<s>","eos_token":"</s>","chat_template":")") + chat_template() + "\"}");
  if (!generation_config.empty()) write_file(folder / "generation_config.json", generation_config);
}

// The model with text, loaded once in each test program.
inline const headrace::Model& text_model() {
  static const headrace::Model model = [] {
    const TemporaryFolder folder;
    write_text_model(folder);
    return headrace::Model::load(folder.path());
  }();
  return model;
}

inline headrace::Model load_tiny(const headrace::Options& options = headrace::Options()) {
  return headrace::Model::load(tiny_path(), options);
}

// The model of quantized_model.h, loaded from memory.
inline headrace::Model load_quantized(const headrace::Options& options) {
  static const std::string bytes = headrace_test::QuantizedModel::bytes();
  std::vector<headrace::Source> sources;
  sources.push_back(headrace::Source::memory(bytes.data(), bytes.size()));
  return headrace::Model::load(sources, options);
}

// The code and place of what `call` throws; OK where it throws nothing.
struct Failure {
  headrace_status code = HEADRACE_OK;
  std::string place;
  std::string message;
};
template <class Call>
Failure failure_of(const Call& call) {
  try {
    call();
  } catch (const headrace::Error& error) {
    return {error.code(), error.place(), error.message()};
  }
  return {};
}

// One sample's output put together from its events.
struct Output {
  std::string text, finish_reason;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<std::pair<int32_t, float>>> top;
  headrace_usage usage = {};
  int last_events = 0;
};

// Runs everything submitted to its end: outputs by (request, sample).
inline std::map<std::pair<uint64_t, uint32_t>, Output> finish_all(headrace::Scheduler& scheduler) {
  std::map<std::pair<uint64_t, uint32_t>, Output> outputs;
  for (bool working = true; working;) {
    working = scheduler.step();
    while (auto event = scheduler.next_event()) {
      if (event->type() == headrace::EventType::kFailed) throw event->error();
      if (event->type() == headrace::EventType::kPrompt) continue;
      Output& output = outputs[{event->request_id(), event->index()}];
      const size_t count = event->tokens().size();
      output.text += event->text();
      for (const int32_t token : event->tokens()) output.tokens.push_back(token);
      for (const float value : event->logprobs()) output.logprobs.push_back(value);
      for (size_t i = 0; i < count; ++i) output.top.push_back(event->top_logprobs(i));
      output.last_events += event->is_last() ? 1 : 0;
      if (event->type() == headrace::EventType::kFinished) {
        output.finish_reason = event->finish_reason();
        output.usage = event->usage();
      }
    }
  }
  return outputs;
}

inline Output generate(headrace::Scheduler& scheduler, const headrace::Request& request) {
  const uint64_t id = scheduler.submit(request);
  return finish_all(scheduler).at({id, 0});
}

}  // namespace capi_test
