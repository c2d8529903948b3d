// Types of floating-point elements that kernels are made for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::cuda {

enum class FloatType : int32_t { kF32, kF16, kBF16 };

constexpr size_t float_bytes(FloatType type) { return type == FloatType::kF32 ? 4 : 2; }

}  // namespace headrace::cuda
