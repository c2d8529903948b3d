// The scalar reference of the ops over rows and elements; weights stay in the file's bytes.
#include "ops/reference_backend.h"

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/checked.h"
#include "ops/backend.h"
#include "ops/router.h"
#include "tensor/column_order.h"
#include "tensor/dequantize.h"

namespace headrace {
namespace {

class ReferenceWeight final : public PackedWeight {
 public:
  ReferenceWeight(DType dtype, int64_t rows, int64_t cols, std::vector<std::byte> data, ColumnOrder order)
      : dtype_(dtype), rows_(rows), cols_(cols), data_(std::move(data)), order_(std::move(order)) {}

  DType dtype() const override { return dtype_; }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  uint64_t bytes() const override { return data_.size(); }
  void decode_row(int64_t row, float* out) const override {
    const size_t size = data_.size() / static_cast<size_t>(rows_);
    // pack has decoded a row before: the type and the number of elements are known to be good.
    static_cast<void>(dequantize_row(dtype_, data_.data() + static_cast<size_t>(row) * size, out, cols_));
    if (order_ == nullptr) return;
    const std::vector<float> stored(out, out + cols_);
    put_in_order(*order_, stored.data(), out);
  }

 private:
  DType dtype_;
  int64_t rows_, cols_;
  std::vector<std::byte> data_;
  ColumnOrder order_;
};

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kClampedSilu:
    case Activation::kSilu: return x / (1.0 + std::exp(-x));
    case Activation::kGeluTanh: return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kRelu: break;
    case Activation::kSigmoid: return 1.0 / (1.0 + std::exp(-x));
    case Activation::kTanh: return std::tanh(x);
    case Activation::kRelu2: return x < 0.0 ? 0.0 : x * x;
    case Activation::kGeluSigmoid:
    case Activation::kClampedSwish: return x / (1.0 + std::exp(-1.702 * x));
  }
  return x < 0.0 ? 0.0 : x;
}

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  int num_threads() const override { return 1; }

  Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions&) override {
    if (source.rows <= 0 || source.cols <= 0) {
      return invalid_argument(source.name, "shape [{}, {}] is empty", source.rows, source.cols);
    }
    const auto row = row_bytes(source.dtype, static_cast<uint64_t>(source.cols));
    const auto total = row ? checked_mul<uint64_t>(*row, static_cast<uint64_t>(source.rows)) : std::nullopt;
    if (!total || *total > PTRDIFF_MAX) {
      return invalid_argument(source.name, "shape [{}, {}] of {} is not possible", source.rows, source.cols,
                              dtype_name(source.dtype));
    }
    std::vector<std::byte> data;
    std::vector<float> first;
    try {
      data.resize(*total);
      first.resize(static_cast<size_t>(source.cols));
    } catch (const std::bad_alloc&) {
      return out_of_memory(source.name, "{} bytes could not be allocated", *total);
    }
    if (Status status = source.read(0, data); !status.ok()) return status.within(source.name);
    if (Status status = dequantize_row(source.dtype, data.data(), first.data(), source.cols); !status.ok()) {
      return status.within(source.name);
    }
    return std::unique_ptr<PackedWeight>(std::make_unique<ReferenceWeight>(source.dtype, source.rows, source.cols,
                                                                           std::move(data), source.column_order));
  }

  void embed(const EmbedParams& p) override {
    const int64_t size = p.table->cols();
    for (int64_t token = 0; token < p.num_tokens; ++token) {
      p.table->decode_row(p.token_ids[token], p.out + token * size);
      for (int64_t i = 0; i < size; ++i) p.out[token * size + i] *= p.scale;
    }
  }

  void rms_norm(const RmsNormParams& p) override {
    for (int64_t token = 0; token < p.num_tokens; ++token) {
      const float* x = p.x + token * p.size;
      double sum = 0.0;
      for (int64_t i = 0; i < p.size; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      const double factor = 1.0 / std::sqrt(sum / static_cast<double>(p.size) + static_cast<double>(p.eps));
      for (int64_t i = 0; i < p.size; ++i) {
        const double weight = static_cast<double>(p.weight[i]) + static_cast<double>(p.weight_offset);
        p.out[token * p.size + i] = static_cast<float>(static_cast<double>(x[i]) * factor * weight);
      }
    }
  }

  void layer_norm(const LayerNormParams& p) override {
    for (int64_t row = 0; row < p.num_tokens * p.groups; ++row) {
      const float* x = p.x + row * p.size;
      const int64_t first = row % p.groups * p.size;  // of the group's weight
      double sum = 0.0, squares = 0.0;
      for (int64_t i = 0; i < p.size; ++i) sum += static_cast<double>(x[i]);
      const double mean = sum / static_cast<double>(p.size);
      for (int64_t i = 0; i < p.size; ++i) {
        const double difference = static_cast<double>(x[i]) - mean;
        squares += difference * difference;
      }
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(p.size) + static_cast<double>(p.eps));
      for (int64_t i = 0; i < p.size; ++i) {
        const double bias = p.bias == nullptr ? 0.0 : static_cast<double>(p.bias[first + i]);
        const double weight = static_cast<double>(p.weight[first + i]);
        p.out[row * p.size + i] = static_cast<float>((static_cast<double>(x[i]) - mean) * factor * weight + bias);
      }
    }
  }

  void linear(const LinearParams& p) override {
    std::vector<float> row(static_cast<size_t>(p.in_features));
    for (const LinearOutput& output : p.outputs) {
      for (int64_t n = 0; n < output.weight->rows(); ++n) {
        output.weight->decode_row(n, row.data());
        for (int64_t token = 0; token < p.num_tokens; ++token) {
          const float* x = p.x + token * p.in_features;
          double sum = output.bias == nullptr ? 0.0 : static_cast<double>(output.bias[n]);
          for (int64_t k = 0; k < p.in_features; ++k) {
            sum += static_cast<double>(x[k]) * static_cast<double>(row[static_cast<size_t>(k)]);
          }
          float& y = output.y[token * output.y_stride + n];
          y = static_cast<float>(output.accumulate ? static_cast<double>(y) + sum : sum);
        }
      }
    }
  }

  void gated_linear(const GatedLinearParams& p) override {
    const int64_t width = p.gate->rows();
    std::vector<float> up(static_cast<size_t>(p.num_tokens * width));
    const LinearOutput outputs[] = {{p.gate, p.gate_bias, p.out, width, false},
                                    {p.up, p.up_bias, up.data(), width, false}};
    linear({p.x, p.num_tokens, p.in_features, outputs});
    reference_gated_activation({p.out, up.data(), p.num_tokens * width, p.activation, p.out, p.limit});
  }

  void rope_and_store_kv(const RopeStoreParams& p) override { reference_rope_and_store_kv(p); }
  void paged_attention(const PagedAttentionParams& p) override { reference_paged_attention(p); }
  void select_positions(const SelectPositionsParams& p) override { reference_select_positions(p); }

  void gated_activation(const GatedActivationParams& p) override { reference_gated_activation(p); }

  void add(const AddParams& p) override {
    for (int64_t i = 0; i < p.num_elements; ++i) p.out[i] += p.x[i];
  }

  void scale(const ScaleParams& p) override {
    for (int64_t i = 0; i < p.num_elements; ++i) {
      p.x[i] *= p.columns == nullptr ? p.factor : p.factor * p.columns[i % p.num_columns];
    }
  }

  void softcap(const SoftcapParams& p) override {
    const double cap = static_cast<double>(p.cap);
    for (int64_t i = 0; i < p.num_elements; ++i) {
      p.x[i] = static_cast<float>(cap * std::tanh(static_cast<double>(p.x[i]) / cap));
    }
  }

  void route(const RouteParams& p) override {
    RowRouter router(p);
    for (int64_t row = 0; row < p.num_tokens; ++row) router.route(row);
  }
  void experts(const ExpertsParams& p) override { reference_experts(p); }
  void head_linear(const HeadLinearParams& p) override { reference_head_linear(p); }
  void gate_rows(const GateRowsParams& p) override { reference_gate_rows(p); }
  void mix_streams(const MixStreamsParams& p) override { reference_mix_streams(p); }
  void stream_gates(const StreamGatesParams& p) override { reference_stream_gates(p); }
  void match_magnitude(const MatchMagnitudeParams& p) override { reference_match_magnitude(p); }
  void cut_gates(const CutGatesParams& p) override { reference_cut_gates(p); }

  void causal_conv(const CausalConvParams& p) override { reference_causal_conv(p); }
  void pool_runs(const PoolRunsParams& p) override { reference_pool_runs(p); }
  void selective_scan(const SelectiveScanParams& p) override { reference_selective_scan(p); }
  void linear_recurrence(const LinearRecurrenceParams& p) override { reference_linear_recurrence(p); }
  void decay_gates(const DecayGatesParams& p) override { reference_decay_gates(p); }
  void group_norm(const GroupNormParams& p) override { reference_group_norm(p); }

  void logit_stats(const LogitStatsParams& p) override { reference_logit_stats(p); }
};

}  // namespace

