// What a decoder's layers see of an encoder's output: keys and values of its rows, one part for each layer with
// cross-attention.
#pragma once

#include <cstdint>
#include <memory>

#include "kv/kv_cache.h"

namespace headrace {

// Belongs to one request, whose samples share it; immutable once made. Movable.
struct EncoderMemory {
  std::shared_ptr<KvCache> cache;  // layouts as memory_layouts() gives them, and nothing else in it
  KvSequence rows;
  int32_t num_rows = 0;
};

}  // namespace headrace
