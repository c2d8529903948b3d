// Typed reading of one architecture's GGUF metadata: keys are given without the architecture's prefix.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/gguf.h"
#include "model/model_spec.h"
#include "model/rope_frequencies.h"

namespace headrace {

class GgufReader {
 public:
  GgufReader(const GgufFile& file, std::string architecture) : file_(file), architecture_(std::move(architecture)) {}

  const GgufFile& file() const { return file_; }
  const std::string& architecture() const { return architecture_; }
  std::string key(std::string_view suffix) const { return architecture_ + "." + std::string(suffix); }
  bool has(std::string_view suffix) const { return file_.find_metadata(key(suffix)) != nullptr; }

  // kMalformed naming the full key when it is absent (without fallback), of another type, or outside [low,
  // high].
  Result<int64_t> integer(std::string_view suffix, int64_t low, int64_t high) const;
  Result<int64_t> integer_or(std::string_view suffix, int64_t low, int64_t high, int64_t fallback) const;
  Result<double> number_or(std::string_view suffix, double fallback) const;
  // kMalformed for a number that is not above zero as a float, too.
  Result<double> positive_or(std::string_view suffix, double fallback) const;

  // kUnsupported for a key under the architecture's prefix that is not listed: each such key is a parameter
  // of the computation.
  Status check_known(std::span<const std::string_view> suffixes) const;

  // The scaling that rope.scaling.* describes.
  Result<RopeScaling> rope_scaling(int64_t max_position_embeddings) const;

 private:
  const GgufFile& file_;
  std::string architecture_;
};

}  // namespace headrace
