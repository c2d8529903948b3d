// Products of pairs of strips of block-format weights with rows of int8 activations.
#include "cpu/kernels/quantized_few_rows.h"
#include "cpu/kernels/quantized_tile.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// The task's rows of a plane against one tile's lanes.
template <int V, ScaleKind K, CodeKind C, class Groups>
void all_rows(const TileWeights<Groups>& weights, int64_t blocks, const QuantizedPlane& plane, int64_t first_row,
              int64_t num_rows, int64_t first_block, int shift, float* out) {
  const uint8_t* from = plane.bytes + first_row * plane.blocks * kActivationBytes;
  for (int64_t row = 0; row < num_rows; row += plane.tile_rows) {
    const int64_t left = num_rows - row, rows = left < plane.tile_rows ? left : plane.tile_rows;
    const uint8_t* at = from + first_block * rows * kActivationBytes;
    with_rows(
        rows, [&](auto count) __attribute__((always_inline)) {
          tile<V, decltype(count)::value, K, C>(weights, blocks, at, shift, out);
        });
    from += plane.tile_rows * plane.blocks * kActivationBytes;
    out += plane.tile_rows * kTaskColumns;
  }
}

// Every row of the task against one tile's lanes, first_lane on, of a chunk.
template <int V, ScaleKind K, CodeKind C, class Groups>
void chunk_lanes(const QuantizedTask& task, const Scratch& scratch, const Groups& groups, int64_t first_lane,
                 int64_t first_block, int64_t blocks, int shift) {
  const UnpackedStrip* strip = scratch.strips + first_lane / kStripRows;
  const int64_t inner = first_lane % kStripRows;
  const TileWeights<Groups> weights = {groups, strip->scales + inner, strip->minima + inner};
  all_rows<V, K, C>(weights, blocks, task.first, task.first_row, task.num_rows, first_block, shift,
                    scratch.first + first_lane);
  if (task.second.bytes) {
    all_rows<V, K, C>(weights, blocks, task.second, task.first_row, task.num_rows, first_block, shift,
                      scratch.second + first_lane);
  } else {
    outlier_blocks<V, K, C>(task, weights, first_block, blocks, shift, scratch.second + first_lane);
  }
}

// A chunk, tile by tile. records: the first strip's; the second's lie between them.
template <ScaleKind K, CodeKind C>
void run_chunk(const QuantizedTask& task, const Scratch& scratch, const uint8_t* records, int64_t first_block,
               int64_t blocks) {
  for (int strip = 0; strip < kTaskStrips; ++strip) {
    unpack_records(*task.layout, records + strip * task.layout->record_bytes, blocks / task.layout->record_blocks,
                   scratch.strips + strip);
  }
  constexpr int V = kMaxVectors;
  const int shift = offset_shift(*task.layout);
  for (int64_t lane = 0; lane < kTaskColumns; lane += V * kLanes) {
    const UnpackedGroups groups = {scratch.strips[lane / kStripRows].codes + 4 * (lane % kStripRows)};
    chunk_lanes<V, K, C>(task, scratch, groups, lane, first_block, blocks, shift);
  }
}

using RunChunk = void (*)(const QuantizedTask&, const Scratch&, const uint8_t*, int64_t, int64_t);

// An exact dot product does not care for the range of the codes.
#if HEADRACE_EXACT_DOT
#define CODES(kind) CodeKind::kSigned8
#else
#define CODES(kind) CodeKind::kind
#endif

RunChunk choose_chunk(ScaleKind scale, CodeKind code) {
  switch (scale) {
    case ScaleKind::kOne:
      if (code == CodeKind::kUpTo15) return run_chunk<ScaleKind::kOne, CODES(kUpTo15)>;
      if (code == CodeKind::kUpTo31) return run_chunk<ScaleKind::kOne, CODES(kUpTo31)>;
      return run_chunk<ScaleKind::kOne, CODES(kSigned8)>;
    case ScaleKind::kOneMin:
      if (code == CodeKind::kUpTo15) return run_chunk<ScaleKind::kOneMin, CODES(kUpTo15)>;
      return run_chunk<ScaleKind::kOneMin, CODES(kUpTo31)>;
    case ScaleKind::kTwo:
      if (code == CodeKind::kUpTo15) return run_chunk<ScaleKind::kTwo, CODES(kUpTo15)>;
      if (code == CodeKind::kUpTo63) return run_chunk<ScaleKind::kTwo, CODES(kUpTo63)>;
      return run_chunk<ScaleKind::kTwo, CODES(kSigned8)>;
    case ScaleKind::kTwoMin: return run_chunk<ScaleKind::kTwoMin, CODES(kUpTo15)>;
  }
  return nullptr;
}
#undef CODES

}  // namespace

int64_t quantized_scratch_bytes(int64_t num_rows) {
  return kTaskStrips * (int64_t)sizeof(UnpackedStrip) + (2 * num_rows + 1) * kTaskColumns * 4;
}

void quantized_run_task(const QuantizedTask& task) {
  const QuantizedLayout& layout = *task.layout;
  Scratch scratch;
  scratch.strips = (UnpackedStrip*)task.scratch;
  scratch.first = (float*)(task.scratch + kTaskStrips * sizeof(UnpackedStrip));
  scratch.second = scratch.first + task.num_rows * kTaskColumns;
  memset(scratch.first, 0, (size_t)(2 * task.num_rows + 1) * kTaskColumns * 4);

  const bool in_registers =
      task.unpack == Unpack::kRegisters || (task.unpack == Unpack::kByRows && task.num_rows <= kQuantizedFewRows);
  if (!in_registers || !run_few_rows(task, scratch)) {
    const RunChunk run = choose_chunk(layout.scale_kind, layout.code_kind);
    const int64_t chunk_records = kMaxChunkBlocks / layout.record_blocks;
    const int64_t num_records = task.blocks / layout.record_blocks;
    for (int64_t record = 0; record < num_records; record += chunk_records) {
      const int64_t left = num_records - record;
      const int64_t count = left < chunk_records ? left : chunk_records;
      run(task, scratch, task.pair + record * kTaskStrips * layout.record_bytes, record * layout.record_blocks,
          count * layout.record_blocks);
    }
  }
  write_outputs(task, scratch);
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
