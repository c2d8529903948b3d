#include "backend/cuda_backend.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/device_weight.h"
#include "backend/op_buffers.h"
#include "kernels/attention_float.h"
#include "kernels/linear_float.h"
#include "kernels/linear_half.h"
#include "kernels/linear_q8_0.h"
#include "kernels/paged_attention.h"
#include "kernels/rope_store.h"
#include "kernels/row_kernels.h"
#include "ops/reference_backend.h"

namespace headrace::cuda {
namespace {

#if defined(HEADRACE_CUDA_EMULATED)
constexpr std::string_view kName = "emulated-cuda";
#else
constexpr std::string_view kName = "cuda";
#endif

constexpr OpUse kUses[] = {
    {"embed"},
    {"linear"},
    {"gated_linear"},
    {"gated_activation"},
    {"add"},
    {"scale"},
    {"softcap"},
    {"rms_norm"},
    {"rms_norm", "size", kMaxRmsNormSize},
    {"rope_and_store_kv"},
    {"rope_and_store_kv", "norm of heads"},
    {"rope_and_store_kv", "scale by position"},
    {"paged_attention", "head_dim", kMaxHeadDim},
    {"paged_attention", "window"},
    {"paged_attention", "soft cap"},
    {"paged_attention", "sinks"},
    {"paged_attention", "chunks"},
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::shared_ptr<DeviceStream> device) : device_(std::move(device)), buffers_(device_) {}

  std::string_view name() const override { return kName; }
  int num_threads() const override { return 1; }
  std::shared_ptr<DeviceMemory> memory() const override { return device_; }

  Status check_use(const OpUse& use) const override {
    for (const OpUse& known : kUses) {
      if (known.op != use.op || known.feature != use.feature) continue;
      if (use.size <= known.size && use.size % 4 == 0) return Status();
      return unsupported("model.device", "{} has {} with {} up to {}, multiples of 4, and not {}", kName, use.op,
                         use.feature, known.size, use.size);
    }
    if (use.feature.empty()) return unsupported("model.device", "{} has no {}", kName, use.op);
    return unsupported("model.device", "{} has no {} with {}", kName, use.op, use.feature);
  }

  Status finish() override { return device_->take_failure(); }

  Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions& options) override {
    return DeviceWeight::pack(source, options, device_);
  }

  void embed(const EmbedParams& p) override {
    const Op op(*this, p.num_tokens);
    if (!op) return;
    const auto& table = static_cast<const DeviceWeight&>(*p.table);
    const int32_t* ids = buffers_.step_array(StepArray::kTokenIds, p.token_ids, p.num_tokens);
    float* out = buffers_.output(p.out, p.num_tokens * table.cols(), false);
    if (ids == nullptr || out == nullptr) return;
    if (table.is_q8()) {
      check("embed", embed_q8_0({table.q8(), ids, p.num_tokens, p.scale, out}, stream()));
    } else {
      check("embed",
            cuda::embed({table.data(), table.type(), ids, p.num_tokens, table.cols(), p.scale, out}, stream()));
    }
  }

  void rms_norm(const RmsNormParams& p) override {
    const Op op(*this, p.num_tokens);
    if (!op) return;
    const int64_t count = p.num_tokens * p.size;
    const float* x = buffers_.input(p.x, count);
    float* out = buffers_.output(p.out, count, false);
    const float* weight = buffers_.constant(p.weight, p.size);
    if (x == nullptr || out == nullptr || weight == nullptr) return;
    // Without a delta x is only read.
    check("rms_norm",
          cuda::rms_norm({const_cast<float*>(x), nullptr, weight, p.num_tokens, p.size, p.eps, p.weight_offset, out},
                         stream()));
  }

  void linear(const LinearParams& p) override {
    const Op op(*this, p.num_tokens);
    if (!op) return;
    Inputs inputs{buffers_.input(p.x, p.num_tokens * p.in_features), p.num_tokens, p.in_features};
    for (const LinearOutput& output : p.outputs) multiply(inputs, output);
  }

  void gated_linear(const GatedLinearParams& p) override {
    const Op op(*this, p.num_tokens);
    if (!op) return;
    const int64_t width = p.gate->rows(), count = p.num_tokens * width;
    Inputs inputs{buffers_.input(p.x, p.num_tokens * p.in_features), p.num_tokens, p.in_features};
    float* out = buffers_.output(p.out, count, false);
    float* up = buffers_.scratch<float>(count);
    if (out == nullptr || up == nullptr) return;
    multiply(inputs, {p.gate, p.gate_bias, out, width, false});
    multiply(inputs, {p.up, p.up_bias, up, width, false});
    check("gated_linear", cuda::gated_activation({out, up, count, p.activation, p.limit, out}, stream()));
  }

