#include "model/self_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "model/batch.h"
#include "model/forward.h"
#include "model/input_encoder.h"
#include "model/rope_length.h"
#include "model/vision_encoder.h"
#include "ops/checking_backend.h"
#include "tensor/dequantize.h"

namespace headrace {

namespace {

constexpr int64_t kTokens = 21;
constexpr int32_t kDecoded = 2;

// The layers up to the first of the last kind: those behind it are like one of them.
ModelSpec one_of_each(const ModelSpec& spec) {
  ModelSpec out = spec;
  if (spec.per_layer_inputs) return out;  // their table is of all layers together
  std::vector<LayerSpec> kinds;
  size_t needed = static_cast<size_t>(spec.deep_embeddings);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (std::find(kinds.begin(), kinds.end(), spec.layers[i]) != kinds.end()) continue;
    kinds.push_back(spec.layers[i]);
    needed = std::max(needed, i + 1);
  }
  out.layers.resize(std::min(needed, spec.layers.size()));
  return out;
}

// A weight of pseudo-random bytes, packed and read back. Scales that are no number are passed over.
Status check_packing(DType dtype, const PackOptions& options, Backend& backend) {
  constexpr int64_t kRows = 5;
  const int64_t cols = int64_t{4} * std::max(dtype_info(dtype).block_size, 64);
  const auto size = row_bytes(dtype, static_cast<uint64_t>(cols));
  if (!size) return {};
  std::vector<std::byte> data(static_cast<size_t>(*size) * kRows);
  for (size_t i = 0; i < data.size(); ++i) {
    const uint64_t key[2] = {static_cast<uint64_t>(dtype), i};
    data[i] = static_cast<std::byte>(hash64(key, sizeof key) & 0x3f);  // small enough for scales of any width
  }
  WeightSource source;
  source.name = "self-check";
  source.dtype = dtype;
  source.rows = kRows;
  source.cols = cols;
  source.read = [&](uint64_t offset, std::span<std::byte> destination) {
    std::memcpy(destination.data(), data.data() + offset, destination.size());
    return Status();
  };
  HEADRACE_ASSIGN_OR_RETURN(const auto packed, backend.pack(source, options));
  std::vector<float> want(static_cast<size_t>(cols)), got(want.size());
  for (int64_t row = 0; row < kRows; ++row) {
    HEADRACE_RETURN_IF_ERROR(dequantize_row(dtype, data.data() + static_cast<size_t>(row) * *size, want.data(), cols));
    packed->decode_row(row, got.data());
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
      return internal_error("pack",
                            "{} for {} reads back {:.9g} in row {}, column {}, where the file has {:.9g}: this "
                            "machine does not pack weights as it should",
                            backend.name(), dtype_name(dtype), got[i], row, i, want[i]);
    }
  }
  return {};
}

class Run {
 public:
  // memory: what an encoder in front of the decoder made, or null; read by every sequence.
  Run(const ModelSpec& spec, const ModelWeights& weights, const EncoderMemory* memory, CheckingBackend& backend,
      KvDType kv_dtype)
      : spec_(spec), memory_(memory), backend_(backend), forward_(spec, weights, backend), kv_dtype_(kv_dtype) {}

  Status all() {
    KvCacheConfig config;
    config.layers = kv_layouts(spec_, kv_dtype_);
    config.num_blocks = 8;
    config.prefix_index = false;
    config.state_floats = state_floats(spec_);
    config.num_states = 2;
    HEADRACE_ASSIGN_OR_RETURN(cache_, KvCache::create(std::move(config)));
    const int64_t longest = std::min<int64_t>(kTokens, longest_sequence(spec_));
    for (const int64_t length : {longest, std::max<int64_t>(longest / 4, 1)}) {
      std::vector<int32_t>& tokens = tokens_.emplace_back();
      for (int64_t i = 0; i < length + kDecoded; ++i) {
        const uint64_t key[2] = {static_cast<uint64_t>(length), static_cast<uint64_t>(i)};
        tokens.push_back(static_cast<int32_t>(hash64(key, sizeof key) % static_cast<uint64_t>(spec_.vocab_size)));
      }
      sequences_.push_back(cache_->new_sequence({}, rope_length(spec_, length + kDecoded)));
    }
    const bool whole = computes_whole_sequences(spec_);
    const int64_t second = static_cast<int64_t>(tokens_[1].size()) - kDecoded;
    if (whole) return step({longest, second});
    HEADRACE_RETURN_IF_ERROR(step({longest - longest / 3, 0}));
    HEADRACE_RETURN_IF_ERROR(step({longest - 1, second}));
    for (int32_t i = 0; i < kDecoded; ++i) HEADRACE_RETURN_IF_ERROR(step({longest + i, second + 1 + i}));
    return {};
  }

