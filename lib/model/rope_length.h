// Rotations that depend on how long a sequence is. A sequence's is chosen once, when its prompt is known, and names itself by a
// length: keys of different ones do not go together, so a sequence that outgrows its own is computed anew with another.
// Reference: transformers modeling_rope_utils.py (dynamic_rope_update), whose forward over a prompt rotates by its length.
#pragma once

#include <cstdint>
#include <span>

#include "model/model_spec.h"

namespace headrace {

// The rotation of a prompt of `length` tokens: 0 where no layer's depends on it, or all are within their short_length; the
// length itself for dynamic NTK; for LongRoPE alone the shortest length that rotates alike.
int64_t rope_length(const ModelSpec& spec, int64_t length);
// Tokens up to which a sequence of that rotation keeps it. Past short_length dynamic NTK serves up to the next multiple of it:
// a longer sequence takes the rotation of its length then.
int64_t longest_of_rope_length(const ModelSpec& spec, int64_t rope_length);
// The longest sequence that the model takes: what the file claims, or no bound worth the name for dynamic NTK, which has none.
int64_t longest_sequence(const ModelSpec& spec);

// Pairs of the widest layer that dynamic NTK turns; 0: none does.
int64_t most_dynamic_pairs(const ModelSpec& spec);
// The frequencies [rotary_dim / 2] of one layer; `scratch`, at least as wide, holds those that are computed.
std::span<const float> rope_frequencies(const RopeSpec& rope, int64_t rope_length, std::span<float> scratch);

}  // namespace headrace
