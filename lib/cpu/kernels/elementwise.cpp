// Elementwise ops: each lane is a function of its own inputs, so any cut of an array gives the same values.
#include "cpu/kernels/functions.h"
#include "cpu/kernels/kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// out[i] = function(a[i], b[i]).
template <class Function>
HEADRACE_INLINE void map_pairs(const float* a, const float* b, int64_t count, float* out, Function function) {
  int64_t i = 0;
  for (; i + kPanel <= count; i += kPanel) store(out + i, function(load(a + i), load(b + i)));
  if (i < count) {
    store_partial(out + i, function(load_partial(a + i, count - i), load_partial(b + i, count - i)), count - i);
  }
}

struct Silu {
  HEADRACE_INLINE V16 apply(V16 x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }
};
// 0.5 (1 + tanh u) is the logistic function of 2u: no cancellation for negative x.
struct GeluTanh {
  HEADRACE_INLINE V16 apply(V16 x) {
    const V16 cubic = fma(mul(mul(x, x), x), set1(0.044715f), x);
    const V16 minus_2u = mul(cubic, set1(-1.5957691216f));
    return div(x, add(set1(1.0f), exp(minus_2u)));
  }
};
struct GeluErf {
  HEADRACE_INLINE V16 apply(V16 x) {
    const V16 half_tail = mul(set1(0.5f), erfc(mul(abs(x), set1(0.70710678f))));
    return mul(x, select_less(x, zero(), half_tail, sub(set1(1.0f), half_tail)));
  }
};
struct Relu {
  HEADRACE_INLINE V16 apply(V16 x) { return max(zero(), x); }
};
struct Relu2 {
  HEADRACE_INLINE V16 apply(V16 x) {
    const V16 positive = max(zero(), x);
    return mul(positive, positive);
  }
};

struct Sigmoid {
  HEADRACE_INLINE V16 apply(V16 x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }
};

struct GeluSigmoid {
  HEADRACE_INLINE V16 apply(V16 x) { return div(x, add(set1(1.0f), exp(mul(set1(-1.702f), x)))); }
};

struct Tanh {
  HEADRACE_INLINE V16 apply(V16 x) { return tanh(x); }
};

template <class Function>
HEADRACE_INLINE void map_rows(const GatedRows& rows, Function function) {
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const float* const gate = rows.gate + row * rows.gate_stride;
    map_pairs(gate, rows.up ? rows.up + row * rows.up_stride : gate, rows.count, rows.out + row * rows.out_stride,
              function);
  }
}

template <class Kind>
void gate(const GatedRows& rows) {
  if (!rows.up) {
    map_rows(
        rows, [](V16 g, V16) __attribute__((always_inline)) { return Kind::apply(g); });
    return;
  }
  map_rows(
      rows, [](V16 g, V16 u) __attribute__((always_inline)) { return mul(Kind::apply(g), u); });
}

// Gates cut to at most the limit, and what they multiply to either side of it. The comparisons keep NaN.
template <class Kind>
void gate_clamped(const GatedRows& rows, float added_to_up) {
  const V16 high = set1(rows.limit), low = set1(-rows.limit), added = set1(added_to_up);
  map_rows(
      rows, [=](V16 g, V16 u) __attribute__((always_inline)) {
        const V16 cut_gate = select_less(high, g, high, g);
        const V16 cut_up = select_less(u, low, low, select_less(high, u, high, u));
        return mul(Kind::apply(cut_gate), add(cut_up, added));
      });
}

}  // namespace

// The numbers are those of Activation in tensor/op_params.h.
void gated_activation(const GatedRows& rows) {
  switch (rows.activation) {
    case 0: return gate<Silu>(rows);
    case 1: return gate<GeluTanh>(rows);
    case 2: return gate<GeluErf>(rows);
    case 4: return gate<Relu2>(rows);
    case 5: return gate_clamped<GeluSigmoid>(rows, 1.0f);
    case 6: return gate<Sigmoid>(rows);
    case 7: return gate<Tanh>(rows);
    case 8: return gate<GeluSigmoid>(rows);
    case 9: return gate_clamped<Silu>(rows, 0.0f);
    default: return gate<Relu>(rows);
  }
}

void add(const float* x, int64_t count, float* out) {
  map_pairs(
      x, out, count, out, [](V16 a, V16 b) __attribute__((always_inline)) { return add(a, b); });
}

void scale(float factor, int64_t count, float* x) {
  const V16 f = set1(factor);
  map_pairs(
      x, x, count, x, [f](V16 a, V16) __attribute__((always_inline)) { return mul(a, f); });
}

void softcap(float cap, int64_t count, float* x) {
  const V16 c = set1(cap);
  map_pairs(
      x, x, count, x, [c](V16 a, V16) __attribute__((always_inline)) { return mul(c, tanh(div(a, c))); });
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
