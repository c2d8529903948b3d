// GGUF files that the golden models lack, written by tests with the names and keys that published ones have.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden_run.h"
#include "model/model_header.h"
#include "unit/gguf_writer.h"

namespace headrace::golden {

// A GGUF file as a converter writes it: F32 tensors of a safetensors file under other names, and vectors of its own.
class ConvertedFile {
 public:
  explicit ConvertedFile(GgufMeta meta) : meta_(std::move(meta)) {}

  // A tensor whose name becomes empty, or with a text that becomes "*", is left out. norm_offset is added to norms: files of transformers store those of
  // Gemma minus one.
  void add_all(const std::string& path, const std::vector<std::pair<std::string, std::string>>& renames,
               float norm_offset) {
    auto file = SafetensorsFile::open_path(path);
    REQUIRE(file.ok());
    for (const TensorEntry& tensor : (*file)->tensors()) {
      std::string name = tensor.name;
      for (const auto& [from, to] : renames) {
        const size_t at = name.find(from);
        if (at == std::string::npos) continue;
        name.replace(at, from.size(), to);
        if (to == "*") name.clear();
      }
      if (name.empty()) continue;
      std::vector<float> values(tensor.bytes / 4);
      REQUIRE((*file)->read(tensor, 0, std::as_writable_bytes(std::span(values))).ok());
      if (name.find("norm") != std::string::npos) {
        for (float& value : values) value += norm_offset;
      }
      add(name, tensor.shape, std::move(values));
    }
  }
  void add(const std::string& name, std::vector<uint64_t> shape, std::vector<float> values) {
    tensors_.push_back({name, std::move(shape), std::move(values)});
  }

  ModelSource source() const {
    ModelSource out;
    out.sources.push_back(source_of(gguf_text(meta_, tensors_), "converted.gguf"));
    return out;
  }

 private:
  GgufMeta meta_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace headrace::golden
