// The distance of computed rows from the reference's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cli {

// A margin of logits below which the reference's own noise may decide between two tokens.
inline constexpr float kClearMargin = 1e-3f;

struct RowErrors {
  double max = 0, sum = 0;  // of |difference|; max is NaN where a difference is
  uint64_t count = 0;       // of values
  double kl_sum = 0;        // KL(reference || computed) in nats, of rows of logits
  uint64_t rows = 0, same_top = 0;
  std::optional<size_t> other_top;  // first row whose clear winner in the reference is not its own

  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
  double mean_kl() const { return rows == 0 ? 0 : kl_sum / static_cast<double>(rows); }
  double top1() const { return rows == 0 ? 1 : static_cast<double>(same_top) / static_cast<double>(rows); }
  void add(const RowErrors& other);
};

// Of values, as many as the reference has.
RowErrors value_errors(const std::vector<float>& values, const std::vector<float>& reference);
// Of [num_rows, vocab_size] logits as distributions too.
RowErrors logits_errors(const std::vector<float>& logits, const std::vector<float>& reference, size_t num_rows);

}  // namespace cli
