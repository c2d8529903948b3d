// What a model's files say of it, without its weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "base/status.h"
#include "formats/gguf.h"
#include "formats/model_folder.h"
#include "formats/tensor_file.h"
#include "model/encoder_spec.h"
#include "model/memory_plan.h"
#include "model/model_spec.h"
#include "model/vision_spec.h"
#include "model/weights.h"

namespace headrace {

// Where a model comes from: a path, or sources the host opened. With sources that are no GGUF the JSON texts
// matter.
struct ModelSource {
  // A GGUF file (any shard of a split one), a folder with config.json and safetensors, a safetensors file with the JSON
  // files beside it, or the .json file of a graft.
  std::string path;
  // Used when path is empty: GGUF (one or all shards) or safetensors.
  std::vector<std::shared_ptr<ByteSource>> sources;
  std::string config_json, generation_config_json, tokenizer_json, tokenizer_config_json, chat_template;
  bool use_mmap = false;  // see open_path of base/byte_source.h
};

// A part of a graft (model/graft.h) and where it comes from.
struct GraftedPart {
  std::vector<int64_t> layers;  // of those parts that are layers'
  std::string part, from;
  std::vector<int64_t> from_layers;
};

// What a file says without loading its weights. Cheap: reads headers only.
struct ModelHeader {
  ModelSpec spec;
  std::vector<WeightEntry> weights;  // every shape checked against the spec
  std::optional<VisionSpec> vision;  // of models that read images
  std::vector<WeightEntry> vision_weights;
  std::optional<EncoderSpec> encoder;  // of models with one in front of the decoder
  std::vector<WeightEntry> encoder_weights;
  std::shared_ptr<TensorFile> file;
  std::shared_ptr<GgufFile> gguf;  // same object as file, or null
  ModelFolder folder;              // JSON of the safetensors case
  std::string format;              // "gguf" or "safetensors"
  std::string name;                // the path or the first source's name
  bool by_path = false;            // the sources are files that the path led to
  std::vector<GraftedPart> grafts;
  std::vector<std::string> adapters;  // folders of those that the composed model has

  // kNotFound, kIo; kMalformed and kUnsupported with the metadata key, JSON pointer or tensor as place.
  static Result<ModelHeader> read(const ModelSource& source);

  // Architecture, layers, types histogram, parameters, bytes, KV bytes per token: for `inspect`.
  // A JSON object. held_bytes: of the weights in memory, where they are loaded; otherwise those of the file are told.
  std::string describe(std::optional<uint64_t> held_bytes = {}) const;
  int64_t num_parameters() const;
  // Bytes of the packed weights (an estimate: the bytes of the file, or 4 per value with decode_to_float).
  uint64_t weight_bytes(const PackOptions& options = {}) const;
  MemoryPlan plan(uint64_t memory_bytes, const PackOptions& options = {}) const;
};

}  // namespace headrace
