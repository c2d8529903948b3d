// Split GGUF models: the names of the files (NAME-00001-of-00003.gguf) and the merging of their headers.
#pragma once

#include "formats/gguf_parser.h"

namespace headrace {

struct SplitName {
  std::string prefix;   // all before "-00001-of-00003.gguf"
  uint32_t number = 0;  // from 1
  uint32_t count = 0;
};
// Nothing when the path is not of that form or its numbers make no sense.
std::optional<SplitName> parse_split_name(const std::string& path);
std::string split_path(const SplitName& name, uint32_t number);

// Checks that the headers are all parts of one split model, each once, and brings sources and headers into
// the parts' order. One header without split metadata passes. Places name the source.
Status order_shards(std::vector<std::shared_ptr<ByteSource>>* sources, std::vector<GgufHeader>* headers);

}  // namespace headrace
