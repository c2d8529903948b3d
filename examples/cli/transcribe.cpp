// headrace transcribe: speech to text, by models whose encoder reads audio.
#include <cstdio>
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
  std::string file, language, task, prompt;
  bool no_timestamps = false, json = false;
};

Waveform read_audio(const std::string& file) {
  const std::string bytes = read_file(file);
  try {
    return read_wav(bytes);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(file + ": " + error.what());
  }
}

// "[00:01.500 --> 00:03.000] text"
void print_segment(const headrace::SpeechSegment& segment) {
  const auto time = [](double seconds) {
    char text[32];
    const int minutes = static_cast<int>(seconds / 60);
    std::snprintf(text, sizeof text, "%02d:%06.3f", minutes, seconds - 60.0 * minutes);
    return std::string(text);
  };
  print_text("[" + time(segment.start) + " --> " + time(segment.end) + "]" + segment.text + "\n");
}

void print_json(const headrace::Transcription& transcription) {
  std::string text;
  nlohmann::ordered_json segments = nlohmann::ordered_json::array();
  for (size_t i = 0; i < transcription.num_segments(); ++i) {
    const headrace::SpeechSegment segment = transcription.segment(i);
    text += segment.text;
    segments.push_back(
        {{"start", segment.start}, {"end", segment.end}, {"text", segment.text}, {"tokens", segment.tokens}});
  }
  std::cout << nlohmann::ordered_json({{"language", transcription.language()}, {"text", text}, {"segments", segments}})
                   .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
            << "\n";
}

void transcribe(const TranscribeArguments& arguments) {
  const Waveform audio = read_audio(arguments.file);
  const headrace::Model model = arguments.model.load();
  headrace::Request settings(model);
  arguments.sampling.apply(settings);
  headrace::Transcription::Params params;
  params.language = arguments.language;
  params.task = arguments.task;
  params.timestamps = !arguments.no_timestamps;
  params.settings = &settings;
  if (!arguments.prompt.empty()) {
    params.prompt = model.tokenizer().encode(arguments.prompt, /*parse_special=*/true, /*add_special=*/false);
  }
  headrace::Transcription transcription(model, audio.samples.data(), audio.samples.size(), audio.sample_rate, params);
  headrace::Scheduler scheduler(model, arguments.model.options());
  size_t printed = 0;
  while (const std::optional<headrace::Request> request = transcription.next()) {
    scheduler.run(*request, [&](const headrace::Event& event) {
      transcription.take(event);
      return true;
    });
    for (; !arguments.json && printed < transcription.num_segments(); ++printed) {
      const headrace::SpeechSegment segment = transcription.segment(printed);
      arguments.no_timestamps ? print_text(segment.text) : print_segment(segment);
    }
  }
  if (arguments.json) {
    print_json(transcription);
  } else if (arguments.no_timestamps) {
    print_text("\n");
  }
}

}  // namespace

void add_transcribe(CLI::App& app) {
  auto arguments = std::make_shared<TranscribeArguments>();
  CLI::App* command = app.add_subcommand("transcribe", "write down what is said in a WAV file");
  arguments->model.add_to(*command);
  arguments->sampling.add_to(*command);
  command
      ->add_option(
          "file", arguments->file,
          "16000 samples a second, PCM or floats; - reads standard input. What is longer than the model reads at "
          "once (30 seconds) goes in windows, each beginning where the last whole segment ended")
      ->required();
  command->add_option("--language", arguments->language, "of the speech (en); found out where it is not given");
  command->add_option("--task", arguments->task, "transcribe, or translate into English")
      ->check(CLI::IsMember({"transcribe", "translate"}));
  command->add_option("--prompt", arguments->prompt, "the decoder's first tokens as text, in place of these two");
  command->add_flag("--no-timestamps", arguments->no_timestamps, "without times: windows follow each other");
  command->add_flag("--json", arguments->json, "print one JSON object at the end");
  command->callback([arguments] { transcribe(*arguments); });
}

}  // namespace cli
