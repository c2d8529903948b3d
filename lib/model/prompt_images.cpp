#include "model/prompt_images.h"

#include <algorithm>

namespace headrace {

Status place_images(int32_t image_token_id, std::vector<int32_t>& tokens, std::span<PromptImage> images) {
  const int64_t found = std::ranges::count(tokens, image_token_id);
  int64_t rows = 0;
  for (const PromptImage& image : images) rows += image.grid.num_tokens();
  const bool repeat = found == static_cast<int64_t>(images.size());
  if (!repeat && found != rows) {
    return invalid_argument("images", "{} images with {} rows, but the prompt has their token, {}, {} times",
                            images.size(), rows, image_token_id, found);
  }
  std::vector<int32_t> out;
  size_t next = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != image_token_id) {
      out.push_back(tokens[i]);
      continue;
    }
    PromptImage& image = images[next++];
    const auto count = static_cast<size_t>(image.grid.num_tokens());
    image.begin = static_cast<int64_t>(out.size());
    out.insert(out.end(), count, image_token_id);
    if (repeat) continue;
    for (size_t j = i; j < i + count; ++j) {
      if (tokens[j] == image_token_id) continue;
      return invalid_argument("images", "image {} has {} rows, but its token stands there {} times", next - 1, count,
                              j - i);
    }
    i += count - 1;
  }
  tokens = std::move(out);
  return {};
}

void add_image_rows(Batch& batch, const ModelSpec& decoder, const VisionSpec& vision,
                    std::span<const PromptImage> images, int64_t begin, int64_t end) {
  const int64_t first_row = batch.num_tokens() - (end - begin);
  const bool spans = has_spans(decoder);
  size_t next = 0;
  int64_t shift = 0;  // of rotary positions behind the images so far
  for (int64_t position = begin; position < end; ++position) {
    for (; next < images.size() && images[next].end() <= position; ++next) {
      const ImageGrid& grid = images[next].grid;
      shift += std::max(grid.rows, grid.cols) - grid.num_tokens();
    }
    const PromptImage* image = next < images.size() && images[next].begin <= position ? &images[next] : nullptr;
    const int64_t index = image == nullptr ? 0 : position - image->begin;
    if (image != nullptr) {
      batch.embedded_rows.push_back(static_cast<int32_t>(first_row + position - begin));
      batch.embeddings.push_back(image->rows + index * vision.row_floats());
    }
    if (spans) {
      batch.spans.push_back(image == nullptr ? 0 : static_cast<int32_t>(image->begin));
      batch.spans.push_back(image == nullptr ? 0 : static_cast<int32_t>(image->end()));
    }
    if (!vision.grid_positions) continue;
    const int64_t places[] = {0, image == nullptr ? 0 : index / image->grid.cols,
                              image == nullptr ? 0 : index % image->grid.cols};
    for (const int64_t place : places) {
      const int64_t base = image == nullptr ? position : image->begin;
      batch.rope_positions.push_back(static_cast<int32_t>(base + shift + place));
    }
  }
}

}  // namespace headrace
