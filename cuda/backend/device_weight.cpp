#include "backend/device_weight.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace headrace::cuda {
namespace {

constexpr size_t kPieceBytes = size_t{32} << 20;  // of the file, read at a time

bool is_wide_enough(const WeightSource& source) {
  return source.cols % (source.dtype == DType::kQ8_0 ? kLinearColumns : 8) == 0;
}

FloatType type_of(const WeightSource& source, const PackOptions& options) {
  if (decodes_to_float(options) || !is_wide_enough(source)) return FloatType::kF32;
  return source.dtype == DType::kF16    ? FloatType::kF16
         : source.dtype == DType::kBF16 ? FloatType::kBF16
                                        : FloatType::kF32;
}

// Calls function(first row, rows, bytes) with runs of rows.
template <class Function>
Status for_pieces(const WeightSource& source, int64_t multiple, const Function& function) {
  const auto row = static_cast<size_t>(*row_bytes(source.dtype, static_cast<uint64_t>(source.cols)));
  const int64_t most = std::max<int64_t>(static_cast<int64_t>(kPieceBytes / row) / multiple, 1) * multiple;
  std::vector<std::byte> bytes;
  for (int64_t first = 0; first < source.rows; first += most) {
    const int64_t rows = std::min(most, source.rows - first);
    bytes.resize(static_cast<size_t>(rows) * row);
    if (Status status = source.read(static_cast<size_t>(first) * row, bytes); !status.ok()) {
      return status.within(source.name);
    }
    HEADRACE_RETURN_IF_ERROR(function(first, rows, std::as_const(bytes)));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<PackedWeight>> DeviceWeight::pack(const WeightSource& source, const PackOptions& options,
                                                         std::shared_ptr<DeviceStream> device) {
  if (source.rows <= 0 || source.cols <= 0) {
    return invalid_argument(source.name, "shape [{}, {}] is empty", source.rows, source.cols);
  }
  const auto row = row_bytes(source.dtype, static_cast<uint64_t>(source.cols));
  const auto floats = checked_mul<uint64_t>(static_cast<uint64_t>(source.rows), static_cast<uint64_t>(source.cols));
  const auto total = row ? checked_mul<uint64_t>(*row, static_cast<uint64_t>(source.rows)) : std::nullopt;
  if (!total || !floats || *floats > uint64_t{1} << 40) {
    return invalid_argument(source.name, "shape [{}, {}] of {} is not possible", source.rows, source.cols,
                            dtype_name(source.dtype));
  }
  std::unique_ptr<DeviceWeight> out(new DeviceWeight(source, std::move(device)));
  const bool decoded = decodes_to_float(options);
  const bool is_float = source.dtype == DType::kF32 || source.dtype == DType::kF16 || source.dtype == DType::kBF16;
  if (source.column_order != nullptr && is_float) {
    return internal_error(source.name, "{} columns come in another order", dtype_name(source.dtype));
  }
  out->is_q8_ = source.dtype == DType::kQ8_0 && !decoded && is_wide_enough(source) && source.column_order == nullptr;
  if (!is_float && source.dtype != DType::kQ8_0 && !decoded) {
    return unsupported(source.name,
                       "the CUDA backend has no products of {} weights; model.exact keeps them decoded in float32",
                       dtype_name(source.dtype));
  }
  out->type_ = type_of(source, options);
  try {
    HEADRACE_RETURN_IF_ERROR(out->is_q8_ ? out->load_q8(source) : out->load_floats(source));
  } catch (const std::bad_alloc&) {
    return out_of_memory(source.name, "not enough memory to read it");
  }
  return std::unique_ptr<PackedWeight>(std::move(out));
}

Status DeviceWeight::reserve(const std::string& name, size_t bytes) {
  data_ = DeviceBytes(device_, bytes);
  if (data_.data() == nullptr) return out_of_memory(name, "the device has no {} bytes left", bytes);
  return Status();
}

Status DeviceWeight::load_floats(const WeightSource& source) {
  const size_t element = float_bytes(type_), row = static_cast<size_t>(cols_) * element;
  HEADRACE_RETURN_IF_ERROR(reserve(source.name, static_cast<size_t>(rows_) * row));
  const bool as_stored = type_ != FloatType::kF32 || dtype_ == DType::kF32;
  std::vector<float> decoded, stored(source.column_order == nullptr ? 0 : static_cast<size_t>(cols_));
  return for_pieces(source, 1, [&](int64_t first, int64_t rows, const std::vector<std::byte>& bytes) -> Status {
    const void* from = bytes.data();
    if (!as_stored) {
      decoded.resize(static_cast<size_t>(rows * cols_));
      const size_t file_row = bytes.size() / static_cast<size_t>(rows);
      for (int64_t r = 0; r < rows; ++r) {
        float* const out = decoded.data() + r * cols_;
        float* const values = stored.empty() ? out : stored.data();
        const Status status = dequantize_row(dtype_, bytes.data() + static_cast<size_t>(r) * file_row, values, cols_);
        if (!status.ok()) return status.within(source.name);
        if (!stored.empty()) put_in_order(*source.column_order, values, out);
      }
      from = decoded.data();
    }
    device_->write(from, data_.data() + static_cast<size_t>(first) * row, static_cast<size_t>(rows) * row);
    return Status();
  });
}

Status DeviceWeight::load_q8(const WeightSource& source) {
  const auto scales = static_cast<size_t>(q8_padded_rows(rows_) * cols_ / 32);
  HEADRACE_RETURN_IF_ERROR(reserve(source.name, q8_codes() + scales * sizeof(uint16_t)));
  std::vector<uint8_t> codes;
  std::vector<uint16_t> of_rows;
  return for_pieces(source, 16, [&](int64_t first, int64_t rows, const std::vector<std::byte>& bytes) {
    codes.resize(static_cast<size_t>(q8_padded_rows(rows) * cols_));
    of_rows.resize(codes.size() / 32);
    pack_q8_0(bytes.data(), rows, cols_, codes.data(), of_rows.data());
    device_->write(codes.data(), data_.data() + first * cols_, codes.size());
    device_->write(of_rows.data(), data_.data() + q8_codes() + static_cast<size_t>(first * cols_ / 32) * 2,
                   of_rows.size() * sizeof(uint16_t));
    return Status();
  });
}

Q8Weight DeviceWeight::q8() const {
  return {reinterpret_cast<const uint8_t*>(data_.data()), reinterpret_cast<const uint16_t*>(data_.data() + q8_codes()),
          rows_, cols_};
}

void DeviceWeight::decode_row(int64_t row, float* out) const {
  if (is_q8_) {
    const auto size = static_cast<size_t>(16 * cols_);  // of the strip that the row is in
    std::vector<uint8_t> codes(size);
    std::vector<uint16_t> scales(size / 32);
    const size_t strip = static_cast<size_t>(row / 16) * size;
    device_->read(data_.data() + strip, codes.data(), size);
    device_->read(data_.data() + q8_codes() + strip / 32 * 2, scales.data(), scales.size() * 2);
    for (int64_t column = 0; column < cols_; ++column) {
      const float scale = half_to_float(scales[static_cast<size_t>(column / 32 * 16 + row % 16)]);
      out[column] = scale * static_cast<float>(codes[q8_code_at(cols_, row % 16, column)] - 128);
    }
    return;
  }
  const size_t bytes = static_cast<size_t>(cols_) * float_bytes(type_);
  std::vector<std::byte> stored(bytes);
  device_->read(data_.data() + static_cast<size_t>(row) * bytes, stored.data(), bytes);
  const DType dtype = type_ == FloatType::kF32 ? DType::kF32 : type_ == FloatType::kF16 ? DType::kF16 : DType::kBF16;
  static_cast<void>(dequantize_row(dtype, stored.data(), out, cols_));
}

}  // namespace headrace::cuda
