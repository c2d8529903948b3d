#include "cpu/packed_quantized_layout.h"

#include <array>
#include <cstring>

#include "tensor/block_formats.h"

namespace headrace {
namespace {

struct Field {
  int16_t offset;    // in the file block
  int16_t elements;  // interleaved each over the rows
  int16_t bytes;     // of an element
};

// What the packer knows of a format beside its QuantizedLayout.
struct Packing {
  std::array<Field, 3> fields;  // unused ones have no elements
  int high_bits;                // 0, 1, 2
  int low_bits;                 // 2, 4, 8
  void (*read_codes)(const uint8_t* block, uint8_t* codes);
  void (*write_codes)(const uint8_t* codes, uint8_t* block);
};

template <class Block>
const Block& as(const uint8_t* block) {
  return *reinterpret_cast<const Block*>(block);  // packed, alignment 1
}
template <class Block>
Block& as(uint8_t* block) {
  return *reinterpret_cast<Block*>(block);
}

// Sixteen bytes of nibbles: elements 0..15 low, 16..31 high.
void read_nibbles(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = qs[j] & 15;
    codes[j + 16] = qs[j] >> 4;
  }
}
void write_nibbles(const uint8_t* codes, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) {
    qs[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] << 4));
  }
}

template <class Block>
void read_four(const uint8_t* block, uint8_t* codes) {
  read_nibbles(as<Block>(block).qs, codes);
}
template <class Block>
void write_four(const uint8_t* codes, uint8_t* block) {
  write_nibbles(codes, as<Block>(block).qs);
}

template <class Block>
void read_five(const uint8_t* block, uint8_t* codes) {
  read_nibbles(as<Block>(block).qs, codes);
  const uint32_t high = as<Block>(block).qh;
  for (int e = 0; e < 32; ++e) codes[e] = static_cast<uint8_t>(codes[e] | ((high >> e) & 1) << 4);
}
template <class Block>
void write_five(const uint8_t* codes, uint8_t* block) {
  write_nibbles(codes, as<Block>(block).qs);
  uint32_t high = 0;
  for (int e = 0; e < 32; ++e) high |= static_cast<uint32_t>(codes[e] >> 4) << e;
  as<Block>(block).qh = high;
}

// Blocks of 32 elements, each with nibbles as Q4_0.
template <int kGroup>
void read_int4(const uint8_t* block, uint8_t* codes) {
  for (int e = 0; e < kGroup; e += 32) read_nibbles(as<BlockInt4<kGroup>>(block).qs + e / 2, codes + e);
}
template <int kGroup>
void write_int4(const uint8_t* codes, uint8_t* block) {
  for (int e = 0; e < kGroup; e += 32) write_nibbles(codes + e, as<BlockInt4<kGroup>>(block).qs + e / 2);
}
template <int kGroup>
void read_int8(const uint8_t* block, uint8_t* codes) {
  std::memcpy(codes, as<BlockInt8<kGroup>>(block).qs, kGroup);
}
template <int kGroup>
void write_int8(const uint8_t* codes, uint8_t* block) {
  std::memcpy(as<BlockInt8<kGroup>>(block).qs, codes, kGroup);
}

// Runs of 16 elements: eight bytes, the first eight elements low.
template <class Block>
void read_nvfp4(const uint8_t* block, uint8_t* codes) {
  for (int e = 0; e < 64; ++e) codes[e] = (as<Block>(block).qs[e / 16 * 8 + e % 8] >> (e % 16 / 8 * 4)) & 15;
}
template <class Block>
void write_nvfp4(const uint8_t* codes, uint8_t* block) {
  for (int j = 0; j < 32; ++j) {
    const uint8_t* from = codes + j / 8 * 16 + j % 8;
    as<Block>(block).qs[j] = static_cast<uint8_t>((from[0] & 15) | (from[8] << 4));
  }
}

void read_eight(const uint8_t* block, uint8_t* codes) { std::memcpy(codes, as<BlockQ8_0>(block).qs, 32); }
void write_eight(const uint8_t* codes, uint8_t* block) { std::memcpy(as<BlockQ8_0>(block).qs, codes, 32); }

void read_xs(const uint8_t* block, uint8_t* codes) {
  for (int sub = 0; sub < 8; ++sub) read_nibbles(as<BlockIQ4_XS>(block).qs + 16 * sub, codes + 32 * sub);
}
void write_xs(const uint8_t* codes, uint8_t* block) {
  for (int sub = 0; sub < 8; ++sub) write_nibbles(codes + 32 * sub, as<BlockIQ4_XS>(block).qs + 16 * sub);
}