  void gated_activation(const GatedActivationParams& p) override {
    const Op op(*this, p.num_elements);
    if (!op) return;
    const float* gate = buffers_.input(p.gate, p.num_elements);
    const float* up = buffers_.input(p.up, p.num_elements);
    float* out = buffers_.output(p.out, p.num_elements, false);
    if (gate == nullptr || out == nullptr || (p.up != nullptr && up == nullptr)) return;
    check("gated_activation", cuda::gated_activation({gate, up, p.num_elements, p.activation, p.limit, out}, stream()));
  }

  void add(const AddParams& p) override {
    const Op op(*this, p.num_elements);
    if (!op) return;
    const float* x = buffers_.input(p.x, p.num_elements);
    float* out = buffers_.output(p.out, p.num_elements, true);
    if (x != nullptr && out != nullptr) check("add", cuda::add(x, out, p.num_elements, stream()));
  }

  void scale(const ScaleParams& p) override {
    const Op op(*this, p.num_elements);
    if (!op) return;
    float* x = buffers_.output(p.x, p.num_elements, true);
    const float* columns = buffers_.constant(p.columns, p.num_columns);
    if (x == nullptr || (p.columns != nullptr && columns == nullptr)) return;
    check("scale", cuda::scale(x, p.num_elements, p.factor, columns, p.num_columns, stream()));
  }

  void softcap(const SoftcapParams& p) override {
    const Op op(*this, p.num_elements);
    if (!op) return;
    float* x = buffers_.output(p.x, p.num_elements, true);
    if (x != nullptr) check("softcap", cuda::softcap(x, p.num_elements, p.cap, stream()));
  }

  void rope_and_store_kv(const RopeStoreParams& p) override {
    const Op op(*this, p.num_tokens);
    if (!op) return;
    if (p.q == nullptr || p.k == nullptr || p.v == nullptr || p.num_axes != 1 || p.rotary_begin != 0 || p.backwards) {
      return lacks("rope_and_store_kv");
    }
    if (!device_->owns(p.cache)) return misplaced_cache();
    const KvLayout& layout = p.layout;
    const int64_t keys = p.num_tokens * layout.num_kv_heads * layout.head_dim;
    RopeStoreArguments a;
    a.q = buffers_.output(p.q, p.num_tokens * p.num_heads * layout.head_dim, true);
    a.k = buffers_.input(p.k, keys);
    a.v = buffers_.input(p.v, keys);
    a.q_norm = buffers_.constant(p.q_norm, layout.head_dim);
    a.k_norm = buffers_.constant(p.k_norm, layout.head_dim);
    a.norm_eps = p.norm_eps;
    a.norm_weight_offset = p.norm_weight_offset;
    a.num_tokens = p.num_tokens;
    a.num_heads = p.num_heads;
    a.positions = buffers_.step_array(StepArray::kPositions, p.positions, p.num_tokens);
    a.inv_freq = buffers_.constant(p.inv_freq, p.rotary_dim / 2);
    a.rotary_dim = p.inv_freq == nullptr ? 0 : p.rotary_dim;
    a.norm_after_rotation = p.norm_after_rotation;
    a.q_scale = buffers_.input(p.q_scale, p.num_tokens);
    a.interleaved = p.interleaved;
    a.attention_factor = p.attention_factor;
    a.layout = layout;
    a.cache = p.cache;
    a.slots = buffers_.step_array(StepArray::kSlots, p.slots, p.num_tokens);
    const bool constants =
        (p.q_norm == nullptr || a.q_norm != nullptr) && (p.k_norm == nullptr || a.k_norm != nullptr) &&
        (p.inv_freq == nullptr || a.inv_freq != nullptr) && (p.q_scale == nullptr || a.q_scale != nullptr);
    if (!constants || a.q == nullptr || a.k == nullptr || a.v == nullptr || a.positions == nullptr ||
        a.slots == nullptr) {
      return;
    }
    check("rope_and_store_kv", cuda::rope_and_store_kv(a, stream()));
  }

