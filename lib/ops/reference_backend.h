// Parts of the scalar reference that have files of their own.
#pragma once

#include "tensor/op_params.h"

namespace headrace {

// One stored key or value element of the cache, in float32: token `offset` of the block whose head starts at `head`.
float cached_key(const KvLayout& layout, const std::byte* head, int32_t offset, int32_t d);
float cached_value(const KvLayout& layout, const std::byte* head, int32_t offset, int32_t d);

void reference_rope_and_store_kv(const RopeStoreParams& params);
void reference_paged_attention(const PagedAttentionParams& params);

}  // namespace headrace
