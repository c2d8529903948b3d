// Ops that carry a state: against the reference, and the same bits for any cut, any number of threads and beside other
// sequences. Bounds: an error is at most the number of roundings on the way to an output times the unit roundoff times
// the same computation over magnitudes, in which nothing cancels.
#include "op_cases.h"

#include <algorithm>

namespace headrace::test {
namespace {

std::vector<float> magnitudes(std::vector<float> values, float sign = 1.0f) {
  for (float& x : values) x = sign * std::fabs(x);
  return values;
}

// Outputs of all rows, the state after the last and after the snapshot's row.
struct Run {
  std::vector<float> out, states, snapshot;
};

// `op(rows, first)` computes the rows from `first` on, of which StateRows tells the sequences.
template <class Op>
Run run_cut(int32_t total, int64_t state_size, const std::vector<float>& initial, const std::vector<int32_t>& cuts,
            int32_t snapshot_row, int64_t out_width, const Op& op) {
  Run run;
  run.out.resize(static_cast<size_t>(total * out_width));
  run.states = initial;
  run.snapshot.resize(static_cast<size_t>(state_size));
  int32_t first = 0;
  for (const int32_t count : cuts) {
    const int32_t start[] = {0, count};
    float* const state = run.states.data();
    float* const snapshot = run.snapshot.data();
    const int32_t row = snapshot_row - first;
    StateRows rows;
    rows.num_seqs = 1;
    rows.query_start = start;
    rows.states = &state;
    rows.num_snapshots = row >= 0 && row < count ? 1 : 0;
    rows.snapshot_rows = &row;
    rows.snapshots = &snapshot;
    op(rows, first, run.out.data() + first * out_width);
    first += count;
  }
  return run;
}

// Cuts, threads and instruction sets against the reference.
template <class Op>
void check(int32_t total, int64_t state_size, int64_t out_width, const std::vector<double>& bound, const Op& op) {
  const std::vector<float> initial = random_floats(static_cast<size_t>(state_size), 99, 0.5f);
  const auto run = [&](Backend& backend, const std::vector<int32_t>& cuts) {
    return run_cut(total, state_size, initial, cuts, total / 2, out_width,
                   [&](const StateRows& rows, int32_t first, float* out) { op(backend, rows, first, out); });
  };
  const Run expected = run(*make_reference_backend(), {total});
  for (const Isa isa : available_isas()) {
    INFO(isa_name(isa));
    const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
    const Run whole = run(*one, {total});
    CHECK(worst(whole.out, expected.out, bound) <= 1.0);
    std::vector<int32_t> ones(static_cast<size_t>(total), 1);
    for (const auto& cuts : {std::vector<int32_t>{total}, ones, {7, total - 7}}) {
      const Run cut = run(*three, cuts);
      CHECK(same_bits(cut.out, whole.out));
      CHECK(same_bits(cut.states, whole.states));
      CHECK(same_bits(cut.snapshot, whole.snapshot));
    }
    // The snapshot is the state of a run that ends there.
    const Run half = run_cut(total, state_size, initial, {total / 2 + 1}, -1, out_width,
                             [&](const StateRows& rows, int32_t first, float* out) { op(*one, rows, first, out); });
    CHECK(same_bits(half.states, whole.snapshot));
  }
}

// The reference over magnitudes, times `roundings` units.
template <class Op>
std::vector<double> bound_of(int32_t total, int64_t state_size, int64_t out_width, double roundings, const Op& op) {
  const auto reference = make_reference_backend();
  const std::vector<float> initial = magnitudes(random_floats(static_cast<size_t>(state_size), 99, 0.5f));
  const Run run = run_cut(total, state_size, initial, {total}, -1, out_width,
                          [&](const StateRows& rows, int32_t first, float* out) { op(*reference, rows, first, out); });
  std::vector<double> bound;
  for (const float x : run.out) bound.push_back(roundings * kUnit * std::fabs(static_cast<double>(x)) + 1e-30);
  return bound;
}

}  // namespace

TEST_CASE("Causal convolution agrees with the reference for any cut") {
  constexpr int32_t kRows = 40;
  for (const int64_t channels : {5, 16, 100, 130}) {
    for (const int32_t kernel : {2, 3, 4}) {
      for (const bool gated : {false, true}) {
        const auto count = static_cast<size_t>(kRows * channels);
        const auto x = random_floats(count, 1), in = random_floats(count, 2), out_gate = random_floats(count, 3);
        const auto weight = random_floats(static_cast<size_t>(channels * kernel), 4);
        const auto bias = random_floats(static_cast<size_t>(channels), 5);
        const auto with = [&](const auto& u, const auto& g, const auto& h, const auto& w, const auto& b, bool silu) {
          return [&, silu](Backend& backend, const StateRows& rows, int32_t first, float* out) {
            CausalConvParams p;
            p.rows = rows;
            const int64_t at = first * channels;
            p.x = u.data() + at;
            p.gate_in = gated ? g.data() + at : nullptr;
            p.gate_out = gated ? h.data() + at : nullptr;
            p.stride = p.out_stride = p.channels = channels;
            p.weight = w.data();
            p.bias = b.data();
            p.silu = silu;
            p.kernel = kernel;
            p.out = out;
            backend.causal_conv(p);
          };
        };
        const auto ax = magnitudes(x), ai = magnitudes(in), ao = magnitudes(out_gate), aw = magnitudes(weight),
                   ab = magnitudes(bias);
        // SiLU's slope is at most 1.1, and it adds about ten roundings.
        const int64_t state = (kernel - 1) * channels;
        const auto bound = bound_of(kRows, state, channels, 1.1 * kernel + 16, with(ax, ai, ao, aw, ab, false));
        INFO(channels << " channels, kernel " << kernel);
        check(kRows, state, channels, bound, with(x, in, out_gate, weight, bias, !gated));
      }
    }
  }
}

TEST_CASE("Linear recurrence agrees with the reference for any cut") {
  constexpr int32_t kRows = 24;
  struct Shape {
    int32_t heads, key_heads;
    int64_t key_dim, value_dim;
  };
  for (const Shape s : {Shape{1, 1, 8, 16}, Shape{4, 2, 16, 70}, Shape{3, 3, 20, 130}}) {
    for (const bool delta : {false, true}) {
      for (const bool channels : {false, true}) {
        const auto size = [&](int64_t width) { return static_cast<size_t>(kRows * width); };
        const int64_t keys = s.key_heads * s.key_dim, values = s.heads * s.value_dim;
        const float unit = 1.0f / std::sqrt(static_cast<float>(s.key_dim));
        const auto q = random_floats(size(keys), 1), k = random_floats(size(keys), 2, unit);
        const auto v = random_floats(size(values), 3);
        const int64_t decays = s.heads * (channels ? s.key_dim : 1);
        auto decay = random_floats(size(decays), 4), step = random_floats(size(s.heads), 5);
        for (float& x : decay) x = std::exp(-std::fabs(x));
        for (float& x : step) x = 1.0f / (1.0f + std::exp(-x));
        const auto skip = random_floats(static_cast<size_t>(s.heads), 6);
        const auto with = [&](const auto& q_, const auto& k_, const auto& v_, const auto& step_, const auto& skip_) {
          return [&](Backend& backend, const StateRows& rows, int32_t first, float* out) {
            LinearRecurrenceParams p;
            p.rows = rows;
            p.q = q_.data() + first * keys;
            p.k = k_.data() + first * keys;
            p.q_stride = p.k_stride = keys;
            p.v = v_.data() + first * values;
            p.v_stride = p.out_stride = values;
            p.decay = decay.data() + first * decays;
            p.decay_stride = decays;
            p.channel_decay = channels;
            p.step = step_.data() + first * s.heads;
            p.skip = skip_.data();
            p.delta = delta;
            p.scale = 0.25f;
            p.num_heads = s.heads;
            p.num_key_heads = s.key_heads;
            p.key_dim = s.key_dim;
            p.value_dim = s.value_dim;
            p.out = out;
            backend.linear_recurrence(p);
          };
        };
        // With -|v| and -|step|, step (v - S^T k) is |step| (|v| + S^T |k|). Without delta the signs are plain.
        const float sign = delta ? -1.0f : 1.0f;
        const auto aq = magnitudes(q), ak = magnitudes(k), av = magnitudes(v, sign), as = magnitudes(step, sign),
                   ap = magnitudes(skip, sign);
        const int64_t state = s.heads * s.key_dim * s.value_dim;
        // Each row rounds a sum of key_dim terms into u, and each entry of the state a few times.
        const double roundings =
            kRows * (delta ? static_cast<double>(s.key_dim) + 6.0 : 4.0) + static_cast<double>(s.key_dim) + 8.0;
        INFO(s.heads << " heads of " << s.key_dim << " x " << s.value_dim << (delta ? ", delta" : "")
                     << (channels ? ", channel decay" : ""));
        check(kRows, state, values, bound_of(kRows, state, values, roundings, with(aq, ak, av, as, ap)),
              with(q, k, v, step, skip));
      }
    }
  }
}

TEST_CASE("Selective scan agrees with the reference for any cut") {
  constexpr int32_t kRows = 30;
  for (const int64_t channels : {7, 64, 150}) {
    for (const int64_t states : {1, 8, 16}) {
      const auto size = [&](int64_t width) { return static_cast<size_t>(kRows * width); };
      const auto x = random_floats(size(channels), 1), step = random_floats(size(channels), 2, 2.0f);
      const auto b = random_floats(size(states), 3), c = random_floats(size(states), 4);
      const auto gate = random_floats(size(channels), 5, 3.0f);
      const auto rate = magnitudes(random_floats(static_cast<size_t>(states * channels), 6), -1.0f);
      const auto skip = random_floats(static_cast<size_t>(channels), 7);
      const auto with = [&](const auto& x_, const auto& b_, const auto& c_, const auto& gate_, const auto& skip_) {
        return [&](Backend& backend, const StateRows& rows, int32_t first, float* out) {
          SelectiveScanParams p;
          p.rows = rows;
          p.x = x_.data() + first * channels;
          p.step = step.data() + first * channels;
          p.gate = gate_.data() + first * channels;
          p.x_stride = p.step_stride = p.gate_stride = p.out_stride = channels;
          p.b = b_.data() + first * states;
          p.c = c_.data() + first * states;
          p.bc_stride = states;
          p.rate = rate.data();
          p.skip = skip_.data();
          p.channels = channels;
          p.state_size = states;
          p.out = out;
          backend.selective_scan(p);
        };
      };
      const auto ax = magnitudes(x), ab = magnitudes(b), ac = magnitudes(c), ag = magnitudes(gate),
                 ap = magnitudes(skip);
      // A row's decay errs by a few units of exp and softplus: its argument's error times e^argument stays below 3.
      const double roundings = kRows * 14.0 + static_cast<double>(states) + 30.0;
      INFO(channels << " channels, " << states << " states");
      check(kRows, states * channels, channels,
            bound_of(kRows, states * channels, channels, roundings, with(ax, ab, ac, ag, ap)),
            with(x, b, c, gate, skip));
    }
  }
}

TEST_CASE("Decay gates agree with the reference over their range") {
  std::vector<float> raw;
  for (float x = -40.0f; x < 40.0f; x += 0.0137f) raw.push_back(x);
  const auto width = static_cast<int64_t>(raw.size());
  const auto bias = random_floats(raw.size(), 1), rate = magnitudes(random_floats(raw.size(), 2), -1.0f);
  const auto run = [&](Backend& backend) {
    std::vector<float> out(2 * raw.size());
    DecayGatesParams p;
    p.raw = raw.data();
    p.bias = bias.data();
    p.rate = rate.data();
    p.low = 0.001f;
    p.high = 30.0f;
    p.num_tokens = 1;
    p.width = p.raw_stride = width;
    p.decay = out.data();
    p.step = out.data() + width;
    backend.decay_gates(p);
    return out;
  };
  const std::vector<float> expected = run(*make_reference_backend());
  std::vector<double> bound(expected.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    // The rounding of raw + bias is relative to e^(raw + bias), and so to the step, below zero.
    const double relative =
        kUnit * (10.0 + std::fabs(static_cast<double>(raw[i])) + std::fabs(static_cast<double>(bias[i])));
    const double step = static_cast<double>(expected[raw.size() + i]);
    bound[raw.size() + i] = relative * step;
    const double exponent = std::fabs(static_cast<double>(rate[i])) * step;
    bound[i] = static_cast<double>(expected[i]) * (exponent * (relative + 2 * kUnit) + 4 * kUnit) + 1e-37;
  }
  for (const Isa isa : available_isas()) {
    INFO(isa_name(isa));
    CHECK(worst(run(*cpu_backend(isa, 2)), expected, bound) <= 1.0);
  }
}

TEST_CASE("Group norm agrees with the reference, with gates before and after") {
  constexpr int64_t kRows = 9, kGroups = 3;
  for (const int64_t size : {5, 16, 100}) {
    for (const int mode : {0, 1, 2, 3}) {  // no gate, before, after, sigmoid after
      const int64_t width = kGroups * size;
      const auto x = random_floats(static_cast<size_t>(kRows * width), 1);
      const auto gate = random_floats(x.size(), 2, 2.0f), weight = random_floats(static_cast<size_t>(width), 3);
      const auto run = [&](Backend& backend) {
        std::vector<float> out = x;  // in place
        GroupNormParams p;
        p.x = p.out = out.data();
        p.x_stride = p.gate_stride = p.out_stride = width;
        p.weight = weight.data();
        p.group_weights = mode % 2 == 0;
        p.gate = mode == 0 ? nullptr : gate.data();
        p.gate_first = mode == 1;
        p.activation = mode == 3 ? Activation::kSigmoid : Activation::kSilu;
        p.num_tokens = kRows;
        p.groups = kGroups;
        p.size = size;
        p.eps = 1e-6f;
        p.out = out.data();
        backend.group_norm(p);
        return out;
      };
      const std::vector<float> expected = run(*make_reference_backend());
      std::vector<double> bound;
      for (const float v : expected) {
        bound.push_back((static_cast<double>(size) / 64.0 + 30.0) * kUnit * std::fabs(static_cast<double>(v)) + 1e-30);
      }
      for (const Isa isa : available_isas()) {
        INFO(isa_name(isa) << " size " << size << " mode " << mode);
        const std::vector<float> out = run(*cpu_backend(isa, 1));
        CHECK(worst(out, expected, bound) <= 1.0);
        CHECK(same_bits(run(*cpu_backend(isa, 3)), out));
      }
    }
  }
}

}  // namespace headrace::test
