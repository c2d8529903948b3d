// headrace transcribe: speech to text, by models whose encoder reads audio.
#include <algorithm>
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

// The decoder's first tokens: those that --prompt names, or what Whisper's decoder was trained to continue, without times. A
// model whose tokenizer has no such tokens begins with its own first one.
std::vector<int32_t> prompt_tokens(const TranscribeArguments& arguments, const headrace::Model& model) {
  const headrace::Tokenizer tokenizer = model.tokenizer();
  if (!arguments.prompt.empty())
    return tokenizer.encode(arguments.prompt, /*parse_special=*/true, /*add_special=*/false);
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
  const std::vector<int32_t> prompt = prompt_tokens(arguments, model);
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
