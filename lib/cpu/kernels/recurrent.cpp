// Kernels that carry a state from row to row. Lanes are channels, or the columns of a head's state: each lane is a
// recurrence of its own, so that no cut of rows, channels or columns changes a bit.
#include "cpu/kernels/functions.h"
#include "cpu/kernels/kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

HEADRACE_INLINE V16 load_lanes(const float* p, int64_t lanes) {
  return lanes == kPanel ? load(p) : load_partial(p, lanes);
}
HEADRACE_INLINE void store_lanes(float* p, V16 a, int64_t lanes) {
  if (lanes == kPanel) {
    store(p, a);
  } else {
    store_partial(p, a, lanes);
  }
}

HEADRACE_INLINE size_t row_bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

constexpr int64_t kMostCopiedState = 256 * 64;  // floats, on the stack

HEADRACE_INLINE V16 silu(V16 x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

// ln(1 + e^x), relative error at most 3e-7: max(x, 0) + 2 artanh(e / (2 + e)) with e = e^-|x|.
HEADRACE_INLINE V16 softplus(V16 x) {
  const V16 e = exp(sub(zero(), abs(x)));
  const V16 s = div(e, add(e, set1(2.0f)));  // at most 1/3
  const V16 z = mul(s, s);
  V16 p = set1(2.0f / 15);
  p = fma(p, z, set1(2.0f / 13));
  p = fma(p, z, set1(2.0f / 11));
  p = fma(p, z, set1(2.0f / 9));
  p = fma(p, z, set1(2.0f / 7));
  p = fma(p, z, set1(2.0f / 5));
  p = fma(p, z, set1(2.0f / 3));
  const V16 near = fma(mul(p, z), s, add(s, s));
  return add(max(zero(), x), near);
}

// The sums of one run's pooling, of sixteen channels.
struct RunSums {
  V16 greatest, sum, weighted;
};

HEADRACE_INLINE RunSums no_sums() { return {set1(-__builtin_inff()), zero(), zero()}; }
HEADRACE_INLINE RunSums load_sums(const float* at, int64_t stride, int64_t lanes) {
  return {load_lanes(at, lanes), load_lanes(at + stride, lanes), load_lanes(at + 2 * stride, lanes)};
}
HEADRACE_INLINE void store_sums(float* at, int64_t stride, const RunSums& sums, int64_t lanes) {
  store_lanes(at, sums.greatest, lanes);
  store_lanes(at + stride, sums.sum, lanes);
  store_lanes(at + 2 * stride, sums.weighted, lanes);
}

// With one more token; one of the two factors is 1.
HEADRACE_INLINE RunSums include(const RunSums& before, V16 exponent, V16 value) {
  const V16 one = set1(1.0f), greatest = max(before.greatest, exponent);
  const V16 factor = exp(sub(min(before.greatest, exponent), greatest));
  const V16 kept = select_less(before.greatest, exponent, factor, one);
  const V16 added = select_less(before.greatest, exponent, one, factor);
  return {greatest, fma(before.sum, kept, added), fma(before.weighted, kept, mul(added, value))};
}

// Rows lie so far apart that the processor does not foresee the next.
constexpr int64_t kRowsAhead = 2;

HEADRACE_INLINE void fetch(const float* p, int64_t floats) {
  for (int64_t i = 0; i < floats; i += kPanel) __builtin_prefetch(p + i, 0, 3);
}

// One head's state in `count` vectors of columns.
template <int count>
HEADRACE_INLINE void recur(const RecurrenceSpan& a, int64_t column, int64_t lanes) {
  for (int64_t t = 0; t < a.num_rows; ++t) {
    const float* q = a.q + t * a.q_stride;
    const float* k = a.k + t * a.k_stride;
    const float* decay = a.decay + t * a.decay_stride;
    if (t + kRowsAhead < a.num_rows) {
      fetch(q + kRowsAhead * a.q_stride, a.key_dim);
      fetch(k + kRowsAhead * a.k_stride, a.key_dim);
      fetch(a.v + (t + kRowsAhead) * a.v_stride + column, count * lanes);
    }
    V16 v[count], u[count], sum[count];
    HEADRACE_UNROLL
    for (int j = 0; j < count; ++j) {
      v[j] = load_lanes(a.v + t * a.v_stride + column + j * kPanel, lanes);
      u[j] = v[j];
      sum[j] = zero();
    }
    const V16 step = set1(a.step == nullptr ? 1.0f : a.step[t * a.step_stride]);
    V16 factor = set1(decay[0]);
    float* s = a.state + column;
    if (a.delta) {
      for (int64_t i = 0; i < a.key_dim; ++i) {
        if (a.channel_decay) factor = set1(decay[i]);
        const V16 minus_k = set1(-k[i]);
        HEADRACE_UNROLL
        for (int j = 0; j < count; ++j) {
          const V16 value = mul(load_lanes(s + i * a.value_dim + j * kPanel, lanes), factor);
          u[j] = fma(value, minus_k, u[j]);
        }
      }
    }
    HEADRACE_UNROLL
    for (int j = 0; j < count; ++j) u[j] = mul(u[j], step);
    for (int64_t i = 0; i < a.key_dim; ++i) {
      if (a.channel_decay) factor = set1(decay[i]);
      const V16 key = set1(k[i]), query = set1(q[i]);
      HEADRACE_UNROLL
      for (int j = 0; j < count; ++j) {
        float* at = s + i * a.value_dim + j * kPanel;
        const V16 value = fma(key, u[j], mul(load_lanes(at, lanes), factor));
        store_lanes(at, value, lanes);
        sum[j] = fma(value, query, sum[j]);
      }
    }
    HEADRACE_UNROLL
    for (int j = 0; j < count; ++j) {
      V16 out = mul(sum[j], set1(a.scale));
      if (a.has_skip) out = fma(v[j], set1(a.skip), out);
      store_lanes(a.out + t * a.out_stride + column + j * kPanel, out, lanes);
    }
  }
}

// Rows outermost: a row's channels lie side by side, while the rows may be a power of two apart, which caches hold few of.
// kPast: kernel - 1, or 0 for any.
template <int kPast>
void convolve(const ConvSpan& a) {
  const int64_t past = kPast > 0 ? kPast : a.kernel - 1;
  alignas(
      64) float inputs[kMostConvWindow + 1][kMostConvChannels];  // of row t at (t + past) % kernel; the past before it
  for (int64_t k = 0; k < past; ++k) memcpy(inputs[k], a.state + k * a.state_stride, row_bytes(a.channels));
  const float* window[kMostConvWindow + 1];
  for (int64_t t = 0; t < a.num_rows; ++t) {
    if (t + kRowsAhead < a.num_rows) {
      fetch(a.x + (t + kRowsAhead) * a.stride, a.channels);
      fetch(a.out + (t + kRowsAhead) * a.out_stride, a.channels);
    }
    for (int64_t k = 0; k <= past; ++k) window[k] = inputs[(t + k) % a.kernel];
    float* const newest = inputs[(t + past) % a.kernel];
    for (int64_t c = 0; c < a.channels; c += kPanel) {
      const int64_t lanes = a.channels - c < kPanel ? a.channels - c : kPanel;
      V16 u = load_lanes(a.x + t * a.stride + c, lanes);
      if (a.gate_in != nullptr) u = mul(u, load_lanes(a.gate_in + t * a.stride + c, lanes));
      store_lanes(newest + c, u, lanes);
      V16 sum = a.bias == nullptr ? zero() : load_lanes(a.bias + c, lanes);
      for (int64_t k = 0; k < past; ++k) {
        sum = fma(load_lanes(a.weight + k * a.weight_stride + c, lanes), load_lanes(window[k] + c, lanes), sum);
      }
      sum = fma(load_lanes(a.weight + past * a.weight_stride + c, lanes), u, sum);
      if (a.silu) sum = silu(sum);
      if (a.gate_out != nullptr) sum = mul(sum, load_lanes(a.gate_out + t * a.stride + c, lanes));
      store_lanes(a.out + t * a.out_stride + c, sum, lanes);
    }
  }
  for (int64_t k = 0; k < past; ++k) {
    memcpy(a.state + k * a.state_stride, inputs[(a.num_rows + k) % a.kernel], row_bytes(a.channels));
  }
}

}  // namespace

