// Elementwise, four values at a time.
#include "device.h"
#include "kernels/row_kernels.h"
#include "launch.h"
#include "ptx/memory.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;

HEADRACE_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <Activation kActivation>
HEADRACE_DEVICE float activate(float x) {
  switch (kActivation) {
    case Activation::kSilu:
    case Activation::kClampedSilu: return x * sigmoid(x);
    case Activation::kGeluTanh: return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case Activation::kGeluErf: return 0.5f * x * erfcf(-0.7071067812f * x);
    case Activation::kRelu: return x < 0.0f ? 0.0f : x;
    case Activation::kRelu2: return x < 0.0f ? 0.0f : x * x;
    case Activation::kSigmoid: return sigmoid(x);
    case Activation::kTanh: return tanhf(x);
    case Activation::kGeluSigmoid:
    case Activation::kClampedSwish: return x * sigmoid(1.702f * x);
  }
  return x;
}

template <Activation kActivation>
HEADRACE_DEVICE float gated(float gate, float up, float limit) {
  constexpr bool kSwish = kActivation == Activation::kClampedSwish;
  if (kSwish || kActivation == Activation::kClampedSilu) {
    // The comparisons keep NaN.
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  return activate<kActivation>(gate) * (kSwish ? up + 1.0f : up);
}

template <Activation kActivation>
__global__ void __launch_bounds__(kThreads) gated_activation_kernel(GatedActivationArguments a) {
  const int64_t at = 4 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (at >= a.num_elements) return;
  if (at + 4 > a.num_elements) {
    for (int64_t i = at; i < a.num_elements; ++i) {
      a.out[i] = gated<kActivation>(a.gate[i], a.up == nullptr ? 1.0f : a.up[i], a.limit);
    }
    return;
  }
  const float4 gate = load_vector<float4>(a.gate + at);
  const float4 up = a.up == nullptr ? make_float4(1.0f, 1.0f, 1.0f, 1.0f) : load_vector<float4>(a.up + at);
  store_vector(a.out + at,
               make_float4(gated<kActivation>(gate.x, up.x, a.limit), gated<kActivation>(gate.y, up.y, a.limit),
                           gated<kActivation>(gate.z, up.z, a.limit), gated<kActivation>(gate.w, up.w, a.limit)));
}

}  // namespace

cudaError_t gated_activation(const GatedActivationArguments& a, cudaStream_t stream) {
  if (a.num_elements < 0) return cudaErrorInvalidValue;
  if (a.num_elements == 0) return cudaSuccess;
  const int64_t blocks = (a.num_elements + 4 * kThreads - 1) / (4 * kThreads);
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream};
#define HEADRACE_CASE(name) \
  case Activation::name: return launch("gated_activation", gated_activation_kernel<Activation::name>, shape, a)
  switch (a.activation) {
    HEADRACE_CASE(kSilu);
    HEADRACE_CASE(kGeluTanh);
    HEADRACE_CASE(kGeluErf);
    HEADRACE_CASE(kRelu);
    HEADRACE_CASE(kRelu2);
    HEADRACE_CASE(kClampedSwish);
    HEADRACE_CASE(kSigmoid);
    HEADRACE_CASE(kTanh);
    HEADRACE_CASE(kGeluSigmoid);
    HEADRACE_CASE(kClampedSilu);
  }
#undef HEADRACE_CASE
  return cudaErrorInvalidValue;
}

}  // namespace headrace::cuda