// Q4_K, Q5_K: 64 elements share 32 bytes.
void read_k_nibbles(const uint8_t* qs, uint8_t* codes) {
  for (int c = 0; c < 4; ++c) {
    for (int l = 0; l < 32; ++l) {
      codes[64 * c + l] = qs[32 * c + l] & 15;
      codes[64 * c + 32 + l] = qs[32 * c + l] >> 4;
    }
  }
}
void write_k_nibbles(const uint8_t* codes, uint8_t* qs) {
  for (int c = 0; c < 4; ++c) {
    for (int l = 0; l < 32; ++l) {
      qs[32 * c + l] = static_cast<uint8_t>((codes[64 * c + l] & 15) | (codes[64 * c + 32 + l] << 4));
    }
  }
}
void read_q4k(const uint8_t* block, uint8_t* codes) { read_k_nibbles(as<BlockQ4_K>(block).qs, codes); }
void write_q4k(const uint8_t* codes, uint8_t* block) { write_k_nibbles(codes, as<BlockQ4_K>(block).qs); }

void read_q5k(const uint8_t* block, uint8_t* codes) {
  const BlockQ5_K& b = as<BlockQ5_K>(block);
  read_k_nibbles(b.qs, codes);
  for (int sub = 0; sub < 8; ++sub) {
    for (int l = 0; l < 32; ++l) {
      codes[32 * sub + l] = static_cast<uint8_t>(codes[32 * sub + l] | ((b.qh[l] >> sub) & 1) << 4);
    }
  }
}
void write_q5k(const uint8_t* codes, uint8_t* block) {
  BlockQ5_K& b = as<BlockQ5_K>(block);
  write_k_nibbles(codes, b.qs);
  for (int l = 0; l < 32; ++l) {
    int high = 0;
    for (int sub = 0; sub < 8; ++sub) high |= (codes[32 * sub + l] >> 4) << sub;
    b.qh[l] = static_cast<uint8_t>(high);
  }
}

// Q2_K, Q3_K: 128 elements share 32 bytes.
void read_twos(const uint8_t* qs, uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int r = 0; r < 4; ++r) {
      for (int l = 0; l < 32; ++l) codes[128 * half + 32 * r + l] = (qs[32 * half + l] >> (2 * r)) & 3;
    }
  }
}
void write_twos(const uint8_t* codes, uint8_t* qs) {
  for (int half = 0; half < 2; ++half) {
    for (int l = 0; l < 32; ++l) {
      int packed = 0;
      for (int r = 0; r < 4; ++r) packed |= (codes[128 * half + 32 * r + l] & 3) << (2 * r);
      qs[32 * half + l] = static_cast<uint8_t>(packed);
    }
  }
}
void read_q2k(const uint8_t* block, uint8_t* codes) { read_twos(as<BlockQ2_K>(block).qs, codes); }
void write_q2k(const uint8_t* codes, uint8_t* block) { write_twos(codes, as<BlockQ2_K>(block).qs); }

void read_q3k(const uint8_t* block, uint8_t* codes) {
  const BlockQ3_K& b = as<BlockQ3_K>(block);
  read_twos(b.qs, codes);
  for (int run = 0; run < 8; ++run) {
    for (int l = 0; l < 32; ++l) {
      codes[32 * run + l] = static_cast<uint8_t>(codes[32 * run + l] | ((b.hmask[l] >> run) & 1) << 2);
    }
  }
}
void write_q3k(const uint8_t* codes, uint8_t* block) {
  BlockQ3_K& b = as<BlockQ3_K>(block);
  write_twos(codes, b.qs);
  for (int l = 0; l < 32; ++l) {
    int high = 0;
    for (int run = 0; run < 8; ++run) high |= (codes[32 * run + l] >> 2) << run;
    b.hmask[l] = static_cast<uint8_t>(high);
  }
}

