// Adapters in PEFT's form for the models of tests/data/goldens, and the same models with an adapter merged into their weights.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "capi/tiny_model.h"
#include "peft_files.h"

namespace capi_test {

using peft_files::FloatTensor;
using peft_files::FloatTensors;
using peft_files::read_tensors;
using peft_files::write_tensors;

// Of a model's name, or of a path as it is.
inline std::string golden_folder(const std::string& name) {
  return name.starts_with('/') ? name : HEADRACE_SOURCE_DIR "/tests/data/goldens/" + name;
}

// Of the modules of `model` whose names end in one of `ends`.
struct AdapterFiles : peft_files::AdapterFiles {
  AdapterFiles(const std::string& model, uint32_t seed) : peft_files::AdapterFiles(golden_folder(model), seed) {}
  AdapterFiles(const std::string& model, uint32_t seed, const std::vector<std::string>& ends,
               const std::map<std::string, size_t>& ranks = {})
      : peft_files::AdapterFiles(golden_folder(model), seed, ends, ranks) {}
};

// The adapter's tensors as llama.cpp's converter names them, `names` from parts of PEFT's names to parts of GGUF's. Of q and k
// a llama's rows are put in the order of its GGUF files, by heads of each.
inline std::string gguf_adapter(const AdapterFiles& adapter, const std::map<std::string, std::string>& keys,
                                float alpha, const std::vector<std::pair<std::string, std::string>>& names,
                                const std::map<std::string, size_t>& heads = {}) {
  FloatTensors tensors;
  for (const auto& [full_name, full_tensor] : adapter.tensors) {
    std::string name = full_name.substr(std::string("base_model.model.").size());
    FloatTensor tensor = full_tensor;
    const std::string experts = "block_sparse_moe.experts.";
    const size_t expert = name.find(experts);
    if (expert != std::string::npos) name.erase(expert, experts.size() + 2);  // and its one digit
    for (const auto& [from, to] : names) {
      const size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, from.size(), to);
    }
    for (const auto& [part, count] : heads) {
      if (name.find(part) == std::string::npos || !name.ends_with("lora_b")) continue;
      const size_t rank = tensor.shape[1], half = tensor.shape[0] / count / 2;
      const std::vector<float> old = tensor.values;
      for (size_t row = 0; row < tensor.shape[0]; ++row) {  // [head, half, 2] from [head, 2, half]
        const size_t head = row / (2 * half), of_head = row % (2 * half);
        const size_t from = head * 2 * half + of_head % 2 * half + of_head / 2;
        std::copy_n(old.begin() + static_cast<ptrdiff_t>(from * rank), rank,
                    tensor.values.begin() + static_cast<ptrdiff_t>(row * rank));
      }
    }
    // Experts of one stack follow each other: [experts, rows, cols].
    if (expert != std::string::npos) {
      FloatTensor& stack = tensors[name];
      if (stack.shape.empty()) stack.shape = {0, tensor.shape[0], tensor.shape[1]};
      ++stack.shape[0];
      stack.values.insert(stack.values.end(), tensor.values.begin(), tensor.values.end());
      continue;
    }
    tensors[name] = tensor;
  }
  std::string out = "GGUF", data;
  const auto number = [&out](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto text = [&](const std::string& value) {
    number(uint64_t{value.size()});
    out += value;
  };
  number(uint32_t{3});
  number(uint64_t{tensors.size()});
  number(uint64_t{keys.size() + 1});
  for (const auto& [key, value] : keys) {
    text(key);
    number(uint32_t{8});
    text(value);
  }
  text("adapter.lora.alpha");
  number(uint32_t{6});
  number(alpha);
  for (const auto& [name, tensor] : tensors) {
    text(name);
    number(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) number(uint64_t{tensor.shape[i]});
    number(uint32_t{0});  // F32
    number(uint64_t{data.size()});
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * 4);
    data.resize((data.size() + 31) / 32 * 32);
  }
  out.resize((out.size() + 31) / 32 * 32);
  return out + data;
}

// The model's folder again, with W + scale(module) B A in place of W.
template <class Scale>
void write_merged(const std::string& model, const AdapterFiles& adapter, const Scale& scale,
                  const std::string& folder) {
  FloatTensors weights = read_tensors(golden_folder(model) + "/model.safetensors");
  const std::string prefix = "base_model.model.", suffix = ".lora_A.weight";
  for (const auto& [name, down] : adapter.tensors) {
    if (!name.ends_with(suffix)) continue;
    const std::string module = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    const FloatTensor& up = adapter.tensors.at(prefix + module + ".lora_B.weight");
    FloatTensor& weight = weights.at(module + ".weight");
    const size_t rank = down.shape[0], cols = down.shape[1];
    for (size_t row = 0; row < up.shape[0]; ++row) {
      for (size_t col = 0; col < cols; ++col) {
        double sum = 0;
        for (size_t i = 0; i < rank; ++i) {
          sum += static_cast<double>(up.values[row * rank + i]) * static_cast<double>(down.values[i * cols + col]);
        }
        float& value = weight.values[row * cols + col];
        value = static_cast<float>(static_cast<double>(value) + scale(module, rank) * sum);
      }
    }
  }
  std::filesystem::create_directories(folder);
  std::filesystem::copy(golden_folder(model) + "/config.json", folder + "/config.json");
  write_tensors(folder + "/model.safetensors", weights);
}

}  // namespace capi_test
