// An indexer's choice of positions against the reference, and its independence of neighbours and threads.
#include "op_cases.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/reference_backend.h"
#include "ops/top_positions.h"

namespace headrace::test {
namespace {

struct Case {
  KvDType dtype = KvDType::kF32;
  int32_t num_heads = 4, head_dim = 32, block_size = 16, top_k = 16;
  std::vector<std::pair<int32_t, int32_t>> sequences;  // first position of the batch's rows, and rows
  int32_t run = 0;                                     // keys are rows of runs of so many tokens
};

struct Choice {
  std::vector<int32_t> selected, counts;
};

// A batch whose cache holds random keys where positions are cached and NaN everywhere else.
class Batch {
 public:
  explicit Batch(const Case& c)
      : c_(c), layout_{c.dtype,           1, c.head_dim, c.block_size, c.run > 0 ? KvContent::kRows : KvContent::kKeys,
                       std::max(c.run, 1)} {
    int32_t blocks = 0, rows = 0;
    for (const auto& [first, count] : c.sequences) {
      std::vector<int32_t> table;
      while (static_cast<int32_t>(table.size()) * c.block_size < first + count) table.push_back(blocks++);
      std::reverse(table.begin(), table.end());
      tables_.push_back(table);
      starts_.push_back(rows);
      rows += count;
      for (int32_t i = 0; i < count; ++i) positions_.push_back(first + i);
    }
    starts_.push_back(rows);
    cache_.assign(static_cast<size_t>(blocks) * layout_.block_bytes(), std::byte{0xff});
    for (size_t seq = 0; seq < tables_.size(); ++seq)
      store(tables_[seq], c.sequences[seq].first + c.sequences[seq].second);
    q_ = random_floats(static_cast<size_t>(rows * c.num_heads * c.head_dim), 1);
    weights_ = random_floats(static_cast<size_t>(rows * c.num_heads), 2);
  }

  size_t num_rows() const { return positions_.size(); }

  Choice run(Backend& backend) const { return run(backend, 0, starts_.back(), starts_, tables_); }
  // One row by itself.
  Choice run(Backend& backend, int32_t row) const {
    size_t seq = 0;
    while (starts_[seq + 1] <= row) ++seq;
    return run(backend, row, 1, {0, 1}, {tables_[seq]});
  }

  // What a row's scores are, in float64 from the keys as they are cached.
  std::vector<double> scores(size_t row) const {
    size_t seq = 0;
    while (starts_[seq + 1] <= static_cast<int32_t>(row)) ++seq;
    std::vector<double> out;
    for (int64_t number = 0; number < layout_.rows_before(positions_[row]); ++number) {
      const int64_t position = layout_.last_token(number);
      const auto block = static_cast<size_t>(tables_[seq][static_cast<size_t>(position / c_.block_size)]);
      double sum = 0.0;
      for (int32_t h = 0; h < c_.num_heads; ++h) {
        double product = 0.0;
        const size_t head = row * static_cast<size_t>(c_.num_heads) + static_cast<size_t>(h);
        for (int32_t d = 0; d < c_.head_dim; ++d) {
          product += static_cast<double>(q_[head * static_cast<size_t>(c_.head_dim) + static_cast<size_t>(d)]) *
                     static_cast<double>(cached_key(layout_, cache_.data() + block * layout_.block_bytes(),
                                                    layout_.row_of(position % c_.block_size), d));
        }
        sum += static_cast<double>(weights_[head]) * std::max(product, 0.0);
      }
      out.push_back(sum);
    }
    return out;
  }

 private:
  void store(const std::vector<int32_t>& table, int32_t length) {
    const int64_t count = layout_.rows_before(length - 1);
    std::vector<float> k =
        random_floats(static_cast<size_t>(count * c_.head_dim), 30 + static_cast<uint32_t>(table[0]));
    std::vector<int64_t> slots;
    for (int64_t number = 0; number < count; ++number) {
      const int64_t i = layout_.last_token(number);
      slots.push_back(int64_t{table[static_cast<size_t>(i / c_.block_size)]} * c_.block_size + i % c_.block_size);
    }
    RopeStoreParams p;
    p.k = k.data();
    p.num_tokens = count;
    p.layout = layout_;
    p.cache = cache_.data();
    p.slots = slots.data();
    make_reference_backend()->rope_and_store_kv(p);
  }

  Choice run(Backend& backend, int32_t first, int32_t rows, const std::vector<int32_t>& starts,
             const std::vector<std::vector<int32_t>>& tables) const {
    std::vector<const int32_t*> pointers;
    for (const auto& table : tables) pointers.push_back(table.data());
    Choice out;
    out.selected.assign(static_cast<size_t>(rows) * static_cast<size_t>(c_.top_k), -1);
    out.counts.resize(static_cast<size_t>(rows));
    SelectPositionsParams p;
    p.q = q_.data() + int64_t{first} * c_.num_heads * c_.head_dim;
    p.weights = weights_.data() + int64_t{first} * c_.num_heads;
    p.num_heads = c_.num_heads;
    p.num_seqs = static_cast<int32_t>(pointers.size());
    p.query_start = starts.data();
    p.block_tables = pointers.data();
    p.positions = positions_.data() + first;
    p.layout = layout_;
    p.cache = cache_.data();
    p.top_k = c_.top_k;
    p.selected = out.selected.data();
    p.counts = out.counts.data();
    backend.select_positions(p);
    return out;
  }

