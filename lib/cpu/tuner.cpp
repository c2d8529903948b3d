#include "cpu/tuner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "base/cpu_features.h"
#include "cpu/linear_product.h"

namespace headrace {
namespace {

// Products with more outputs are not measured: no model computes logits of so many rows at once, or seldom.
constexpr int64_t kMostOutputs = int64_t{1} << 24;

constexpr double kSampleUs = 300;  // short products are repeated to so long a sample
constexpr int kMostRepeats = 64;
constexpr int kFirstRounds = 3;      // of all choices
constexpr double kHopeless = 1.25;   // times the rule's, in the first round: out
constexpr size_t kFinalists = 3;     // the fastest by the first rounds
constexpr int kFinalRounds = 5;      // of the finalists
constexpr double kDecisionUs = 4e5;  // what the last rounds may last, within their bounds
constexpr int kFewestRounds = 9, kMostRounds = 25;
constexpr int kLowRounds = 7;
// A choice must save this share in the median, and be the faster one in four of five rounds. With the fewest rows that
// it would serve it may lose no more than kLowLoss.
constexpr double kGain = 0.03;
constexpr double kLowLoss = 0.01;

const LinearChoice kRule;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Row `index`, the same however many rows there are: close to normal values, one of them massive as real layers have.
void fill_row(int64_t index, std::span<float> row) {
  uint64_t state = static_cast<uint64_t>(index + 1) * 0x9e3779b97f4a7c15ull;
  const auto draw = [&state] {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  };
  for (float& value : row) {
    const uint64_t bits = draw();
    int32_t sum = 0;
    for (int part = 0; part < 4; ++part) sum += static_cast<int32_t>(bits >> 16 * part & 0xffff);
    value = static_cast<float>(sum - 2 * 0xffff) / 0x1p15f;
  }
  row[draw() % row.size()] *= 100;
}

// Rows in the form a kernel table's products read. Not moved: the input points into it.
struct QuantizedInput {
  QuantizedInput(const std::vector<float>& x, int64_t rows, int64_t cols, ActivationType type, ThreadPool& pool,
                 const KernelTable& kernels) {
    quantize_activations(x.data(), rows, cols, type, pool, kernels, rows_);
    input = {x.data(), nullptr, &rows_, rows, cols};
  }
  QuantizedInput(const QuantizedInput&) = delete;
  QuantizedInput& operator=(const QuantizedInput&) = delete;

  LinearInput input;

 private:
  ActivationRows rows_;
};

}  // namespace

void run_product(const CpuPackedWeight& weight, const LinearInput& input, const LinearOutput& output, ThreadPool& pool,
                 const KernelTable& kernels) {
  LinearProduct product{&weight, input, output};
  run_products(std::span(&product, 1), pool, kernels);
}

TunerHooks TunerHooks::real() {
  return {run_product,
          [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }};
}

// One product with its rows, its reference and its samples.
class Tuner::Measurement {
 public:
  Measurement(Tuner& tuner, const Product& product)
      : tuner_(tuner), weights_(tuner.groups_[product.group].weights), key_(product.key) {
    x_.resize(static_cast<size_t>(key_.rows * key_.in_features));
    tuner.pool_.run(key_.rows, [&](int64_t row, int) {
      fill_row(row, std::span(x_).subspan(static_cast<size_t>(row * key_.in_features),
                                          static_cast<size_t>(key_.in_features)));
    });
    y_.resize(static_cast<size_t>(key_.rows * key_.out_features));
    input_.emplace(x_, key_.rows, key_.in_features, key_.activations, tuner.pool_, tuner.kernels_);
  }

  // The baseline's bits.
  void compute_reference() {
    const KernelTable& baseline = kernel_table(static_cast<int32_t>(kWeakestIsa));
    QuantizedInput rows(x_, key_.rows, key_.in_features, key_.activations, tuner_.pool_, baseline);
    rows.input.choice = &kRule;
    reference_.resize(y_.size());
    run_product(*weights_.front(), rows.input, output_to(reference_), tuner_.pool_, baseline);
  }

