// The images of a prompt: where their rows stand, and what a batch needs of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/batch.h"
#include "model/vision_spec.h"

namespace headrace {

struct PromptImage {
  int64_t begin = 0;  // position of its first row
  ImageGrid grid;
  const float* rows =
      nullptr;  // [grid.num_tokens(), VisionSpec::row_floats()], borrowed; null before they are computed
  int64_t end() const { return begin + grid.num_tokens(); }
};

// Gives each image its place: tokens hold its token once for each of its rows, or once for the image, which is then repeated.
// kInvalidArgument ("images") where the tokens are neither.
Status place_images(int32_t image_token_id, std::vector<int32_t>& tokens, std::span<PromptImage> images);

// For the rows that Batch::add_sequence appended last, positions [begin, end) of a sequence with these images, in order: their
// embeddings, spans and rotary positions. To be called for every sequence of a batch, or for none where none has images.
void add_image_rows(Batch& batch, const ModelSpec& decoder, const VisionSpec& vision,
                    std::span<const PromptImage> images, int64_t begin, int64_t end);

}  // namespace headrace