  void paged_attention(const PagedAttentionParams& p) override {
    const int64_t num_tokens = p.num_seqs == 0 ? 0 : p.query_start[p.num_seqs];
    const Op op(*this, num_tokens);
    if (!op) return;
    if (p.position_bias != nullptr || p.sequence_ends != nullptr || p.spans != nullptr ||
        p.sequence_caches != nullptr || p.selected.positions != nullptr || p.runs.cache != nullptr) {
      return lacks("paged_attention");
    }
    if (!device_->owns(p.cache)) return misplaced_cache();
    const int64_t count = num_tokens * p.num_heads * p.layout.head_dim;
    AttentionArguments a;
    a.q = buffers_.input(p.q, count);
    a.out = buffers_.output(p.out, count, false);
    a.num_tokens = num_tokens;
    a.num_heads = p.num_heads;
    a.positions = buffers_.step_array(StepArray::kPositions, p.positions, num_tokens);
    a.max_blocks = most_blocks(p);
    a.block_tables = block_tables(p, a.max_blocks);
    a.layout = p.layout;
    a.cache = p.cache;
    a.scale = p.scale;
    a.window = p.window;
    a.logit_softcap = p.logit_softcap;
    a.sinks = buffers_.constant(p.sinks, p.num_heads);
    if (a.q == nullptr || a.out == nullptr || a.positions == nullptr || a.block_tables == nullptr ||
        (p.sinks != nullptr && a.sinks == nullptr)) {
      return;
    }
    const bool by_matrices = p.layout.dtype == KvDType::kF16 && p.chunk == 0 &&
                             p.num_heads <= 16 * p.layout.num_kv_heads &&
                             (p.layout.head_dim == 64 || p.layout.head_dim == 128);
    if (by_matrices) {
      attend_by_matrices(p, a);
    } else {
      attend_in_float(p, a);
    }
  }

  void logit_stats(const LogitStatsParams& p) override { reference_logit_stats(p); }

  void layer_norm(const LayerNormParams&) override { lacks("layer_norm"); }
  void select_positions(const SelectPositionsParams&) override { lacks("select_positions"); }
  void route(const RouteParams&) override { lacks("route"); }
  void experts(const ExpertsParams&) override { lacks("experts"); }
  void head_linear(const HeadLinearParams&) override { lacks("head_linear"); }
  void gate_rows(const GateRowsParams&) override { lacks("gate_rows"); }
  void mix_streams(const MixStreamsParams&) override { lacks("mix_streams"); }
  void stream_gates(const StreamGatesParams&) override { lacks("stream_gates"); }
  void match_magnitude(const MatchMagnitudeParams&) override { lacks("match_magnitude"); }
  void cut_gates(const CutGatesParams&) override { lacks("cut_gates"); }
  void causal_conv(const CausalConvParams&) override { lacks("causal_conv"); }
  void pool_runs(const PoolRunsParams&) override { lacks("pool_runs"); }
  void selective_scan(const SelectiveScanParams&) override { lacks("selective_scan"); }
  void linear_recurrence(const LinearRecurrenceParams&) override { lacks("linear_recurrence"); }
  void decay_gates(const DecayGatesParams&) override { lacks("decay_gates"); }
  void group_norm(const GroupNormParams&) override { lacks("group_norm"); }

 private:
  // The device is one op's at a time; false where there is nothing to do.
  class Op {
   public:
    Op(CudaBackend& backend, int64_t count)
        : buffers_(backend.buffers_), lock_(backend.device_->mutex()), any_(count > 0) {
      buffers_.begin();
    }
    Op(const Op&) = delete;
    Op& operator=(const Op&) = delete;
    ~Op() { buffers_.end(); }
    explicit operator bool() const { return any_; }

   private:
    OpBuffers& buffers_;
    std::lock_guard<std::recursive_mutex> lock_;
    bool any_;
  };

  // Rows of a product, in the types that its weights meet; each is made when a weight asks for it first.
  struct Inputs {
    const float* x;
    int64_t num_tokens, in_features;
    const uint16_t* narrow[2] = {};  // float16, bfloat16
    const float* scales[2] = {};
  };

  cudaStream_t stream() const { return device_->stream(); }
  void check(const char* op, cudaError_t error) { device_->note(error, op); }
  void lacks(std::string_view op) { device_->note(unsupported("model.device", "{} has no such {}", kName, op)); }
  void misplaced_cache() {
    device_->note(internal_error("kv cache", "it is not in the memory of {}", device_->device_name()));
  }

  bool narrow(Inputs& inputs, FloatType type) {
    const size_t which = type == FloatType::kF16 ? 0 : 1;
    if (inputs.narrow[which] != nullptr) return true;
    auto* rows = buffers_.scratch<uint16_t>(inputs.num_tokens * inputs.in_features);
    auto* scales = buffers_.scratch<float>(inputs.num_tokens);
    if (rows == nullptr || scales == nullptr) return false;
    check("linear", narrow_rows({inputs.x, inputs.num_tokens, inputs.in_features, type, rows, scales}, stream()));
    inputs.narrow[which] = rows;
    inputs.scales[which] = scales;
    return true;
  }

