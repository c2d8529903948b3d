// The tuner under a clock of the test's, with kernels that are right or wrong at the test's will: what it takes, what it
// leaves, and what it refuses.
#include "cpu/tuner.h"

#include <cstring>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/packed_float.h"
#include "tuning_weights.h"

using namespace headrace;

namespace {

using tuning_test::make_weight;

constexpr LinearChoice kFast = {Unpack::kRegisters, 2, static_cast<int32_t>(kOutlierGroupRows)};

// A machine on which time passes as the test says.
struct Machine {
  double now = 0;      // seconds
  uint64_t calls = 0;  // of run
  // Microseconds of a product, which is computed in earnest.
  std::function<double(const LinearInput& input)> lasts = [](const LinearInput&) { return 300.0; };
  // Spoils a product's output.
  std::function<void(const LinearInput& input, const LinearOutput& output)> spoils;

  TunerHooks hooks() {
    return {[this](const CpuPackedWeight& weight, const LinearInput& input, const LinearOutput& output,
                   ThreadPool& pool, const KernelTable& kernels) {
              run_product(weight, input, output, pool, kernels);
              if (spoils) spoils(input, output);
              now += lasts(input) * 1e-6;
              ++calls;
            },
            [this] { return now; }};
  }
};

const KernelTable& best_kernels() { return kernel_table(static_cast<int32_t>(available_isas().back())); }
TuningTable empty_table() { return TuningTable(tuning_target(isa_name(available_isas().back()))); }

// Everything that one weight's tuning finds in the time; the rows of interest are few.
Result<TuningTable> tune(Machine& machine, const PackedWeight& weight, ThreadPool& pool, double seconds = 1e6,
                         TuningTable known = empty_table()) {
  const PackedWeight* weights[] = {&weight, nullptr, &weight};
  Tuner tuner(weights, std::move(known), seconds, pool, best_kernels(), machine.hooks());
  for (;;) {
    const Result<bool> more = tuner.step();
    if (!more.ok()) return more.status();
    if (!*more) return tuner.result();
    CHECK(tuner.fraction() > 0);
  }
}

const TuningEntry& entry_of(const TuningTable& table, int32_t rows) {
  const TuningEntry* entry =
      table.find({DType::kQ4_K, ActivationType::kInt8, 256, 256, rows, table.entries().front().key.threads});
  REQUIRE(entry != nullptr);
  return *entry;
}

}  // namespace

TEST_CASE("the faster choice is taken, with its times as evidence") {
  ThreadPool pool(1);
  const auto weight = make_weight(DType::kQ4_K, 256, 256, pool);
  Machine machine;
  machine.lasts = [](const LinearInput& input) {
    return input.choice->is_rule() ? 300.0 : *input.choice == kFast ? 200.0 : 400.0;
  };
  const auto table = tune(machine, *weight, pool);
  REQUIRE(table.ok());
  CHECK(table->entries().size() == kRowBuckets);
  for (const int32_t rows : {1, 8, 64}) {
    const TuningEntry& entry = entry_of(*table, rows);
    REQUIRE(entry.choice);
    CHECK(*entry.choice == kFast);
    CHECK(entry.rule_us == Approx(300));
    CHECK(entry.best_us == Approx(200));
    CHECK(entry.rounds >= 9);
    CHECK(entry.refused.empty());
  }
  // Beyond 128 rows it is no candidate, and the others are slower.
  CHECK(!entry_of(*table, 256).choice);
  // What was found is what a weight packed with it does.
  const ChoicesByRows choices = table->choices(DType::kQ4_K, ActivationType::kInt8, 256, 256, 1);
  CHECK(choices[row_bucket(6)] == kFast);
  CHECK(choices[row_bucket(500)].is_rule());
  CHECK(table->choices(DType::kQ4_K, ActivationType::kInt8, 256, 256, 3)[0].is_rule());
  CHECK(table->choices(DType::kQ4_K, ActivationType::kInt16, 256, 256, 1)[0].is_rule());
}

