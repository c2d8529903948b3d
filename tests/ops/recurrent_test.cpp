// Ops whose rows carry a state: every instruction set against the reference, and one arithmetic for any cut of the rows.
#include "op_cases.h"

#include <algorithm>
#include <functional>

#include "tensor/recurrent_params.h"

namespace headrace::test {
namespace {

// Errors of the kernels' functions, relative, as they state them.
constexpr double kExpError = 1e-7, kSoftplusError = 3e-7;
// x / (1 + e^-x): the exponential's error, and three roundings.
constexpr double kSiluError = kExpError + 4 * kUnit;
// Bounds below are of the first order in the unit roundoff; what they leave out is a thousandth of them at most. Not every
// instruction set fuses products and sums: a sum of n products rounds n times, and its products once.
constexpr double kHigherOrders = 1.001;

constexpr int32_t kStarts[] = {0, 1, 7, 40};  // of three sequences of rows
constexpr int32_t kNumSeqs = 3;
constexpr int64_t kNumRows = 40;
constexpr int32_t kSnapshotRows[] = {3, 6, 20, 39};
constexpr int64_t kOffset = 5;  // floats of a state before the op's part

double wide(float x) { return static_cast<double>(x); }
double silu(double x) { return x / (1.0 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

using Floats = std::vector<float>;
using Bounds = std::vector<double>;

struct StatefulOp {
  int64_t out_width = 0, state_size = 0;
  // Rows [first, first + count) of its inputs, into rows of out.
  std::function<void(Backend&, const StateRows&, int64_t first, int64_t count, float* out)> call;
};

struct Outcome {
  Floats out;                         // [kNumRows, out_width]
  std::vector<Floats> states;         // of each sequence after its rows, without what is before the op's part
  std::vector<Floats> snapshots;      // after kSnapshotRows
  std::vector<Floats> before, after;  // of each row, where rows ran one by one
};

// What is before the op's part of a state stays as it was.
Floats part(const Floats& state) {
  for (int64_t i = 0; i < kOffset; ++i) REQUIRE(state[static_cast<size_t>(i)] == 7.0f);
  return {state.begin() + kOffset, state.end()};
}

Floats first_state(const StatefulOp& op, int32_t sequence) {
  Floats state =
      random_floats(static_cast<size_t>(kOffset + op.state_size), 50 + static_cast<uint32_t>(sequence), 0.5f);
  std::fill_n(state.begin(), kOffset, 7.0f);
  return state;
}

Outcome run_whole(Backend& backend, const StatefulOp& op) {
  std::vector<Floats> states, snapshots;
  std::vector<float*> state_pointers, snapshot_pointers;
  for (int32_t s = 0; s < kNumSeqs; ++s) states.push_back(first_state(op, s));
  for (size_t i = 0; i < std::size(kSnapshotRows); ++i) snapshots.push_back(first_state(op, 9));
  for (Floats& state : states) state_pointers.push_back(state.data());
  for (Floats& snapshot : snapshots) snapshot_pointers.push_back(snapshot.data());
  StateRows rows;
  rows.num_seqs = kNumSeqs;
  rows.query_start = kStarts;
  rows.states = state_pointers.data();
  rows.offset = kOffset;
  rows.num_snapshots = static_cast<int32_t>(std::size(kSnapshotRows));
  rows.snapshot_rows = kSnapshotRows;
  rows.snapshots = snapshot_pointers.data();
  Outcome outcome;
  outcome.out.resize(static_cast<size_t>(kNumRows * op.out_width));
  op.call(backend, rows, 0, kNumRows, outcome.out.data());
  for (const Floats& state : states) outcome.states.push_back(part(state));
  for (const Floats& snapshot : snapshots) outcome.snapshots.push_back(part(snapshot));
  return outcome;
}

// One sequence after the other, `piece` rows a call.
Outcome run_pieces(Backend& backend, const StatefulOp& op, int32_t piece) {
  Outcome outcome;
  outcome.out.resize(static_cast<size_t>(kNumRows * op.out_width));
  for (int32_t s = 0; s < kNumSeqs; ++s) {
    Floats state = first_state(op, s);
    float* const pointer = state.data();
    for (int32_t row = kStarts[s]; row < kStarts[s + 1];) {
      const int32_t bounds[] = {0, std::min(piece, kStarts[s + 1] - row)};
      StateRows rows;
      rows.num_seqs = 1;
      rows.query_start = bounds;
      rows.states = &pointer;
      rows.offset = kOffset;
      outcome.before.push_back(part(state));
      op.call(backend, rows, row, bounds[1], outcome.out.data() + row * op.out_width);
      outcome.after.push_back(part(state));
      row += bounds[1];
    }
    outcome.states.push_back(part(state));
  }
  if (piece == 1) {
    for (const int32_t row : kSnapshotRows) outcome.snapshots.push_back(outcome.after[static_cast<size_t>(row)]);
  }
  return outcome;
}

struct OutcomeBounds {
  Bounds out;
  std::vector<Bounds> states;  // of each sequence
};
// From what the reference gives, row by row.
using BoundsOf = std::function<OutcomeBounds(const Outcome& reference)>;

void check_op(const StatefulOp& op, const BoundsOf& bounds_of) {
  const auto reference = make_reference_backend();
  const Outcome expected = run_pieces(*reference, op, 1);
  const OutcomeBounds bounds = bounds_of(expected);
  for (Isa isa : available_isas()) {
    INFO(isa_name(isa));
    const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
    const Outcome whole = run_whole(*one, op);
    CHECK(worst(whole.out, expected.out, bounds.out) <= 1.0);
    for (size_t s = 0; s < kNumSeqs; ++s) CHECK(worst(whole.states[s], expected.states[s], bounds.states[s]) <= 1.0);
    const Outcome threaded = run_whole(*three, op), rows = run_pieces(*three, op, 1), pieces = run_pieces(*one, op, 5);
    for (const Outcome* other : {&threaded, &rows, &pieces}) {
      CHECK(same_bits(other->out, whole.out));
      for (size_t s = 0; s < kNumSeqs; ++s) CHECK(same_bits(other->states[s], whole.states[s]));
    }
    for (const Outcome* other : {&threaded, &rows}) {
      for (size_t i = 0; i < whole.snapshots.size(); ++i) CHECK(same_bits(other->snapshots[i], whole.snapshots[i]));
    }
  }
}

const float* row_of(const Floats& values, int64_t row, int64_t stride) {
  return values.empty() ? nullptr : values.data() + row * stride;
}

// Sequence of a row.
size_t sequence_of(int64_t row) {
  return static_cast<size_t>(std::upper_bound(std::begin(kStarts), std::end(kStarts), row) - std::begin(kStarts) - 1);
}

// --- causal convolution

struct ConvCase {
  int64_t channels;
  int32_t kernel;
  bool silu = false, bias = false, gates = false;
};

void check_conv(const ConvCase& c) {
  INFO("channels " << c.channels << " kernel " << c.kernel << " silu " << c.silu << " gates " << c.gates);
  const int64_t stride = c.channels + 3;
  const auto count = static_cast<size_t>(kNumRows * stride);
  const Floats x = random_floats(count, 1), weight = random_floats(static_cast<size_t>(c.kernel * c.channels), 2);
  const Floats bias = c.bias ? random_floats(static_cast<size_t>(c.channels), 3) : Floats();
  const Floats gate_in = c.gates ? random_floats(count, 4) : Floats();
  const Floats gate_out = c.gates ? random_floats(count, 5) : Floats();
  StatefulOp op;
  op.out_width = c.channels;
  op.state_size = (c.kernel - 1) * c.channels;
  op.call = [&](Backend& backend, const StateRows& rows, int64_t first, int64_t, float* out) {
    CausalConvParams p;
    p.rows = rows;
    p.x = row_of(x, first, stride);
    p.gate_in = row_of(gate_in, first, stride);
    p.gate_out = row_of(gate_out, first, stride);
    p.stride = stride;
    p.weight = weight.data();
    p.bias = row_of(bias, 0, 0);
    p.silu = c.silu;
    p.channels = c.channels;
    p.kernel = c.kernel;
    p.out = out;
    p.out_stride = c.channels;
    backend.causal_conv(p);
  };
  check_op(op, [&](const Outcome& reference) {
    OutcomeBounds bounds;
    const int64_t past = c.kernel - 1;
    for (int64_t row = 0; row < kNumRows; ++row) {
      const Floats &before = reference.before[static_cast<size_t>(row)],
                   &after = reference.after[static_cast<size_t>(row)];
      for (int64_t channel = 0; channel < c.channels; ++channel) {
        const auto at = [&](const Floats& values, int64_t line) {
          return std::fabs(wide(values[static_cast<size_t>(line * c.channels + channel)]));
        };
        double size = c.bias ? at(bias, 0) : 0.0;
        for (int64_t k = 0; k < past; ++k) size += at(weight, k) * at(before, k);
        size += at(weight, past) * at(after, past - 1);
        // The slope of silu is at most 1.1.
        double error = (c.silu ? 1.1 : 1.0) * (c.kernel + 1) * kUnit * size;
        if (c.gates) error *= std::fabs(wide(gate_out[static_cast<size_t>(row * stride + channel)]));
        const double out = std::fabs(wide(reference.out[static_cast<size_t>(row * c.channels + channel)]));
        bounds.out.push_back(kHigherOrders * (error + ((c.silu ? kSiluError : 0.0) + 2 * kUnit) * out) + 1e-38);
      }
    }
    // A state holds inputs, or products of two.
    for (const Floats& state : reference.states) bounds.states.emplace_back(state.size(), 1e-300);
    return bounds;
  });
}

// --- selective scan

void check_scan(int64_t channels, int64_t states) {
  INFO("channels " << channels << " states " << states);
  const auto count = static_cast<size_t>(kNumRows * channels);
  const Floats x = random_floats(count, 1), step = random_floats(count, 2), gate = random_floats(count, 3);
  const Floats bc = random_floats(static_cast<size_t>(kNumRows * 2 * states), 4);
  const Floats skip = random_floats(static_cast<size_t>(channels), 5);
  Floats rate = random_floats(static_cast<size_t>(states * channels), 6);
  for (float& value : rate) value = -std::exp(value);
  StatefulOp op;
  op.out_width = channels;
  op.state_size = states * channels;
  op.call = [&](Backend& backend, const StateRows& rows, int64_t first, int64_t, float* out) {
    SelectiveScanParams p;
    p.rows = rows;
    p.x = row_of(x, first, channels);
    p.step = row_of(step, first, channels);
    p.gate = row_of(gate, first, channels);
    p.x_stride = p.step_stride = p.gate_stride = p.out_stride = channels;
    p.b = row_of(bc, first, 2 * states);
    p.c = p.b + states;
    p.bc_stride = 2 * states;
    p.rate = rate.data();
    p.skip = skip.data();
    p.channels = channels;
    p.state_size = states;
    p.out = out;
    backend.selective_scan(p);
  };
  check_op(op, [&](const Outcome& reference) {
    OutcomeBounds bounds;
    bounds.states.assign(kNumSeqs, Bounds(static_cast<size_t>(op.state_size), 0.0));
    for (int64_t row = 0; row < kNumRows; ++row) {
      Bounds& errors = bounds.states[sequence_of(row)];
      for (int64_t channel = 0; channel < channels; ++channel) {
        const auto here = static_cast<size_t>(row * channels + channel);
        const double dt = softplus(wide(step[here])), in = wide(x[here]);
        double sum_error = 0.0, size = std::fabs(wide(skip[static_cast<size_t>(channel)]) * in);
        for (int64_t n = 0; n < states; ++n) {
          const auto at = static_cast<size_t>(n * channels + channel);
          const double exponent = dt * std::fabs(wide(rate[at])), decay = std::exp(-exponent);
          const double before = std::fabs(wide(reference.before[static_cast<size_t>(row)][at]));
          const double after = std::fabs(wide(reference.after[static_cast<size_t>(row)][at]));
          const double added = std::fabs(dt * in * wide(bc[static_cast<size_t>(row * 2 * states + n)]));
          const double factor = std::fabs(wide(bc[static_cast<size_t>(row * 2 * states + states + n)]));
          // The old error decays; the decay, its product and what is added err anew; both sides round the state.
          errors[at] = decay * errors[at] + before * decay * (exponent * (kSoftplusError + kUnit) + kExpError + kUnit) +
                       added * (kSoftplusError + 2 * kUnit) + 2 * kUnit * after;
          sum_error += errors[at] * factor;
          size += after * factor;
        }
        sum_error += static_cast<double>(states + 2) * kUnit * size;
        const double out = std::fabs(wide(reference.out[here]));
        bounds.out.push_back(
            kHigherOrders * (sum_error * std::fabs(silu(wide(gate[here]))) + (kSiluError + 2 * kUnit) * out) + 1e-38);
      }
    }
    return bounds;
  });
}

// --- linear recurrence

struct RecurrenceCase {
  int64_t key_dim, value_dim;
  bool delta = false, channel_decay = false, fixed_decay = false, step = true, skip = false;
  int32_t num_heads = 4, num_key_heads = 2;
};

Floats uniform(size_t count, uint32_t seed, float low, float high) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> distribution(low, high);
  Floats out(count);
  for (float& x : out) x = distribution(generator);
  return out;
}

void check_recurrence(const RecurrenceCase& c) {
  INFO("keys " << c.key_dim << " values " << c.value_dim << " delta " << c.delta << " channel decay "
               << c.channel_decay);
  const int64_t keys = c.num_key_heads * c.key_dim, values = c.num_heads * c.value_dim,
                group = c.num_heads / c.num_key_heads;
  const Floats q = random_floats(static_cast<size_t>(kNumRows * keys), 1);
  Floats k = random_floats(q.size(), 2);
  for (size_t head = 0; head < k.size(); head += static_cast<size_t>(c.key_dim)) {  // keys of length 1
    double squares = 0.0;
    for (size_t i = head; i < head + static_cast<size_t>(c.key_dim); ++i) squares += wide(k[i]) * wide(k[i]);
    for (size_t i = head; i < head + static_cast<size_t>(c.key_dim); ++i)
      k[i] /= static_cast<float>(std::sqrt(squares));
  }
  const Floats v = random_floats(static_cast<size_t>(kNumRows * values), 3);
  const int64_t decays = c.num_heads * (c.channel_decay ? c.key_dim : 1);
  const Floats decay = uniform(static_cast<size_t>(c.fixed_decay ? decays : kNumRows * decays), 4, 0.2f, 1.0f);
  const Floats step = c.step ? uniform(static_cast<size_t>(kNumRows * c.num_heads), 5, 0.0f, 2.0f) : Floats();
  const Floats skip = c.skip ? random_floats(static_cast<size_t>(c.num_heads), 6) : Floats();
  constexpr float kScale = 0.7f;
  StatefulOp op;
  op.out_width = values;
  op.state_size = c.key_dim * values;
  op.call = [&](Backend& backend, const StateRows& rows, int64_t first, int64_t, float* out) {
    LinearRecurrenceParams p;
    p.rows = rows;
    p.q = row_of(q, first, keys);
    p.k = row_of(k, first, keys);
    p.v = row_of(v, first, values);
    p.q_stride = p.k_stride = keys;
    p.v_stride = p.out_stride = values;
    p.decay_stride = c.fixed_decay ? 0 : decays;
    p.decay = row_of(decay, first, p.decay_stride);
    p.channel_decay = c.channel_decay;
    p.step = row_of(step, first, c.num_heads);
    p.skip = row_of(skip, 0, 0);
    p.delta = c.delta;
    p.scale = kScale;
    p.num_heads = c.num_heads;
    p.num_key_heads = c.num_key_heads;
    p.key_dim = c.key_dim;
    p.value_dim = c.value_dim;
    p.out = out;
    backend.linear_recurrence(p);
  };
  // With keys of length 1 and steps of at most 2 a row's map of a column of the state lengthens no vector, so that the
  // errors of rows add up. `length` is the longest the column was, u = step (v - S^T k) at most step (|v| + length).
  check_op(op, [&](const Outcome& reference) {
    OutcomeBounds bounds;
    bounds.out.resize(reference.out.size());
    bounds.states.assign(kNumSeqs, Bounds(static_cast<size_t>(op.state_size)));
    for (int64_t column = 0; column < values; ++column) {
      const int64_t head = column / c.value_dim, in_head = column % c.value_dim;
      const auto length_of = [&](const Floats& state) {
        double squares = 0.0;
        for (int64_t i = 0; i < c.key_dim; ++i) {
          const double x = wide(state[static_cast<size_t>((head * c.key_dim + i) * c.value_dim + in_head)]);
          squares += x * x;
        }
        return std::sqrt(squares);
      };
      double error = 0.0, length = 0.0;
      for (int64_t row = 0; row < kNumRows; ++row) {
        const size_t sequence = sequence_of(row);
        if (row == kStarts[sequence]) error = length = 0.0;
        length = std::max({length, length_of(reference.before[static_cast<size_t>(row)]),
                           length_of(reference.after[static_cast<size_t>(row)])});
        const double value = std::fabs(wide(v[static_cast<size_t>(row * values + column)]));
        const double factor = c.step ? wide(step[static_cast<size_t>(row * c.num_heads + head)]) : 1.0;
        const auto terms = static_cast<double>(c.key_dim);
        // Both sides round the state twice; the kernel also rounds the terms of u, and its products with step and key.
        error += 4 * kUnit * length + factor * kUnit * ((c.delta ? terms + 1.0 : 0.0) + 2.0) * (value + length);
        double q_squares = 0.0;
        for (int64_t i = 0; i < c.key_dim; ++i) {
          const double x = wide(q[static_cast<size_t>(row * keys + head / group * c.key_dim + i)]);
          q_squares += x * x;
        }
        const double out = std::fabs(wide(reference.out[static_cast<size_t>(row * values + column)]));
        const double skipped = c.skip ? std::fabs(wide(skip[static_cast<size_t>(head)])) * value : 0.0;
        bounds.out[static_cast<size_t>(row * values + column)] =
            kHigherOrders * (wide(kScale) * std::sqrt(q_squares) * (error + (terms + 2.0) * kUnit * length) +
                             2 * kUnit * (out + skipped)) +
            1e-38;
        for (int64_t i = 0; i < c.key_dim; ++i) {
          bounds.states[sequence][static_cast<size_t>((head * c.key_dim + i) * c.value_dim + in_head)] =
              kHigherOrders * error;
        }
      }
    }
    return bounds;
  });
}

// --- pooling of runs

void check_pool(int32_t run, int64_t channels, bool overlap) {
  INFO("run " << run << " channels " << channels << " overlap " << overlap);
  const int64_t width = overlap ? 2 * channels : channels;
  const Floats value = random_floats(static_cast<size_t>(kNumRows * width), 1);
  const Floats gate = random_floats(value.size(), 2, 3.0f);
  const Floats bias = random_floats(static_cast<size_t>(run * width), 3);
  std::vector<int32_t> positions, entries;  // a row of out for every token: those that end no run stay zero
  for (int32_t row = 0; row < kNumRows; ++row) {
    positions.push_back(row - kStarts[sequence_of(row)]);
    entries.push_back(row);
  }
  StatefulOp op;
  op.out_width = channels;
  op.state_size = 3 * width;
  op.call = [&](Backend& backend, const StateRows& rows, int64_t first, int64_t, float* out) {
    PoolRunsParams p;
    p.rows = rows;
    p.value = row_of(value, first, width);
    p.gate = row_of(gate, first, width);
    p.bias = bias.data();
    p.positions = positions.data() + first;
    p.run = run;
    p.overlap = overlap;
    p.channels = channels;
    p.entries = entries.data();
    p.out = out;
    backend.pool_runs(p);
  };
  // Exponents are of at most 20 in magnitude and exact, but their differences round; each of at most 2 run terms is
  // multiplied and added once per step, on either side. Outputs are means of values below 6.
  const double terms = 2.0 * run, error = terms * (kExpError + (40.0 + 8.0) * kUnit), largest = 6.0;
  check_op(op, [&](const Outcome& reference) {
    OutcomeBounds bounds;
    for (int64_t row = 0; row < kNumRows; ++row) {
      const int32_t position = positions[static_cast<size_t>(row)], last = run - 1;
      const int64_t begin = row - std::min<int64_t>(overlap ? 2 * run - 1 : last, position);
      for (int64_t c = 0; c < channels; ++c) {
        bounds.out.push_back(2 * kHigherOrders * error * largest + 1e-38);
        if (position % run != last) continue;
        // The definition, in float64.
        double sum = 0.0, weighted = 0.0;
        for (int64_t t = begin; t <= row; ++t) {
          const bool own = positions[static_cast<size_t>(t)] / run == position / run;
          const int64_t at = overlap && own ? channels + c : c;
          const auto from = static_cast<size_t>(t * width + at);
          const auto to = static_cast<size_t>(positions[static_cast<size_t>(t)] % run * width + at);
          const double e = std::exp(wide(gate[from]) + wide(bias[to]));
          sum += e;
          weighted += e * wide(value[from]);
        }
        REQUIRE(wide(reference.out[static_cast<size_t>(row * channels + c)]) ==
                Approx(weighted / sum).margin(2 * error * largest));
      }
    }
    for (const Floats& state : reference.states) {
      Bounds of_state;
      for (size_t i = 0; i < state.size(); ++i) {
        const bool greatest = static_cast<int64_t>(i) / channels % 3 == 0;
        of_state.push_back(greatest ? 1e-300 : kHigherOrders * error * terms * largest);
      }
      bounds.states.push_back(std::move(of_state));
    }
    return bounds;
  });
}

}  // namespace

TEST_CASE("Runs are pooled as the definition says, and alike for any cut") {
  for (const bool overlap : {false, true}) {
    for (const int32_t run : {1, 2, 4, 7, 16}) {
      for (const int64_t channels : {1, 16, 40, 150}) check_pool(run, channels, overlap);
    }
  }
}

TEST_CASE("Causal convolutions agree with the reference, and with themselves for any cut") {
  for (const bool silu_after : {false, true}) {
    for (const bool more : {false, true}) {
      for (const int64_t channels : {1, 16, 40, 150}) {
        for (const int32_t kernel : {2, 3, 4, 16}) check_conv({channels, kernel, silu_after, more, more});
      }
    }
  }
}

TEST_CASE("Selective scans agree with the reference, and with themselves for any cut") {
  check_scan(1, 1);
  check_scan(40, 16);
  check_scan(150, 5);
}

TEST_CASE("Linear recurrences agree with the reference, and with themselves for any cut") {
  for (const int64_t value_dim : {5, 16, 100}) {
    for (const int64_t key_dim : {1, 24}) {
      for (const bool delta : {false, true}) {
        check_recurrence({key_dim, value_dim, delta, false});
        check_recurrence({key_dim, value_dim, delta, true});
      }
      check_recurrence({key_dim, value_dim, false, false, false, true, true, 6, 1});   // Mamba-2
      check_recurrence({key_dim, value_dim, false, false, true, false, false, 3, 3});  // lightning attention
    }
  }
}

TEST_CASE("Steps and decays agree with the reference") {
  const auto reference = make_reference_backend();
  constexpr int64_t kTokens = 9, kWidth = 37, kStride = 40;
  Floats raw = random_floats(kTokens * kStride, 1, 4.0f);
  raw[0] = 60.0f;
  raw[1] = -80.0f;
  const Floats bias = random_floats(kWidth, 2);
  Floats rate = random_floats(kWidth, 3);
  for (float& value : rate) value = -std::exp(value);
  for (const bool bounded : {false, true}) {
    const float low = bounded ? 0.01f : 0.0f, high = bounded ? 2.0f : INFINITY;
    const auto run = [&](Backend& backend, Floats& step) {
      Floats decay(kTokens * kWidth);
      step.resize(decay.size());
      backend.decay_gates(
          {raw.data(), kStride, bias.data(), rate.data(), low, high, kTokens, kWidth, decay.data(), step.data()});
      Floats alone(decay.size());
      backend.decay_gates(
          {raw.data(), kStride, bias.data(), rate.data(), low, high, kTokens, kWidth, alone.data(), nullptr});
      CHECK(same_bits(alone, decay));
      return decay;
    };
    Floats expected_step;
    const Floats expected = run(*reference, expected_step);
    Bounds decay_bound, step_bound;
    for (size_t i = 0; i < expected.size(); ++i) {
      const size_t column = i % kWidth;
      const double sum = wide(raw[i / kWidth * kStride + column]) + wide(bias[column]), step = wide(expected_step[i]);
      // The sum's rounding, on a slope of at most 1.
      const double error = kSoftplusError * step + kUnit * std::fabs(sum) + kUnit * step;
      step_bound.push_back(kHigherOrders * error + 1e-38);
      const double exponent_error = -wide(rate[column]) * (error + kUnit * step) + kExpError + kUnit;
      decay_bound.push_back(kHigherOrders * wide(expected[i]) * exponent_error + 1e-37);
    }
    for (Isa isa : available_isas()) {
      INFO(isa_name(isa) << " bounded " << bounded);
      const auto backend = cpu_backend(isa, 2);
      Floats step;
      CHECK(worst(run(*backend, step), expected, decay_bound) <= 1.0);
      CHECK(worst(step, expected_step, step_bound) <= 1.0);
    }
  }
}

TEST_CASE("Norms of groups agree with the reference, with and without a gate") {
  const auto reference = make_reference_backend();
  constexpr int64_t kTokens = 9, kGroups = 3;
  for (const int64_t size : {1, 16, 20, 130}) {
    const int64_t width = kGroups * size, stride = width + 2;
    const Floats x = random_floats(static_cast<size_t>(kTokens * stride), 1);
    const Floats gate = random_floats(x.size(), 2, 2.0f), weight = random_floats(static_cast<size_t>(width), 3);
    for (const bool gated : {false, true}) {
      for (const bool gate_first : {false, true}) {
        for (const bool group_weights : {false, true}) {
          for (const Activation activation : {Activation::kSilu, Activation::kSigmoid}) {
            const auto run = [&](Backend& backend) {
              Floats out = x;  // in place
              GroupNormParams p;
              p.x = p.out = out.data();
              p.out = out.data();
              p.x_stride = p.out_stride = p.gate_stride = stride;
              p.weight = weight.data();
              p.group_weights = group_weights;
              p.gate = gated ? gate.data() : nullptr;
              p.gate_first = gate_first;
              p.activation = activation;
              p.num_tokens = kTokens;
              p.groups = kGroups;
              p.size = size;
              p.eps = 1e-5f;
              backend.group_norm(p);
              return out;
            };
            const Floats expected = run(*reference);
            // As for norms over a row; a gate before the norm errs in what is normalised and in its length.
            const double norm = (static_cast<double>(size) / 64.0 + 10.0) * kUnit;
            const double gates = gated ? (gate_first ? 2.0 : 1.0) * (kSiluError + kUnit) : 0.0;
            Bounds bound;
            for (const float value : expected) bound.push_back((norm + gates) * std::fabs(wide(value)) + 1e-38);
            for (Isa isa : available_isas()) {
              INFO(isa_name(isa) << " size " << size << " gated " << gated << " first " << gate_first);
              const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
              const Floats out = run(*one);
              CHECK(worst(out, expected, bound) <= 1.0);
              CHECK(same_bits(run(*three), out));
            }
          }
        }
      }
    }
  }
}

}  // namespace headrace::test
