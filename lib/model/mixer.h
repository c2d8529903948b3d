// What the kinds of recurrent layers have in common for the spec and the forward pass: checks, sizes, words.
#pragma once

#include <algorithm>
#include <string>

#include "base/status.h"
#include "model/recurrent_spec.h"
#include "tensor/recurrent_params.h"

namespace headrace {

class JsonWriter;

// Floats of a layer: of a row in each buffer of the workspace, and of its state (the convolution's part first).
struct MixerSizes {
  int64_t in = 0;    // before the convolution
  int64_t conv = 0;  // after it
  int64_t gate = 0;  // of the output
  int64_t step = 0;
  int64_t decay = 0;
  int64_t out = 0;  // before the output projection
  int64_t conv_state = 0;
  int64_t state = 0;  // of the recurrence
};

MixerSizes mixer_sizes(const ShortConv& spec);
MixerSizes mixer_sizes(const Mamba& spec);
MixerSizes mixer_sizes(const Mamba2& spec);
MixerSizes mixer_sizes(const GatedDelta& spec);
MixerSizes mixer_sizes(const KimiDelta& spec);
MixerSizes mixer_sizes(const LightningAttention& spec);
MixerSizes mixer_sizes(const NoAttention& spec);

// kMalformed with the field as place; what passes can be multiplied out in int64.
Status check_mixer(const std::string& place, const ShortConv& spec);
Status check_mixer(const std::string& place, const Mamba& spec);
Status check_mixer(const std::string& place, const Mamba2& spec);
Status check_mixer(const std::string& place, const GatedDelta& spec);
Status check_mixer(const std::string& place, const KimiDelta& spec);
Status check_mixer(const std::string& place, const LightningAttention& spec);
Status check_mixer(const std::string& place, const NoAttention& spec);

// Members of the open object.
void write_mixer(JsonWriter& out, const ShortConv& spec);
void write_mixer(JsonWriter& out, const Mamba& spec);
void write_mixer(JsonWriter& out, const Mamba2& spec);
void write_mixer(JsonWriter& out, const GatedDelta& spec);
void write_mixer(JsonWriter& out, const KimiDelta& spec);
void write_mixer(JsonWriter& out, const LightningAttention& spec);
void write_mixer(JsonWriter& out, const NoAttention& spec);

}  // namespace headrace
