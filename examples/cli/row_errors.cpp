#include "row_errors.h"

#include <algorithm>
#include <cmath>

#include "reference_file.h"

namespace cli {

void RowErrors::add(const RowErrors& other) {
  if (!std::isnan(max) && !(other.max <= max)) max = other.max;
  sum += other.sum;
  count += other.count;
  kl_sum += other.kl_sum;
  rows += other.rows;
  same_top += other.same_top;
}

RowErrors value_errors(const std::vector<float>& values, const std::vector<float>& reference) {
  RowErrors errors;
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference = std::abs(static_cast<double>(values[i]) - static_cast<double>(reference[i]));
    if (!std::isnan(errors.max) && !(difference <= errors.max)) errors.max = difference;
    errors.sum += difference;
  }
  errors.count = values.size();
  return errors;
}

RowErrors logits_errors(const std::vector<float>& logits, const std::vector<float>& reference, size_t num_rows) {
  RowErrors errors = value_errors(logits, reference);
  errors.rows = num_rows;
  const size_t vocab_size = logits.size() / num_rows;
  std::vector<double> got_log_probs, want_log_probs;
  for (size_t row = 0; row < num_rows; ++row) {
    const float *got = logits.data() + row * vocab_size, *want = reference.data() + row * vocab_size;
    log_softmax(got, vocab_size, got_log_probs);
    log_softmax(want, vocab_size, want_log_probs);
    for (size_t i = 0; i < vocab_size; ++i) {
      errors.kl_sum += std::exp(want_log_probs[i]) * (want_log_probs[i] - got_log_probs[i]);
    }
    const auto best = std::max_element(want, want + vocab_size) - want;
    if (std::max_element(got, got + vocab_size) - got == best) {
      ++errors.same_top;
      continue;
    }
    float second = -INFINITY;
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(vocab_size); ++i) {
      if (i != best) second = std::max(second, want[i]);
    }
    if (want[best] - second > kClearMargin && !errors.other_top) errors.other_top = row;
  }
  return errors;
}

}  // namespace cli
