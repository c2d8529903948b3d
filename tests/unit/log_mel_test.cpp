// The log-mel spectrogram against WhisperFeatureExtractor's, and what is refused.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "formats/safetensors.h"
#include "media/log_mel.h"

using namespace headrace;

namespace {

const std::string kWhisper = std::string(HEADRACE_TEST_DATA) + "/goldens/models/whisper/";

// The float32 values of a .npy file of one axis.
std::vector<float> read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string bytes = text.str();
  REQUIRE(bytes.size() > 10);
  const size_t header = 10 + static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  REQUIRE(bytes.substr(0, header).find("'<f4'") != std::string::npos);
  std::vector<float> out((bytes.size() - header) / sizeof(float));
  std::memcpy(out.data(), bytes.data() + header, out.size() * sizeof(float));
  return out;
}

}  // namespace

TEST_CASE("the log-mel spectrogram is WhisperFeatureExtractor's") {
  if (!std::ifstream(kWhisper + "waveform_16k.npy").good()) {
    std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
    return;
  }
  LogMelSpec spec;
  spec.num_samples = 2 * 16000;
  const auto got = log_mel(spec, read_npy(kWhisper + "waveform_16k.npy"));
  REQUIRE(got.ok());
  const auto file = SafetensorsFile::open_path(kWhisper + "golden.safetensors");
  REQUIRE(file.ok());
  const TensorEntry* entry = (*file)->find("input_features");
  REQUIRE(entry != nullptr);
  std::vector<float> expected(entry->bytes / sizeof(float));
  REQUIRE((*file)->read(*entry, 0, std::as_writable_bytes(std::span(expected))).ok());
  REQUIRE(got->size() == expected.size());
  // The extractor's float32 transform errs by some 1e-7 of a frame's largest amplitude. At the bottom of the range, 1e-4 of
  // it, that is 1e-3 of an amplitude, 2e-3 of a power, and 1e-3 in log10; a quarter of it in the result.
  double worst = 0.0, sum = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::fabs(static_cast<double>((*got)[i]) - static_cast<double>(expected[i]));
    worst = std::max(worst, difference);
    sum += difference;
  }
  CHECK(worst <= 2.5e-4);
  CHECK(sum / static_cast<double>(expected.size()) <= 1e-6);
}

TEST_CASE("a tone is loudest in its own band, and silence is flat") {
  LogMelSpec spec;
  spec.num_samples = 16000;
  std::vector<float> tone;
  for (int i = 0; i < 16000; ++i)
    tone.push_back(0.5f * static_cast<float>(std::sin(2.0 * M_PI * 1000.0 * i / 16000.0)));
  const auto loud = log_mel(spec, tone);
  REQUIRE(loud.ok());
  const auto frames = static_cast<size_t>(spec.num_frames());
  size_t best = 0;
  for (size_t mel = 0; mel < 80; ++mel) {
    if ((*loud)[mel * frames + 50] > (*loud)[best * frames + 50]) best = mel;
  }
  // 1000 Hz is at mel 15 of 45.2 up to 8000 Hz, in 81 steps.
  CHECK(best == 26);
  const auto silent = log_mel(spec, {});
  REQUIRE(silent.ok());
  for (const float value : *silent) REQUIRE(value == -1.5f);
}

TEST_CASE("extractors that are not built, and samples that are no numbers, are refused") {
  nlohmann::json config = {{"feature_extractor_type", "WhisperFeatureExtractor"},
                           {"feature_size", 128},
                           {"chunk_length", 2},
                           {"dither", 0.0}};
  const auto spec = read_log_mel(config);
  REQUIRE(spec.ok());
  CHECK((spec->num_mels == 128 && spec->num_samples == 32000 && spec->num_frames() == 200));
  for (const auto& [key, value] : {std::pair<const char*, nlohmann::json>("dither", 0.1),
                                   {"n_fft", 401},
                                   {"warp", 1},
                                   {"feature_extractor_type", "Wav2Vec2FeatureExtractor"}}) {
    nlohmann::json changed = config;
    changed[key] = value;
    const auto refused = read_log_mel(changed);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code() == StatusCode::kUnsupported);
    CHECK(refused.status().place() == std::string("preprocessor_config.json/") + key);
  }
  const float samples[] = {0.0f, NAN};
  CHECK(log_mel(*spec, samples).status().place() == "audio");
}
