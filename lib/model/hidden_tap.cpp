#include "model/hidden_tap.h"

#include <algorithm>

#include "model/forward.h"
#include "model/model_spec.h"

namespace headrace {

Status check_hidden_layers(const ModelSpec& spec, std::span<const int32_t> layers) {
  const auto last = static_cast<int32_t>(spec.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string place = fmt::format("layers[{}]", i);
    if (layers[i] < 0 || layers[i] > last) {
      return invalid_argument(place, "{} is not from 0, the embeddings, to {}, the head's input", layers[i], last);
    }
    if (std::find(layers.begin(), layers.begin() + static_cast<ptrdiff_t>(i), layers[i]) !=
        layers.begin() + static_cast<ptrdiff_t>(i)) {
      return invalid_argument(place, "{} is there twice", layers[i]);
    }
    if (layers[i] > 0 && layers[i] < last && !std::holds_alternative<OneStream>(spec.streams)) {
      return unsupported(place, "{} has several streams between its layers, and no hidden state that is one of them",
                         spec.architecture);
    }
  }
  return {};
}

Status ForwardPass::check_taps(const Batch& batch) const {
  for (const HiddenTap& tap : batch.hidden_taps) {
    const int64_t end = tap.first_row + int64_t{tap.num_rows};
    if (tap.num_rows < 1 || tap.first_row < 0 || end > batch.num_tokens()) {
      return invalid_argument("hidden_taps", "rows [{}, {}) are none of the step's {}", tap.first_row, end,
                              batch.num_tokens());
    }
    if (tap.out == nullptr) return invalid_argument("hidden_taps", "one has no place for its values");
    if (const Status status = check_hidden_layers(spec_, tap.layers); !status.ok()) return status.within("hidden_taps");
  }
  return {};
}

// Rows that go on past the last layer that stores anything: those whose logits are wanted, and those that are tapped there.
void ForwardPass::choose_rows(const Batch& batch) {
  const auto last = static_cast<int32_t>(spec_.layers.size());
  const auto first_late = std::min(static_cast<int32_t>(first_free_) + 1, last);
  work_.wanted = batch.logits_rows;
  for (const HiddenTap& tap : batch.hidden_taps) {
    if (std::ranges::none_of(tap.layers, [&](int32_t layer) { return layer >= first_late; })) continue;
    for (int32_t row = 0; row < tap.num_rows; ++row) work_.wanted.push_back(tap.first_row + row);
  }
  if (work_.wanted.size() == batch.logits_rows.size()) return;
  std::ranges::sort(work_.wanted);
  work_.wanted.erase(std::unique(work_.wanted.begin(), work_.wanted.end()), work_.wanted.end());
}

// rows: all of the batch, or those of work_.wanted where the others were dropped.
void ForwardPass::tap(const Batch& batch, int32_t layer, const float* rows, bool dropped) const {
  for (const HiddenTap& tap : batch.hidden_taps) {
    const int64_t values = int64_t{tap.num_rows} * spec_.hidden_size;
    int64_t first = tap.first_row;
    if (dropped) first = std::ranges::lower_bound(work_.wanted, tap.first_row) - work_.wanted.begin();
    for (size_t i = 0; i < tap.layers.size(); ++i) {
      if (tap.layers[i] != layer) continue;
      read_floats(rows + first * spec_.hidden_size, values, tap.out + static_cast<int64_t>(i) * values);
    }
  }
}

}  // namespace headrace
