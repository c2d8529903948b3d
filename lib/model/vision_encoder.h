// Runs a vision encoder: one image to the rows that the decoder sees for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/forward.h"
#include "model/vision_spec.h"
#include "model/vision_weights.h"
#include "ops/backend.h"

namespace headrace {

// Thread rule: one run at a time, and none beside other ops of the backend. Keeps references to spec, weights and backend,
// which must outlive it and stay.
class VisionEncoder {
 public:
  VisionEncoder(const VisionSpec& spec, const VisionWeights& weights, Backend& backend);

  // pixels: [channels, height, width] for models of planes, else [patches, patch_floats] in the model's order of patches;
  // grid: what image_grid() gives for them. out [grid.num_tokens(), spec.row_floats()]: the row in place of the token's
  // embedding, then those of deep layers. A function of pixels and sizes alone, bit for bit. kOutOfMemory.
  Status encode(std::span<const float> pixels, const ImageGrid& grid, std::vector<float>& out);

 private:
  struct Places;  // of patches, in the order in which the encoder sees them

  Status embed_patches(std::span<const float> pixels, const Places& places, std::vector<float>& rows);
  void add_positions(const ImageGrid& grid, const Places& places, float* rows);
  Status run_layers(const std::vector<float>& rows, const Places& places, std::vector<float>& out);
  // Rows of patches -> out, rows `stride` apart from `offset` on, in the order of the image.
  void project(const std::vector<float>& rows, const ImageGrid& grid, const Places& places, const ProjectorSpec& spec,
               const ProjectorWeights& weights, int64_t offset, std::vector<float>& out);

  const VisionSpec& spec_;
  const VisionWeights& weights_;
  Backend& backend_;
  ForwardPass forward_;
  std::vector<std::vector<float>> deep_rows_;  // of each deep layer
};

}  // namespace headrace
