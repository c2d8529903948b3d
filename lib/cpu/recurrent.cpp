#include "cpu/recurrent.h"

#include <algorithm>
#include <cstring>

#include "cpu/elementwise.h"

namespace headrace {
namespace {

constexpr int64_t kChannelsPerTask = 64;
constexpr int64_t kColumnsPerTask = 64;
constexpr int64_t kRowsPerTask = 4;

// Calls function(first row, rows, state) for the stretches of one sequence between snapshots, in order, and copies
// `lines` lines of `count` floats, `line_stride` apart from `at` on, to each snapshot.
template <class Function>
void walk(const StateRows& rows, int32_t sequence, int64_t at, int64_t lines, int64_t line_stride, int64_t count,
          const Function& function) {
  int64_t row = rows.query_start[sequence];
  const int64_t end = rows.query_start[sequence + 1];
  float* const state = rows.states[sequence] + rows.offset + at;
  const int32_t* const last = rows.snapshot_rows + rows.num_snapshots;
  const int32_t* next = std::lower_bound(rows.snapshot_rows, last, static_cast<int32_t>(row));
  while (row < end) {
    const int64_t stop = next != last && *next < end ? *next + 1 : end;
    function(row, stop - row, state);
    for (; next != last && *next + 1 == stop; ++next) {
      float* const copy = rows.snapshots[next - rows.snapshot_rows] + rows.offset + at;
      for (int64_t line = 0; line < lines; ++line) {
        std::memcpy(copy + line * line_stride, state + line * line_stride, static_cast<size_t>(count) * sizeof(float));
      }
    }
    row = stop;
  }
}

int64_t parts(int64_t size, int64_t per_task) { return (size + per_task - 1) / per_task; }

const float* shifted(const float* p, int64_t by) { return p == nullptr ? nullptr : p + by; }

}  // namespace

void run_causal_conv(const CausalConvParams& p, ThreadPool& pool, const KernelTable& kernels) {
  // Wide tasks read longer pieces of rows; every thread has two at least.
  const int64_t even = p.channels / (2 * pool.num_threads()) / kChannelsPerTask * kChannelsPerTask;
  const int64_t width = std::clamp(even, kChannelsPerTask, kMostConvChannels);
  const int64_t tiles = parts(p.channels, width);
  pool.run(p.rows.num_seqs * tiles, [&](int64_t task, int) {
    const int64_t c = task % tiles * width, count = std::min(width, p.channels - c);
    walk(p.rows, static_cast<int32_t>(task / tiles), c, p.kernel - 1, p.channels, count,
         [&](int64_t row, int64_t num_rows, float* state) {
           const int64_t at = row * p.stride + c;
           kernels.causal_conv({num_rows, count, p.kernel, p.silu, p.x + at, shifted(p.gate_in, at),
                                shifted(p.gate_out, at), p.stride, p.weight + c, p.channels, shifted(p.bias, c), state,
                                p.channels, p.out + row * p.out_stride + c, p.out_stride});
         });
  });
}

void run_pool_runs(const PoolRunsParams& p, ThreadPool& pool, const KernelTable& kernels) {
  const int64_t tiles = parts(p.channels, kChannelsPerTask), stride = p.width();
  pool.run(p.rows.num_seqs * tiles, [&](int64_t task, int) {
    const int64_t c = task % tiles * kChannelsPerTask, count = std::min(kChannelsPerTask, p.channels - c);
    walk(p.rows, static_cast<int32_t>(task / tiles), c, p.state_lines(), p.channels, count,
         [&](int64_t row, int64_t num_rows, float* state) {
           kernels.pool_runs({num_rows, count, p.run, p.value + row * stride + c, p.gate + row * stride + c, stride,
                              p.bias + c, p.overlap ? p.channels : 0, p.positions + row, p.entries + row, state,
                              p.channels, p.out + c, p.channels});
         });
  });
}

void run_selective_scan(const SelectiveScanParams& p, ThreadPool& pool, const KernelTable& kernels) {
  const int64_t tiles = parts(p.channels, kChannelsPerTask);
  pool.run(p.rows.num_seqs * tiles, [&](int64_t task, int) {
    const int64_t c = task % tiles * kChannelsPerTask, count = std::min(kChannelsPerTask, p.channels - c);
    walk(p.rows, static_cast<int32_t>(task / tiles), c, p.state_size, p.channels, count,
         [&](int64_t row, int64_t num_rows, float* state) {
           kernels.selective_scan({num_rows, count, p.state_size, p.x + row * p.x_stride + c, p.x_stride,
                                   p.step + row * p.step_stride + c, p.step_stride, p.b + row * p.bc_stride,
                                   p.c + row * p.bc_stride, p.bc_stride, p.gate + row * p.gate_stride + c,
                                   p.gate_stride, p.rate + c, p.skip + c, state, p.channels,
                                   p.out + row * p.out_stride + c, p.out_stride});
         });
  });
}

void run_linear_recurrence(const LinearRecurrenceParams& p, ThreadPool& pool, const KernelTable& kernels) {
  const int64_t tiles = parts(p.value_dim, kColumnsPerTask), per_seq = tiles * p.num_heads;
  const int64_t decay_width = p.channel_decay ? p.key_dim : 1, group = p.num_heads / p.num_key_heads;
  pool.run(p.rows.num_seqs * per_seq, [&](int64_t task, int) {
    const int64_t head = task % per_seq / tiles, column = task % tiles * kColumnsPerTask;
    const int64_t count = std::min(kColumnsPerTask, p.value_dim - column);
    const int64_t key_at = head / group * p.key_dim, value_at = head * p.value_dim + column;
    walk(p.rows, static_cast<int32_t>(task / per_seq), head * p.key_dim * p.value_dim + column, p.key_dim, p.value_dim,
         count, [&](int64_t row, int64_t num_rows, float* state) {
           kernels.linear_recurrence({num_rows,
                                      count,
                                      p.key_dim,
                                      p.value_dim,
                                      p.q + row * p.q_stride + key_at,
                                      p.q_stride,
                                      p.k + row * p.k_stride + key_at,
                                      p.k_stride,
                                      p.v + row * p.v_stride + value_at,
                                      p.v_stride,
                                      p.decay + row * p.decay_stride + head * decay_width,
                                      p.decay_stride,
                                      p.channel_decay,
                                      p.delta,
                                      shifted(p.step, row * p.num_heads + head),
                                      p.num_heads,
                                      p.skip != nullptr,
                                      p.skip == nullptr ? 0.0f : p.skip[head],
                                      p.scale,
                                      state,
                                      p.out + row * p.out_stride + value_at,
                                      p.out_stride});
         });
  });
}

void run_decay_gates(const DecayGatesParams& p, ThreadPool& pool, const KernelTable& kernels) {
  pool.run(parts(p.num_tokens, kRowsPerTask), [&](int64_t task, int) {
    const int64_t end = std::min(p.num_tokens, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) {
      kernels.decay_gates(p.raw + row * p.raw_stride, p.bias, p.rate, p.low, p.high, p.width, p.decay + row * p.width,
                          p.step == nullptr ? nullptr : p.step + row * p.width);
    }
  });
}

void run_group_norm(const GroupNormParams& p, ThreadPool& pool, const KernelTable& kernels) {
  const int64_t width = p.groups * p.size;
  pool.run(parts(p.num_tokens, kRowsPerTask), [&](int64_t task, int) {
    const int64_t end = std::min(p.num_tokens, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) {
      const float* x = p.x + row * p.x_stride;
      const float* gate = shifted(p.gate, row * p.gate_stride);
      float* out = p.out + row * p.out_stride;
      if (gate != nullptr && p.gate_first) {
        activate(kernels, p.activation, 0.0f, gate, x, width, out);
        x = out;
      }
      for (int64_t group = 0; group < p.groups; ++group) {
        kernels.rms_norm_row(x + group * p.size, p.weight + (p.group_weights ? group * p.size : 0), p.size, p.eps, 0.0f,
                             out + group * p.size);
      }
      if (gate != nullptr && !p.gate_first) activate(kernels, p.activation, 0.0f, gate, out, width, out);
    }
  });
}

}  // namespace headrace
