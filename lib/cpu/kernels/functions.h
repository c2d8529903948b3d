// exp, tanh and the scaled complementary error function on sixteen lanes. Polynomials were fitted here by weighted
// least squares for the smallest greatest relative error; the stated errors are against correctly rounded values.
#pragma once

#include "cpu/kernels/vec.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

// e^x, relative error at most 1e-7 for x in [-87.3, 88]; 0 below (e^-inf included), e^88 above,
// 1 exactly at 0, NaN for NaN.
HEADRACE_INLINE V16 exp(V16 x) {
  const V16 lowest = set1(-87.3f);
  // NaN passes through: the second operand wins.
  const V16 clamped = max(lowest, min(set1(88.0f), x));
  const V16 n = round(mul(clamped, set1(1.44269504f)));
  // ln 2 in two parts, the first short enough that n times it is exact.
  V16 r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  V16 q = set1(1.395171725e-03f);
  q = fma(q, r, set1(8.369598410e-03f));
  q = fma(q, r, set1(4.166618728e-02f));
  q = fma(q, r, set1(1.666651289e-01f));
  q = fma(q, r, set1(0.5f));
  const V16 fraction = add(set1(1.0f), fma(q, mul(r, r), r));
  return select_less(x, lowest, zero(), scale_exponent(fraction, n));
}

// tanh x, relative error at most 2e-7.
HEADRACE_INLINE V16 tanh(V16 x) {
  const V16 magnitude = abs(x);
  const V16 z = mul(x, x);
  V16 p = set1(-5.717036547e-03f);
  p = fma(p, z, set1(2.065057899e-02f));
  p = fma(p, z, set1(-5.374349526e-02f));
  p = fma(p, z, set1(1.333149125e-01f));
  p = fma(p, z, set1(-3.333328392e-01f));
  const V16 near = fma(mul(p, z), x, x);
  const V16 e = exp(add(magnitude, magnitude));
  const V16 far = sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
  return select_less(magnitude, set1(0.625f), near, copy_sign(far, x));
}

// erfc z for z >= 0: relative error at most 4e-7 + 1.2e-7 z^2, below 1e-38 beyond z = 9.3.
HEADRACE_INLINE V16 erfc(V16 z) {
  const V16 t = div(set1(1.0f), fma(z, set1(0.5f), set1(1.0f)));
  V16 p = set1(3.537784362e-02f);
  p = fma(p, t, set1(-1.887192857e-01f));
  p = fma(p, t, set1(3.753885866e-01f));
  p = fma(p, t, set1(-2.805374593e-01f));
  p = fma(p, t, set1(-3.061156633e-02f));
  p = fma(p, t, set1(4.088906379e-02f));
  p = fma(p, t, set1(5.254940929e-02f));
  p = fma(p, t, set1(1.862474890e-01f));
  p = fma(p, t, set1(2.450639570e-01f));
  p = fma(p, t, set1(2.822639424e-01f));
  p = fma(p, t, set1(2.820880230e-01f));
  return mul(mul(p, t), exp(sub(zero(), mul(z, z))));
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