void read_q6k(const uint8_t* block, uint8_t* codes) {
  const BlockQ6_K& b = as<BlockQ6_K>(block);
  for (int half = 0; half < 2; ++half) {
    for (int r = 0; r < 4; ++r) {
      for (int l = 0; l < 32; ++l) {
        const int low = (b.ql[64 * half + 32 * (r & 1) + l] >> (4 * (r >> 1))) & 15;
        const int high = (b.qh[32 * half + l] >> (2 * r)) & 3;
        codes[128 * half + 32 * r + l] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }
}
void write_q6k(const uint8_t* codes, uint8_t* block) {
  BlockQ6_K& b = as<BlockQ6_K>(block);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* from = codes + 128 * half;
    for (int l = 0; l < 32; ++l) {
      b.ql[64 * half + l] = static_cast<uint8_t>((from[l] & 15) | (from[64 + l] << 4));
      b.ql[64 * half + 32 + l] = static_cast<uint8_t>((from[32 + l] & 15) | (from[96 + l] << 4));
      b.qh[32 * half + l] = static_cast<uint8_t>((from[l] >> 4) | ((from[32 + l] >> 4) << 2) |
                                                 ((from[64 + l] >> 4) << 4) | ((from[96 + l] >> 4) << 6));
    }
  }
}

constexpr Field kNone = {0, 0, 0};
constexpr Field kD = {0, 1, 2};  // a float16 at the block's start
constexpr Field kFloatD = {0, 1, 4};
constexpr Field kByteZero = {4, 1, 1}, kShortZero = {4, 1, 2};

#define OFFSET(Block, field) static_cast<int16_t>(offsetof(Block, field))
// Indexed by RecordFormat.
constexpr Packing kPackings[] = {
    {{kD, kNone, kNone}, 0, 4, read_four<BlockQ4_0>, write_four<BlockQ4_0>},
    {{kD, {2, 1, 2}, kNone}, 0, 4, read_four<BlockQ4_1>, write_four<BlockQ4_1>},
    {{kD, kNone, kNone}, 1, 4, read_five<BlockQ5_0>, write_five<BlockQ5_0>},
    {{kD, {2, 1, 2}, kNone}, 1, 4, read_five<BlockQ5_1>, write_five<BlockQ5_1>},
    {{kD, kNone, kNone}, 0, 8, read_eight, write_eight},
    {{Field{OFFSET(BlockQ2_K, d), 1, 2}, {OFFSET(BlockQ2_K, dmin), 1, 2}, {OFFSET(BlockQ2_K, scales), 16, 1}},
     0,
     2,
     read_q2k,
     write_q2k},
    {{Field{OFFSET(BlockQ3_K, d), 1, 2}, {OFFSET(BlockQ3_K, scales), 12, 1}, kNone}, 1, 2, read_q3k, write_q3k},
    {{kD, {OFFSET(BlockQ4_K, dmin), 1, 2}, {OFFSET(BlockQ4_K, scales), 12, 1}}, 0, 4, read_q4k, write_q4k},
    {{kD, {OFFSET(BlockQ5_K, dmin), 1, 2}, {OFFSET(BlockQ5_K, scales), 12, 1}}, 1, 4, read_q5k, write_q5k},
    {{Field{OFFSET(BlockQ6_K, d), 1, 2}, {OFFSET(BlockQ6_K, scales), 16, 1}, kNone}, 2, 4, read_q6k, write_q6k},
    {{kD, kNone, kNone}, 0, 4, read_four<BlockIQ4_NL>, write_four<BlockIQ4_NL>},
    {{kD, {OFFSET(BlockIQ4_XS, scales_h), 1, 2}, {OFFSET(BlockIQ4_XS, scales_l), 4, 1}}, 0, 4, read_xs, write_xs},
    {{Field{0, 1, 1}, kNone, kNone}, 0, 4, read_four<BlockMXFP4>, write_four<BlockMXFP4>},
    {{kFloatD, kByteZero, kNone}, 0, 4, read_int4<32>, write_int4<32>},
    {{kFloatD, kByteZero, kNone}, 0, 4, read_int4<128>, write_int4<128>},
    {{kFloatD, kShortZero, kNone}, 0, 8, read_int8<32>, write_int8<32>},
    {{kFloatD, kShortZero, kNone}, 0, 8, read_int8<128>, write_int8<128>},
    {{Field{0, 4, 1}, kNone, kNone}, 0, 4, read_nvfp4<BlockNVFP4>, write_nvfp4<BlockNVFP4>},
    {{kFloatD, {4, 4, 1}, kNone}, 0, 4, read_nvfp4<BlockScaledNvfp4>, write_nvfp4<BlockScaledNvfp4>},
};
#undef OFFSET
static_assert(std::size(kPackings) == static_cast<size_t>(RecordFormat::kBlocks));

constexpr uint32_t kEach = 0x01010101;  // the same bits of four codes

// The planes of one row's 32 codes; position: the row's four bytes in each 64. Returns the bytes of all rows' planes.
int64_t write_planes(const Packing& packing, const uint8_t* codes, uint8_t* position) {
  uint32_t groups[8];  // four codes each
  std::memcpy(groups, codes, sizeof groups);
  uint8_t* to = position;
  const auto put = [&](uint32_t word) {
    std::memcpy(to, &word, sizeof word);
    to += 64;
  };
  if (packing.high_bits == 1) {
    const int shift = packing.low_bits;
    uint32_t word = 0;
    for (int g = 0; g < 8; ++g) word |= ((groups[g] >> shift) & kEach) << g;
    put(word);
  } else if (packing.high_bits == 2) {
    for (int h = 0; h < 2; ++h) {
      uint32_t word = 0;
      for (int q = 0; q < 4; ++q) word |= ((groups[4 * h + q] >> 4) & (3 * kEach)) << (2 * q);
      put(word);
    }
  }
  switch (packing.low_bits) {
    case 2:
      for (int h = 0; h < 2; ++h) {
        uint32_t word = 0;
        for (int q = 0; q < 4; ++q) word |= (groups[4 * h + q] & (3 * kEach)) << (2 * q);
        put(word);
      }
      break;
    case 4:
      for (int p = 0; p < 4; ++p) put((groups[p] & (15 * kEach)) | (groups[p + 4] & (15 * kEach)) << 4);
      break;
    default:
      for (uint32_t group : groups) put(group);
  }
  return to - position;
}

int64_t read_planes(const Packing& packing, const uint8_t* position, uint8_t* codes) {
  uint32_t groups[8] = {};
  const uint8_t* from = position;
  const auto get = [&] {
    uint32_t word;
    std::memcpy(&word, from, sizeof word);
    from += 64;
    return word;
  };
  if (packing.high_bits == 1) {
    const uint32_t word = get();
    for (int g = 0; g < 8; ++g) groups[g] = ((word >> g) & kEach) << packing.low_bits;
  } else if (packing.high_bits == 2) {
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = get();
      for (int q = 0; q < 4; ++q) groups[4 * h + q] = ((word >> (2 * q)) & (3 * kEach)) << 4;
    }
  }
  switch (packing.low_bits) {
    case 2:
      for (int h = 0; h < 2; ++h) {
        const uint32_t word = get();
        for (int q = 0; q < 4; ++q) groups[4 * h + q] |= (word >> (2 * q)) & (3 * kEach);
      }
      break;
    case 4:
      for (int p = 0; p < 4; ++p) {
        const uint32_t word = get();
        groups[p] |= word & (15 * kEach);
        groups[p + 4] |= (word >> 4) & (15 * kEach);
      }
      break;
    default:
      for (uint32_t& group : groups) group = get();
  }
  std::memcpy(codes, groups, sizeof groups);
  return from - position;
}