void causal_conv(const ConvSpan& span) {
  if (span.kernel == 4) {
    convolve<3>(span);
  } else {
    convolve<0>(span);
  }
}

void pool_runs(const PoolSpan& a) {
  const bool overlap = a.second_half != 0;
  for (int64_t c = 0; c < a.channels; c += kPanel) {
    const int64_t lanes = a.channels - c < kPanel ? a.channels - c : kPanel;
    float* const open_at = a.state + c;
    float* const after_at = open_at + 3 * a.state_stride;
    RunSums open = load_sums(open_at, a.state_stride, lanes);
    RunSums after = overlap ? load_sums(after_at, a.state_stride, lanes) : no_sums();
    for (int64_t t = 0; t < a.num_rows; ++t) {
      const int64_t j = a.positions[t] % a.run;
      if (j == 0) {
        open = overlap && a.positions[t] > 0 ? after : no_sums();
        after = no_sums();
      }
      const float* const gate = a.gate + t * a.stride + c;
      const float* const value = a.value + t * a.stride + c;
      const float* const bias = a.bias + j * a.stride + c;
      const int64_t own = a.second_half;
      open = include(open, add(load_lanes(gate + own, lanes), load_lanes(bias + own, lanes)),
                     load_lanes(value + own, lanes));
      if (overlap) {
        after = include(after, add(load_lanes(gate, lanes), load_lanes(bias, lanes)), load_lanes(value, lanes));
      }
      if (j + 1 == a.run) store_lanes(a.out + a.entries[t] * a.out_stride + c, div(open.weighted, open.sum), lanes);
    }
    store_sums(open_at, a.state_stride, open, lanes);
    if (overlap) store_sums(after_at, a.state_stride, after, lanes);
  }
}