 private:
  // Computes each sequence up to its end; those of rows beyond the model's are left out.
  Status step(std::vector<int64_t> ends) {
    Batch batch;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      ends[i] = std::min(ends[i], std::min<int64_t>(longest_sequence(spec_), static_cast<int64_t>(tokens_[i].size())));
      if (ends[i] <= sequences_[i].num_tokens()) continue;
      HEADRACE_RETURN_IF_ERROR(cache_->reserve(sequences_[i], ends[i]));
      batch.add_sequence(*cache_, sequences_[i], tokens_[i], ends[i], ends[i] - 1);
      if (memory_ != nullptr) batch.memories.push_back(memory_);
    }
    if (batch.num_tokens() == 0) return {};
    const auto rows = static_cast<int64_t>(batch.logits_rows.size());
    std::vector<float> hidden(static_cast<size_t>(rows * spec_.hidden_size));
    std::vector<float> logits;
    if (spec_.head.kind == HeadKind::kVocabulary) logits.resize(static_cast<size_t>(rows * spec_.vocab_size));
    HEADRACE_RETURN_IF_ERROR(forward_.run(batch, *cache_, logits.empty() ? nullptr : logits.data(), hidden.data()));
    if (!logits.empty()) {
      std::vector<LogitStats> stats(static_cast<size_t>(rows));
      backend_.logit_stats({logits.data(), rows, spec_.vocab_size, stats.data()});
    } else if (spec_.head.kind != HeadKind::kNone) {
      std::vector<float> out(static_cast<size_t>(rows * head_width(spec_)));
      HEADRACE_RETURN_IF_ERROR(forward_.run_head(hidden.data(), rows, out.data()));
    }
    HEADRACE_RETURN_IF_ERROR(backend_.difference());
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (ends[i] <= sequences_[i].num_tokens()) continue;
      HEADRACE_RETURN_IF_ERROR(cache_->commit(sequences_[i], tokens_[i], ends[i]));
    }
    return {};
  }

  const ModelSpec& spec_;
  const EncoderMemory* const memory_;
  CheckingBackend& backend_;
  ForwardPass forward_;
  const KvDType kv_dtype_;
  std::shared_ptr<KvCache> cache_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<KvSequence> sequences_;
};

// Some rows through an encoder in front of the decoder `spec`, and what its layers see of them.
Result<EncoderMemory> run_encoder(const Model& model, const ModelSpec& spec, CheckingBackend& backend,
                                  KvDType kv_dtype) {
  constexpr int64_t kRows = 9;
  EncoderSpec encoder = *model.encoder();
  encoder.encoder = one_of_each(encoder.encoder);
  EncoderInput input;
  if (encoder.audio) {
    encoder.audio->num_frames = 2 * kRows;
    for (int64_t i = 0; i < 2 * kRows * encoder.audio->num_mels; ++i) {
      input.features.push_back(static_cast<float>(hash64(&i, sizeof i) % 256) / 128.0f - 1.0f);
    }
  } else {
    for (int64_t i = 0; i < kRows; ++i) {
      input.tokens.push_back(static_cast<int32_t>(hash64(&i, sizeof i) % static_cast<uint64_t>(spec.vocab_size)));
    }
  }
  InputEncoder reader(encoder, model.encoder_weights(), spec, model.weights(), backend);
  std::vector<float> rows;
  HEADRACE_RETURN_IF_ERROR(reader.encode(input, rows));
  HEADRACE_ASSIGN_OR_RETURN(EncoderMemory memory,
                            reader.remember(rows, kv_dtype, kv_layouts(spec, kv_dtype).front().block_size));
  HEADRACE_RETURN_IF_ERROR(backend.difference());
  return memory;
}

// An image of two by two rows of the decoder through the encoder for images.
Status run_image(const Model& model, CheckingBackend& backend) {
  VisionSpec vision = *model.vision();
  const size_t layers = one_of_each(vision.encoder).layers.size();
  const size_t deep = vision.deep_layers.empty() ? 0 : static_cast<size_t>(vision.deep_layers[0]) + 1;
  vision.encoder.layers.resize(std::max(layers, deep));
  std::erase_if(vision.deep_layers,
                [&](int32_t layer) { return static_cast<size_t>(layer) >= vision.encoder.layers.size(); });
  const int64_t patches = 2 * int64_t{vision.projector.pool} * vision.projector.merge;
  vision.image_size = static_cast<int32_t>(patches * vision.patch_size);
  std::vector<float> pixels(static_cast<size_t>(patches * patches * vision.patch_floats()));
  for (size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<float>(hash64(&i, sizeof i) % 256) / 128.0f - 1.0f;
  }
  const int64_t side = vision.planes ? vision.image_size : patches;
  HEADRACE_ASSIGN_OR_RETURN(const ImageGrid grid, image_grid(vision, side, side, pixels.size()));
  VisionEncoder reader(vision, model.vision_weights(), backend);
  std::vector<float> rows(static_cast<size_t>(grid.num_tokens()) * static_cast<size_t>(vision.row_floats()));
  HEADRACE_RETURN_IF_ERROR(reader.encode(pixels, grid, rows));
  return backend.difference();
}

}  // namespace

Result<int64_t> self_check(const Model& model, const PackOptions& options, KvDType kv_dtype, Backend& backend) {
  std::set<DType> dtypes = {model.weights().embedding.weight != nullptr ? model.weights().embedding.weight->dtype()
                                                                        : DType::kF32};
  for (const PackedWeight* weight : model.weights().products) dtypes.insert(weight->dtype());
  for (const DType dtype : dtypes) HEADRACE_RETURN_IF_ERROR(check_packing(dtype, options, backend));
  const ModelSpec spec = one_of_each(model.spec());
  const auto checking = make_checking_backend(backend);
  std::optional<EncoderMemory> memory;
  if (model.encoder() != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(memory, run_encoder(model, spec, *checking, kv_dtype));
  }
  if (model.vision() != nullptr) HEADRACE_RETURN_IF_ERROR(run_image(model, *checking));
  Run run(spec, model.weights(), memory ? &*memory : nullptr, *checking, kv_dtype);
  HEADRACE_RETURN_IF_ERROR(run.all());
  return checking->num_checked();
}

}  // namespace headrace
