#include "cpu/kernels/quantized_few_rows.h"

#include "cpu/kernels/quantized_scales.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// An exact dot product does not care for the range of the codes.
template <RecordFormat F>
constexpr CodeKind code_kind() {
  return kExactDot ? CodeKind::kSigned8 : PackedFormat<F>::kCode;
}

// One tile of R rows against a chunk's lanes. Not inlined: a format has few of them, and they are long.
template <RecordFormat F, int R, Fetch kFetch>
__attribute__((noinline)) void chunk_tile(const Scratch& scratch, const uint8_t* records, int64_t blocks,
                                          const uint8_t* activations, int shift, float* out) {
  using Format = PackedFormat<F>;
  for (int64_t lane = 0; lane < kTaskColumns; lane += kMaxVectors * kLanes) {
    const UnpackedStrip* strip = scratch.strips + lane / kStripRows;
    const int64_t inner = lane % kStripRows;
    const PackedGroups<F, kFetch> groups = {records + lane / kStripRows * Format::kRecordBytes + 4 * inner};
    const TileWeights<PackedGroups<F, kFetch>> weights = {groups, strip->scales + inner, strip->minima + inner};
    tile<kMaxVectors, R, Format::kScale, code_kind<F>()>(weights, blocks, activations, shift, {out + lane});
  }
}

// A plane's rows against a chunk, tile by tile. Of full tiles only the first asks for later weights.
template <RecordFormat F>
void chunk_rows(const QuantizedTask& task, const Scratch& scratch, const uint8_t* records, int64_t block,
                int64_t blocks, const QuantizedPlane& plane, int shift, float* out) {
  for (int64_t row = 0; row < task.num_rows; row += plane.tile_rows, out += plane.tile_rows * kTaskColumns) {
    const int64_t left = task.num_rows - row, rows = left < plane.tile_rows ? left : plane.tile_rows;
    const uint8_t* from = plane.bytes + ((task.first_row + row) * task.blocks + block * rows) * kActivationBytes;
    with_rows(rows, [&](auto count) {
      constexpr int R = decltype(count)::value;
      if constexpr (R == kMaxRows) {
        if (row > 0) return chunk_tile<F, R, Fetch::kNot>(scratch, records, blocks, from, shift, out);
      }
      chunk_tile<F, R, Fetch::kFar>(scratch, records, blocks, from, shift, out);
    });
  }
}

// A few blocks' outlier terms, from their codes and scales. Not inlined: it holds a tile for every number of rows, and few
// blocks have any.
template <RecordFormat F, int V>
__attribute__((noinline)) void add_outliers(const QuantizedTask& task, const uint8_t* records, const float* scales,
                                            const float* minima, int64_t block, int64_t blocks, int shift, float* out) {
  const TileWeights<PackedGroups<F, Fetch::kNot>> weights = {{records}, scales, minima};
  outlier_blocks<V, PackedFormat<F>::kScale, code_kind<F>()>(task, weights, block, blocks, shift, out);
}

template <RecordFormat F, int V>
HEADRACE_INLINE void outliers(const QuantizedTask& task, const uint8_t* records, const float* scales,
                              const float* minima, int64_t block, int64_t blocks, int shift, float* out) {
  const int32_t* starts = task.outliers.starts + task.first_row / kOutlierGroupRows * (task.blocks + 1);
  if (starts[block] < starts[block + blocks]) {
    add_outliers<F, V>(task, records, scales, minima, block, blocks, shift, out);
  }
}

// R rows, of a tile, take the weights as they come, record by record and strip by strip: memory is the limit of one or two,
// and the processor's own prefetching follows only reads that ascend.
template <RecordFormat F, int R, Fetch kFetch>
void ascending(const QuantizedTask& task, const Scratch& scratch) {
  using Format = PackedFormat<F>;
  constexpr ScaleKind K = Format::kScale;
  constexpr CodeKind C = code_kind<F>();
  constexpr int V = kLanes == kStripRows ? 1 : 2;
  const int shift = offset_shift(*task.layout);
  const uint8_t* record = task.pair;
  const int64_t first_byte = task.first_row * task.blocks * kActivationBytes;
  for (int64_t block = 0; block < task.blocks; block += Format::kRecordBlocks) {
    const int64_t at = first_byte + block * R * kActivationBytes;
    for (int strip = 0; strip < kTaskStrips; ++strip, record += Format::kRecordBytes) {
      UnpackedStrip& unpacked = scratch.strips[strip];
      for (int64_t line = 0; line < Format::kHeader; line += 64) fetch_ahead<kFetch>(record + line);
      record_scales<F>(record, unpacked.scales, unpacked.minima);
      for (int64_t lane = 0; lane < kStripRows; lane += V * kLanes) {
        const float *scales = unpacked.scales + lane, *minima = unpacked.minima + lane;
        const int64_t column = strip * kStripRows + lane;
        const TileWeights<PackedGroups<F, kFetch>> fetching = {{record + 4 * lane}, scales, minima};
        const TileWeights<PackedGroups<F, Fetch::kNot>> weights = {{record + 4 * lane}, scales, minima};
        tile<V, R, K, C>(fetching, Format::kRecordBlocks, task.first.bytes + at, shift, {scratch.first + column});
        if (task.second.bytes) {
          tile<V, R, K, C>(weights, Format::kRecordBlocks, task.second.bytes + at, shift, {scratch.second + column});
        } else {
          outliers<F, V>(task, record + 4 * lane, scales, minima, block, Format::kRecordBlocks, shift,
                         scratch.second + column);
        }
      }
    }
  }
}

