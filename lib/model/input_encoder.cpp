#include "model/input_encoder.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "model/embedded_pass.h"

namespace headrace {

InputEncoder::InputEncoder(const EncoderSpec& spec, const EncoderWeights& weights, const ModelSpec& decoder,
                           const ModelWeights& decoder_weights, Backend& backend)
    : spec_(spec),
      weights_(weights),
      decoder_(decoder),
      decoder_weights_(decoder_weights),
      backend_(backend),
      forward_(spec.encoder, weights.encoder, backend) {}

Status InputEncoder::encode(const EncoderInput& input, std::vector<float>& out) {
  try {
    std::vector<float> rows;
    HEADRACE_RETURN_IF_ERROR(embed(input, rows));
    Batch batch;
    return run_embedded(forward_, spec_.encoder, rows, batch, out);
  } catch (const std::bad_alloc&) {
    return out_of_memory("encoder_input", "no memory to encode it");
  }
}

Status InputEncoder::embed(const EncoderInput& input, std::vector<float>& rows) {
  const auto hidden = static_cast<size_t>(spec_.encoder.hidden_size);
  if (spec_.audio) {
    const int64_t frames = spec_.audio->num_frames;
    // [num_mels, frames] -> [frames, num_mels], as rows lie between the two convolutions too.
    const auto mels = static_cast<size_t>(spec_.audio->num_mels);
    std::vector<float> columns(input.features.size());
    for (size_t i = 0; i < columns.size(); ++i) {
      columns[i] = input.features[i % mels * static_cast<size_t>(frames) + i / mels];
    }
    std::vector<float> inner;
    convolve(columns, spec_.audio->num_mels, frames, 1, weights_.conv_1, inner);
    convolve(inner, spec_.encoder.hidden_size, frames, 2, weights_.conv_2, rows);
    return {};
  }
  rows.resize(input.tokens.size() * hidden);
  EmbedParams params;
  params.table = decoder_weights_.embedding.weight.get();
  params.token_ids = input.tokens.data();
  params.num_tokens = static_cast<int64_t>(input.tokens.size());
  params.scale = spec_.encoder.embedding_scale;
  params.out = rows.data();
  backend_.embed(params);
  return {};
}

// x [frames, channels] -> rows [frames / stride, hidden_size]. A kernel's columns are three frames of each channel in turn.
void InputEncoder::convolve(const std::vector<float>& x, int64_t channels, int64_t frames, int64_t stride,
                            const LinearWeight& kernel, std::vector<float>& rows) {
  const int64_t count = frames / stride;
  std::vector<float> windows(static_cast<size_t>(count * channels * 3), 0.0f);
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t tap = 0; tap < 3; ++tap) {
      const int64_t frame = row * stride + tap - 1;
      if (frame < 0 || frame >= frames) continue;
      const float* from = x.data() + frame * channels;
      float* to = windows.data() + row * channels * 3 + tap;
      for (int64_t channel = 0; channel < channels; ++channel) to[channel * 3] = from[channel];
    }
  }
  rows.resize(static_cast<size_t>(count * spec_.encoder.hidden_size));
  const LinearOutput outputs[] = {kernel.to(rows.data())};
  backend_.linear({windows.data(), count, channels * 3, outputs});
  GatedActivationParams activation;
  activation.gate = activation.out = rows.data();
  activation.num_elements = static_cast<int64_t>(rows.size());
  activation.activation = spec_.audio->activation;
  backend_.gated_activation(activation);
}

Result<EncoderMemory> InputEncoder::remember(std::span<const float> rows, KvDType dtype, int32_t block_size) {
  try {
    const int64_t count = static_cast<int64_t>(rows.size()) / decoder_.hidden_size;
    EncoderMemory memory;
    memory.num_rows = static_cast<int32_t>(count);
    HEADRACE_ASSIGN_OR_RETURN(RowsCache stored, cache_of_rows(memory_layouts(decoder_, dtype, block_size), count));
    memory.cache = std::move(stored.cache);
    memory.rows = std::move(stored.rows);
    std::vector<int64_t> slots;
    for (int64_t row = 0; row < count; ++row) slots.push_back(memory.cache->slot(memory.rows, row));
    std::vector<float> keys, values;
    int32_t part = 0;
    for (size_t i = 0; i < decoder_.layers.size(); ++i) {
      if (!decoder_.layers[i].cross) continue;
      const CrossWeights& weights = decoder_weights_.layers[i].cross;
      keys.resize(static_cast<size_t>(count * weights.k.weight->rows()));
      values.resize(keys.size());
      const LinearOutput outputs[] = {weights.k.to(keys.data()), weights.v.to(values.data())};
      backend_.linear({rows.data(), count, decoder_.hidden_size, outputs});
      RopeStoreParams store;
      store.k = keys.data();
      store.v = values.data();
      store.num_tokens = count;
      store.layout = memory.cache->config().layers[static_cast<size_t>(part)];
      store.cache = memory.cache->layer_data(part++);
      store.slots = slots.data();
      backend_.rope_and_store_kv(store);
    }
    return memory;
  } catch (const std::bad_alloc&) {
    return out_of_memory("encoder_input", "no memory for its keys and values");
  }
}

}  // namespace headrace
