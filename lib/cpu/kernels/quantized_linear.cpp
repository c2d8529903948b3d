// Products of pairs of strips of block-format weights with rows of int8 activations.
#include "cpu/kernels/quantized_few_rows.h"
#include "cpu/kernels/quantized_tile.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// A chunk of a task's blocks.
struct Chunk {
  int64_t first_block, blocks;
  bool begins, ends;               // the task
  const uint8_t* records;          // the first strip's; the second's lie between them
  const uint8_t *next, *next_end;  // weights that will be unpacked after these
};

// Of the next chunk's weights, asked for with each tile of rows.
constexpr int kLinesAhead = 4;

// The task's rows of a plane against one tile's lanes.
template <int V, ScaleKind K, CodeKind C, class Groups>
void all_rows(const TileWeights<Groups>& weights, const Chunk& chunk, const QuantizedPlane& plane, int64_t first_row,
              int64_t num_rows, int shift, const TileSums& sums) {
  const uint8_t* from = plane.bytes + first_row * plane.blocks * kActivationBytes;
  const uint8_t* next = chunk.next;
  for (int64_t row = 0; row < num_rows; row += plane.tile_rows) {
    for (int line = 0; line < kLinesAhead && next < chunk.next_end; ++line, next += 64) fetch(next);
    const int64_t left = num_rows - row, rows = left < plane.tile_rows ? left : plane.tile_rows;
    const uint8_t* at = from + chunk.first_block * rows * kActivationBytes;
    with_rows(
        rows, [&](auto count) __attribute__((always_inline)) {
          tile<V, decltype(count)::value, K, C>(weights, chunk.blocks, at, shift, sums.at(row, 0));
        });
    from += plane.tile_rows * plane.blocks * kActivationBytes;
  }
}

// Every row of the task against one tile's lanes, first_lane on, of a chunk.
template <int V, ScaleKind K, CodeKind C, class Groups>
void chunk_lanes(const QuantizedTask& task, const Scratch& scratch, const Groups& groups, int64_t first_lane,
                 const Chunk& chunk, int shift) {
  const UnpackedStrip* strip = scratch.strips + first_lane / kStripRows;
  const int64_t inner = first_lane % kStripRows;
  const TileWeights<Groups> weights = {groups, strip->scales + inner, strip->minima + inner};
  TileSums sums = {scratch.second, chunk.begins, nullptr, nullptr, task.y, task.y_stride, task.accumulate};
  if (task.second.bytes) {
    all_rows<V, K, C>(weights, chunk, task.second, task.first_row, task.num_rows, shift, sums.at(0, first_lane));
  } else {
    outlier_blocks<V, K, C>(task, weights, chunk.first_block, chunk.blocks, shift, scratch.second + first_lane);
  }
  sums.sums = scratch.first;
  // Whole vectors can be written at once, without another walk over the sums.
  if (chunk.ends && task.num_columns == kTaskColumns) {
    sums.second = scratch.second;
    sums.bias = task.bias;
  }
  all_rows<V, K, C>(weights, chunk, task.first, task.first_row, task.num_rows, shift, sums.at(0, first_lane));
}

// A chunk, tile by tile.
template <ScaleKind K, CodeKind C>
void run_chunk(const QuantizedTask& task, const Scratch& scratch, const Chunk& chunk) {
  for (int strip = 0; strip < kTaskStrips; ++strip) {
    unpack_records(*task.layout, chunk.records + strip * task.layout->record_bytes,
                   chunk.blocks / task.layout->record_blocks, scratch.strips + strip);
  }
  constexpr int V = kMaxVectors;
  const int shift = offset_shift(*task.layout);
  Chunk part = chunk;
  for (int64_t lane = 0; lane < kTaskColumns; lane += V * kLanes) {
    const UnpackedGroups groups = {scratch.strips[lane / kStripRows].codes + 4 * (lane % kStripRows)};
    chunk_lanes<V, K, C>(task, scratch, groups, lane, part, shift);
    part.next = part.next_end;  // asked for by the first lanes
  }
}

using RunChunk = void (*)(const QuantizedTask&, const Scratch&, const Chunk&);

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
    case ScaleKind::kOneMinSigned: return run_chunk<ScaleKind::kOneMinSigned, CODES(kSigned8)>;
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

  const bool in_registers =
      task.unpack == Unpack::kRegisters || (task.unpack == Unpack::kByRows && task.num_rows <= kQuantizedFewRows);
  if (in_registers && run_few_rows(task, scratch)) return;
  if (!task.second.bytes) memset(scratch.second, 0, (size_t)(task.num_rows + 1) * kTaskColumns * 4);
  const RunChunk run = choose_chunk(layout.scale_kind, layout.code_kind);
  const int64_t chunk_records = kMaxChunkBlocks / layout.record_blocks;
  const int64_t num_records = task.blocks / layout.record_blocks;
  for (int64_t record = 0; record < num_records; record += chunk_records) {
    const int64_t left = num_records - record;
    const int64_t count = left < chunk_records ? left : chunk_records;
    const int64_t bytes = count * kTaskStrips * layout.record_bytes;
    const uint8_t* const records = task.pair + record * kTaskStrips * layout.record_bytes;
    run(task, scratch,
        {record * layout.record_blocks, count * layout.record_blocks, record == 0, count == left, records,
         records + bytes, records + 2 * bytes});
  }
  if (task.num_columns != kTaskColumns) write_outputs(task, scratch);
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
