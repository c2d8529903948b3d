// The op table every backend fills, and the weights it owns. The scalar reference in this folder is the specification;
// other backends are tested against it op by op.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/device_memory.h"
#include "base/shared_bytes.h"
#include "base/status.h"
#include "ops/backend_tuner.h"
#include "tensor/column_order.h"
#include "tensor/dtype.h"
#include "tensor/op_params.h"
#include "tensor/recurrent_params.h"
#include "tensor/router_params.h"
#include "tensor/stream_params.h"

namespace headrace {

// How linear layers of block-format weights see their inputs. Weights of F32, F16 and BF16, and those of FP8 and NF4,
// always meet float inputs.
enum class ActivationType : int32_t {
  kInt8,     // 8-bit codes, a scale per 32 values, and a second 8-bit term in a row's outlier blocks
  kInt16,    // 16-bit codes, a scale per 32 values
  kFloat32,  // weights decoded to float32, for measuring
};

// A weight on its way in: rows are read as the packer needs them, so that no second copy of the file is ever held.
struct WeightSource {
  std::string name;  // for errors
  DType dtype = DType::kF32;
  int64_t rows = 0;  // out_features
  int64_t cols = 0;  // in_features, a multiple of the dtype's block size
  // Fills bytes of the row-major tensor from byte_offset. May be called from several threads at once.
  std::function<Status(uint64_t byte_offset, std::span<std::byte> destination)> read;
  // Where not empty: what PackedWeight::packed() gave of the same weight, packed with the same options by a backend of
  // the same Backend::packed_layout(), at a multiple of 64. It is used in place, and nothing is read.
  SharedBytes packed = {};
  ColumnOrder column_order = {};  // of weights in block formats of whole numbers alone
};

struct PackOptions {
  ActivationType activations = ActivationType::kInt8;
  bool decode_to_float = false;  // keep the weight dequantized in float32 (`--exact`)
};

// Whether weights in block formats are kept decoded.
inline bool decodes_to_float(const PackOptions& options) {
  return options.decode_to_float || options.activations == ActivationType::kFloat32;
}

// A weight [rows, cols] in a backend's own order: the same integers and scales as the file, nothing rounded. Immutable,
// may be used by several threads.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  virtual DType dtype() const = 0;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual uint64_t bytes() const = 0;
  // out [cols] = the row in float32, bit-equal to dequantize_row of the file's bytes; column by column, whatever the order
  // in which they are stored.
  virtual void decode_row(int64_t row, float* out) const = 0;
  // Its bytes in the order that Backend::packed_layout() names; empty where that is.
  virtual std::span<const std::byte> packed() const { return {}; }
};

class OpProfile;

// What a model needs of an op beyond its plain form: "window", "head_dim"; empty for the plain form itself.
struct OpUse {
  std::string_view op;  // as Backend's function is called
  std::string_view feature = {};
  int64_t size = 0;  // of the feature, where it has one
};

// One device's ops. Thread rule: one op at a time per backend (it owns the thread pool); pack may not overlap ops.
// Rows are independent in every op: row t of the output is a function of row t of the inputs (and of its sequence's
// cache) alone, bit for bit, whatever the other rows, the number of threads or the number of rows.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  // "reference", "cpu/avx2", ...
  virtual int num_threads() const = 0;
  // Where the ops are recorded (ops/profiling_backend.h); null where they are not.
  virtual OpProfile* profile() const { return nullptr; }

  // Where the values of a model's steps and its cache belong; null: in the program's memory. Where it is not, an op's float
  // and cache pointers may be of either memory, and values in the program's are copied to the device and back.
  virtual std::shared_ptr<DeviceMemory> memory() const { return nullptr; }
  // kUnsupported, by the op's name, for what this backend cannot compute.
  virtual Status check_use(const OpUse& /*use*/) const { return Status(); }
  // Waits for the ops so far. Where one of them or of memory()'s calls failed, the first failure since the last call.
  virtual Status finish() { return Status(); }

  // kMalformed for source.packed of another size than the shape needs.
  virtual Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions& options) = 0;
  // The order of packed bytes, by name: equal names mean equal bytes, whatever the instruction set. Empty where packed
  // weights cannot be kept apart from the backend.
  virtual std::string_view packed_layout() const { return {}; }

  // Measures how products of these weights, which this backend packed, are computed best; kUnsupported where a backend
  // knows one way alone. kMalformed and kUnsupported with "table" in the place for a known table that is none or
  // another machine's.
  virtual Result<std::unique_ptr<BackendTuner>> make_tuner(std::span<const PackedWeight* const> /*weights*/,
                                                           const TuneRequest& /*request*/) {
    return unsupported("", "the backend {} has nothing to tune", name());
  }

  virtual void embed(const EmbedParams& params) = 0;
  virtual void rms_norm(const RmsNormParams& params) = 0;
  virtual void layer_norm(const LayerNormParams& params) = 0;
  virtual void linear(const LinearParams& params) = 0;
  virtual void gated_linear(const GatedLinearParams& params) = 0;
  virtual void rope_and_store_kv(const RopeStoreParams& params) = 0;
  virtual void paged_attention(const PagedAttentionParams& params) = 0;
  virtual void select_positions(const SelectPositionsParams& params) = 0;
  virtual void gated_activation(const GatedActivationParams& params) = 0;
  virtual void add(const AddParams& params) = 0;
  virtual void scale(const ScaleParams& params) = 0;
  virtual void softcap(const SoftcapParams& params) = 0;

  virtual void route(const RouteParams& params) = 0;
  virtual void experts(const ExpertsParams& params) = 0;
  virtual void head_linear(const HeadLinearParams& params) = 0;
  virtual void gate_rows(const GateRowsParams& params) = 0;

  virtual void mix_streams(const MixStreamsParams& params) = 0;
  virtual void stream_gates(const StreamGatesParams& params) = 0;
  virtual void match_magnitude(const MatchMagnitudeParams& params) = 0;
  virtual void cut_gates(const CutGatesParams& params) = 0;

  virtual void causal_conv(const CausalConvParams& params) = 0;
  virtual void pool_runs(const PoolRunsParams& params) = 0;
  virtual void selective_scan(const SelectiveScanParams& params) = 0;
  virtual void linear_recurrence(const LinearRecurrenceParams& params) = 0;
  virtual void decay_gates(const DecayGatesParams& params) = 0;
  virtual void group_norm(const GroupNormParams& params) = 0;
  virtual void logit_stats(const LogitStatsParams& params) = 0;
};

// The scalar reference of every op, one thread, no instruction set beyond the baseline: float64 accumulation where the
// contract leaves the order open.
std::unique_ptr<Backend> make_reference_backend();

}  // namespace headrace