  void multiply(Inputs& inputs, const LinearOutput& output) {
    const auto& weight = static_cast<const DeviceWeight&>(*output.weight);
    const int64_t tokens = inputs.num_tokens, rows = weight.rows(), cols = weight.cols();
    LinearDestination to;
    to.y =
        buffers_.output(output.y, (tokens - 1) * output.y_stride + rows, output.accumulate || output.y_stride != rows);
    to.y_stride = output.y_stride;
    to.bias = buffers_.constant(output.bias, rows);
    to.accumulate = output.accumulate;
    if (inputs.x == nullptr || to.y == nullptr || (output.bias != nullptr && to.bias == nullptr)) return;
    if (!weight.is_q8() && weight.type() == FloatType::kF32) {
      const auto* values = reinterpret_cast<const float*>(weight.data());
      return check("linear", linear_float({values, rows, cols, inputs.x, tokens, to}, stream()));
    }
    const FloatType type = weight.is_q8() ? FloatType::kF16 : weight.type();
    const auto parts = static_cast<int64_t>(linear_workspace(rows, cols, tokens));
    auto* workspace = parts == 0 ? nullptr : buffers_.scratch<float>(parts);
    if ((parts > 0 && workspace == nullptr) || !narrow(inputs, type)) return;
    const size_t which = type == FloatType::kF16 ? 0 : 1;
    to.row_scales = inputs.scales[which];
    if (weight.is_q8()) {
      check("linear", linear_q8_0({weight.q8(), inputs.narrow[which], tokens, workspace, to}, stream()));
    } else {
      const auto* values = reinterpret_cast<const uint16_t*>(weight.data());
      check("linear", linear_half({values, rows, cols, type, inputs.narrow[which], tokens, workspace, to}, stream()));
    }
  }

  // Blocks up to the last position of the sequence's rows.
  static int32_t blocks_of(const PagedAttentionParams& p, int32_t seq) {
    if (p.query_start[seq] == p.query_start[seq + 1]) return 0;
    return p.positions[p.query_start[seq + 1] - 1] / p.layout.block_size + 1;
  }

  static int32_t most_blocks(const PagedAttentionParams& p) {
    int32_t most = 0;
    for (int32_t seq = 0; seq < p.num_seqs; ++seq) most = std::max(most, blocks_of(p, seq));
    return most;
  }

  // [num_seqs, width] on the device
  const int32_t* block_tables(const PagedAttentionParams& p, int32_t width) {
    blocks_.assign(static_cast<size_t>(p.num_seqs) * static_cast<size_t>(width), 0);
    for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
      std::copy_n(p.block_tables[seq], blocks_of(p, seq), blocks_.begin() + static_cast<ptrdiff_t>(seq) * width);
    }
    return buffers_.step_array(StepArray::kBlockTables, blocks_.data(), static_cast<int64_t>(blocks_.size()));
  }

  void attend_in_float(const PagedAttentionParams& p, const AttentionArguments& common) {
    sequences_.clear();
    for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
      sequences_.resize(static_cast<size_t>(p.query_start[seq + 1]), seq);
    }
    AttentionFloatArguments a{common};
    a.sequences = buffers_.step_array(StepArray::kSequences, sequences_.data(), a.num_tokens);
    a.chunk = p.chunk;
    if (a.sequences != nullptr) check("paged_attention", attention_float(a, stream()));
  }

  void attend_by_matrices(const PagedAttentionParams& p, const AttentionArguments& common) {
    PagedAttentionArguments a{common};
    a.max_position = *std::max_element(p.positions, p.positions + a.num_tokens);
    tiles_.clear();
    for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
      for (int32_t row = p.query_start[seq]; row < p.query_start[seq + 1]; row += a.rows_per_tile()) {
        tiles_.push_back({seq, row, std::min(a.rows_per_tile(), p.query_start[seq + 1] - row)});
      }
    }
    const auto num_tiles = static_cast<int32_t>(tiles_.size());
    a.tiles = buffers_.step_array(StepArray::kTiles, tiles_.data(), num_tiles);
    a.workspace = buffers_.scratch<float>(static_cast<int64_t>(attention_workspace(a)));
    if (a.tiles == nullptr || a.workspace == nullptr) return;
    a.num_tiles = num_tiles;
    check("paged_attention", cuda::paged_attention(a, stream()));
  }

  const std::shared_ptr<DeviceStream> device_;
  OpBuffers buffers_;
  std::vector<int32_t> blocks_, sequences_;
  std::vector<AttentionTile> tiles_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(int number) {
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<DeviceStream> device, DeviceStream::open(number));
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(std::move(device)));
}

}  // namespace headrace::cuda
