// Log-probabilities of a reference run, in the file format of llama-perplexity's --kl-divergence-base: "_logits_", int32
// context, int32 vocab_size, int32 chunks, int32 tokens [chunks * context], then for each scored position float scale, float
// min_log_prob, uint16 codes [vocab_size padded to even]: log p = scale * code + min_log_prob. Codes reach 40 nats below
// the highest logit; one step is at most 40 / 65535 nats, whose rounding moves a mean KL by about 2e-8.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "output_file.h"

namespace cli {

struct ReferenceHeader {
  int32_t context = 0;
  int32_t vocab_size = 0;
  std::vector<int32_t> tokens;  // [chunks * context]
};

class ReferenceWriter {
 public:
  // The file is put in its place by close(). Throws std::runtime_error when it cannot be made.
  ReferenceWriter(const std::string& path, const ReferenceHeader& header);
  void write(const float* logits);  // [vocab_size]
  void close();

 private:
  OutputFile file_;
  size_t vocab_size_;
  std::vector<uint16_t> record_;
};

class ReferenceReader {
 public:
  // Throws std::runtime_error for a file that is not one, or is cut short.
  explicit ReferenceReader(const std::string& path);
  const ReferenceHeader& header() const { return header_; }
  void read(std::vector<double>& log_probs);  // the next position's, [vocab_size]

 private:
  std::string path_;
  std::ifstream file_;
  ReferenceHeader header_;
  std::vector<uint16_t> record_;
};

// log softmax of logits [vocab_size], in float64.
void log_softmax(const float* logits, size_t vocab_size, std::vector<double>& log_probs);

}  // namespace cli