  bool has_reference_bits(const LinearChoice& choice) {
    // Bytes that no product leaves in an output: what is not written shows.
    std::memset(y_.data(), 0xff, y_.size() * sizeof(float));
    run(*weights_.front(), choice);
    return std::memcmp(y_.data(), reference_.data(), y_.size() * sizeof(float)) == 0;
  }

  // Sets how often a sample repeats a product.
  void settle() {
    repeats_ = 1;
    const double once = std::max(std::min(sample(kRule), sample(kRule)), 0.1);
    repeats_ = static_cast<int>(std::clamp(kSampleUs / once, 1.0, static_cast<double>(kMostRepeats)));
  }

  // Microseconds of one product.
  double sample(const LinearChoice& choice) {
    const double start = tuner_.hooks_.seconds();
    for (int i = 0; i < repeats_; ++i) {
      run(*weights_[next_weight_], choice);
      next_weight_ = (next_weight_ + 1) % weights_.size();
    }
    return (tuner_.hooks_.seconds() - start) * 1e6 / repeats_;
  }

  // The fewest rows of the bucket from here on.
  void use_fewest_rows() {
    input_.emplace(x_, key_.rows / 2 + 1, key_.in_features, key_.activations, tuner_.pool_, tuner_.kernels_);
  }

 private:
  LinearOutput output_to(std::vector<float>& y) const {
    return {weights_.front(), nullptr, y.data(), key_.out_features, false};
  }
  void run(const CpuPackedWeight& weight, const LinearChoice& choice) {
    input_->input.choice = &choice;
    LinearOutput output = output_to(y_);
    output.weight = &weight;
    tuner_.hooks_.run(weight, input_->input, output, tuner_.pool_, tuner_.kernels_);
  }

  Tuner& tuner_;
  const std::vector<const CpuPackedWeight*>& weights_;
  const TuningKey key_;
  std::vector<float> x_, y_, reference_;
  std::optional<QuantizedInput> input_;
  size_t next_weight_ = 0;
  int repeats_ = 1;
};

namespace {

struct Candidate {
  LinearChoice choice;
  std::vector<double> us;

  double time() const { return median(us); }
};

// Rounds of all candidates in turn. Each round starts with another one, so that none always follows the same.
template <class Measurement>
void run_rounds(Measurement& measurement, std::vector<Candidate>& candidates, int rounds) {
  for (Candidate& candidate : candidates) candidate.us.clear();
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      Candidate& candidate = candidates[(i + static_cast<size_t>(round)) % candidates.size()];
      candidate.us.push_back(measurement.sample(candidate.choice));
    }
  }
}

// Round by round, the second's time over the first's.
std::vector<double> ratios(const std::vector<Candidate>& pair) {
  std::vector<double> out;
  for (size_t i = 0; i < pair[0].us.size(); ++i) out.push_back(pair[1].us[i] / pair[0].us[i]);
  return out;
}

void sort_by_time(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.time() < b.time(); });
}

}  // namespace

Tuner::Tuner(std::span<const PackedWeight* const> weights, TuningTable known, double seconds, ThreadPool& pool,
             const KernelTable& kernels, TunerHooks hooks)
    : table_(std::move(known)),
      pool_(pool),
      kernels_(kernels),
      hooks_(std::move(hooks)),
      seconds_(seconds),
      start_(hooks_.seconds()) {
  list_products(weights);
}

Tuner::~Tuner() = default;

