// Matrix instructions of a warp (sm_80): ldmatrix and mma.sync. All 32 lanes execute them together.
//
// Lane l = 4 g + t holds of the 16 x 16 matrix a: registers 0-3, two halves each, at rows g, g + 8, g, g + 8 and columns
// 2t, 2t, 2t + 8, 2t + 8; of b [16][8]: registers 0, 1 at rows 2t, 2t + 8 of column g; of d [16][8]: values 0-3 at
// (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). With 8-bit elements a register holds four of them, at 4t.
#pragma once

#include "device.h"
#include "ptx/shared_address.h"
#if !defined(__CUDACC__)
#include "emulator/matrix_model.h"
#endif

namespace headrace::cuda {

#if defined(__CUDACC__)

// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8.
HEADRACE_DEVICE void load_matrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
HEADRACE_DEVICE void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// d += a b
HEADRACE_DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
HEADRACE_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
HEADRACE_DEVICE void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else

HEADRACE_DEVICE void load_matrix_x4(uint32_t (&r)[4], const void* row, HEADRACE_PLACE) {
  emulator::load_matrices(r, 4, false, row, place);
}
HEADRACE_DEVICE void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row, HEADRACE_PLACE) {
  emulator::load_matrices(r, 4, true, row, place);
}
HEADRACE_DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], HEADRACE_PLACE) {
  emulator::mma_m16n8k16(emulator::MmaType::kF16, d, a, b, place);
}
HEADRACE_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], HEADRACE_PLACE) {
  emulator::mma_m16n8k16(emulator::MmaType::kBf16, d, a, b, place);
}
HEADRACE_DEVICE void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], HEADRACE_PLACE) {
  emulator::mma_m16n8k32_s8(d, a, b, place);
}

#endif

}  // namespace headrace::cuda
