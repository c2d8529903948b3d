// What steps of so many rows took: two rows may cost as much as eight, which a model linear in rows does not say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::speculation {

class VerifyCost {
 public:
  // A step without prompts took `ns`, without its attention to what is before its rows.
  void observe(int64_t rows, double ns);
  // Time of such a step, where linear_ns is what the linear model says now: as measured, as far as it was measured.
  double predict_ns(int64_t rows, double linear_ns) const;
  // Whether so few steps were measured that the linear model is a guess, too.
  bool unknown() const { return num_steps_ < 2; }

 private:
  static constexpr size_t kBins = 24;
  // One each up to 8 rows, then four an octave.
  static size_t bin(int64_t rows);

  struct Bin {
    double ns_per_row = 0.0;
    int32_t measured = 0;
  };
  std::array<Bin, kBins> bins_ = {};
  int64_t num_steps_ = 0;
};

}  // namespace headrace::speculation
