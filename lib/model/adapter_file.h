// The two forms in which low-rank adapters are published, as pairs of matrices of named modules:
//   a folder of the PEFT library, adapter_config.json and adapter_model.safetensors, for models in Hugging Face's form
//   a GGUF file of llama.cpp's convert_lora_to_gguf.py, general.type "adapter", for models in GGUF
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/tensor_file.h"
#include "model/model.h"

namespace headrace {

struct AdapterFile {
  struct Pair {
    std::string module;            // as the model's file names it, without ".weight"
    const TensorEntry *down, *up;  // A [rank, in_features] and B [out_features, rank], stacked as the module is
    int64_t rank;                  // that A and B must have
    double scale;                  // of B A
  };
  std::shared_ptr<TensorFile> file;
  std::string path;  // of the file with the tensors
  std::vector<Pair> pairs;

  // kUnsupported or kMalformed with the key or tensor as place: of another form than the model's, with tensors or keys that
  // are no part of a low-rank adapter, or one of a pair alone.
  static Result<AdapterFile> open(const Model& model, const std::string& path);
};

}  // namespace headrace
