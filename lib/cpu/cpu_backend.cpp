#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/attention.h"
#include "cpu/elementwise.h"
#include "cpu/experts.h"
#include "cpu/indexer.h"
#include "cpu/kernel_table.h"
#include "cpu/linear.h"
#include "cpu/packed_float.h"
#include "cpu/packed_quantized.h"
#include "cpu/packed_scaled_float.h"
#include "cpu/recurrent.h"
#include "cpu/rope_table.h"
#include "cpu/streams.h"
#include "cpu/tuner.h"
#include "ops/router.h"

namespace headrace {
namespace {

constexpr int64_t kRowsPerTask = 4;  // enough work to outweigh the handing out

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : name_("cpu/" + std::string(isa_name(options.isa))),
        isa_(options.isa),
        kernels_(kernel_table(static_cast<int32_t>(options.isa))),
        tuning_(options.tuning),
        threads_(options.shared_threads ? options.shared_threads
                                        : std::make_shared<ThreadPool>(options.num_threads, options.processors)),
        pool_(*threads_),
        pack_turn_(options.pack_turn) {}

  std::string_view name() const override { return name_; }
  int num_threads() const override { return pool_.num_threads(); }

  Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions& options) override {
    std::unique_lock<Turn> turn;
    if (pack_turn_ != nullptr) turn = std::unique_lock(*pack_turn_);
    const bool as_float = !is_block_format(source.dtype) || decodes_to_float(options);
    auto packed = as_float                        ? pack_float(source, pool_)
                  : is_scaled_float(source.dtype) ? pack_scaled_float(source, pool_)
                                                  : pack_quantized(source, options, choices(source, options), pool_);
    if (!packed.ok()) return packed.status();
    return std::unique_ptr<PackedWeight>(packed.take());
  }
  std::string_view packed_layout() const override { return kPackedLayout; }

  Result<std::unique_ptr<BackendTuner>> make_tuner(std::span<const PackedWeight* const> weights,
                                                   const TuneRequest& request) override {
    TuningTable known(tuning_target(isa_name(isa_)));
    if (!request.known.empty()) {
      const std::string name = "table";
      HEADRACE_ASSIGN_OR_RETURN(TuningTable given, TuningTable::parse(request.known, name));
      HEADRACE_RETURN_IF_ERROR(given.check(known.target(), name));
      known = std::move(given);
    }
    return std::unique_ptr<BackendTuner>(
        std::make_unique<Tuner>(weights, std::move(known), request.seconds, pool_, kernels_));
  }

  void embed(const EmbedParams& p) override {
    const int64_t size = p.table->cols();
    for_rows(p.num_tokens, [&](int64_t row) {
      float* out = p.out + row * size;
      p.table->decode_row(p.token_ids[row], out);
      if (p.scale != 1.0f) kernels_.scale(p.scale, size, out);
    });
  }

  void rms_norm(const RmsNormParams& p) override {
    for_rows(p.num_tokens, [&](int64_t row) {
      kernels_.rms_norm_row(p.x + row * p.size, p.weight, p.size, p.eps, p.weight_offset, p.out + row * p.size);
    });
  }

  void layer_norm(const LayerNormParams& p) override {
    for_rows(p.num_tokens, [&](int64_t row) {
      for (int64_t group = 0; group < p.groups; ++group) {
        const int64_t at = (row * p.groups + group) * p.size, first = group * p.size;
        kernels_.layer_norm_row(p.x + at, p.weight + first, p.bias == nullptr ? nullptr : p.bias + first, p.size, p.eps,
                                p.out + at);
      }
    });
  }

  void linear(const LinearParams& p) override { linear_.run(p, pool_, kernels_); }
  void gated_linear(const GatedLinearParams& p) override { linear_.run(p, pool_, kernels_); }

  void rope_and_store_kv(const RopeStoreParams& p) override {
    const KvLayout& layout = p.layout;
    const int64_t head_dim = layout.head_dim, half = p.rotary_dim / 2;
    RopeTable::Rows table{nullptr, nullptr};
    if (p.inv_freq != nullptr && p.num_tokens > 0) table = rope_.rows(p, pool_);
    for_rows(p.num_tokens, [&](int64_t row) {
      const auto prepare = [&](float* head, const float* norm) {
        if (norm != nullptr && !p.norm_after_rotation) {
          kernels_.rms_norm_row(head, norm, head_dim, p.norm_eps, p.norm_weight_offset, head);
        }
        if (table.cosine != nullptr) {
          kernels_.rotate_head(head + p.rotary_begin, table.cosine + row * half, table.sine + row * half, p.rotary_dim,
                               p.interleaved);
        }
        if (norm != nullptr && p.norm_after_rotation) {
          kernels_.rms_norm_row(head, norm, head_dim, p.norm_eps, p.norm_weight_offset, head);
        }
      };
      float* q = p.q + row * p.num_heads * head_dim;
      for (int32_t h = 0; h < p.num_heads; ++h) prepare(q + h * head_dim, p.q_norm);
      if (p.q_scale != nullptr) kernels_.scale(p.q_scale[row], p.num_heads * head_dim, q);
      if (p.k == nullptr) return;
      const int64_t slot = p.slots[row];
      std::byte* block = p.cache + static_cast<size_t>(slot / layout.block_size) * layout.block_bytes();
      for (int32_t h = 0; h < layout.num_kv_heads; ++h) {
        float* key = p.k + (row * layout.num_kv_heads + h) * head_dim;
        prepare(key, p.k_norm);
        auto* bytes = reinterpret_cast<uint8_t*>(block + static_cast<size_t>(h) * layout.head_bytes());
        const bool apart = layout.content == KvContent::kKeysAndValues;
        const float* value = apart ? p.v + (row * layout.num_kv_heads + h) * head_dim : key;
        kernels_.store_kv(static_cast<int32_t>(layout.dtype), key, value, layout.head_dim, layout.rows_per_block(),
                          layout.row_of(slot % layout.block_size), layout.has_keys() ? bytes : nullptr,
                          layout.has_values() ? bytes + layout.values_offset() : nullptr);
      }
    });
  }

