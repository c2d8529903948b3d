// A vision encoder as data: patches of an image become rows that stand in the decoder's stream for tokens. Its layers are a
// ModelSpec, whose rows are patches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_spec.h"
#include "model/weights.h"

namespace headrace {

class JsonWriter;

enum class ProjectorNorm : int32_t { kNone, kOfPatches, kOfJoined };

// Rows of patches to rows of the decoder: W2 activation(W1 x + b1) + b2, or W1 x, of squares of patches that are averaged or
// joined before.
struct ProjectorSpec {
  int32_t pool = 1;   // patches of squares so many wide become their mean
  int32_t merge = 1;  // patches of squares so many wide, which lie side by side, become one row
  ProjectorNorm norm_place = ProjectorNorm::kNone;
  NormKind norm = NormKind::kRms;
  bool norm_bias = false;
  float norm_eps = 0.0f;
  float norm_weight_offset = 0.0f;
  int32_t inner_size = 0;  // rows of W1 where there is a W2; 0: there is none
  Activation activation = Activation::kGeluErf;
  bool bias = false;
  bool operator==(const ProjectorSpec&) const = default;
};

enum class PatchPositions : int32_t {
  kNone,
  kTable,         // a learned row for each row of the encoder
  kInterpolated,  // rows of a square grid, bilinear between its corners, which are the image's
};

struct VisionSpec {
  ModelSpec encoder;   // vocab_size 0; positions [rows, 2] are row and column of a patch where layers rotate
  bool planes = true;  // images come as [channels, height, width] of pixels, else as patches in the order of `merge`
  int32_t image_size = 0;  // height and width of planes
  int32_t channels = 3;
  int32_t patch_size = 0;
  int32_t frames = 1;  // of a patch
  bool patch_bias = false;
  bool class_row = false;  // a learned row before those of the patches, which the projector does not see
  PatchPositions positions = PatchPositions::kNone;
  int32_t num_positions = 0;  // rows of the table
  int32_t window = 0;         // patches (height and width) of the windows of layers with SpanKind::kAlone; 0: no such
  ProjectorSpec projector;
  // Outputs of these layers of the encoder, ascending, go through projectors of their own to the decoder's first layers.
  std::vector<int32_t> deep_layers;
  ProjectorSpec deep_projector;
  int32_t out_size = 0;  // of the decoder's rows
  int32_t image_token_id = -1;
  // Rows of an image rotate by their places in it, and the text goes on behind the larger of its sides; else rows count as
  // tokens do.
  bool grid_positions = false;

  int32_t patch_floats() const { return channels * frames * patch_size * patch_size; }
  int32_t row_floats() const { return out_size * (1 + static_cast<int32_t>(deep_layers.size())); }
  bool operator==(const VisionSpec&) const = default;
};

// Sizes of an image for a VisionSpec.
struct ImageGrid {
  int32_t patch_rows = 0, patch_cols = 0;
  int32_t rows = 0, cols = 0;  // of what the decoder sees
  int64_t num_patches() const { return int64_t{patch_rows} * patch_cols; }
  int32_t num_tokens() const { return rows * cols; }
};

// height and width: pixels of planes, or patches. kInvalidArgument ("image") where the sizes are not the model's, or not
// those of num_floats.
Result<ImageGrid> image_grid(const VisionSpec& spec, int64_t height, int64_t width, uint64_t num_floats);

// As validate_spec.
Status validate_vision(const VisionSpec& spec);
// Members of the open object.
void write_vision(JsonWriter& out, const VisionSpec& spec, bool with_frequencies);
std::string vision_to_json(const VisionSpec& spec);
// Every weight under our names: those of the encoder's layers, and patch.*, class_row, positions.weight, projector.*,
// deep.N.*.
std::vector<WeightEntry> list_vision_weights(const VisionSpec& spec);

}  // namespace headrace
