// headrace transcribe: speech to text, by models whose encoder reads audio.
#include <algorithm>
#include <charconv>
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
  std::string file, language, task, prompt, initial_prompt;
  std::vector<float> temperatures;
  std::optional<double> compression_ratio_threshold, logprob_threshold, no_speech_threshold;
  bool condition_on_prev_tokens = false;
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

// "0,0.2,0.4"
std::vector<float> read_temperatures(const std::string& text) {
  std::vector<float> out;
  for (size_t begin = 0;;) {
    const size_t end = std::min(text.find(',', begin), text.size());
    float value = 0;
    const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    if (error != std::errc() || rest != text.data() + end) {
      throw CLI::ValidationError("--temperature", "'" + text.substr(begin, end - begin) + "' is no number");
    }
    out.push_back(value);
    if (end == text.size()) return out;
    begin = end + 1;
  }
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
  params.temperatures = arguments.temperatures;
  params.compression_ratio_threshold = arguments.compression_ratio_threshold;
  params.logprob_threshold = arguments.logprob_threshold;
  params.no_speech_threshold = arguments.no_speech_threshold;
  params.condition_on_prev_tokens = arguments.condition_on_prev_tokens;
  if (!arguments.initial_prompt.empty()) {
    params.prompt_ids = model.tokenizer().encode(" " + arguments.initial_prompt, /*parse_special=*/false,
                                                 /*add_special=*/false);
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
  command
      ->add_option_function<std::string>(
          "--temperature", [arguments](const std::string& text) { arguments->temperatures = read_temperatures(text); },
          "in place of --temp: temperatures with commas between them, the next of which is tried where a "
          "window's text is rejected")
      ->type_name("LIST");
  command->add_option("--compression-ratio-threshold", arguments->compression_ratio_threshold,
                      "reject a text that compresses better: it repeats itself (2.4 is usual)");
  command->add_option("--logprob-threshold", arguments->logprob_threshold,
                      "reject a text whose tokens have a lower mean log probability (-1 is usual)");
  command->add_option("--no-speech-threshold", arguments->no_speech_threshold,
                      "skip a window with such a text where silence is likelier than this (0.6 is usual)");
  command->add_flag("--condition-on-prev-tokens", arguments->condition_on_prev_tokens,
                    "tell each window what was written of those before it");
  command->add_option("--initial-prompt", arguments->initial_prompt, "text that the first window follows");
  command->add_flag("--no-timestamps", arguments->no_timestamps, "without times: windows follow each other");
  command->add_flag("--json", arguments->json, "print one JSON object at the end");
  command->callback([arguments] { transcribe(*arguments); });
}

}  // namespace cli
