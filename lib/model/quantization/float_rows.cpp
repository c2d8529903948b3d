#include "model/quantization/float_rows.h"

#include <cmath>
#include <cstring>

#include "base/format_full.h"
#include "formats/text_quote.h"
#include "tensor/block_formats.h"
#include "tensor/half.h"

namespace headrace {
namespace {

constexpr uint8_t kE4m3Nan = 0x7f;

class Fp8Rows final : public DerivedRows {
 public:
  Fp8Rows(const QuantizedModules& modules, DType dtype, const TensorEntry& codes, const TensorEntry& scales,
          uint64_t block_rows, uint64_t block_cols)
      : file_(modules.file),
        dtype_(dtype),
        codes_(codes),
        scales_(scales),
        block_rows_(block_rows),
        block_cols_(block_cols) {}

  Status read(uint64_t first, uint64_t count, std::byte* out) const override {
    const uint64_t cols = codes_.shape[1], groups = (cols + block_cols_ - 1) / block_cols_;
    const auto width = static_cast<uint64_t>(dtype_info(dtype_).block_size);
    HEADRACE_ASSIGN_OR_RETURN(const auto codes, read_elements<uint8_t>(*file_, codes_, first * cols, count * cols));
    for (size_t i = 0; i < codes.size(); ++i) {
      if ((codes[i] & kE4m3Nan) != kE4m3Nan) continue;
      return malformed(quote_name(codes_.name), "element {} is not a number", first * cols + i);
    }
    std::vector<float> scales;
    for (uint64_t row = first; row < first + count; ++row) {
      if (row == first || row % block_rows_ == 0) {
        HEADRACE_ASSIGN_OR_RETURN(scales, read_floats(*file_, scales_, row / block_rows_ * groups, groups));
      }
      for (uint64_t k = 0; k < cols; k += width) {
        std::memcpy(out, &scales[k / block_cols_], sizeof(float));
        std::memcpy(out + sizeof(float), codes.data() + (row - first) * cols + k, width);
        out += sizeof(float) + width;
      }
    }
    return {};
  }

 private:
  std::shared_ptr<const TensorFile> file_;
  DType dtype_;
  const TensorEntry &codes_, &scales_;
  uint64_t block_rows_, block_cols_;
};

// The bytes of 2 * count nibbles, the first of a byte in its low half, as halves: element j low, j + count high.
void split_halves(const uint8_t* pairs, size_t count, uint8_t* halves) {
  const auto nibble = [&](size_t e) { return pairs[e / 2] >> (e % 2 * 4) & 15; };
  for (size_t j = 0; j < count; ++j) halves[j] = static_cast<uint8_t>(nibble(j) | nibble(j + count) << 4);
}

class Nvfp4Rows final : public DerivedRows {
 public:
  Nvfp4Rows(const QuantizedModules& modules, const TensorEntry& codes, const TensorEntry& scales, float factor)
      : file_(modules.file), codes_(codes), scales_(scales), factor_(factor) {}

  Status read(uint64_t first, uint64_t count, std::byte* out) const override {
    const uint64_t bytes = codes_.shape[1], groups = scales_.shape[1];
    HEADRACE_ASSIGN_OR_RETURN(const auto codes, read_elements<uint8_t>(*file_, codes_, first * bytes, count * bytes));
    HEADRACE_ASSIGN_OR_RETURN(const auto scales,
                              read_elements<uint8_t>(*file_, scales_, first * groups, count * groups));
    for (size_t i = 0; i < scales.size(); ++i) {
      if (scales[i] < kE4m3Nan) continue;
      return malformed(quote_name(scales_.name), "element {} is negative or not a number", first * groups + i);
    }
    for (size_t block = 0; block < scales.size() / 4; ++block) {
      BlockScaledNvfp4 to;
      to.scale = factor_;
      std::memcpy(to.d, scales.data() + 4 * block, sizeof to.d);
      for (size_t sub = 0; sub < 4; ++sub) split_halves(codes.data() + 32 * block + 8 * sub, 8, to.qs + 8 * sub);
      std::memcpy(out + block * sizeof to, &to, sizeof to);
    }
    return {};
  }

 private:
  std::shared_ptr<const TensorFile> file_;
  const TensorEntry &codes_, &scales_;
  float factor_;
};

class Mxfp4Rows final : public DerivedRows {
 public:
  Mxfp4Rows(const QuantizedModules& modules, const TensorEntry& codes, const TensorEntry& scales)
      : file_(modules.file), codes_(codes), scales_(scales) {}