  Case c_;
  KvLayout layout_;
  std::vector<int32_t> starts_, positions_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::byte> cache_;
  std::vector<float> q_, weights_;
};

// A choice may differ from the reference's only among positions whose scores the rounding of float32 cannot tell apart.
void check_row(const Case& c, const Choice& choice, size_t row, const std::vector<double>& scores) {
  const auto count = static_cast<size_t>(choice.counts[row]);
  REQUIRE(count == std::min(static_cast<size_t>(c.top_k), scores.size()));
  const auto first = choice.selected.begin() + static_cast<int64_t>(row) * c.top_k;
  const std::vector<int32_t> chosen(first, first + static_cast<int64_t>(count));
  if (chosen.empty()) return;  // no run ended yet
  REQUIRE(std::is_sorted(chosen.begin(), chosen.end()));
  REQUIRE(std::adjacent_find(chosen.begin(), chosen.end()) == chosen.end());
  REQUIRE(chosen.front() >= 0);
  REQUIRE(chosen.back() < static_cast<int32_t>(scores.size()));
  std::vector<double> taken, left = scores;
  for (const int32_t position : chosen) {
    taken.push_back(scores[static_cast<size_t>(position)]);
    left[static_cast<size_t>(position)] = -std::numeric_limits<double>::infinity();
  }
  // Products of a few units and weights of less than five: each product and each sum of heads rounds by less than this.
  const double error = 8.0 * c.num_heads * (c.head_dim + 2) * c.head_dim * kUnit;
  CHECK(*std::min_element(taken.begin(), taken.end()) >= *std::max_element(left.begin(), left.end()) - error);
}

void check(const Case& c) {
  INFO(kv_dtype_name(c.dtype) << " heads " << c.num_heads << " head_dim " << c.head_dim << " top_k " << c.top_k);
  const Batch batch(c);
  const auto reference = make_reference_backend();
  const Choice expected = batch.run(*reference);
  for (size_t row = 0; row < batch.num_rows(); ++row) check_row(c, expected, row, batch.scores(row));
  for (Isa isa : available_isas()) {
    INFO(isa_name(isa));
    const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
    const Choice choice = batch.run(*one), again = batch.run(*three);
    CHECK(choice.selected == again.selected);
    CHECK(choice.counts == again.counts);
    for (size_t row = 0; row < batch.num_rows(); ++row) {
      check_row(c, choice, row, batch.scores(row));
      const Choice alone = batch.run(row % 2 == 0 ? *three : *one, static_cast<int32_t>(row));
      REQUIRE(alone.counts[0] == choice.counts[row]);
      REQUIRE(std::equal(alone.selected.begin(), alone.selected.end(),
                         choice.selected.begin() + static_cast<int64_t>(row) * c.top_k));
    }
  }
}

}  // namespace

TEST_CASE("An indexer chooses the largest scores, for every cache type and shape") {
  const std::vector<std::pair<int32_t, int32_t>> sequences = {{0, 1}, {0, 40}, {100, 5}, {63, 2}, {15, 3}};
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (int32_t heads : {1, 2, 7, 16, 33}) check({dtype, heads, 32, 16, 16, sequences});
    for (int32_t head_dim : {8, 20, 64, 128}) check({dtype, 4, head_dim, 32, 5, sequences});
  }
  check({KvDType::kF32, 3, 16, 64, 1, sequences});
  check({KvDType::kF32, 3, 16, 16, 1000, sequences});
  check({KvDType::kF16, 2, 16, 16, 300, {{5000, 2}, {2046, 4}}});
}

TEST_CASE("An indexer chooses among runs of tokens") {
  const std::vector<std::pair<int32_t, int32_t>> sequences = {{0, 1}, {0, 90}, {100, 5}, {62, 2}, {15, 3}};
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (int32_t run : {1, 3, 4, 16, 40}) {
      for (int32_t head_dim : {8, 20, 128}) check({dtype, 7, head_dim, 16, 5, sequences, run});
    }
  }
  check({KvDType::kF16, 2, 16, 32, 300, {{5000, 2}, {2046, 4}, {17000, 1}}, 4});
}

TEST_CASE("Of equal scores the lower positions are chosen, and NaN last") {
  TopPositions top;
  const auto pick = [&](const std::vector<float>& scores, int64_t count) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    top.pick(scores, count, out.data());
    return out;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(pick({1, 3, 3, 2, 3}, 2) == std::vector<int32_t>{1, 2});
  CHECK(pick({0.0f, -0.0f, 0.0f, -0.0f}, 3) == std::vector<int32_t>{0, 1, 2});
  CHECK(pick({-0.0f, 0.0f, -1}, 1) == std::vector<int32_t>{0});
  CHECK(pick({NAN, -infinity, NAN, -5}, 2) == std::vector<int32_t>{1, 3});
  CHECK(pick({NAN, NAN, NAN}, 2) == std::vector<int32_t>{0, 1});
  CHECK(pick({-1, -2, infinity, 4}, 3) == std::vector<int32_t>{0, 2, 3});
  CHECK(pick({5, 4}, 2) == std::vector<int32_t>{0, 1});
}

TEST_CASE("Choosing of an empty batch does nothing") {
  const auto backend = cpu_backend(kWeakestIsa, 2);
  SelectPositionsParams p;
  const int32_t start[] = {0};
  p.query_start = start;
  p.num_heads = 2;
  p.layout = {KvDType::kF16, 1, 64, 16, KvContent::kKeys};
  p.top_k = 4;
  backend->select_positions(p);
}

}  // namespace headrace::test
