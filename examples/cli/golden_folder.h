// A model's folder with what the reference implementation makes of it: golden.safetensors and golden.json beside the weights,
// as tests/golden/make.py writes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace cli {

class GoldenFolder {
 public:
  // Throws std::runtime_error or headrace::Error naming the file for what cannot be read or is malformed.
  explicit GoldenFolder(const std::string& path);

  const std::string& path() const { return path_; }
  // The class that config.json names, or what golden.json says.
  const std::string& architecture() const { return architecture_; }
  // What the reference's own variants (attention kernels, float64) differ by at most, in logits.
  double noise() const { return noise_; }
  // Largest |difference| allowed: ten times the noise, at least 1e-4.
  double tolerance() const;
  // Prompts, the shortest first: NAME for each tensor NAME.input_ids.
  std::vector<std::string> cases() const;
  // What the folder has of a prompt, without "NAME."; "" gives the tensors that belong to none.
  std::vector<std::string> parts(const std::string& name) const;
  // Greedy tokens that say something: none where the reference gives others when it caches, of a rotation that depends on the
  // length say.
  size_t stable_greedy_tokens(const std::string& name, size_t num_tokens) const;

  bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  // Throw headrace::Error where the tensor is absent or of another type; floats() widens bfloat16.
  std::vector<float> floats(const std::string& tensor) const;
  std::vector<int32_t> ids(const std::string& tensor) const;
  std::vector<uint64_t> shape(const std::string& tensor) const;

 private:
  struct Entry {
    std::string dtype;
    size_t begin = 0, end = 0;  // in data_
    std::vector<uint64_t> shape;
  };
  const Entry& entry(const std::string& tensor) const;

  std::string path_, architecture_, data_;
  std::map<std::string, Entry> tensors_;
  nlohmann::json json_;
  double noise_ = 0;
};

// Folders with golden.safetensors at or below `path`, sorted.
std::vector<std::string> find_golden_folders(const std::string& path);

// What of such a folder can be loaded: itself where it has config.json, and each GGUF file in it.
std::vector<std::string> find_models(const std::string& folder);

}  // namespace cli