template <RecordFormat F, int R>
void ascending(const QuantizedTask& task, const Scratch& scratch) {
  if constexpr (kLanes >= 8) {  // processors without such vectors are slower than memory anyway
    if (task.fetch_in_steps) return ascending<F, R, Fetch::kInSteps>(task, scratch);
  }
  ascending<F, R, Fetch::kFar>(task, scratch);
}

// Any rows, with the tiles of many: small chunks, so that reading the weights and multiplying overlap.
template <RecordFormat F>
void by_chunks(const QuantizedTask& task, const Scratch& scratch) {
  using Format = PackedFormat<F>;
  constexpr ScaleKind K = Format::kScale;
  constexpr int V = kMaxVectors;
  constexpr int64_t kScales = two_scales(K) ? 2 * kStripRows : kStripRows;  // of a block
  constexpr int64_t kPairBytes = kTaskStrips * Format::kRecordBytes;
  const int shift = offset_shift(*task.layout);
  const uint8_t* records = task.pair;
  for (int64_t block = 0; block < task.blocks; block += kMaxRecordBlocks) {
    const int64_t left = task.blocks - block;
    const int64_t blocks = left < kMaxRecordBlocks ? left : kMaxRecordBlocks;
    for (int64_t b = 0; b < blocks; b += Format::kRecordBlocks) {
      const uint8_t* at = records + b / Format::kRecordBlocks * kPairBytes;
      HEADRACE_UNROLL
      for (int s = 0; s < kTaskStrips; ++s) {
        for (int64_t line = 0; line < Format::kHeader; line += 64) {
          fetch_ahead<Fetch::kFar>(at + s * Format::kRecordBytes + line);
        }
        record_scales<F>(at + s * Format::kRecordBytes, scratch.strips[s].scales + b * kScales,
                         scratch.strips[s].minima + b * kScales);
      }
    }
    chunk_rows<F>(task, scratch, records, block, blocks, task.first, shift, scratch.first);
    if (task.second.bytes) {
      chunk_rows<F>(task, scratch, records, block, blocks, task.second, shift, scratch.second);
    } else {
      for (int64_t lane = 0; lane < kTaskColumns; lane += V * kLanes) {
        const UnpackedStrip* strip = scratch.strips + lane / kStripRows;
        const int64_t inner = lane % kStripRows;
        outliers<F, V>(task, records + lane / kStripRows * Format::kRecordBytes + 4 * inner, strip->scales + inner,
                       strip->minima + inner, block, blocks, shift, scratch.second + lane);
      }
    }
    records += blocks / Format::kRecordBlocks * kPairBytes;
  }
}

template <RecordFormat F>
void few_rows(const QuantizedTask& task, const Scratch& scratch) {
  memset(scratch.first, 0, (size_t)(2 * task.num_rows + 1) * kTaskColumns * 4);
  if (task.starts) {
    for (int64_t line = 0; line < kAheadBytes; line += 64) fetch(task.pair + line);
  }
  if (task.num_rows == 1) {
    ascending<F, 1>(task, scratch);
  } else if (task.num_rows == 2 && task.first.tile_rows >= 2) {
    ascending<F, 2>(task, scratch);
  } else {
    by_chunks<F>(task, scratch);
  }
  write_outputs(task, scratch);
}

}  // namespace

bool run_few_rows(const QuantizedTask& task, const Scratch& scratch) {
  switch (task.layout->format) {
#define CASE(name) \
  case RecordFormat::name: few_rows<RecordFormat::name>(task, scratch); return true
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
    CASE(kINT4_G32);
    CASE(kINT4_G128);
    CASE(kINT8_G32);
    CASE(kINT8_G128);
    CASE(kNVFP4);
    CASE(kNVFP4_G64);
#undef CASE
    default: return false;
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
