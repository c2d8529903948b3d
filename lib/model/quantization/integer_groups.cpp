#include "model/quantization/integer_groups.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tensor/block_formats.h"

namespace headrace {
namespace {

constexpr size_t kNarrow = 32, kWide = 128;

template <int kGroup>
void put(std::span<const uint8_t> codes, float scale, int32_t zero, BlockInt4<kGroup>& block) {
  block.d = scale;
  block.zero = static_cast<uint8_t>(zero);
  for (size_t e = 0; e < kGroup; e += 32) {
    for (size_t j = 0; j < 16; ++j) {
      block.qs[e / 2 + j] = static_cast<uint8_t>(codes[e + j] | (codes[e + j + 16] << 4));
    }
  }
}

template <int kGroup>
void put(std::span<const uint8_t> codes, float scale, int32_t zero, BlockInt8<kGroup>& block) {
  block.d = scale;
  block.zero = static_cast<int16_t>(zero);
  std::memcpy(block.qs, codes.data(), kGroup);
}

template <class Block>
void put_all(const IntegerGroups& groups, std::span<const uint8_t> codes, const float* scales, const int32_t* zeros,
             std::byte* out) {
  const size_t width = groups.block_size();
  for (const uint32_t group : groups.group_of_block) {
    Block block;
    put(codes, scales[group], zeros[group], block);
    std::memcpy(out, &block, sizeof block);
    codes = codes.subspan(width);
    out += sizeof block;
  }
}

}  // namespace

Result<IntegerGroups> divide_columns(const std::string& place, int bits, std::span<const int32_t> group_of_column) {
  const size_t cols = group_of_column.size();
  std::vector<int32_t> order(cols);
  std::iota(order.begin(), order.end(), 0);
  const auto group = [&](int32_t column) { return group_of_column[static_cast<size_t>(column)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return group(a) < group(b); });
  const auto divides = [&](size_t width) {
    if (cols == 0 || cols % width != 0) return false;
    for (size_t j = 0; j < cols; j += width) {
      if (group(order[j]) != group(order[j + width - 1])) return false;
    }
    return true;
  };
  const bool wide = divides(kWide);
  if (!wide && !divides(kNarrow)) {
    return unsupported(place, "its groups of {} columns are no whole blocks of {}", cols, kNarrow);
  }
  IntegerGroups out;
  out.dtype = bits == 4 ? (wide ? DType::kINT4_G128 : DType::kINT4_G32) : (wide ? DType::kINT8_G128 : DType::kINT8_G32);
  for (size_t j = 0; j < cols; j += wide ? kWide : kNarrow) {
    out.group_of_block.push_back(static_cast<uint32_t>(group(order[j])));
  }
  if (!std::is_sorted(order.begin(), order.end())) {
    out.column_order = std::make_shared<const std::vector<int32_t>>(std::move(order));
  }
  return out;
}

Result<IntegerGroups> divide_columns(const std::string& place, int bits, uint64_t cols, uint64_t group_size) {
  std::vector<int32_t> group_of_column(cols);
  for (size_t k = 0; k < cols; ++k) group_of_column[k] = static_cast<int32_t>(k / group_size);
  return divide_columns(place, bits, group_of_column);
}

void write_row(const IntegerGroups& groups, std::span<const uint8_t> codes, const float* scales, const int32_t* zeros,
               std::byte* out) {
  switch (groups.dtype) {
    case DType::kINT4_G32: return put_all<BlockInt4<32>>(groups, codes, scales, zeros, out);
    case DType::kINT4_G128: return put_all<BlockInt4<128>>(groups, codes, scales, zeros, out);
    case DType::kINT8_G32: return put_all<BlockInt8<32>>(groups, codes, scales, zeros, out);
    default: return put_all<BlockInt8<128>>(groups, codes, scales, zeros, out);
  }
}

}  // namespace headrace
