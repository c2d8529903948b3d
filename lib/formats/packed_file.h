// A model's packed weights as a file, to be mapped. Numbers are little-endian:
//
//   0   magic "HRPACKED"
//   8   format version u32
//   12  tensors u32
//   16  identity of what was packed u64 low, u64 high
//   32  bytes of the file u64
//   40  bytes of the table u64
//   48  XXH3-64 of the table
//   56  XXH3-64 of bytes 0..55
//   64  the table: the layout's name, then per tensor
//         name, type u32, rows u64, columns u64, offset u64, bytes u64, XXH3-64 of its bytes u64
//       (a name is its size u32, then its bytes)
//       each tensor's bytes, at a multiple of 64; zeros between and after them
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "base/hash.h"
#include "base/replace_file.h"
#include "base/status.h"
#include "tensor/dtype.h"

namespace headrace {

inline constexpr uint32_t kPackedFileVersion = 1;

struct PackedTensor {
  std::string name;
  DType dtype = DType::kF32;       // in the model's file
  uint64_t rows = 0, cols = 0;     // of the weight
  uint64_t offset = 0, bytes = 0;  // in the file: inside it, and the offset a multiple of 64
  uint64_t checksum = 0;
};

struct PackedFileHeader {
  Hash128 identity;
  std::string layout;  // Backend::packed_layout
  std::vector<PackedTensor> tensors;
};

// Whether a source begins as every version of these files does.
bool is_packed_file(ByteSource& source);

// Reads and checks all but the tensors' bytes. kMalformed for damage, kFailedPrecondition for another version.
Result<PackedFileHeader> read_packed_header(ByteSource& source);

// Writes a file whose tensors have these bytes, in order; offset, bytes and checksum of each are filled in. The first
// failure of `write` ends the writing and is returned.
Status write_packed_file(PackedFileHeader& header, std::span<const std::span<const std::byte>> contents,
                         const WriteBytes& write);

}  // namespace headrace