void reference_logit_stats(const LogitStatsParams& p) {
  for (int64_t row = 0; row < p.num_rows; ++row) {
    const std::span<const float> logits(p.logits + row * p.vocab_size, static_cast<size_t>(p.vocab_size));
    LogitStats& out = p.out[row];
    out = {-std::numeric_limits<float>::infinity(), 0, 0.0f};
    bool nan = false;
    for (size_t id = 0; id < logits.size(); ++id) {
      nan |= std::isnan(logits[id]);
      if (logits[id] > out.max) out.max = logits[out.argmax = static_cast<int32_t>(id)];
    }
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - out.max);
    const bool valid = !nan && std::isfinite(out.max);
    out.log_sum = valid ? static_cast<float>(std::log(sum)) : std::numeric_limits<float>::quiet_NaN();
  }
}

void reference_gated_activation(const GatedActivationParams& p) {
  const bool swish = p.activation == Activation::kClampedSwish;
  const bool clamped = swish || p.activation == Activation::kClampedSilu;
  for (int64_t i = 0; i < p.num_elements; ++i) {
    float gate = p.gate[i], up = p.up == nullptr ? 1.0f : p.up[i];
    if (clamped) {
      // The comparisons keep NaN.
      gate = gate > p.limit ? p.limit : gate;
      up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
    }
    const double factor = static_cast<double>(up) + (swish ? 1.0 : 0.0);
    p.out[i] = static_cast<float>(activate(p.activation, static_cast<double>(gate)) * factor);
  }
}

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace headrace
