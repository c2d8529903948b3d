#include "emulator/matrix_model.h"

#include <cstring>

#include "emulator/access_counters.h"
#include "emulator/barriers.h"
#include "emulator/memory.h"
#include "emulator/memory_access.h"
#include "emulator/race_detector.h"
#include "emulator/threads.h"
#include "tensor/half.h"

namespace headrace::emulator {
namespace {

constexpr uint32_t kFullWarp = 0xFFFFFFFFu;

struct LoadOperands {
  uint32_t* registers;
  int count;
  bool transposed;
  const void* row;
};

void execute_load(Warp& warp, uint32_t) {
  const auto operands = [&](int lane) { return static_cast<const LoadOperands*>(warp.operands[lane]); };
  const LoadOperands& first = *operands(0);
  for (int matrix = 0; matrix < first.count; ++matrix) {
    uint16_t rows[8][8];
    for (int row = 0; row < 8; ++row) std::memcpy(rows[row], operands(8 * matrix + row)->row, 16);
    for (int lane = 0; lane < 32; ++lane) {
      // Lane l holds elements 2 (l % 4) and the next of row l / 4, or of column l / 4 when transposed.
      const int outer = lane / 4, inner = lane % 4 * 2;
      const uint32_t low = first.transposed ? rows[inner][outer] : rows[outer][inner];
      const uint32_t high = first.transposed ? rows[inner + 1][outer] : rows[outer][inner + 1];
      operands(lane)->registers[matrix] = low | high << 16;
    }
  }
}

template <class D>
struct MmaOperands {
  MmaType type;
  D* d;
  const uint32_t* a;
  const uint32_t* b;
};

float widen(MmaType type, uint32_t half) {
  const auto bits = static_cast<uint16_t>(half);
  return type == MmaType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

// Where lane l's registers lie: g = l / 4 is its row of a and d and its column of b, t = l % 4 its place in a row.
template <class D, class Element, int kDepth, class Unpack>
void multiply(Warp& warp, Unpack unpack) {
  constexpr int kPerRegister = kDepth / 8;  // elements: 2 halves or 4 bytes
  Element a[16][kDepth], b[kDepth][8];
  D d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* operands = static_cast<const MmaOperands<D>*>(warp.operands[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      for (int e = 0; e < kPerRegister; ++e) {
        a[g + (i % 2) * 8][t * kPerRegister + e + (i / 2) * kDepth / 2] = unpack(operands->type, operands->a[i], e);
      }
      d[g + i / 2 * 8][2 * t + i % 2] = operands->d[i];
    }
    for (int i = 0; i < 2; ++i) {
      for (int e = 0; e < kPerRegister; ++e) {
        b[t * kPerRegister + e + i * kDepth / 2][g] = unpack(operands->type, operands->b[i], e);
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto* operands = static_cast<const MmaOperands<D>*>(warp.operands[lane]);
    for (int i = 0; i < 4; ++i) operands->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

}  // namespace

void load_matrices(uint32_t* registers, int count, bool transposed, const void* row, Place place) {
  const void* instruction = __builtin_return_address(0);
  const Thread& self = *current();
  if (self.lane < 8 * count) {
    if (!in_shared(*self.block, row, 16)) fail(FindingKind::kMisuse, "ldmatrix outside of shared memory");
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fail(FindingKind::kMisuse, "ldmatrix: a misaligned row");
    access(row, 16, kReadAccess, instruction);
  }
  count_instruction(Instruction::kMatrixLoad);
  LoadOperands operands{registers, count, transposed, row};
  collective(kFullWarp, "ldmatrix", &operands, execute_load, place);
}

void mma_m16n8k16(MmaType type, float* d, const uint32_t* a, const uint32_t* b, Place place) {
  MmaOperands<float> operands{type, d, a, b};
  collective(
      kFullWarp, type == MmaType::kF16 ? "mma.m16n8k16.f16" : "mma.m16n8k16.bf16", &operands,
      [](Warp& warp, uint32_t) {
        multiply<float, float, 16>(warp, [](MmaType t, uint32_t r, int e) { return widen(t, r >> (16 * e)); });
        const MmaType t = static_cast<const MmaOperands<float>*>(warp.operands[0])->type;
        count_mma(t == MmaType::kF16 ? Instruction::kMmaF16 : Instruction::kMmaBf16, 2.0 * 16 * 8 * 16);
      },
      place);
}

void mma_m16n8k32_s8(int32_t* d, const uint32_t* a, const uint32_t* b, Place place) {
  MmaOperands<int32_t> operands{MmaType::kF16, d, a, b};
  collective(
      kFullWarp, "mma.m16n8k32.s8", &operands,
      [](Warp& warp, uint32_t) {
        multiply<int32_t, int32_t, 32>(
            warp, [](MmaType, uint32_t r, int e) { return int32_t{static_cast<int8_t>(r >> (8 * e))}; });
        count_mma(Instruction::kMmaS8, 2.0 * 16 * 8 * 32);
      },
      place);
}

}  // namespace headrace::emulator
