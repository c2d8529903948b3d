#include "cpu/tuning_table.h"

#include <algorithm>
#include <utility>

#include "cpu/tuned_tables.h"

namespace headrace {
namespace {

struct ByKey {
  bool operator()(const TuningEntry& entry, const TuningKey& key) const { return entry.key < key; }
};

}  // namespace

TuningTarget tuning_target(std::string_view isa) { return {cpu_identity(), std::string(isa), kTunedKernels}; }

std::string_view activation_name(ActivationType type) {
  switch (type) {
    case ActivationType::kInt8: return "int8";
    case ActivationType::kInt16: return "int16";
    case ActivationType::kFloat32: break;
  }
  return "float32";
}

Status TuningTable::check(const TuningTarget& target, const std::string& name) const {
  if (target_.cpu != target.cpu) {
    return unsupported(name, "was measured on {} family {} model {}, this is {} family {} model {}", target_.cpu.vendor,
                       target_.cpu.family, target_.cpu.model, target.cpu.vendor, target.cpu.family, target.cpu.model);
  }
  if (target_.isa != target.isa) {
    return unsupported(name, "was measured with the kernels of {}, these are {}", target_.isa, target.isa);
  }
  if (target_.kernels != target.kernels) {
    return unsupported(name, "was measured with version {} of the kernels, these are version {}", target_.kernels,
                       target.kernels);
  }
  return Status();
}

const TuningEntry* TuningTable::find(const TuningKey& key) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), key, ByKey());
  return at != entries_.end() && at->key == key ? &*at : nullptr;
}

void TuningTable::put(TuningEntry entry) {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), entry.key, ByKey());
  if (at != entries_.end() && at->key == entry.key) {
    *at = std::move(entry);
  } else {
    entries_.insert(at, std::move(entry));
  }
}

ChoicesByRows TuningTable::choices(DType weights, ActivationType activations, int64_t in_features, int64_t out_features,
                                   int threads) const {
  ChoicesByRows choices;
  for (size_t bucket = 0; bucket < kRowBuckets; ++bucket) {
    const TuningEntry* entry =
        find({weights, activations, in_features, out_features, bucket_rows(bucket), static_cast<int32_t>(threads)});
    if (entry != nullptr && entry->choice) choices[bucket] = *entry->choice;
  }
  return choices;
}

std::shared_ptr<const TuningTable> shipped_tuning_table(const TuningTarget& target) {
  for (const TunedTable& shipped : tuned_tables()) {
    if (shipped.vendor != target.cpu.vendor || shipped.family != target.cpu.family ||
        shipped.model != target.cpu.model || shipped.isa != target.isa || shipped.kernels != target.kernels) {
      continue;
    }
    auto table = std::make_shared<TuningTable>(target);
    table->reserve(shipped.entries.size());
    for (const TunedEntry& entry : shipped.entries) table->put({entry.key, entry.choice, 0, 0, 0, {}});
    return table;
  }
  return nullptr;
}

}  // namespace headrace
