// Measures the choices of linear_choice.h for given weights on this machine.
//
// A choice is taken only where its bits are those of the baseline's kernels over the same packed weight, and where it is
// faster than the rule by more than noise. The decision rests on rounds of its own, in which only the rule and the best
// of the choices run in turn: those that found the best would favour it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/kernel_table.h"
#include "cpu/packed_weight.h"
#include "cpu/tuning_table.h"
#include "ops/backend_tuner.h"

namespace headrace {

// Computes a product as input.choice says.
using RunProduct = std::function<void(const CpuPackedWeight& weight, const LinearInput& input,
                                      const LinearOutput& output, ThreadPool& pool, const KernelTable& kernels)>;
void run_product(const CpuPackedWeight& weight, const LinearInput& input, const LinearOutput& output, ThreadPool& pool,
                 const KernelTable& kernels);

// What tests put in the place of: kernels that are wrong, and a clock that says what they want.
struct TunerHooks {
  RunProduct run;
  std::function<double()> seconds;  // grows

  static TunerHooks real();
};

class Tuner final : public BackendTuner {
 public:
  // Of `weights`, null ones aside, those that have choices are measured, one kind of product after the other: for each
  // number of rows of linear_choice.h, each element type and shape. `known` is extended. kernels: of known's
  // instruction set.
  Tuner(std::span<const PackedWeight* const> weights, TuningTable known, double seconds, ThreadPool& pool,
        const KernelTable& kernels, TunerHooks hooks = TunerHooks::real());
  ~Tuner() override;

  Result<bool> step() override;
  double fraction() const override;
  std::string table() const override { return table_.to_text(); }
  const TuningTable& result() const { return table_; }

 private:
  // Weights of one element type and shape. Rounds go from one to the next, so that weights which no cache holds
  // together are read from memory as a forward pass reads them.
  struct Group {
    std::vector<const CpuPackedWeight*> weights;
  };
  struct Product {
    TuningKey key;
    size_t group;
  };
  class Measurement;

  void list_products(std::span<const PackedWeight* const> weights);
  Result<TuningEntry> measure(const Product& product);

  TuningTable table_;
  ThreadPool& pool_;
  const KernelTable& kernels_;
  const TunerHooks hooks_;
  const double seconds_, start_;
  std::vector<Group> groups_;
  std::vector<Product> products_;
  size_t next_ = 0;
};

}  // namespace headrace
