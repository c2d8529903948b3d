// headrace transcribe: speech to text, by models whose encoder reads audio.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "wav_file.h"

namespace cli {
namespace {

struct TranscribeArguments {
  ModelArguments model;
  SamplingArguments sampling;
  std::string file, language = "en", task = "transcribe", prompt;
  bool json = false;
};

// generation_config.json beside the model's weights; an empty object where there is none.
nlohmann::json generation_config(const std::string& model_path) {
  const std::filesystem::path path = std::filesystem::path(model_path) / "generation_config.json";
  if (!std::filesystem::exists(path)) return nlohmann::json::object();
  auto config = nlohmann::json::parse(read_file(path.string()), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw headrace::Error(HEADRACE_MALFORMED, "is no JSON object", path.string());
  return config;
}

// The id that a table of the config has for a name.
int32_t named_id(const nlohmann::json& ids, const std::string& name, const char* option) {
  if (ids.contains(name) && ids[name].is_number_integer()) return ids[name].get<int32_t>();
  throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "the model has no " + name, option);
}

// What generation_config.json makes of language and task, as transformers' WhisperForConditionalGeneration does. Models of one
// language have no tables of them.
std::vector<int32_t> configured_prompt(const TranscribeArguments& arguments, const nlohmann::json& config,
                                       int32_t start) {
  std::vector<int32_t> out = {start};
  if (config.contains("lang_to_id")) {
    out.push_back(named_id(config["lang_to_id"], "<|" + arguments.language + "|>", "--language"));
    if (config.contains("task_to_id")) out.push_back(named_id(config["task_to_id"], arguments.task, "--task"));
  } else if (arguments.language != "en") {
    throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "the model knows one language", "--language");
  } else if (arguments.task != "transcribe") {
    throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "the model knows one task", "--task");
  }
  out.push_back(config["no_timestamps_token_id"].get<int32_t>());
  return out;
}

// The same by names of the tokenizer. A model whose tokenizer has no such tokens begins with its own first one.
std::vector<int32_t> named_prompt(const TranscribeArguments& arguments, const headrace::Tokenizer& tokenizer) {
  const std::string names[] = {"<|startoftranscript|>", "<|" + arguments.language + "|>", "<|" + arguments.task + "|>",
                               "<|notimestamps|>"};
  std::vector<int32_t> out;
  for (const std::string& name : names) {
    if (const std::optional<int32_t> id = tokenizer.id(name)) {
      out.push_back(*id);
      continue;
    }
    if (out.empty()) return {};
    // Models of one language have neither languages nor tasks.
    if (name == names[1] && arguments.language != "en") {
      throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "the model's tokenizer has no " + name, "--language");
    }
    if (name == names[2] && arguments.task != "transcribe") {
      throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "the model's tokenizer has no " + name, "--task");
    }
  }
  return out;
}

// The decoder's first tokens: those that --prompt names, or what Whisper's decoder was trained to continue, without times.
std::vector<int32_t> prompt_tokens(const TranscribeArguments& arguments, const headrace::Model& model, int32_t start) {
  const headrace::Tokenizer tokenizer = model.tokenizer();
  if (!arguments.prompt.empty())
    return tokenizer.encode(arguments.prompt, /*parse_special=*/true, /*add_special=*/false);
  const nlohmann::json config = generation_config(arguments.model.path);
  if (config.contains("no_timestamps_token_id") && config["no_timestamps_token_id"].is_number_integer())
    return configured_prompt(arguments, config, start);
  return named_prompt(arguments, tokenizer);
}

void transcribe(const TranscribeArguments& arguments) {
  const std::string bytes = read_file(arguments.file);
  const Waveform audio = [&] {
    try {
      return read_wav(bytes);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(arguments.file + ": " + error.what());
    }
  }();
  const headrace::Model model = arguments.model.load();
  const auto about = nlohmann::json::parse(model.describe());
  if (!about.contains("encoder") || about["encoder"]["reads"] != "audio") {
    throw headrace::Error(HEADRACE_UNSUPPORTED, "the model's encoder reads no audio", arguments.model.path);
  }
  const auto start = about["encoder"]["start_token_id"].get<int32_t>();
  const std::vector<int32_t> prompt = prompt_tokens(arguments, model, start);
  // What the encoder reads at once.
  const size_t window = about["encoder"].value("num_samples", size_t{0});
  if (window == 0) throw headrace::Error(HEADRACE_NOT_FOUND, "the model's files hold none", "preprocessor_config.json");

  headrace::Scheduler scheduler(model, arguments.model.options());
  std::string text;
  nlohmann::ordered_json windows = nlohmann::ordered_json::array();
  for (size_t begin = 0; begin < std::max<size_t>(audio.samples.size(), 1); begin += window) {
    headrace::Request request(model);
    request.set_audio(audio.samples.data() + begin, std::min(window, audio.samples.size() - begin), audio.sample_rate);
    if (!prompt.empty()) request.add_tokens(prompt);
    arguments.sampling.apply(request);
    std::string part;
    scheduler.run(request, [&](const headrace::Event& event) {
      part += event.text();
      if (!arguments.json) print_text(event.text());
      return true;
    });
    text += part;
    windows.push_back({{"start", static_cast<double>(begin) / audio.sample_rate}, {"text", part}});
  }
  if (arguments.json) {
    std::cout << nlohmann::ordered_json({{"text", text}, {"windows", windows}})
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << "\n";
  } else {
    std::cout << "\n";
  }
}

}  // namespace

void add_transcribe(CLI::App& app) {
  auto arguments = std::make_shared<TranscribeArguments>();
  CLI::App* command = app.add_subcommand("transcribe", "write down what is said in a WAV file");
  arguments->model.add_to(*command);
  arguments->sampling.add_to(*command);
  command
      ->add_option("file", arguments->file,
                   "16000 samples a second, PCM or floats; - reads standard input. Windows of what the model reads at "
                   "once (30 seconds) are transcribed one after the other, each by itself")
      ->required();
  command->add_option("--language", arguments->language, "of the speech, for models of several (en)");
  command->add_option("--task", arguments->task, "transcribe, or translate into English")
      ->check(CLI::IsMember({"transcribe", "translate"}));
  command->add_option("--prompt", arguments->prompt, "the decoder's first tokens as text, in place of these two");
  command->add_flag("--json", arguments->json, "print one JSON object at the end");
  command->callback([arguments] { transcribe(*arguments); });
}

}  // namespace cli