TEST_CASE("a gain within the noise is not taken") {
  ThreadPool pool(1);
  const auto weight = make_weight(DType::kQ4_K, 256, 256, pool);
  Machine machine;
  SECTION("too small") {
    machine.lasts = [](const LinearInput& input) { return *input.choice == kFast ? 294.0 : 300.0; };
  }
  SECTION("in two of three rounds only") {
    machine.lasts = [&](const LinearInput& input) {
      if (!(*input.choice == kFast)) return 300.0;
      static uint64_t round = 0;
      return ++round % 3 == 0 ? 330.0 : 200.0;
    };
  }
  SECTION("lost with the fewest rows of the bucket") {
    machine.lasts = [](const LinearInput& input) {
      if (!(*input.choice == kFast)) return 300.0;
      return input.num_tokens == bucket_rows(row_bucket(input.num_tokens)) && input.num_tokens > 2 ? 200.0 : 320.0;
    };
  }
  const auto table = tune(machine, *weight, pool);
  REQUIRE(table.ok());
  for (const TuningEntry& entry : table->entries()) {
    INFO(entry.key.rows);
    CHECK(!entry.choice);
    CHECK(entry.rule_us == Approx(300));
    CHECK(entry.best_us > 0);
  }
}

TEST_CASE("a choice with other bits is reported and never taken, however fast") {
  ThreadPool pool(1);
  const auto weight = make_weight(DType::kQ4_K, 256, 256, pool);
  Machine machine;
  machine.lasts = [](const LinearInput& input) { return *input.choice == kFast ? 1.0 : 300.0; };
  SECTION("one bit") {
    machine.spoils = [](const LinearInput& input, const LinearOutput& output) {
      if (!(*input.choice == kFast)) return;
      auto* last = reinterpret_cast<uint8_t*>(output.y + input.num_tokens * output.y_stride - 1);
      *last ^= 1;
    };
  }
  SECTION("an output that is not written") {
    machine.spoils = [](const LinearInput& input, const LinearOutput& output) {
      if (*input.choice == kFast) std::memset(output.y + 17, 0xff, sizeof(float));
    };
  }
  const auto table = tune(machine, *weight, pool);
  REQUIRE(table.ok());
  for (const int32_t rows : {1, 16, 128}) {
    const TuningEntry& entry = entry_of(*table, rows);
    CHECK(!entry.choice);
    REQUIRE(entry.refused.size() == 1);
    CHECK(entry.refused.front() == kFast);
  }
  const auto again = TuningTable::parse(table->to_text(), "table");
  REQUIRE(again.ok());
  CHECK(again->to_text() == table->to_text());
}

TEST_CASE("kernels whose rule has other bits than the reference end the tuning") {
  ThreadPool pool(1);
  const auto weight = make_weight(DType::kQ4_K, 256, 256, pool);
  Machine machine;
  machine.spoils = [](const LinearInput&, const LinearOutput& output) { output.y[3] += 1; };
  const auto table = tune(machine, *weight, pool);
  REQUIRE(!table.ok());
  CHECK(table.status().code() == StatusCode::kInternal);
}

TEST_CASE("tuning ends with its time, and another one extends the table") {
  ThreadPool pool(1);
  const auto weight = make_weight(DType::kQ4_K, 256, 256, pool);
  Machine machine;
  const auto first = tune(machine, *weight, pool, 0.2);
  REQUIRE(first.ok());
  CHECK(first->entries().size() > 0);
  CHECK(first->entries().size() < kRowBuckets);
  machine.lasts = [](const LinearInput&) { return 500.0; };
  const auto second = tune(machine, *weight, pool, 1e6, *first);
  REQUIRE(second.ok());
  CHECK(second->entries().size() == kRowBuckets);
  for (const TuningEntry& entry : first->entries()) {
    CHECK(entry_of(*second, entry.key.rows).rule_us == Approx(300));  // kept
  }
  CHECK(entry_of(*second, 512).rule_us == Approx(500));
  const uint64_t calls = machine.calls;
  REQUIRE(tune(machine, *weight, pool, 1e6, *second).ok());
  CHECK(machine.calls == calls);  // nothing is left
}

TEST_CASE("float weights leave nothing to tune") {
  ThreadPool pool(1);
  auto weight = pack_float(tuning_test::make_source(DType::kF16, 64, 64), pool);
  REQUIRE(weight.ok());
  Machine machine;
  const auto table = tune(machine, **weight, pool);
  REQUIRE(table.ok());
  CHECK(table->entries().empty());
  CHECK(machine.calls == 0);
}

TEST_CASE("a real clock and real kernels agree with their reference") {
  ThreadPool pool(2);
  const auto weight = make_weight(DType::kQ6_K, 512, 256, pool);
  const PackedWeight* weights[] = {weight.get()};
  Tuner tuner(weights, empty_table(), 0.5, pool, best_kernels());
  for (bool working = true; working;) {
    const Result<bool> more = tuner.step();
    REQUIRE(more.ok());
    working = *more;
  }
  CHECK(!tuner.result().entries().empty());
  for (const TuningEntry& entry : tuner.result().entries()) CHECK(entry.refused.empty());
}