const Packing& packing_of(const QuantizedLayout& layout) { return kPackings[static_cast<size_t>(layout.format)]; }

struct FormatRow {
  DType dtype;
  RecordFormat format;
  ScaleKind scale;
  CodeKind code;
  int offset_shift;
};

constexpr FormatRow kFormats[] = {
    {DType::kQ4_0, RecordFormat::kQ4_0, ScaleKind::kOne, CodeKind::kUpTo15, 3},
    {DType::kQ4_1, RecordFormat::kQ4_1, ScaleKind::kOneMin, CodeKind::kUpTo15, -1},
    {DType::kQ5_0, RecordFormat::kQ5_0, ScaleKind::kOne, CodeKind::kUpTo31, 4},
    {DType::kQ5_1, RecordFormat::kQ5_1, ScaleKind::kOneMin, CodeKind::kUpTo31, -1},
    {DType::kQ8_0, RecordFormat::kQ8_0, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kQ2_K, RecordFormat::kQ2_K, ScaleKind::kTwoMin, CodeKind::kUpTo15, -1},
    {DType::kQ3_K, RecordFormat::kQ3_K, ScaleKind::kTwo, CodeKind::kUpTo15, 2},
    {DType::kQ4_K, RecordFormat::kQ4_K, ScaleKind::kOneMin, CodeKind::kUpTo15, -1},
    {DType::kQ5_K, RecordFormat::kQ5_K, ScaleKind::kOneMin, CodeKind::kUpTo31, -1},
    {DType::kQ6_K, RecordFormat::kQ6_K, ScaleKind::kTwo, CodeKind::kUpTo63, 5},
    {DType::kIQ4_NL, RecordFormat::kIQ4_NL, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kIQ4_XS, RecordFormat::kIQ4_XS, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kMXFP4, RecordFormat::kMXFP4, ScaleKind::kOne, CodeKind::kUpTo31, 4},
    {DType::kINT4_G32, RecordFormat::kINT4_G32, ScaleKind::kOneMin, CodeKind::kUpTo15, -1},
    {DType::kINT4_G128, RecordFormat::kINT4_G128, ScaleKind::kOneMin, CodeKind::kUpTo15, -1},
    {DType::kINT8_G32, RecordFormat::kINT8_G32, ScaleKind::kOneMinSigned, CodeKind::kSigned8, -1},
    {DType::kINT8_G128, RecordFormat::kINT8_G128, ScaleKind::kOneMinSigned, CodeKind::kSigned8, -1},
    {DType::kNVFP4, RecordFormat::kNVFP4, ScaleKind::kTwo, CodeKind::kSigned8, -1},
    {DType::kNVFP4_G64, RecordFormat::kNVFP4_G64, ScaleKind::kTwo, CodeKind::kSigned8, -1},
    // File blocks, unpacked to signed bytes.
    {DType::kQ1_0, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kQ2_0, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kQ8_1, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kQ8_K, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kIQ1_S, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kIQ1_M, RecordFormat::kBlocks, ScaleKind::kTwo, CodeKind::kSigned8, -1},
    {DType::kIQ2_XXS, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kIQ2_XS, RecordFormat::kBlocks, ScaleKind::kTwo, CodeKind::kSigned8, -1},
    {DType::kIQ2_S, RecordFormat::kBlocks, ScaleKind::kTwo, CodeKind::kSigned8, -1},
    {DType::kIQ3_XXS, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kIQ3_S, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kTQ1_0, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
    {DType::kTQ2_0, RecordFormat::kBlocks, ScaleKind::kOne, CodeKind::kSigned8, -1},
};

QuantizedLayout make_layout(const FormatRow& row) {
  const DTypeInfo& info = dtype_info(row.dtype);
  return {row.format,
          row.scale,
          row.code,
          row.offset_shift,
          info.block_size / kQuantBlock,
          static_cast<int64_t>(info.block_bytes) * kStripRows,
          info.block_bytes,
          file_block_unpacker(row.dtype)};
}

}  // namespace

