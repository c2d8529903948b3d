// The cost model finds the factors of machines that it is shown, and forgets what no longer holds.
#include "schedule/cost_model.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

using namespace headrace::schedule;

namespace {

struct Machine {
  double step_ns, row_ns, pair_ns, noise;
  std::mt19937_64 random{7};

  double exact(const StepWork& work) const { return step_ns + row_ns * work.rows + pair_ns * work.pairs; }
  int64_t run(const StepWork& work) {
    std::uniform_real_distribution<double> factor(1.0 - noise, 1.0 + noise);
    return static_cast<int64_t>(exact(work) * factor(random));
  }
};

StepWork decoders(int64_t count, int64_t context) {
  StepWork work;
  for (int64_t i = 0; i < count; ++i) work += StepWork::of(context, 1);
  return work;
}

double error(const CostModel& model, const Machine& machine, const StepWork& work) {
  return std::abs(model.predict_ns(work) / machine.exact(work) - 1.0);
}

const Machine kMachines[] = {
    {30e6, 2e6, 200.0, 0.05},   // weights from memory, long attention
    {80e6, 9e6, 3000.0, 0.05},  // slow
    {2e6, 0.02e6, 2.0, 0.05},   // fast
    {1e6, 1e6, 0.0, 0.05},      // without attention
};

}  // namespace

TEST_CASE("work counts each row's positions, its own included") {
  const StepWork work = StepWork::of(10, 3);
  CHECK(work.rows == 3.0);
  CHECK(work.pairs == 11.0 + 12.0 + 13.0);
}

TEST_CASE("a few steps of each kind give the machine's factors") {
  for (Machine machine : kMachines) {
    INFO(machine.row_ns);
    CostModel model;
    for (int64_t i = 0; i < 30; ++i) {
      const StepWork prompt = StepWork::of(512 * i, 512) + decoders(i % 5, 300);
      model.observe(prompt, true, machine.run(prompt));
      const StepWork decode = decoders(1 + i % 8, 200 + 50 * i);
      model.observe(decode, false, machine.run(decode));
    }
    CHECK(error(model, machine, decoders(7, 500)) < 0.1);
    CHECK(error(model, machine, StepWork::of(0, 256)) < 0.1);
    CHECK(error(model, machine, StepWork::of(16000, 64) + decoders(7, 500)) < 0.1);
    CHECK(model.factors().row_ns >= 0.0);
    CHECK(model.factors().pair_ns >= 0.0);
  }
}

TEST_CASE("one step sets the scale, and decoding alone does not unlearn prompts") {
  for (Machine machine : kMachines) {
    CostModel model;
    const StepWork decode = decoders(4, 300);
    model.observe(decode, false, machine.run(decode));
    CHECK(error(model, machine, decode) < 0.1);
    for (int64_t i = 0; i < 20; ++i) {
      const StepWork prompt = StepWork::of(512 * i, 512);
      model.observe(prompt, true, machine.run(prompt));
    }
    for (int i = 0; i < 20000; ++i) model.observe(decode, false, machine.run(decode));
    CHECK(error(model, machine, decode) < 0.1);
    CHECK(error(model, machine, StepWork::of(4096, 256)) < 0.15);
  }
}

TEST_CASE("a machine that becomes slower is believed") {
  Machine machine = kMachines[0];
  CostModel model;
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < 300; ++i) {
      const StepWork prompt = StepWork::of(64 * (i % 100), 64) + decoders(3, 400);
      model.observe(prompt, true, machine.run(prompt));
      const StepWork decode = decoders(1 + i % 8, 400);
      model.observe(decode, false, machine.run(decode));
    }
    CHECK(error(model, machine, decoders(5, 400)) < 0.1);
    CHECK(error(model, machine, StepWork::of(1000, 100)) < 0.15);
    machine.row_ns *= 3.0;
    machine.step_ns *= 1.5;
  }
}

TEST_CASE("times that make no sense change nothing") {
  CostModel model;
  const CostModel::Factors before = model.factors();
  model.observe(decoders(3, 10), false, 0);
  model.observe(decoders(3, 10), false, -5);
  model.observe({}, false, 1000);
  const CostModel::Factors after = model.factors();
  CHECK(after.step_ns == before.step_ns);
  CHECK(after.row_ns == before.row_ns);
  CHECK(after.pair_ns == before.pair_ns);
  CHECK(model.rows_within(0, 100, -1.0) == 0);
  CHECK(model.rows_within(0, 0, 1e9) == 0);
  CHECK(model.rows_within(0, 100, 1e18) == 100);
}
