#include "model/vision_spec.h"

#include <cmath>

#include "formats/json_writer.h"
#include "model/weight_names.h"

namespace headrace {

namespace {

constexpr int64_t kMaxPixels = 1 << 15;  // of a side
constexpr int64_t kMaxSide = 64;         // patches of a square

Status check_range(const std::string& place, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) return malformed("vision." + place, "{} is outside [{}, {}]", value, low, high);
  return {};
}

Status check_projector(const std::string& place, const ProjectorSpec& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + ".pool", spec.pool, 1, kMaxSide));
  HEADRACE_RETURN_IF_ERROR(check_range(place + ".merge", spec.merge, 1, kMaxSide));
  HEADRACE_RETURN_IF_ERROR(check_range(place + ".inner_size", spec.inner_size, 0, 1 << 22));
  if (spec.pool > 1 && spec.merge > 1) return malformed("vision." + place, "averages patches and joins them");
  if (spec.norm_place == ProjectorNorm::kNone || spec.norm_eps > 0) return {};
  return malformed("vision." + place + ".norm_eps", "must be a positive number");
}

int32_t joined_size(const VisionSpec& spec, const ProjectorSpec& projector) {
  return spec.encoder.hidden_size * projector.merge * projector.merge;
}

void write_projector(JsonWriter& out, const ProjectorSpec& spec) {
  out.begin_object();
  out.member("pool", spec.pool);
  out.member("merge", spec.merge);
  if (spec.norm_place != ProjectorNorm::kNone) {
    out.member("norm", spec.norm == NormKind::kRms ? "rms" : "layer");
    out.member("norm_place", spec.norm_place == ProjectorNorm::kOfPatches ? "patches" : "joined");
    out.member("norm_bias", spec.norm_bias);
    out.member("norm_eps", spec.norm_eps);
    out.member("norm_weight_offset", spec.norm_weight_offset);
  }
  out.member("inner_size", spec.inner_size);
  if (spec.inner_size > 0) out.member("activation", activation_name(spec.activation));
  out.member("bias", spec.bias);
  out.end_object();
}

void add_matrix(std::vector<WeightEntry>& out, const std::string& name, int32_t rows, int32_t cols, bool bias) {
  out.push_back({name + ".weight", "", {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)}});
  if (bias) out.push_back({name + ".bias", "", {static_cast<uint64_t>(rows)}});
}

void add_projector(std::vector<WeightEntry>& out, const std::string& name, const VisionSpec& spec,
                   const ProjectorSpec& projector) {
  const int32_t joined = joined_size(spec, projector);
  if (projector.norm_place != ProjectorNorm::kNone) {
    const bool of_patches = projector.norm_place == ProjectorNorm::kOfPatches;
    const auto size = static_cast<uint64_t>(of_patches ? spec.encoder.hidden_size : joined);
    out.push_back({name + ".norm.weight", "", {size}});
    if (projector.norm_bias) out.push_back({name + ".norm.bias", "", {size}});
  }
  const int32_t inner = projector.inner_size;
  add_matrix(out, name + ".linear_1", inner > 0 ? inner : spec.out_size, joined, projector.bias);
  if (inner > 0) add_matrix(out, name + ".linear_2", spec.out_size, inner, projector.bias);
}

}  // namespace

Result<ImageGrid> image_grid(const VisionSpec& spec, int64_t height, int64_t width, uint64_t num_floats) {
  if (height < 1 || width < 1 || height > kMaxPixels || width > kMaxPixels) {
    return invalid_argument("image", "{} x {} is no size of an image", height, width);
  }
  ImageGrid grid;
  uint64_t floats = static_cast<uint64_t>(height * width);
  if (spec.planes) {
    if (height != spec.image_size || width != spec.image_size) {
      return invalid_argument("image", "{} x {} pixels, the model takes {} x {}", height, width, spec.image_size,
                              spec.image_size);
    }
    floats *= static_cast<uint64_t>(spec.channels);
    grid.patch_rows = grid.patch_cols = spec.image_size / spec.patch_size;
  } else {
    floats *= static_cast<uint64_t>(spec.patch_floats());
    grid.patch_rows = static_cast<int32_t>(height);
    grid.patch_cols = static_cast<int32_t>(width);
  }
  if (floats != num_floats) {
    return invalid_argument("image", "{} values for an image of {} x {}, which has {}", num_floats, height, width,
                            floats);
  }
  const int32_t side = spec.projector.pool * spec.projector.merge;
  if (grid.patch_rows % side != 0 || grid.patch_cols % side != 0) {
    return invalid_argument("image", "{} x {} patches are no whole squares of {} x {}", grid.patch_rows,
                            grid.patch_cols, side, side);
  }
  grid.rows = grid.patch_rows / side;
  grid.cols = grid.patch_cols / side;
  if (grid.num_patches() + (spec.class_row ? 1 : 0) > spec.encoder.max_position_embeddings) {
    return invalid_argument("image", "{} patches, the encoder takes at most {}", grid.num_patches(),
                            spec.encoder.max_position_embeddings);
  }
  return grid;
}