void Tuner::list_products(std::span<const PackedWeight* const> weights) {
  using Kind = std::tuple<DType, ActivationType, int64_t, int64_t>;
  std::map<Kind, size_t> kinds;
  for (const PackedWeight* any : weights) {
    if (any == nullptr) continue;
    const auto* weight = static_cast<const CpuPackedWeight*>(any);
    if (weight->choices(1, pool_.num_threads()).empty()) continue;
    const auto [at, is_new] =
        kinds.try_emplace(Kind{weight->dtype(), weight->input_type(), weight->cols(), weight->rows()}, groups_.size());
    if (is_new) groups_.emplace_back();
    groups_[at->second].weights.push_back(weight);
  }
  // Many rows last: they take the longest, and time may run out.
  for (size_t bucket = 0; bucket < kRowBuckets; ++bucket) {
    for (const auto& [kind, group] : kinds) {
      const auto& [dtype, activations, cols, rows] = kind;
      const TuningKey key = {dtype, activations, cols, rows, bucket_rows(bucket), pool_.num_threads()};
      if (table_.find(key) != nullptr || rows > kMostOutputs / bucket_rows(bucket)) continue;
      products_.push_back({key, group});
    }
  }
}

double Tuner::fraction() const {
  const double elapsed = hooks_.seconds() - start_;
  const double done = products_.empty() ? 1 : static_cast<double>(next_) / static_cast<double>(products_.size());
  return std::min(std::max(done, elapsed / seconds_), 1.0);
}

Result<bool> Tuner::step() {
  // The first is measured in any case: tuning again and again comes to an end.
  if (next_ == products_.size() || (next_ > 0 && hooks_.seconds() - start_ >= seconds_)) return false;
  HEADRACE_ASSIGN_OR_RETURN(TuningEntry entry, measure(products_[next_]));
  table_.put(std::move(entry));
  ++next_;
  return true;
}

Result<TuningEntry> Tuner::measure(const Product& product) {
  TuningEntry entry;
  entry.key = product.key;
  Measurement measurement(*this, product);
  measurement.compute_reference();
  if (!measurement.has_reference_bits(kRule)) {
    return internal_error(table_.target().isa, "{} [{}, {}] times {} rows has other bits than the baseline's kernels",
                          dtype_name(product.key.weights), product.key.out_features, product.key.in_features,
                          product.key.rows);
  }
  std::vector<Candidate> candidates;
  for (const LinearChoice& choice :
       groups_[product.group].weights.front()->choices(product.key.rows, pool_.num_threads())) {
    if (measurement.has_reference_bits(choice)) {
      candidates.push_back({choice, {}});
    } else {
      entry.refused.push_back(choice);
    }
  }
  measurement.settle();

  candidates.push_back({kRule, {}});
  run_rounds(measurement, candidates, 1);
  const double first = candidates.back().time();
  candidates.pop_back();
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.time() > kHopeless * first; });
  run_rounds(measurement, candidates, kFirstRounds);
  sort_by_time(candidates);
  candidates.resize(std::min(candidates.size(), kFinalists));
  run_rounds(measurement, candidates, kFinalRounds);
  sort_by_time(candidates);

  std::vector<Candidate> pair = {{kRule, {}}};
  if (!candidates.empty()) pair.push_back({candidates.front().choice, {}});
  entry.rounds = static_cast<int32_t>(
      std::clamp(kDecisionUs / (2 * first), static_cast<double>(kFewestRounds), static_cast<double>(kMostRounds)));
  run_rounds(measurement, pair, entry.rounds);
  entry.rule_us = pair[0].time();
  if (pair.size() == 1) return entry;
  entry.best_us = pair[1].time();
  std::vector<double> shares = ratios(pair);
  const auto wins = std::count_if(shares.begin(), shares.end(), [](double share) { return share < 1; });
  if (median(shares) > 1 - kGain || wins * 5 < entry.rounds * 4) return entry;
  if (product.key.rows > 2) {
    measurement.use_fewest_rows();
    run_rounds(measurement, pair, kLowRounds);
    if (median(ratios(pair)) > 1 + kLowLoss) return entry;
  }
  entry.choice = pair[1].choice;
  return entry;
}

}  // namespace headrace
