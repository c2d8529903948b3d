// Models of the warp-wide matrix instructions. Fragment layouts are those of the PTX manual, sections on ldmatrix and
// mma; no device has confirmed them here. Sums are in float32, in the order of k, which devices do not promise.
#pragma once

#include <cstdint>

#include "emulator/findings.h"

namespace headrace::emulator {

// ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: lane l gives the address of row l % 8 of matrix l / 8, 16 bytes.
void load_matrices(uint32_t* registers, int count, bool transposed, const void* row, Place place);

enum class MmaType { kF16, kBf16 };
// mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32: d += a b. d [4], a [4], b [2] registers of each lane.
void mma_m16n8k16(MmaType type, float* d, const uint32_t* a, const uint32_t* b, Place place);
// mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32: exact.
void mma_m16n8k32_s8(int32_t* d, const uint32_t* a, const uint32_t* b, Place place);

}  // namespace headrace::emulator