bool unpacks_in_registers(RecordFormat format) {
  return format != RecordFormat::kQ2_K && format != RecordFormat::kQ3_K && format != RecordFormat::kBlocks;
}

const QuantizedLayout* quantized_layout(DType dtype) {
  static const auto layouts = [] {
    std::array<QuantizedLayout, std::size(kFormats)> all{};
    for (size_t i = 0; i < all.size(); ++i) all[i] = make_layout(kFormats[i]);
    return all;
  }();
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (kFormats[i].dtype == dtype) return &layouts[i];
  }
  return nullptr;
}

void pack_record(const QuantizedLayout& layout, const uint8_t* rows, int64_t row_stride, int64_t num_rows,
                 uint8_t* record) {
  if (num_rows < kStripRows) std::memset(record, 0, static_cast<size_t>(layout.record_bytes));
  if (layout.format == RecordFormat::kBlocks) {
    for (int64_t row = 0; row < num_rows; ++row) {
      std::memcpy(record + row * layout.file_block_bytes, rows + row * row_stride,
                  static_cast<size_t>(layout.file_block_bytes));
    }
    return;
  }
  const Packing& packing = packing_of(layout);
  for (int64_t row = 0; row < num_rows; ++row) {
    const uint8_t* block = rows + row * row_stride;
    uint8_t* to = record;
    for (const Field& field : packing.fields) {
      for (int e = 0; e < field.elements; ++e, to += field.bytes * kStripRows) {
        std::memcpy(to + row * field.bytes, block + field.offset + e * field.bytes, static_cast<size_t>(field.bytes));
      }
    }
    uint8_t codes[256];
    packing.read_codes(block, codes);
    to += 4 * row;
    for (int b = 0; b < layout.record_blocks; ++b) to += write_planes(packing, codes + kQuantBlock * b, to);
  }
}

void extract_block(const QuantizedLayout& layout, const uint8_t* record, int row, uint8_t* block) {
  if (layout.format == RecordFormat::kBlocks) {
    std::memcpy(block, record + row * layout.file_block_bytes, static_cast<size_t>(layout.file_block_bytes));
    return;
  }
  const Packing& packing = packing_of(layout);
  const uint8_t* from = record;
  for (const Field& field : packing.fields) {
    for (int e = 0; e < field.elements; ++e, from += field.bytes * kStripRows) {
      std::memcpy(block + field.offset + e * field.bytes, from + row * field.bytes, static_cast<size_t>(field.bytes));
    }
  }
  uint8_t codes[256];
  from += 4 * row;
  for (int b = 0; b < layout.record_blocks; ++b) from += read_planes(packing, from, codes + kQuantBlock * b);
  packing.write_codes(codes, block);
}

}  // namespace headrace
