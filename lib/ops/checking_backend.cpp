#include "ops/checking_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/reference_backend.h"

namespace headrace {
namespace {

// Of a row's largest value: float32 sums of some thousand terms and the kernels' own exp, against float64.
constexpr double kFloatTolerance = 2e-4;
// Where codes of 8 bits are taken of values in the middle of an op: half a code each, of errors that mostly cancel.
constexpr double kCodedTolerance = 0.05;
constexpr int64_t kSampledOutputs = 24;
constexpr int64_t kCodeBlock = 32;

// Rows of whole codes times a power of two, so small that most values are cut to 127 of it: every block of 32 has one that is,
// in whatever order a weight's columns are stored, and so a scale that makes its codes exact.
std::vector<float> on_codes(const float* x, int64_t num_rows, int64_t size) {
  std::vector<float> out(x, x + num_rows * size);
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto values = std::span(out).subspan(static_cast<size_t>(row * size), static_cast<size_t>(size));
    double squares = 0.0;
    for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    const double rms = std::sqrt(squares / static_cast<double>(size));
    if (!(rms > 1e-25) || !std::isfinite(rms)) continue;
    const auto unit = static_cast<float>(std::exp2(std::floor(std::log2(0.5 * rms / 127.0))));
    for (float& value : values) value = unit * std::clamp(std::nearbyint(value / unit), -127.0f, 127.0f);
    for (int64_t begin = 0; begin < size; begin += kCodeBlock) {
      const auto block =
          values.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(kCodeBlock, size - begin)));
      const auto smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
      float& largest = *std::max_element(block.begin(), block.end(), smaller);
      if (largest != 0.0f) largest = std::copysign(127.0f * unit, largest);
    }
  }
  return out;
}

// A product's value and how far a sum in float32 may be from it.
struct Product {
  double value = 0.0, bound = 0.0;
};

Product product(const std::vector<float>& weight, const float* x, float bias, bool coded) {
  double sum = 0.0, magnitude = std::fabs(static_cast<double>(bias)), coding = 0.0, largest = 0.0, weights = 0.0;
  for (size_t k = 0; k < weight.size(); ++k) {
    const double w = static_cast<double>(weight[k]), term = w * static_cast<double>(x[k]);
    sum += term;
    magnitude += std::fabs(term);
    weights += std::fabs(w);
    largest = std::max(largest, std::fabs(static_cast<double>(x[k])));
    if ((k + 1) % kCodeBlock != 0 && k + 1 < weight.size()) continue;
    coding += weights * largest / 65534.0;  // half a code of 16 bits
    weights = largest = 0.0;
  }
  const double terms = 512.0 + static_cast<double>(weight.size()) / 32.0;
  return {sum + static_cast<double>(bias), terms * 0x1p-24 * magnitude + (coded ? coding : 0.0)};
}

int64_t sampled(int64_t index, int64_t count) {
  return count <= kSampledOutputs ? index : index * (count - 1) / (kSampledOutputs - 1);
}

// The states of an op's sequences, of which its part is `size`, for the reference to change.
struct StateCopies {
  int64_t size;
  std::vector<std::vector<float>> held;
  std::vector<float*> states, snapshots;

  StateCopies(const StateRows& rows, int64_t state_size) : size(state_size) {
    const auto end = static_cast<size_t>(rows.offset + state_size);
    for (int32_t i = 0; i < rows.num_seqs; ++i) held.emplace_back(rows.states[i], rows.states[i] + end);
    for (int32_t i = 0; i < rows.num_snapshots; ++i) held.emplace_back(end);
    const auto num_states = static_cast<size_t>(rows.num_seqs);
    for (auto& state : held) (states.size() < num_states ? states : snapshots).push_back(state.data());
  }
  void put(StateRows& rows) {
    rows.states = states.data();
    rows.snapshots = snapshots.data();
  }
};

class Checking final : public CheckingBackend {
 public:
  explicit Checking(Backend& backend) : backend_(backend), reference_(make_reference_backend()) {}

