// Waveforms of WAV files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cli {

struct Waveform {
  uint32_t sample_rate = 0;
  std::vector<float> samples;  // mono, in [-1, 1]: the mean of the channels
};

// RIFF WAVE of PCM with 8, 16, 24 or 32 bits, or of 32-bit floats; any number of channels. `bytes`: of the file. Throws
// std::runtime_error, which does not name the file, for anything else and for a file that is cut short.
Waveform read_wav(const std::string& bytes);

}  // namespace cli
