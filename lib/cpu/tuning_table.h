// Choices of how products of block-format weights are computed, measured on one kind of processor.
#pragma once

#include <compare>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_identity.h"
#include "base/status.h"
#include "cpu/linear_choice.h"
#include "ops/backend.h"
#include "tensor/dtype.h"

namespace headrace {

// Raised when kernels or layouts change so that what was measured before says nothing any more.
constexpr int32_t kTunedKernels = 2;

// What a table was measured with.
struct TuningTarget {
  CpuIdentity cpu;
  std::string isa;
  int32_t kernels = kTunedKernels;

  bool operator==(const TuningTarget&) const = default;
};

// Of this processor.
TuningTarget tuning_target(std::string_view isa);

struct TuningKey {
  DType weights = DType::kQ4_K;
  ActivationType activations = ActivationType::kInt8;
  int64_t in_features = 0, out_features = 0;
  int32_t rows = 0;  // bucket_rows of a bucket
  int32_t threads = 0;

  auto operator<=>(const TuningKey&) const = default;
};

struct TuningEntry {
  TuningKey key;
  std::optional<LinearChoice> choice;  // nothing: the rule is as good as the best choice
  // Medians over `rounds` of the rule and of `best`, the fastest other choice, which is the chosen one or was not
  // better than the rule by more than noise. 0: there was none.
  double rule_us = 0, best_us = 0;
  int32_t rounds = 0;
  // Choices whose bits were not the reference's: defects of kernels.
  std::vector<LinearChoice> refused;
};

// Thread rule: const members from any thread.
class TuningTable {
 public:
  explicit TuningTable(TuningTarget target) : target_(std::move(target)) {}

  // The text form. kMalformed with "<name>: line L, column C" or "<name>: /entries/3/rows" as place for what is no
  // table: other members than there are, values out of their ranges, keys that come twice, more than 4 MiB of text or
  // 65,536 entries.
  static Result<TuningTable> parse(std::string_view text, const std::string& name);
  std::string to_text() const;

  // kUnsupported, with what differs, where it was measured with something else.
  Status check(const TuningTarget& target, const std::string& name) const;

  const TuningTarget& target() const { return target_; }
  const std::vector<TuningEntry>& entries() const { return entries_; }  // by key
  const TuningEntry* find(const TuningKey& key) const;                  // null: none
  // Replaces the entry of the same key.
  void put(TuningEntry entry);
  void reserve(size_t entries) { entries_.reserve(entries); }

  // For each number of rows; the rule where there is no entry.
  ChoicesByRows choices(DType weights, ActivationType activations, int64_t in_features, int64_t out_features,
                        int threads) const;

 private:
  TuningTarget target_;
  std::vector<TuningEntry> entries_;
};

// The table shipped for a target, or null.
std::shared_ptr<const TuningTable> shipped_tuning_table(const TuningTarget& target);

// "int8" or "int16".
std::string_view activation_name(ActivationType type);

}  // namespace headrace