void selective_scan(const ScanSpan& a) {
  for (int64_t c = 0; c < a.channels; c += kPanel) {
    const int64_t lanes = a.channels - c < kPanel ? a.channels - c : kPanel;
    const V16 skip = load_lanes(a.skip + c, lanes);
    for (int64_t t = 0; t < a.num_rows; ++t) {
      const V16 x = load_lanes(a.x + t * a.x_stride + c, lanes);
      const V16 dt = softplus(load_lanes(a.step + t * a.step_stride + c, lanes));
      const V16 dtx = mul(dt, x);
      const float* b = a.b + t * a.bc_stride;
      const float* weights = a.c + t * a.bc_stride;
      V16 sum = zero();
      for (int64_t n = 0; n < a.state_size; ++n) {
        float* at = a.state + n * a.state_stride + c;
        const V16 decay = exp(mul(dt, load_lanes(a.rate + n * a.state_stride + c, lanes)));
        const V16 value = fma(dtx, set1(b[n]), mul(load_lanes(at, lanes), decay));
        store_lanes(at, value, lanes);
        sum = fma(value, set1(weights[n]), sum);
      }
      sum = fma(skip, x, sum);
      const V16 gate = load_lanes(a.gate + t * a.gate_stride + c, lanes);
      store_lanes(a.out + t * a.out_stride + c, mul(sum, silu(gate)), lanes);
    }
  }
}

void linear_recurrence(const RecurrenceSpan& span) {
  // A head's columns lie value_dim apart, often a power of two, of which a first-level cache holds half of what it could: many
  // rows work on a copy.
  constexpr int64_t kManyRows = 8;
  alignas(64) float copy[kMostCopiedState];
  RecurrenceSpan local = span;
  const bool copied =
      span.num_rows >= kManyRows && span.columns < span.value_dim && span.key_dim * span.columns <= kMostCopiedState;
  if (copied) {
    for (int64_t i = 0; i < span.key_dim; ++i) {
      memcpy(copy + i * span.columns, span.state + i * span.value_dim, row_bytes(span.columns));
    }
    local.state = copy;
    local.value_dim = span.columns;
  }
  int64_t column = 0;
  for (; column + 4 * kPanel <= span.columns; column += 4 * kPanel) recur<4>(local, column, kPanel);
  for (; column + kPanel <= span.columns; column += kPanel) recur<1>(local, column, kPanel);
  if (column < span.columns) recur<1>(local, column, span.columns - column);
  for (int64_t i = 0; copied && i < span.key_dim; ++i) {
    memcpy(span.state + i * span.value_dim, copy + i * span.columns, row_bytes(span.columns));
  }
}

void decay_gates(const float* raw, const float* bias, const float* rate, float low, float high, int64_t count,
                 float* decay, float* step) {
  for (int64_t i = 0; i < count; i += kPanel) {
    const int64_t lanes = count - i < kPanel ? count - i : kPanel;
    const V16 positive = softplus(add(load_lanes(raw + i, lanes), load_lanes(bias + i, lanes)));
    // NaN passes through: the second operand wins.
    const V16 dt = min(set1(high), max(set1(low), positive));
    store_lanes(decay + i, exp(mul(load_lanes(rate + i, lanes), dt)), lanes);
    if (step != nullptr) store_lanes(step + i, dt, lanes);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
