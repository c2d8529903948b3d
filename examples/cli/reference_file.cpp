#include "reference_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace cli {
namespace {

constexpr char kMagic[] = "_logits_";
// Nats below the highest logit that codes reach. llama-perplexity writes 24, whose floor gives 260,000 unlikely tokens a
// mass of up to 1e-5 together; the range is in each record, so readers follow.
constexpr float kRange = 40.0f;

size_t record_size(size_t vocab_size) { return 2 * ((vocab_size + 1) / 2) + 4; }

}  // namespace

void log_softmax(const float* logits, size_t vocab_size, std::vector<double>& log_probs) {
  const double highest = *std::max_element(logits, logits + vocab_size);
  double sum = 0;
  for (size_t i = 0; i < vocab_size; ++i) sum += std::exp(logits[i] - highest);
  const double log_sum = highest + std::log(sum);
  log_probs.resize(vocab_size);
  for (size_t i = 0; i < vocab_size; ++i) log_probs[i] = logits[i] - log_sum;
}

ReferenceWriter::ReferenceWriter(const std::string& path, const ReferenceHeader& header)
    : file_(path), vocab_size_(static_cast<size_t>(header.vocab_size)) {
  const int32_t chunks = static_cast<int32_t>(header.tokens.size()) / header.context;
  file_.stream().write(kMagic, 8);
  for (int32_t field : {header.context, header.vocab_size, chunks}) {
    file_.stream().write(reinterpret_cast<const char*>(&field), sizeof field);
  }
  file_.stream().write(reinterpret_cast<const char*>(header.tokens.data()),
                       static_cast<std::streamsize>(header.tokens.size() * 4));
  record_.resize(record_size(vocab_size_));
}

void ReferenceWriter::write(const float* logits) {
  const auto [lowest, highest] = std::minmax_element(logits, logits + vocab_size_);
  const float floor = std::max(*lowest, *highest - kRange);
  double sum = 0;
  for (size_t i = 0; i < vocab_size_; ++i) sum += std::exp(static_cast<double>(logits[i]) - *highest);
  const float scale = (*highest - floor) / 65535.0f;
  const float min_log_prob = static_cast<float>(static_cast<double>(floor) - *highest - std::log(sum));
  std::memcpy(record_.data(), &scale, 4);
  std::memcpy(record_.data() + 2, &min_log_prob, 4);
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (size_t i = 0; i < vocab_size_; ++i) {
    const float code = std::nearbyint((logits[i] - floor) * inverse);
    record_[4 + i] = static_cast<uint16_t>(std::clamp(code, 0.0f, 65535.0f));
  }
  file_.stream().write(reinterpret_cast<const char*>(record_.data()), static_cast<std::streamsize>(record_.size() * 2));
}

void ReferenceWriter::close() { file_.commit(); }

ReferenceReader::ReferenceReader(const std::string& path) : path_(path), file_(path, std::ios::binary) {
  if (!file_) throw std::runtime_error(path + ": cannot be read");
  char magic[8] = {};
  int32_t fields[3] = {};
  file_.read(magic, 8);
  file_.read(reinterpret_cast<char*>(fields), sizeof fields);
  const bool sane = file_ && std::memcmp(magic, kMagic, 8) == 0 && fields[0] > 1 && fields[0] <= 1 << 20 &&
                    fields[1] > 0 && fields[1] <= 1 << 24 && fields[2] > 0 && fields[2] <= 1 << 20;
  if (!sane) throw std::runtime_error(path + ": is no reference file");
  const uint64_t num_tokens = static_cast<uint64_t>(fields[0]) * static_cast<uint64_t>(fields[2]);
  const std::streampos here = file_.tellg();
  const uint64_t rest = static_cast<uint64_t>(file_.seekg(0, std::ios::end).tellg() - here);
  file_.seekg(here);
  if (num_tokens * 4 > rest) throw std::runtime_error(path + ": is cut short");
  header_.context = fields[0];
  header_.vocab_size = fields[1];
  header_.tokens.resize(num_tokens);
  file_.read(reinterpret_cast<char*>(header_.tokens.data()), static_cast<std::streamsize>(num_tokens * 4));
  record_.resize(record_size(static_cast<size_t>(header_.vocab_size)));
}

void ReferenceReader::read(std::vector<double>& log_probs) {
  if (!file_.read(reinterpret_cast<char*>(record_.data()), static_cast<std::streamsize>(record_.size() * 2))) {
    throw std::runtime_error(path_ + ": is cut short");
  }
  float scale, min_log_prob;
  std::memcpy(&scale, record_.data(), 4);
  std::memcpy(&min_log_prob, record_.data() + 2, 4);
  log_probs.resize(static_cast<size_t>(header_.vocab_size));
  // Rounded codes do not add up to 1 exactly. Brought back to 1, what is left of the rounding enters a KL in second order.
  double sum = 0;
  for (size_t i = 0; i < log_probs.size(); ++i) {
    log_probs[i] = static_cast<double>(scale) * record_[4 + i] + min_log_prob;
    sum += std::exp(log_probs[i]);
  }
  const double log_sum = std::log(sum);
  for (double& log_prob : log_probs) log_prob -= log_sum;
}

}  // namespace cli