Status validate_vision(const VisionSpec& spec) {
  const Status status = validate_spec(spec.encoder);
  if (!status.ok()) return status.within("vision");
  HEADRACE_RETURN_IF_ERROR(check_range("num_channels", spec.channels, 1, 16));
  HEADRACE_RETURN_IF_ERROR(check_range("patch_size", spec.patch_size, 1, 1 << 10));
  HEADRACE_RETURN_IF_ERROR(check_range("temporal_patch_size", spec.frames, 1, 64));
  HEADRACE_RETURN_IF_ERROR(check_range("out_size", spec.out_size, 1, 1 << 18));
  HEADRACE_RETURN_IF_ERROR(check_projector("projector", spec.projector));
  HEADRACE_RETURN_IF_ERROR(check_projector("deep_projector", spec.deep_projector));
  if (spec.deep_projector.merge != spec.projector.merge && !spec.deep_layers.empty()) {
    return malformed("vision.deep_projector.merge", "is not the projector's");
  }
  if (spec.planes) {
    HEADRACE_RETURN_IF_ERROR(check_range("image_size", spec.image_size, spec.patch_size, kMaxPixels));
    const int32_t side = spec.image_size / spec.patch_size;
    if (spec.image_size % spec.patch_size != 0 || side % (spec.projector.pool * spec.projector.merge) != 0) {
      return malformed("vision.image_size", "{} is no whole number of patches of {} and their squares", spec.image_size,
                       spec.patch_size);
    }
    HEADRACE_RETURN_IF_ERROR(check_range("max_position_embeddings", int64_t{side} * side + (spec.class_row ? 1 : 0), 1,
                                         spec.encoder.max_position_embeddings));
    if (spec.positions == PatchPositions::kTable && spec.num_positions != side * side + (spec.class_row ? 1 : 0)) {
      return malformed("vision.num_positions", "{} rows for {} x {} patches", spec.num_positions, side, side);
    }
  } else if (spec.positions == PatchPositions::kTable || spec.class_row) {
    return malformed("vision.planes", "rows of any number have no table of positions and no class row");
  }
  if (spec.positions == PatchPositions::kInterpolated) {
    const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(spec.num_positions))));
    HEADRACE_RETURN_IF_ERROR(check_range("num_position_embeddings", spec.num_positions, 1, 1 << 24));
    if (side * side != spec.num_positions) {
      return malformed("vision.num_position_embeddings", "{} is no square", spec.num_positions);
    }
  }
  HEADRACE_RETURN_IF_ERROR(check_range("window_size", spec.window, 0, 1 << 20));
  if (spec.window % spec.projector.merge != 0) {
    return malformed("vision.window_size", "windows of {} patches cut squares of {}", spec.window,
                     spec.projector.merge);
  }
  int32_t last = -1;
  for (const int32_t layer : spec.deep_layers) {
    HEADRACE_RETURN_IF_ERROR(
        check_range("deepstack_visual_indexes", layer, last + 1, static_cast<int64_t>(spec.encoder.layers.size()) - 1));
    last = layer;
  }
  return {};
}

void write_vision(JsonWriter& out, const VisionSpec& spec, bool with_frequencies) {
  out.member("planes", spec.planes);
  if (spec.planes) out.member("image_size", spec.image_size);
  out.member("channels", spec.channels);
  out.member("patch_size", spec.patch_size);
  out.member("frames", spec.frames);
  out.member("patch_bias", spec.patch_bias);
  out.member("class_row", spec.class_row);
  constexpr const char* kPositions[] = {"none", "table", "interpolated"};
  out.member("positions", kPositions[static_cast<int>(spec.positions)]);
  out.member("num_positions", spec.num_positions);
  out.member("window", spec.window);
  out.member("out_size", spec.out_size);
  out.member("image_token_id", spec.image_token_id);
  out.member("grid_positions", spec.grid_positions);
  out.key("projector");
  write_projector(out, spec.projector);
  if (!spec.deep_layers.empty()) {
    out.list("deep_layers", spec.deep_layers);
    out.key("deep_projector");
    write_projector(out, spec.deep_projector);
  }
  out.key("encoder");
  out.begin_object();
  write_spec(out, spec.encoder, with_frequencies);
  out.end_object();
}

std::string vision_to_json(const VisionSpec& spec) {
  JsonWriter out;
  out.begin_object();
  write_vision(out, spec, true);
  out.end_object();
  return out.take();
}

std::vector<WeightEntry> list_vision_weights(const VisionSpec& spec) {
  std::vector<WeightEntry> out = list_weights(spec.encoder);
  const int32_t hidden = spec.encoder.hidden_size;
  const size_t patch = out.size();
  add_matrix(out, "patch", hidden, spec.patch_floats(), spec.patch_bias);
  const auto side = static_cast<uint64_t>(spec.patch_size);  // files have a convolution's axes
  out[patch].file_shape = {static_cast<uint64_t>(hidden), static_cast<uint64_t>(spec.channels),
                           static_cast<uint64_t>(spec.frames), side, side};
  if (spec.class_row) out.push_back({"class_row", "", {static_cast<uint64_t>(hidden)}});
  if (spec.num_positions > 0) add_matrix(out, "positions", spec.num_positions, hidden, false);
  add_projector(out, "projector", spec, spec.projector);
  for (size_t i = 0; i < spec.deep_layers.size(); ++i) {
    const size_t first = out.size();
    add_projector(out, fmt::format("deep.{}", i), spec, spec.deep_projector);
    for (size_t j = first; j < out.size(); ++j) {
      out[j].index = i;
      out[j].count = spec.deep_layers.size();
    }
  }
  return out;
}

}  // namespace headrace
