#include "model/vision_encoder.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "model/embedded_pass.h"

namespace headrace {

// Patches come square by square of `merge`, squares row by row of the image; with windows, squares are put in order of their
// windows, so that the rows of a window are neighbours.
struct VisionEncoder::Places {
  std::vector<int32_t> row, col;      // [patches]
  std::vector<int32_t> square;        // [squares] which of the input stands there
  std::vector<int32_t> window_start;  // [windows + 1] patches
};

namespace {

// Squares of patches in the order of the encoder, and where windows begin among them.
void order_squares(const ImageGrid& grid, int32_t merge, int32_t window, std::vector<int32_t>& squares,
                   std::vector<int32_t>& window_start) {
  const int32_t rows = grid.patch_rows / merge, cols = grid.patch_cols / merge, count = merge * merge;
  const int32_t height = window > 0 ? window / merge : rows, width = window > 0 ? window / merge : cols;
  window_start.push_back(0);
  for (int32_t top = 0; top < rows; top += height) {
    for (int32_t left = 0; left < cols; left += width) {
      for (int32_t row = top; row < std::min(top + height, rows); ++row) {
        for (int32_t col = left; col < std::min(left + width, cols); ++col) squares.push_back(row * cols + col);
      }
      window_start.push_back(static_cast<int32_t>(squares.size()) * count);
    }
  }
}

void linear(Backend& backend, const float* x, int64_t rows, int64_t in_features, const LinearOutput& output) {
  LinearParams params;
  params.x = x;
  params.num_tokens = rows;
  params.in_features = in_features;
  params.outputs = {&output, 1};
  backend.linear(params);
}

void normalize(Backend& backend, const ProjectorSpec& spec, const NormWeight& norm, int64_t rows, float* x) {
  const auto size = static_cast<int64_t>(norm.weight.size());
  if (spec.norm == NormKind::kRms) {
    RmsNormParams params;
    params.x = params.out = x;
    params.weight = norm.weight.data();
    params.num_tokens = rows;
    params.size = size;
    params.eps = spec.norm_eps;
    params.weight_offset = spec.norm_weight_offset;
    backend.rms_norm(params);
    return;
  }
  LayerNormParams params;
  params.x = params.out = x;
  params.weight = norm.weight.data();
  params.bias = norm.bias.empty() ? nullptr : norm.bias.data();
  params.num_tokens = rows;
  params.size = size;
  params.eps = spec.norm_eps;
  backend.layer_norm(params);
}

// Means over squares of `pool` x `pool` patches, in float64, row by row of the image.
std::vector<float> averaged(const std::vector<float>& rows, const ImageGrid& grid, int32_t pool, size_t size) {
  std::vector<float> out(static_cast<size_t>(grid.num_tokens()) * size);
  std::vector<double> sum(size);
  for (int32_t row = 0; row < grid.rows; ++row) {
    for (int32_t col = 0; col < grid.cols; ++col) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int32_t i = 0; i < pool * pool; ++i) {
        const int32_t patch = (row * pool + i / pool) * grid.patch_cols + col * pool + i % pool;
        for (size_t d = 0; d < size; ++d) {
          sum[d] += static_cast<double>(rows[static_cast<size_t>(patch) * size + d]);
        }
      }
      float* to = out.data() + static_cast<size_t>(row * grid.cols + col) * size;
      for (size_t d = 0; d < size; ++d) to[d] = static_cast<float>(sum[d] / (pool * pool));
    }
  }
  return out;
}

// Where a patch lies between the rows of a table whose ends are the image's, and how near to the later one.
struct Between {
  int32_t low, high;
  float share;
};

Between between(int32_t place, int32_t count, int32_t side) {
  const float at =
      static_cast<float>(place) * static_cast<float>(side - 1) / static_cast<float>(std::max(count - 1, 1));
  const auto low = static_cast<int32_t>(at);
  return {low, std::min(low + 1, side - 1), at - static_cast<float>(low)};
}

}  // namespace

