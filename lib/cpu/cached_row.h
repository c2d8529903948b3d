// Where a row of a part of the cache lies that holds rows (KvContent::kRows).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/kv_layout.h"

namespace headrace {

struct CachedRow {
  const uint8_t* codes;
  const uint8_t* scales;  // of kQ8
};

// cache: the head's bytes in block 0. number: of a position or, with tokens_per_row, of a run of them.
inline CachedRow cached_row(const KvLayout& layout, const std::byte* cache, const int32_t* block_table,
                            int64_t number) {
  const int64_t token = layout.last_token(number), row = layout.row_of(token % layout.block_size);
  const auto* block = reinterpret_cast<const uint8_t*>(cache) +
                      static_cast<size_t>(block_table[token / layout.block_size]) * layout.block_bytes();
  return {block + static_cast<size_t>(row * layout.head_dim) * layout.element_bytes(),
          block + layout.code_bytes() + row * layout.scale_groups() * 2};
}

}  // namespace headrace
