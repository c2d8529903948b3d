// A tiny BERT with text, written by tests: the tokenizer of tiny_model.h and weights from a counter.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "capi/tiny_model.h"

namespace capi_test {

inline constexpr size_t kEncoderSize = 32, kEncoderVocab = 96, kEncoderPositions = 64, kEncoderLabels = 3;

class TinyEncoder {
 public:
  // architecture: BertModel (with its pooler), BertForMaskedLM or BertForSequenceClassification.
  explicit TinyEncoder(const std::string& architecture) : architecture_(architecture) {
    const std::string prefix = architecture == "BertModel" ? "" : "bert.";
    matrix(prefix + "embeddings.word_embeddings.weight", kEncoderVocab, kEncoderSize);
    matrix(prefix + "embeddings.position_embeddings.weight", kEncoderPositions, kEncoderSize);
    matrix(prefix + "embeddings.token_type_embeddings.weight", 2, kEncoderSize);
    norm(prefix + "embeddings.LayerNorm");
    for (int i = 0; i < 2; ++i) {
      const std::string layer = prefix + "encoder.layer." + std::to_string(i) + ".";
      for (const char* name : {"attention.self.query", "attention.self.key", "attention.self.value"}) {
        linear(layer + name, kEncoderSize, kEncoderSize);
      }
      linear(layer + "attention.output.dense", kEncoderSize, kEncoderSize);
      norm(layer + "attention.output.LayerNorm");
      linear(layer + "intermediate.dense", 48, kEncoderSize);
      linear(layer + "output.dense", kEncoderSize, 48);
      norm(layer + "output.LayerNorm");
    }
    if (architecture == "BertForMaskedLM") {
      linear("cls.predictions.transform.dense", kEncoderSize, kEncoderSize);
      norm("cls.predictions.transform.LayerNorm");
      vector("cls.predictions.bias", kEncoderVocab, 0.0f);
      return;
    }
    linear(prefix + "pooler.dense", kEncoderSize, kEncoderSize);
    if (architecture == "BertForSequenceClassification") linear("classifier", kEncoderLabels, kEncoderSize);
  }

  const std::vector<float>& values(const std::string& name) const { return tensors_.at(name).values; }

  void write(const TemporaryFolder& folder) const {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      const size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
      header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    write_file(folder / "model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
    const nlohmann::json config = {{"architectures", {architecture_}},
                                   {"model_type", "bert"},
                                   {"vocab_size", kEncoderVocab},
                                   {"hidden_size", kEncoderSize},
                                   {"intermediate_size", 48},
                                   {"num_hidden_layers", 2},
                                   {"num_attention_heads", 2},
                                   {"max_position_embeddings", kEncoderPositions},
                                   {"type_vocab_size", 2}};
    write_file(folder / "config.json", config.dump());
    write_file(folder / "tokenizer.json", tokenizer_json());
  }

  headrace::Model load(const headrace::Options& options = headrace::Options()) const {
    const TemporaryFolder folder;
    write(folder);
    return headrace::Model::load(folder.path(), options);
  }

 private:
  struct Tensor {
    std::vector<size_t> shape;
    std::vector<float> values;
  };

  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
  }
  void fill(const std::string& name, std::vector<size_t> shape, size_t count, float scale, float offset) {
    Tensor& tensor = tensors_[name];
    tensor.shape = std::move(shape);
    for (size_t i = 0; i < count; ++i) tensor.values.push_back(offset + scale * next());
  }
  void matrix(const std::string& name, size_t rows, size_t cols) { fill(name, {rows, cols}, rows * cols, 0.3f, 0.0f); }
  void vector(const std::string& name, size_t size, float offset) { fill(name, {size}, size, 0.2f, offset); }
  void linear(const std::string& name, size_t rows, size_t cols) {
    matrix(name + ".weight", rows, cols);
    vector(name + ".bias", rows, 0.0f);
  }
  void norm(const std::string& name) {
    vector(name + ".weight", kEncoderSize, 1.0f);
    vector(name + ".bias", kEncoderSize, 0.0f);
  }

  std::string architecture_;
  uint64_t state_ = 7;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace capi_test
