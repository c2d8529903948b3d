// What sentence-transformers keeps beside a model: modules.json, and how the rows of a text become its embedding.
#pragma once

#include <string>

#include "base/status.h"

namespace headrace {

struct EmbeddingModules {
  std::string pooling;  // "mean", "cls", "lasttoken", or empty: the folder says nothing
  Status problem;       // why modules that are there cannot be followed; pooling is empty then
};

// kMalformed and kIo name the file. A folder without modules.json gives empty modules.
Result<EmbeddingModules> read_embedding_modules(const std::string& folder);

}  // namespace headrace
