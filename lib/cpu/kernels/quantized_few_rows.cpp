#include "cpu/kernels/quantized_few_rows.h"

#include "cpu/kernels/quantized_scales.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// Vectors of a tile: with two strips' lanes in one pass every line of the weights is touched once.
constexpr int tile_vectors(int rows) {
#if HEADRACE_ISA_LEVEL == 2
  return rows > 0 ? 2 : 0;
#else
  return rows == 1 ? 2 : 1;
#endif
}

template <RecordFormat F, int R>
void few_rows(const QuantizedTask& task, const Scratch& scratch) {
  using Format = PackedFormat<F>;
  constexpr int V = tile_vectors(R);
  constexpr ScaleKind K = Format::kScale;
#if HEADRACE_ISA_LEVEL == 2
  constexpr CodeKind C = CodeKind::kSigned8;
#else
  constexpr CodeKind C = Format::kCode;
#endif
  constexpr int64_t kScales = two_scales(K) ? 2 * kStripRows : kStripRows;  // of a block
  constexpr int64_t kPairBytes = kTaskStrips * Format::kRecordBytes;
  const int shift = offset_shift(*task.layout);
  const uint8_t* first = task.first.bytes + task.first_row * task.blocks * kActivationBytes;
  const uint8_t* second = task.second.bytes + task.first_row * task.blocks * kActivationBytes;
  const uint8_t* records = task.pair;
  // Small chunks, so that reading the weights and multiplying overlap.
  for (int64_t block = 0; block < task.blocks; block += kMaxRecordBlocks) {
    const int64_t left = task.blocks - block;
    const int64_t blocks = left < kMaxRecordBlocks ? left : kMaxRecordBlocks;
    for (int64_t b = 0; b < blocks; b += Format::kRecordBlocks) {
      const uint8_t* at = records + b / Format::kRecordBlocks * kPairBytes;
      HEADRACE_UNROLL
      for (int s = 0; s < kTaskStrips; ++s) {
        for (int64_t line = 0; line < Format::kHeader; line += 64) fetch_ahead(at + s * Format::kRecordBytes + line);
        record_scales<F>(at + s * Format::kRecordBytes, scratch.strips[s].scales + b * kScales,
                         scratch.strips[s].minima + b * kScales);
      }
    }
    for (int64_t lane = 0; lane < kTaskColumns; lane += V * kLanes) {
      const UnpackedStrip* strip = scratch.strips + lane / kStripRows;
      const int64_t inner = lane % kStripRows;
      const PackedGroups<F> groups = {records + lane / kStripRows * Format::kRecordBytes + 4 * inner};
      const TileWeights<PackedGroups<F>> weights = {groups, strip->scales + inner, strip->minima + inner};
      tile<V, R, K, C>(weights, blocks, first, shift, scratch.first + lane);
      if (task.second.bytes) {
        tile<V, R, K, C>(weights, blocks, second, shift, scratch.second + lane);
      } else {
        outlier_blocks<V, K, C>(task, weights, block, blocks, shift, scratch.second + lane);
      }
    }
    records += blocks / Format::kRecordBlocks * kPairBytes;
    first += blocks * R * kActivationBytes;
    second += blocks * R * kActivationBytes;
  }
}

template <RecordFormat F>
bool run_format(const QuantizedTask& task, const Scratch& scratch) {
  switch (task.num_rows) {
    case 1: few_rows<F, 1>(task, scratch); return true;
    case 2: few_rows<F, 2>(task, scratch); return true;
    case 3: few_rows<F, 3>(task, scratch); return true;
    case 4: few_rows<F, 4>(task, scratch); return true;
#if HEADRACE_ISA_LEVEL == 2
    case 5: few_rows<F, 5>(task, scratch); return true;
    case 6: few_rows<F, 6>(task, scratch); return true;
#endif
  }
  return false;
}

}  // namespace

bool run_few_rows(const QuantizedTask& task, const Scratch& scratch) {
  switch (task.layout->format) {
#define CASE(name) \
  case RecordFormat::name: return run_format<RecordFormat::name>(task, scratch)
    CASE(kQ4_0);
    CASE(kQ4_1);
    CASE(kQ5_0);
    CASE(kQ5_1);
    CASE(kQ8_0);
    CASE(kQ4_K);
    CASE(kQ5_K);
    CASE(kQ6_K);
    CASE(kIQ4_NL);
    CASE(kIQ4_XS);
    CASE(kMXFP4);
#undef CASE
    default: return false;
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
