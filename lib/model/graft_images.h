// A graft's encoder for images: another model's, with its projector, in front of the base's decoder.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "formats/joined_file.h"
#include "model/config_reader.h"
#include "model/model.h"
#include "model/model_header.h"

namespace headrace {

// `object` is the member "images" of the graft's file, `folder` what its paths are relative to. Gives the base's header the
// encoder, how it is fed (preprocessor_config.json) and its weights, whose tensors get the prefixes of the parts that are
// added. The decoder's own spec grows by no more than the rows that the encoder adds to its first layers: without an image
// nothing changes.
// Errors as read_graft's; kUnsupported where the decoder cannot take the encoder's rows: another width without a projector
// that gives the decoder's, or positions in two axes that it does not rotate by.
Status add_images(nlohmann::json& object, const std::string& folder, bool use_mmap, ModelHeader& header,
                  std::vector<JoinedFile::Part>& parts);

}  // namespace headrace