VisionEncoder::VisionEncoder(const VisionSpec& spec, const VisionWeights& weights, Backend& backend)
    : spec_(spec), weights_(weights), backend_(backend), forward_(spec.encoder, weights.encoder, backend) {
  if (spec.deep_layers.empty()) return;
  deep_rows_.resize(spec.deep_layers.size());
  forward_.set_layer_observer([this](int32_t layer, const float* x, int64_t num_rows) {
    for (size_t i = 0; i < deep_rows_.size(); ++i) {
      if (spec_.deep_layers[i] + 1 != layer) continue;
      deep_rows_[i].assign(x, x + num_rows * spec_.encoder.hidden_size);
    }
  });
}

Status VisionEncoder::encode(std::span<const float> pixels, const ImageGrid& grid, std::vector<float>& out) {
  try {
    const int32_t merge = spec_.projector.merge;
    Places places;
    order_squares(grid, merge, spec_.window, places.square, places.window_start);
    for (const int32_t square : places.square) {
      const int32_t cols = grid.patch_cols / merge;
      for (int32_t i = 0; i < merge * merge; ++i) {
        places.row.push_back(square / cols * merge + i / merge);
        places.col.push_back(square % cols * merge + i % merge);
      }
    }
    std::vector<float> rows, encoded;
    HEADRACE_RETURN_IF_ERROR(embed_patches(pixels, places, rows));
    add_positions(grid, places, rows.data());
    HEADRACE_RETURN_IF_ERROR(run_layers(rows, places, encoded));
    out.resize(static_cast<size_t>(grid.num_tokens()) * static_cast<size_t>(spec_.row_floats()));
    project(encoded, grid, places, spec_.projector, weights_.projector, 0, out);
    for (size_t i = 0; i < deep_rows_.size(); ++i) {
      project(deep_rows_[i], grid, places, spec_.deep_projector, weights_.deep[i],
              (static_cast<int64_t>(i) + 1) * spec_.out_size, out);
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory("image", "no memory for {} patches", grid.num_patches());
  }
  return {};
}

Status VisionEncoder::embed_patches(std::span<const float> pixels, const Places& places, std::vector<float>& rows) {
  const auto hidden = static_cast<size_t>(spec_.encoder.hidden_size);
  const auto patch_floats = static_cast<size_t>(spec_.patch_floats());
  const size_t num_patches = places.row.size(), first = spec_.class_row ? 1 : 0;
  std::vector<float> patches(num_patches * patch_floats);
  if (spec_.planes) {
    const int32_t size = spec_.patch_size, side = spec_.image_size;
    float* to = patches.data();
    for (size_t patch = 0; patch < num_patches; ++patch) {
      for (int32_t i = 0; i < spec_.channels * size; ++i, to += size) {
        const int64_t line = int64_t{i / size} * side + places.row[patch] * size + i % size;
        std::copy_n(pixels.data() + line * side + places.col[patch] * size, size, to);
      }
    }
  } else {
    const size_t square = patch_floats * static_cast<size_t>(spec_.projector.merge * spec_.projector.merge);
    for (size_t i = 0; i < places.square.size(); ++i) {
      std::copy_n(pixels.data() + static_cast<size_t>(places.square[i]) * square, square, patches.data() + i * square);
    }
  }
  rows.resize((num_patches + first) * hidden);
  std::copy(weights_.class_row.begin(), weights_.class_row.end(), rows.begin());
  linear(backend_, patches.data(), static_cast<int64_t>(num_patches), spec_.patch_floats(),
         weights_.patch.to(rows.data() + first * hidden));
  return {};
}

void VisionEncoder::add_positions(const ImageGrid& grid, const Places& places, float* rows) {
  if (spec_.positions == PatchPositions::kNone) return;
  const auto hidden = static_cast<size_t>(spec_.encoder.hidden_size);
  const size_t num_patches = places.row.size(), first = spec_.class_row ? 1 : 0;
  const PackedWeight& table = *weights_.positions.weight;
  std::vector<float> row(hidden);
  if (spec_.positions == PatchPositions::kTable) {
    // Patches stand row by row, as there are no windows over planes.
    for (size_t i = 0; i < num_patches + first; ++i) {
      table.decode_row(static_cast<int64_t>(i), row.data());
      backend_.add({row.data(), rows + i * hidden, static_cast<int64_t>(hidden)});
    }
    return;
  }
  const auto side = static_cast<int32_t>(std::lround(std::sqrt(static_cast<double>(spec_.num_positions))));
  std::vector<float> mixed(hidden);
  for (size_t i = 0; i < num_patches; ++i) {
    const Between y = between(places.row[i], grid.patch_rows, side), x = between(places.col[i], grid.patch_cols, side);
    const struct {
      int32_t row;
      float weight;
    } corners[] = {{y.low * side + x.low, (1.0f - y.share) * (1.0f - x.share)},
                   {y.low * side + x.high, (1.0f - y.share) * x.share},
                   {y.high * side + x.low, y.share * (1.0f - x.share)},
                   {y.high * side + x.high, y.share * x.share}};
    std::fill(mixed.begin(), mixed.end(), 0.0f);
    for (const auto& corner : corners) {
      table.decode_row(corner.row, row.data());
      for (size_t d = 0; d < hidden; ++d) mixed[d] += row[d] * corner.weight;
    }
    backend_.add({mixed.data(), rows + i * hidden, static_cast<int64_t>(hidden)});
  }
}

Status VisionEncoder::run_layers(const std::vector<float>& rows, const Places& places, std::vector<float>& out) {
  Batch batch;
  for (size_t i = 0; spec_.encoder.position_axes == 2 && i < places.row.size(); ++i) {
    batch.rope_positions.push_back(places.row[i]);
    batch.rope_positions.push_back(places.col[i]);
  }
  for (size_t window = 0; spec_.window > 0 && window + 1 < places.window_start.size(); ++window) {
    const int32_t begin = places.window_start[window], end = places.window_start[window + 1];
    for (int32_t row = begin; row < end; ++row) {
      batch.spans.push_back(begin);
      batch.spans.push_back(end);
    }
  }
  return run_embedded(forward_, spec_.encoder, rows, batch, out);
}

void VisionEncoder::project(const std::vector<float>& rows, const ImageGrid& grid, const Places& places,
                            const ProjectorSpec& spec, const ProjectorWeights& weights, int64_t offset,
                            std::vector<float>& out) {
  const auto hidden = static_cast<size_t>(spec_.encoder.hidden_size);
  std::vector<float> x(rows.begin() + static_cast<int64_t>(spec_.class_row ? hidden : 0), rows.end());
  if (spec.pool > 1) x = averaged(x, grid, spec.pool, hidden);
  const auto patches = static_cast<int64_t>(x.size() / hidden);
  const int64_t tokens = grid.num_tokens();
  if (spec.norm_place == ProjectorNorm::kOfPatches) normalize(backend_, spec, weights.norm, patches, x.data());
  if (spec.norm_place == ProjectorNorm::kOfJoined) normalize(backend_, spec, weights.norm, tokens, x.data());
  int64_t width = static_cast<int64_t>(x.size()) / tokens;
  std::vector<float> result(static_cast<size_t>(tokens * weights.linear_1.weight->rows()));
  linear(backend_, x.data(), tokens, width, weights.linear_1.to(result.data()));
  if (spec.inner_size > 0) {
    GatedActivationParams params;
    params.gate = params.out = result.data();
    params.num_elements = static_cast<int64_t>(result.size());
    params.activation = spec.activation;
    backend_.gated_activation(params);
    x.swap(result);
    result.resize(static_cast<size_t>(tokens * spec_.out_size));
    linear(backend_, x.data(), tokens, spec.inner_size, weights.linear_2.to(result.data()));
  }
  for (int64_t token = 0; token < tokens; ++token) {
    // With patches joined a token is a square; averaged ones are in order.
    const int64_t place = spec.pool > 1 ? token : places.square[static_cast<size_t>(token)];
    std::copy_n(result.data() + token * spec_.out_size, spec_.out_size,
                out.data() + place * spec_.row_floats() + offset);
  }
}

}  // namespace headrace