  Status read(uint64_t first, uint64_t count, std::byte* out) const override {
    const uint64_t groups = scales_.shape.back(), bytes = 16 * groups;
    HEADRACE_ASSIGN_OR_RETURN(const auto codes, read_elements<uint8_t>(*file_, codes_, first * bytes, count * bytes));
    HEADRACE_ASSIGN_OR_RETURN(const auto scales,
                              read_elements<uint8_t>(*file_, scales_, first * groups, count * groups));
    for (size_t block = 0; block < scales.size(); ++block) {
      if (scales[block] == 0xff) {
        return malformed(quote_name(scales_.name), "element {} is not a number", first * groups + block);
      }
      BlockMXFP4 to;
      to.e = scales[block];
      split_halves(codes.data() + 16 * block, 16, to.qs);
      std::memcpy(out + block * sizeof to, &to, sizeof to);
    }
    return {};
  }

 private:
  std::shared_ptr<const TensorFile> file_;
  const TensorEntry &codes_, &scales_;
};

}  // namespace

Status add_fp8(QuantizedModules& modules, const std::string& module, const TensorEntry& codes,
               const TensorEntry& scales, uint64_t block_rows, uint64_t block_cols,
               std::initializer_list<std::string_view> suffixes) {
  if (codes.shape.size() != 2) return malformed(quote_name(codes.name), "is no matrix");
  const uint64_t rows = codes.shape[0], cols = codes.shape[1], count = *num_elements(scales.shape);
  if (rows == 0 || cols == 0) return malformed(quote_name(codes.name), "is empty");
  if (count == 1) {
    block_rows = rows;
    block_cols = cols;
  } else if (count == rows && scales.shape.front() == rows) {
    block_rows = 1;
    block_cols = cols;
  } else if (block_rows == 0) {
    return malformed(quote_name(scales.name), "shape [{}], expected one scale or {}", fmt::join(scales.shape, ", "),
                     rows);
  } else {
    HEADRACE_RETURN_IF_ERROR(
        expect_shape(scales, {(rows + block_rows - 1) / block_rows, (cols + block_cols - 1) / block_cols}));
  }
  const auto divides = [&](uint64_t width) {
    return cols % width == 0 && (block_cols == cols || block_cols % width == 0);
  };
  if (!divides(32)) {
    return unsupported(quote_name(codes.name), "{} columns in blocks of {} are no whole blocks of 32", cols,
                       block_cols);
  }
  const DType dtype = divides(128) ? DType::kFP8_G128 : DType::kFP8_G32;
  modules.add(module, dtype, codes.shape, suffixes,
              std::make_unique<Fp8Rows>(modules, dtype, codes, scales, block_rows, block_cols));
  return {};
}

Status add_nvfp4(QuantizedModules& modules, const std::string& module, const TensorEntry& codes,
                 const TensorEntry& scales, const TensorEntry& global, bool divides,
                 std::initializer_list<std::string_view> suffixes) {
  if (codes.shape.size() != 2) return malformed(quote_name(codes.name), "is no matrix");
  const uint64_t rows = codes.shape[0], cols = codes.shape[1] * 2;
  if (cols % 64 != 0) return unsupported(quote_name(codes.name), "{} columns are no whole blocks of 64", cols);
  HEADRACE_RETURN_IF_ERROR(expect_shape(scales, {rows, cols / 16}));
  if (*num_elements(global.shape) != 1) {
    return malformed(quote_name(global.name), "shape [{}], expected one element", fmt::join(global.shape, ", "));
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> factor, read_floats(*modules.file, global));
  if (!(factor[0] > 0.0f)) return malformed(quote_name(global.name), "{} is no scale", factor[0]);
  constexpr uint8_t kLargestScale = 0x7e;  // of UE4M3: 448
  if (!std::isfinite(scaled_ue4m3(kLargestScale, divides ? -factor[0] : factor[0]))) {
    return malformed(quote_name(global.name), "{} makes scales that are not finite", factor[0]);
  }
  modules.add(module, DType::kNVFP4_G64, {rows, cols}, suffixes,
              std::make_unique<Nvfp4Rows>(modules, codes, scales, divides ? -factor[0] : factor[0]));
  return {};
}

Status add_mxfp4(QuantizedModules& modules, const std::string& module, const TensorEntry& codes,
                 const TensorEntry& scales, std::initializer_list<std::string_view> suffixes) {
  if (scales.shape.empty()) return malformed(quote_name(scales.name), "is one number");
  std::vector<uint64_t> by_block = scales.shape, by_row = scales.shape, shape = scales.shape;
  by_block.push_back(16);
  by_row.back() *= 16;
  shape.back() *= 32;
  if (codes.shape != by_block && codes.shape != by_row) {
    return malformed(quote_name(codes.name), "shape [{}], its scales have [{}]", fmt::join(codes.shape, ", "),
                     fmt::join(scales.shape, ", "));
  }
  modules.add(module, DType::kMXFP4, std::move(shape), suffixes, std::make_unique<Mxfp4Rows>(modules, codes, scales));
  return {};
}

}  // namespace headrace
