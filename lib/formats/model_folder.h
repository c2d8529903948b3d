// A Hugging Face model folder: its weights and the JSON files beside them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "formats/embedding_modules.h"
#include "formats/json.h"
#include "formats/tensor_file.h"

namespace headrace {

struct ModelFolder {
  std::shared_ptr<TensorFile> weights;  // null when the folder has no safetensors (tokenizer files only)
  // The files of the same names; null json when absent. Python's Infinity and NaN: see json_number().
  HeldJson<nlohmann::json> config, generation_config, tokenizer_config;
  HeldJson<nlohmann::json> preprocessor_config;  // or what processor_config.json has as image_processor
  std::string tokenizer_json;                    // text of tokenizer.json, empty when absent
  // From chat_template.jinja, else from tokenizer_config.json (a list of named templates gives its "default"
  // here), else from chat_template.json; empty when there is none.
  std::string chat_template;
  // The other named templates: of the list, and of additional_chat_templates/*.jinja.
  std::map<std::string, std::string> named_chat_templates;
  EmbeddingModules embedding;
};

// kNotFound when `path` is no folder or holds none of the files; a file that is there but cannot be read or
// parsed is an error that names it.
Result<ModelFolder> open_model_folder(const std::string& path, bool use_mmap = false);

}  // namespace headrace