  void paged_attention(const PagedAttentionParams& p) override { attention_.run(p, pool_, kernels_); }
  void select_positions(const SelectPositionsParams& p) override { indexer_.run(p, pool_, kernels_); }

  void gated_activation(const GatedActivationParams& p) override {
    for_elements(pool_, p.num_elements, [&](int64_t at, int64_t count) {
      activate(kernels_, p.activation, p.limit, p.gate + at, p.up == nullptr ? nullptr : p.up + at, count, p.out + at);
    });
  }

  void add(const AddParams& p) override {
    for_elements(pool_, p.num_elements, [&](int64_t at, int64_t count) { kernels_.add(p.x + at, count, p.out + at); });
  }

  void scale(const ScaleParams& p) override {
    if (p.columns != nullptr) return run_scale_columns(p, pool_);
    for_elements(pool_, p.num_elements, [&](int64_t at, int64_t count) { kernels_.scale(p.factor, count, p.x + at); });
  }

  void softcap(const SoftcapParams& p) override {
    for_elements(pool_, p.num_elements, [&](int64_t at, int64_t count) { kernels_.softcap(p.cap, count, p.x + at); });
  }

  void route(const RouteParams& p) override {
    std::vector<RowRouter> routers(static_cast<size_t>(pool_.num_threads()), RowRouter(p));
    pool_.run(p.num_tokens, [&](int64_t row, int thread) { routers[static_cast<size_t>(thread)].route(row); });
  }
  void experts(const ExpertsParams& p) override { experts_.run(p, pool_, kernels_); }
  void head_linear(const HeadLinearParams& p) override { experts_.run(p, pool_, kernels_); }
  void gate_rows(const GateRowsParams& p) override {
    for_rows(p.num_tokens, [&](int64_t row) {
      const double factor = 1.0 / (1.0 + std::exp(-static_cast<double>(p.gate[row])));
      kernels_.scale(static_cast<float>(factor), p.size, p.x + row * p.size);
    });
  }

  void mix_streams(const MixStreamsParams& p) override { run_mix_streams(p, pool_); }
  void stream_gates(const StreamGatesParams& p) override { run_stream_gates(p, pool_); }
  void match_magnitude(const MatchMagnitudeParams& p) override { run_match_magnitude(p, pool_); }
  void cut_gates(const CutGatesParams& p) override { run_cut_gates(p, pool_); }
  void causal_conv(const CausalConvParams& p) override { run_causal_conv(p, pool_, kernels_); }
  void pool_runs(const PoolRunsParams& p) override { run_pool_runs(p, pool_, kernels_); }
  void selective_scan(const SelectiveScanParams& p) override { run_selective_scan(p, pool_, kernels_); }
  void linear_recurrence(const LinearRecurrenceParams& p) override { run_linear_recurrence(p, pool_, kernels_); }
  void decay_gates(const DecayGatesParams& p) override { run_decay_gates(p, pool_, kernels_); }
  void group_norm(const GroupNormParams& p) override { run_group_norm(p, pool_, kernels_); }

  void logit_stats(const LogitStatsParams& p) override {
    pool_.run(p.num_rows, [&](int64_t row, int) {
      LogitStats& out = p.out[row];
      const double sum = kernels_.logit_sum(p.logits + row * p.vocab_size, p.vocab_size, &out.max, &out.argmax);
      out.log_sum = static_cast<float>(std::log(sum));
    });
  }

 private:
  ChoicesByRows choices(const WeightSource& source, const PackOptions& options) const {
    if (tuning_ == nullptr) return {};
    return tuning_->choices(source.dtype, options.activations, source.cols, source.rows, pool_.num_threads());
  }

  template <class Function>
  void for_rows(int64_t num_rows, const Function& function) {
    pool_.run((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
      const int64_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
      for (int64_t row = task * kRowsPerTask; row < end; ++row) function(row);
    });
  }

  std::string name_;
  const Isa isa_;
  const KernelTable& kernels_;
  const std::shared_ptr<const TuningTable> tuning_;
  const std::shared_ptr<ThreadPool> threads_;
  ThreadPool& pool_;
  const std::shared_ptr<Turn> pack_turn_;
  RopeTable rope_;
  CpuAttention attention_;
  CpuIndexer indexer_;
  CpuExperts experts_;
  CpuLinear linear_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options) {
  if (options.shared_threads == nullptr && (options.num_threads < 1 || options.num_threads > 1024)) {
    return invalid_argument("num_threads", "{} is not between 1 and 1024", options.num_threads);
  }
  if (!isa_available(options.isa)) {
    return unsupported("isa", "this processor or operating system lacks {}", isa_name(options.isa));
  }
  if (options.tuning != nullptr) {
    HEADRACE_RETURN_IF_ERROR(options.tuning->check(tuning_target(isa_name(options.isa)), "tuning"));
  }
  try {
    return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(options));
  } catch (const std::system_error& error) {
    return out_of_memory("num_threads", "{} threads could not be started: {}", options.num_threads, error.what());
  }
}

}  // namespace headrace