  const Status& difference() const override { return difference_; }
  int64_t num_checked() const override { return num_checked_; }
  std::string_view name() const override { return backend_.name(); }
  int num_threads() const override { return backend_.num_threads(); }
  Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions& options) override {
    return backend_.pack(source, options);
  }

  void embed(const EmbedParams& p) override {
    compare(
        "embed", p, &EmbedParams::out, p.num_tokens, p.table->cols(), 1e-6,
        [](Backend& b, const auto& q) { b.embed(q); }, type_of(*p.table));
  }
  void rms_norm(const RmsNormParams& p) override {
    compare("rms_norm", p, &RmsNormParams::out, p.num_tokens, p.size, kFloatTolerance,
            [](Backend& b, const auto& q) { b.rms_norm(q); });
  }
  void layer_norm(const LayerNormParams& p) override {
    compare("layer_norm", p, &LayerNormParams::out, p.num_tokens, p.groups * p.size, kFloatTolerance,
            [](Backend& b, const auto& q) { b.layer_norm(q); });
  }

  void linear(const LinearParams& p) override {
    const std::vector<float> x = on_codes(p.x, p.num_tokens, p.in_features);
    struct Expected {
      const LinearOutput* output;
      int64_t token, column;
      Product value;
    };
    std::vector<Expected> expected;
    std::vector<float> row(static_cast<size_t>(p.in_features));
    for (const LinearOutput& output : p.outputs) {
      const int64_t columns = output.weight->rows();
      for (int64_t i = 0; i < std::min(columns, kSampledOutputs); ++i) {
        const int64_t n = sampled(i, columns);
        output.weight->decode_row(n, row.data());
        for (int64_t token = 0; token < p.num_tokens; ++token) {
          const float bias = output.bias == nullptr ? 0.0f : output.bias[n];
          Product value = product(row, x.data() + token * p.in_features, bias, is_block_format(output.weight->dtype()));
          if (output.accumulate) {
            const double before = static_cast<double>(output.y[token * output.y_stride + n]);
            value.value += before;
            value.bound += std::fabs(before) * 0x1p-20;
          }
          expected.push_back({&output, token, n, value});
        }
      }
    }
    LinearParams moved = p;
    moved.x = x.data();
    backend_.linear(moved);
    ++num_checked_;
    for (const Expected& e : expected) {
      require("linear", type_of(*e.output->weight), e.token, e.column,
              e.output->y[e.token * e.output->y_stride + e.column], e.value.value, e.value.bound);
    }
  }

  void gated_linear(const GatedLinearParams& p) override {
    const std::vector<float> x = on_codes(p.x, p.num_tokens, p.in_features);
    GatedLinearParams moved = p;
    moved.x = x.data();
    backend_.gated_linear(moved);
    ++num_checked_;
    const int64_t columns = p.gate->rows();
    std::vector<float> gate_row(static_cast<size_t>(p.in_features)), up_row(gate_row.size());
    const bool coded = is_block_format(p.gate->dtype()) || is_block_format(p.up->dtype());
    for (int64_t i = 0; i < std::min(columns, kSampledOutputs); ++i) {
      const int64_t n = sampled(i, columns);
      p.gate->decode_row(n, gate_row.data());
      p.up->decode_row(n, up_row.data());
      for (int64_t token = 0; token < p.num_tokens; ++token) {
        const float* const in = x.data() + token * p.in_features;
        const Product gate = product(gate_row, in, p.gate_bias == nullptr ? 0.0f : p.gate_bias[n], coded);
        const Product up = product(up_row, in, p.up_bias == nullptr ? 0.0f : p.up_bias[n], coded);
        const auto g = static_cast<float>(gate.value), u = static_cast<float>(up.value);
        float want = 0.0f, activated = 0.0f;
        reference_gated_activation({&g, &u, 1, p.activation, &want, p.limit});
        reference_gated_activation({&g, nullptr, 1, p.activation, &activated, p.limit});
        // No activation is steeper than that.
        const double slope = p.activation == Activation::kRelu2 ? 2.0 * std::fabs(gate.value) + 1.0 : 1.2;
        const double bound = slope * gate.bound * (std::fabs(up.value) + 1.0) +
                             std::fabs(static_cast<double>(activated)) * up.bound +
                             1e-5 * std::fabs(static_cast<double>(want)) + 1e-30;
        require("gated_linear", type_of(*p.gate), token, n, p.out[token * columns + n], static_cast<double>(want),
                bound);
      }
    }
  }

  void rope_and_store_kv(const RopeStoreParams& p) override {
    const KvLayout& layout = p.layout;
    int64_t last = 0;
    for (int64_t token = 0; token < p.num_tokens && p.k != nullptr; ++token) last = std::max(last, p.slots[token]);
    const auto cache_bytes = static_cast<size_t>(last / layout.block_size + 1) * layout.block_bytes();
    const int64_t q_width = int64_t{p.num_heads} * layout.head_dim;
    const int64_t k_width = int64_t{layout.num_kv_heads} * layout.head_dim;
    std::vector<float> q, k;
    if (p.q != nullptr) q.assign(p.q, p.q + p.num_tokens * q_width);
    std::vector<std::byte> cache(p.cache, p.cache + (p.k == nullptr ? 0 : cache_bytes));
    RopeStoreParams copy = p;
    if (p.q != nullptr) copy.q = q.data();
    copy.cache = cache.data();
    if (p.k != nullptr) {
      k.assign(p.k, p.k + p.num_tokens * k_width);
      copy.k = k.data();
      if (p.v == p.k) copy.v = k.data();  // rows that are stored as they are rotated
    }
    reference_->rope_and_store_kv(copy);
    backend_.rope_and_store_kv(p);
    ++num_checked_;
    const std::string type(kv_dtype_name(layout.dtype));
    if (p.q != nullptr)
      require_rows("rope_and_store_kv", type, p.q, q.data(), p.num_tokens, q_width, q_width, kFloatTolerance);
    if (p.k == nullptr) return;
    require_rows("rope_and_store_kv", type, p.k, k.data(), p.num_tokens, k_width, k_width, kFloatTolerance);
    // A rounding of the stored type apart, where the values before it are.
    const double unit = layout.dtype == KvDType::kF32    ? kFloatTolerance
                        : layout.dtype == KvDType::kF16  ? 0x1p-10
                        : layout.dtype == KvDType::kBF16 ? 0x1p-7
                                                         : 1.1 / 127.0;
    std::vector<float> got(static_cast<size_t>(layout.head_dim)), want(got.size());
    for (int64_t token = 0; token < p.num_tokens; ++token) {
      for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
        const size_t at = static_cast<size_t>(p.slots[token] / layout.block_size) * layout.block_bytes() +
                          static_cast<size_t>(head) * layout.head_bytes();
        const int32_t offset = layout.row_of(p.slots[token] % layout.block_size);
        for (const bool keys : {true, false}) {
          if (keys ? !layout.has_keys() : !layout.has_values()) continue;
          for (int32_t d = 0; d < layout.head_dim; ++d) {
            const auto read = keys ? cached_key : cached_value;
            got[static_cast<size_t>(d)] = read(layout, p.cache + at, offset, d);
            want[static_cast<size_t>(d)] = read(layout, cache.data() + at, offset, d);
          }
          require_rows("rope_and_store_kv", type, got.data(), want.data(), 1, layout.head_dim, layout.head_dim, unit);
        }
      }
    }
  }

  void paged_attention(const PagedAttentionParams& p) override {
    const int64_t width = int64_t{p.num_heads} * p.layout.head_dim;
    compare(
        "paged_attention", p, &PagedAttentionParams::out, p.query_start[p.num_seqs], width, kFloatTolerance,
        [](Backend& b, const auto& q) { b.paged_attention(q); }, std::string(kv_dtype_name(p.layout.dtype)));
  }

  // Scores that all but equal each other may be ranked either way.
  void select_positions(const SelectPositionsParams& p) override {
    const int64_t rows = p.query_start[p.num_seqs];
    std::vector<int32_t> selected(static_cast<size_t>(rows * p.top_k)), counts(static_cast<size_t>(rows));
    SelectPositionsParams copy = p;
    copy.selected = selected.data();
    copy.counts = counts.data();
    reference_->select_positions(copy);
    backend_.select_positions(p);
    ++num_checked_;
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t count = counts[static_cast<size_t>(row)];
      require("select_positions", {}, row, 0, static_cast<float>(p.counts[row]), count, 0.0);
      if (p.counts[row] != count) return;
      const int32_t *got = p.selected + row * p.top_k, *want = selected.data() + row * p.top_k;
      int32_t others = 0;
      for (int32_t i = 0; i < count; ++i) others += std::binary_search(want, want + count, got[i]) ? 0 : 1;
      require("select_positions", {}, row, 0, static_cast<float>(others), 0.0, 1.0 + count / 16.0);
    }
  }

  void gated_activation(const GatedActivationParams& p) override {
    compare("gated_activation", p, &GatedActivationParams::out, 1, p.num_elements, kFloatTolerance,
            [](Backend& b, const auto& q) { b.gated_activation(q); });
  }
  void add(const AddParams& p) override {
    compare("add", p, &AddParams::out, 1, p.num_elements, 1e-6, [](Backend& b, const auto& q) { b.add(q); });
  }
  void scale(const ScaleParams& p) override {
    compare("scale", p, &ScaleParams::x, 1, p.num_elements, 1e-6, [](Backend& b, const auto& q) { b.scale(q); });
  }
  void softcap(const SoftcapParams& p) override {
    compare("softcap", p, &SoftcapParams::x, 1, p.num_elements, kFloatTolerance,
            [](Backend& b, const auto& q) { b.softcap(q); });
  }

  void route(const RouteParams& p) override {
    const int64_t count = p.num_tokens * p.top_k;
    std::vector<int32_t> experts(static_cast<size_t>(count));
    std::vector<float> weights(experts.size());
    RouteParams copy = p;
    copy.experts = experts.data();
    copy.weights = weights.data();
    reference_->route(copy);
    backend_.route(p);
    ++num_checked_;
    for (int64_t i = 0; i < count; ++i) {
      require("route", {}, i / p.top_k, i % p.top_k, static_cast<float>(p.experts[i]), experts[static_cast<size_t>(i)],
              0.0);
    }
    require_rows("route", {}, p.weights, weights.data(), p.num_tokens, p.top_k, p.top_k, kFloatTolerance);
  }

  // The first row and the last.
  void experts(const ExpertsParams& p) override {
    const std::vector<float> x = on_codes(p.x, p.num_tokens, p.hidden_size);
    ExpertsParams moved = p;
    moved.x = x.data();
    std::vector<std::pair<int64_t, std::vector<float>>> expected;
    for (int64_t row = 0; row < p.num_tokens; row += std::max<int64_t>(p.num_tokens - 1, 1)) {
      ExpertsParams one = moved;
      one.x += row * p.hidden_size;
      one.experts += row * p.top_k;
      one.weights += row * p.top_k;
      one.num_tokens = 1;
      expected.emplace_back(row, std::vector<float>(p.out + row * p.hidden_size, p.out + (row + 1) * p.hidden_size));
      one.out = expected.back().second.data();
      reference_->experts(one);
    }
    backend_.experts(moved);
    ++num_checked_;
    const DType dtype = p.all_experts[0].down->dtype();
    for (const auto& [row, want] : expected) {
      require_rows("experts", type_of(*p.all_experts[0].down), p.out + row * p.hidden_size, want.data(), 1,
                   p.hidden_size, p.hidden_size, is_block_format(dtype) ? kCodedTolerance : kFloatTolerance);
    }
  }

  void head_linear(const HeadLinearParams& p) override {
    const auto heads = static_cast<int64_t>(p.weights.size());
    const int64_t width = p.weights.empty() ? 0 : p.weights[0]->rows();
    std::vector<float> want(static_cast<size_t>(p.num_tokens * heads * width));
    HeadLinearParams copy = p;
    copy.y = want.data();
    copy.y_row_stride = heads * width;
    copy.y_head_stride = width;
    reference_->head_linear(copy);
    backend_.head_linear(p);
    ++num_checked_;
    for (int64_t token = 0; token < p.num_tokens; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        const PackedWeight& weight = *p.weights[static_cast<size_t>(head)];
        require_rows("head_linear", type_of(weight), p.y + token * p.y_row_stride + head * p.y_head_stride,
                     want.data() + (token * heads + head) * width, 1, width, width,
                     is_block_format(weight.dtype()) ? kCodedTolerance : kFloatTolerance);
      }
    }
  }
  void gate_rows(const GateRowsParams& p) override {
    compare("gate_rows", p, &GateRowsParams::x, p.num_tokens, p.size, kFloatTolerance,
            [](Backend& b, const auto& q) { b.gate_rows(q); });
  }

  void mix_streams(const MixStreamsParams& p) override {
    const int64_t span = (p.num_tokens - 1) * p.out_row_stride + (p.num_out - 1) * p.out_stream_stride + p.size;
    compare("mix_streams", p, &MixStreamsParams::out, 1, p.num_tokens > 0 ? span : 0, kFloatTolerance,
            [](Backend& b, const auto& q) { b.mix_streams(q); });
  }
  void stream_gates(const StreamGatesParams& p) override {
    const int64_t n = p.num_streams, squares = p.leave == nullptr ? 0 : n * n;
    std::vector<float> enter(static_cast<size_t>(p.num_tokens * n)), leave(enter.size());
    std::vector<float> map(static_cast<size_t>(p.num_tokens * squares));
    StreamGatesParams copy = p;
    copy.enter = enter.data();
    if (p.leave != nullptr) copy.leave = leave.data();
    if (p.leave != nullptr) copy.map = map.data();
    reference_->stream_gates(copy);
    backend_.stream_gates(p);
    ++num_checked_;
    require_rows("stream_gates", {}, p.enter, enter.data(), p.num_tokens, n, n, kFloatTolerance);
    if (p.leave == nullptr) return;
    require_rows("stream_gates", {}, p.leave, leave.data(), p.num_tokens, n, n, kFloatTolerance);
    require_rows("stream_gates", {}, p.map, map.data(), p.num_tokens, squares, squares, kFloatTolerance);
  }
  void pool_runs(const PoolRunsParams& p) override {
    const int64_t num_rows = p.rows.query_start[p.rows.num_seqs];
    std::vector<int64_t> entries;  // rows of out that the step's tokens end
    int64_t num_entries = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
      if ((p.positions[row] + 1) % p.run == 0) entries.push_back(p.entries[row]);
    }
    for (const int64_t entry : entries) num_entries = std::max(num_entries, entry + 1);
    std::vector<float> want(static_cast<size_t>(num_entries * p.channels));
    StateCopies copies(p.rows, p.state_lines() * p.channels);
    PoolRunsParams copy = p;
    copies.put(copy.rows);
    copy.out = want.data();
    reference_->pool_runs(copy);
    backend_.pool_runs(p);
    ++num_checked_;
    for (const int64_t entry : entries) {
      require_rows("pool_runs", {}, p.out + entry * p.channels, want.data() + entry * p.channels, 1, p.channels,
                   p.channels, kFloatTolerance);
    }
    require_states("pool_runs", p.rows, copies);
  }
  void match_magnitude(const MatchMagnitudeParams& p) override {
    compare("match_magnitude", p, &MatchMagnitudeParams::x, p.num_tokens, p.size, kFloatTolerance,
            [](Backend& b, const auto& q) { b.match_magnitude(q); });
  }
  void cut_gates(const CutGatesParams& p) override {
    compare("cut_gates", p, &CutGatesParams::x, p.num_tokens, p.size, kFloatTolerance,
            [](Backend& b, const auto& q) { b.cut_gates(q); });
  }

  void causal_conv(const CausalConvParams& p) override {
    compare_stateful("causal_conv", p, p.channels, (p.kernel - 1) * p.channels,
                     [](Backend& b, const auto& q) { b.causal_conv(q); });
  }
  void selective_scan(const SelectiveScanParams& p) override {
    compare_stateful("selective_scan", p, p.channels, p.state_size * p.channels,
                     [](Backend& b, const auto& q) { b.selective_scan(q); });
  }
  void linear_recurrence(const LinearRecurrenceParams& p) override {
    compare_stateful("linear_recurrence", p, p.num_heads * p.value_dim, p.num_heads * p.key_dim * p.value_dim,
                     [](Backend& b, const auto& q) { b.linear_recurrence(q); });
  }
  void decay_gates(const DecayGatesParams& p) override {
    std::vector<float> decay(static_cast<size_t>(p.num_tokens * p.width)), step(decay.size());
    DecayGatesParams copy = p;
    copy.decay = decay.data();
    if (p.step != nullptr) copy.step = step.data();
    reference_->decay_gates(copy);
    backend_.decay_gates(p);
    ++num_checked_;
    require_rows("decay_gates", {}, p.decay, decay.data(), p.num_tokens, p.width, p.width, kFloatTolerance);
    if (p.step == nullptr) return;
    require_rows("decay_gates", {}, p.step, step.data(), p.num_tokens, p.width, p.width, kFloatTolerance);
  }
  void group_norm(const GroupNormParams& p) override {
    const int64_t width = p.groups * p.size;
    std::vector<float> want(static_cast<size_t>(p.num_tokens * width));
    GroupNormParams copy = p;
    copy.out = want.data();
    copy.out_stride = width;
    reference_->group_norm(copy);
    backend_.group_norm(p);
    ++num_checked_;
    require_rows("group_norm", {}, p.out, want.data(), p.num_tokens, width, p.out_stride, kFloatTolerance);
  }

  void logit_stats(const LogitStatsParams& p) override {
    std::vector<LogitStats> want(static_cast<size_t>(p.num_rows));
    reference_->logit_stats({p.logits, p.num_rows, p.vocab_size, want.data()});
    backend_.logit_stats(p);
    ++num_checked_;
    for (int64_t row = 0; row < p.num_rows; ++row) {
      const LogitStats& expected = want[static_cast<size_t>(row)];
      require("logit_stats", {}, row, 0, p.out[row].max, static_cast<double>(expected.max), 0.0);
      require("logit_stats", {}, row, 0, static_cast<float>(p.out[row].argmax), expected.argmax, 0.0);
      require("logit_stats", {}, row, 0, p.out[row].log_sum, static_cast<double>(expected.log_sum), kFloatTolerance);
    }
  }

 private:
  static std::string type_of(const PackedWeight& weight) { return std::string(dtype_name(weight.dtype())); }

  // The reference first: it reads what the op may write over.
  template <class Params, class Run>
  void compare(const char* op, const Params& params, float* Params::*out, int64_t num_rows, int64_t width,
               double tolerance, const Run& run, const std::string& type = {}) {
    std::vector<float> want(params.*out, params.*out + num_rows * width);
    Params copy = params;
    copy.*out = want.data();
    run(*reference_, copy);
    run(backend_, params);
    ++num_checked_;
    require_rows(op, type, params.*out, want.data(), num_rows, width, width, tolerance);
  }

  // The same with states, of which the op's part is `state_size`.
  template <class Params, class Run>
  void compare_stateful(const char* op, const Params& params, int64_t width, int64_t state_size, const Run& run) {
    const int64_t num_rows = params.rows.query_start[params.rows.num_seqs];
    std::vector<float> want(static_cast<size_t>(num_rows * width));
    StateCopies copies(params.rows, state_size);
    Params copy = params;
    copies.put(copy.rows);
    copy.out = want.data();
    copy.out_stride = width;
    run(*reference_, copy);
    run(backend_, params);
    ++num_checked_;
    require_rows(op, {}, params.out, want.data(), num_rows, width, params.out_stride, kFloatTolerance);
    require_states(op, params.rows, copies);
  }

  void require_states(const char* op, const StateRows& rows, const StateCopies& copies) {
    for (int32_t i = 0; i < rows.num_seqs; ++i) {
      require_rows(op, {}, rows.states[i] + rows.offset, copies.states[static_cast<size_t>(i)] + rows.offset, 1,
                   copies.size, copies.size, kFloatTolerance);
    }
  }

  void require_rows(const char* op, const std::string& type, const float* got, const float* want, int64_t num_rows,
                    int64_t width, int64_t got_stride, double tolerance) {
    for (int64_t row = 0; row < num_rows && difference_.ok(); ++row) {
      double largest = 0.0;
      for (int64_t i = 0; i < width; ++i) {
        const double size = std::fabs(static_cast<double>(want[row * width + i]));
        if (std::isfinite(size)) largest = std::max(largest, size);
      }
      for (int64_t i = 0; i < width; ++i) {
        require(op, type, row, i, got[row * got_stride + i], static_cast<double>(want[row * width + i]),
                tolerance * largest + 1e-30);
      }
    }
  }

  void require(const char* op, const std::string& type, int64_t row, int64_t column, float got, double want,
               double bound) {
    if (!difference_.ok()) return;
    const auto value = static_cast<double>(got);
    if (std::fabs(value - want) <= bound || value == want || (std::isnan(value) && std::isnan(want))) return;
    difference_ = internal_error(op,
                                 "{}{}{} gives {:.9g} in row {}, column {}, where the reference gives {:.9g}: this "
                                 "machine does not compute the op as it should",
                                 backend_.name(), type.empty() ? "" : " for ", type, value, row, column, want);
  }

  Backend& backend_;
  const std::unique_ptr<Backend> reference_;
  Status difference_;
  int64_t num_checked_ = 0;
};

}  // namespace

std::unique_ptr<CheckingBackend> make_checking_backend(Backend& backend) { return std::make_unique<Checking>(backend); }

}  // namespace headrace
