#include "wav_file.h"

#include <cstring>
#include <stdexcept>

namespace cli {
namespace {

constexpr uint16_t kPcm = 1, kFloat = 3, kExtensible = 0xfffe;

struct Format {
  uint16_t encoding = 0, channels = 0, bits = 0;
  uint32_t sample_rate = 0;
};

[[noreturn]] void malformed(const std::string& what) { throw std::runtime_error("WAV file: " + what); }

// Little-endian, of `size` bytes.
uint32_t read_number(const std::string& bytes, size_t at, size_t size) {
  uint32_t out = 0;
  for (size_t i = 0; i < size; ++i) out |= uint32_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  return out;
}

Format read_format(const std::string& bytes, size_t at, size_t size) {
  if (size < 16) malformed("its format is cut short");
  Format out;
  out.encoding = static_cast<uint16_t>(read_number(bytes, at, 2));
  out.channels = static_cast<uint16_t>(read_number(bytes, at + 2, 2));
  out.sample_rate = read_number(bytes, at + 4, 4);
  out.bits = static_cast<uint16_t>(read_number(bytes, at + 14, 2));
  // The encoding is the first two bytes of the extension's identifier then.
  if (out.encoding == kExtensible) {
    if (size < 40) malformed("its format is cut short");
    out.encoding = static_cast<uint16_t>(read_number(bytes, at + 24, 2));
  }
  const bool pcm = out.encoding == kPcm && (out.bits == 8 || out.bits == 16 || out.bits == 24 || out.bits == 32);
  if (!pcm && !(out.encoding == kFloat && out.bits == 32)) {
    malformed("encoding " + std::to_string(out.encoding) + " with " + std::to_string(out.bits) +
              " bits is not read (PCM of 8, 16, 24 and 32 bits and floats of 32 are)");
  }
  if (out.channels == 0) malformed("has no channels");
  if (out.sample_rate == 0) malformed("has no sample rate");
  return out;
}

float read_sample(const std::string& bytes, size_t at, const Format& format) {
  const size_t size = format.bits / 8u;
  const uint32_t number = read_number(bytes, at, size);
  if (format.encoding == kFloat) {
    float out;
    std::memcpy(&out, &number, sizeof out);
    return out;
  }
  if (size == 1) return (static_cast<float>(number) - 128.0f) / 128.0f;
  // The sign to the top of 32 bits.
  const auto value = static_cast<int32_t>(number << (32 - format.bits));
  return static_cast<float>(static_cast<double>(value) / 2147483648.0);
}

}  // namespace

Waveform read_wav(const std::string& bytes) {
  if (bytes.size() < 12 || bytes.compare(0, 4, "RIFF") != 0 || bytes.compare(8, 4, "WAVE") != 0) {
    malformed("does not begin as one");
  }
  Format format;
  for (size_t at = 12; at + 8 <= bytes.size();) {
    const std::string name = bytes.substr(at, 4);
    const size_t size = read_number(bytes, at + 4, 4), begin = at + 8;
    if (size > bytes.size() - begin) malformed("is cut short in its part '" + name + "'");
    if (name == "fmt ") format = read_format(bytes, begin, size);
    if (name == "data") {
      if (format.channels == 0) malformed("has samples before their format");
      const size_t sample = format.bits / 8u, frame = sample * format.channels;
      if (size % frame != 0) malformed("ends within a sample");
      Waveform out;
      out.sample_rate = format.sample_rate;
      for (size_t i = begin; i < begin + size; i += frame) {
        double sum = 0;
        for (size_t channel = 0; channel < format.channels; ++channel) {
          sum += static_cast<double>(read_sample(bytes, i + channel * sample, format));
        }
        out.samples.push_back(static_cast<float>(sum / format.channels));
      }
      return out;
    }
    at = begin + size + size % 2;
  }
  malformed("has no samples");
}

}  // namespace cli
