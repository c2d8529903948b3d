// Hashes of what a model is: of the content alone, and of all that cached keys and values depend on beside the tokens.
#pragma once

#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/status.h"
#include "model/model.h"
#include "model/model_header.h"

namespace headrace {

// The spec, the tensor table, and hashes of all bytes of small tensors and samples of large ones, for the hashes below.
// Reads a few kilobytes per tensor.
Result<std::string> content_text(const ModelHeader& header);

// Of cached keys and values: the content and what changes the arithmetic (pack options, the backend's name).
Hash128 model_identity(std::string_view content, const PackOptions& options, const Backend& backend);

// Of packed weights, but for their layout: the content, sizes and times of the files, and whether weights are decoded.
Hash128 packed_identity(std::string_view content, const TensorFile& file, const PackOptions& options);

}  // namespace headrace
