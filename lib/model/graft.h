// A model composed of others by a small JSON file: a base, layers whose attention or feed-forward, or both, another model's
// take the place of, another model's encoder for images in front, and adapters.
//
//   {"format": "headrace graft 1",
//    "base": "base",                       a GGUF file or model folder, as every path relative to this file's folder
//    "replace": [{"layers": [3, 7],        of the base
//                 "part": "attention",     or "feed_forward", or "layer"; each with its norms
//                 "from": "donor",         a GGUF file, a model folder, or a safetensors file with the part's tensors
//                 "from_layers": [3, 7],   of the donor; left out: those of "layers"
//                 "config": {...},         keys laid over the donor's config.json, or over the base's where it has none
//                 "keep": ["q_proj"]}],    weights of the part that stay the base's, by the names of weight_names.h
//    "images": {"from": "donor",           a model folder (graft_images.h)
//               "token": 6,                of the base's vocabulary, which stands for an image
//               "projector": "p.safetensors",  in place of the donor's own, under the donor's names
//               "config": {...}},          as above
//    "adapters": ["folder"]}               of PEFT, each added to all that the model computes
//
// The donor's block is what its family makes of its config; its file need hold no more than the tensors that are taken.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "model/model_header.h"

namespace headrace {

// kNotFound, kIo; kMalformed and kUnsupported with the member of the JSON file or the tensor as place: a donor of another
// width, with another kind of norms or other residual streams is one, and attention that sees what another layer keeps.
Result<ModelHeader> read_graft(const std::string& path, bool use_mmap);

}  // namespace headrace
