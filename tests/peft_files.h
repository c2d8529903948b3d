// Adapters in PEFT's form, of random numbers.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace peft_files {

struct FloatTensor {
  std::vector<size_t> shape;
  std::vector<float> values;
};
using FloatTensors = std::map<std::string, FloatTensor>;

inline FloatTensors read_tensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  FloatTensors out;
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, size));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    FloatTensor& tensor = out[name];
    tensor.shape = entry["shape"].get<std::vector<size_t>>();
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensor.values.resize((end - begin) / 4);
    std::memcpy(tensor.values.data(), bytes.data() + 8 + size + begin, end - begin);
  }
  return out;
}

inline void write_tensors(const std::string& path, const FloatTensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * 4);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::ofstream out(path, std::ios::binary);
  out << std::string(reinterpret_cast<const char*>(&size), 8) << text << data;
}

// An adapter of every linear module of the attention and feed-forward blocks.
struct AdapterFiles {
  nlohmann::json config = {{"peft_type", "LORA"}, {"r", 4},
                           {"lora_alpha", 6},     {"bias", "none"},
                           {"lora_dropout", 0.1}, {"use_rslora", false},
                           {"use_dora", false},   {"target_modules", {"q_proj"}}};
  FloatTensors tensors;

  // Of the modules of the model in that folder whose names end in one of `ends`, with ranks by module or else 4.
  AdapterFiles(const std::string& folder, uint32_t seed,
               const std::vector<std::string>& ends = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                                       "down_proj"},
               const std::map<std::string, size_t>& ranks = {}) {
    uint32_t state = seed * 747796405u + 1;
    const auto draw = [&state] {
      state = state * 1664525u + 1013904223u;
      return static_cast<float>(static_cast<double>(state >> 8) / (1 << 24) - 0.5);
    };
    for (const auto& [name, weight] : read_tensors(folder + "/model.safetensors")) {
      const std::string module = name.substr(0, name.size() - 7);  // ".weight"
      for (const std::string& end : ends) {
        if (weight.shape.size() != 2 || !module.ends_with("." + end)) continue;
        const size_t rank = ranks.count(end) != 0 ? ranks.at(end) : 4;
        FloatTensor down{{rank, weight.shape[1]}, std::vector<float>(rank * weight.shape[1])};
        FloatTensor up{{weight.shape[0], rank}, std::vector<float>(weight.shape[0] * rank)};
        for (float& value : down.values) value = 0.5f * draw();
        for (float& value : up.values) value = 0.5f * draw();
        tensors["base_model.model." + module + ".lora_A.weight"] = down;
        tensors["base_model.model." + module + ".lora_B.weight"] = up;
      }
    }
  }

  void write(const std::string& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/adapter_config.json") << config.dump();
    write_tensors(folder + "/adapter_model.safetensors", tensors);
  }
};

}  // namespace peft_files
