// A golden case with an image, and how it is run.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "golden/golden_run.h"
#include "model/prompt_images.h"
#include "model/vision_encoder.h"

namespace headrace::golden {

// A case's tokens and its image, encoded.
struct ImageCase {
  std::vector<int32_t> ids;
  std::vector<float> rows;
  PromptImage image;

  // image_token: the golden's, where the model has another.
  ImageCase(const Model& model, Backend& backend, const Golden& golden, const std::string& name,
            int32_t image_token = -1)
      : ids(golden.ids(name + ".input_ids")) {
    const VisionSpec& vision = *model.vision();
    std::ranges::replace(ids, image_token, vision.image_token_id);
    const Tensor pixels = golden.floats(name + ".pixel_values");
    int64_t height = vision.image_size, width = vision.image_size;
    if (!vision.planes) {
      const std::vector<int32_t> grid = golden.ids(name + ".image_grid_thw");
      REQUIRE(grid[0] == 1);
      height = grid[1];
      width = grid[2];
    }
    const auto grid = image_grid(vision, height, width, pixels.values.size());
    INFO(grid.status().to_string());
    REQUIRE(grid.ok());
    image.grid = *grid;
    VisionEncoder encoder(vision, model.vision_weights(), backend);
    const Status status = encoder.encode(pixels.values, *grid, rows);
    INFO(status.to_string());
    REQUIRE(status.ok());
    const Status placed = place_images(vision.image_token_id, ids, {&image, 1});
    INFO(placed.to_string());
    REQUIRE(placed.ok());
    image.rows = rows.data();
  }
};

struct Runner {
  const Model& model;
  ForwardPass& forward;
  KvCache& cache;
  const ImageCase& image;

  // Appends positions up to `end` to a batch in which every sequence has this image.
  void add(Batch& batch, KvSequence& sequence, const std::vector<int32_t>& ids, int64_t end, int64_t first_logits) {
    const int64_t begin = sequence.num_tokens();
    batch.add_sequence(cache, sequence, ids, end, first_logits);
    add_image_rows(batch, model.spec(), *model.vision(), {&image.image, 1}, begin, end);
  }

  // Chunks of so many rows (0: whole), longer where one would cut the image of a model whose image rows see each other.
  PromptResult prompt(int64_t chunk = 0) {
    const auto total = static_cast<int64_t>(image.ids.size());
    const auto vocab = model.spec().vocab_size, hidden = model.spec().hidden_size;
    PromptResult out;
    out.logits.resize(image.ids.size() * static_cast<size_t>(vocab));
    out.hidden.resize(image.ids.size() * static_cast<size_t>(hidden));
    KvSequence sequence = cache.new_sequence("cold");
    for (int64_t begin = 0; begin < total;) {
      int64_t end = chunk == 0 ? total : std::min(total, begin + chunk);
      if (has_spans(model.spec()) && end > image.image.begin && end < image.image.end()) end = image.image.end();
      REQUIRE(cache.reserve(sequence, end).ok());
      Batch batch;
      add(batch, sequence, image.ids, end, 0);
      const Status status =
          forward.run(batch, cache, out.logits.data() + begin * vocab, out.hidden.data() + begin * hidden);
      INFO(status.to_string());
      REQUIRE(status.ok());
      REQUIRE(cache.commit(sequence, image.ids, end).ok());
      begin = end;
    }
    return out;
  }

  std::vector<int32_t> greedy(int count) {
    std::vector<int32_t> ids = image.ids, out;
    std::vector<float> logits(static_cast<size_t>(model.spec().vocab_size));
    KvSequence sequence = cache.new_sequence("greedy");
    for (int i = 0; i < count; ++i) {
      const auto total = static_cast<int64_t>(ids.size());
      REQUIRE(cache.reserve(sequence, total).ok());
      Batch batch;
      add(batch, sequence, ids, total, total - 1);
      REQUIRE(forward.run(batch, cache, logits.data()).ok());
      REQUIRE(cache.commit(sequence, ids, total).ok());
      out.push_back(argmax(logits.data(), model.spec().vocab_size));
      ids.push_back(out.back());
    }
    return out;
  }
};

}  // namespace headrace::golden
