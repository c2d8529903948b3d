// A weight in device memory.
#pragma once

#include <memory>

#include "backend/device_stream.h"
#include "kernels/float_type.h"
#include "kernels/linear_q8_0.h"
#include "ops/backend.h"

namespace headrace::cuda {

// float32, float16 and bfloat16 row by row as in the file; Q8_0 as kernels/linear_q8_0.h says. Other formats, those whose
// columns the matrix instructions do not take, and all with PackOptions' decoding, are kept in float32.
class DeviceWeight final : public PackedWeight {
 public:
  // kUnsupported for a format without a kernel, kOutOfMemory where the device has no room.
  static Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions& options,
                                                    std::shared_ptr<DeviceStream> device);

  DType dtype() const override { return dtype_; }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  uint64_t bytes() const override { return data_.size(); }
  void decode_row(int64_t row, float* out) const override;

  bool is_q8() const { return is_q8_; }
  FloatType type() const { return type_; }  // of others
  const std::byte* data() const { return data_.data(); }
  Q8Weight q8() const;

 private:
  DeviceWeight(const WeightSource& source, std::shared_ptr<DeviceStream> device)
      : dtype_(source.dtype), rows_(source.rows), cols_(source.cols), device_(std::move(device)) {}
  Status load_floats(const WeightSource& source);
  Status load_q8(const WeightSource& source);
  Status reserve(const std::string& name, size_t bytes);
  size_t q8_codes() const { return static_cast<size_t>(q8_padded_rows(rows_) * cols_); }

  DType dtype_;
  int64_t rows_, cols_;
  bool is_q8_ = false;
  FloatType type_ = FloatType::kF32;
  std::shared_ptr<DeviceStream> device_;
  DeviceBytes data_;
};

}  // namespace headrace::cuda
