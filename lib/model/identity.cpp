#include "model/identity.h"

#include <algorithm>
#include <unordered_set>

#include "base/format_full.h"
#include "model/model_header.h"

namespace headrace {

namespace {

constexpr uint64_t kWholeBytes = 16 << 10;  // tensors up to this are hashed whole
constexpr uint64_t kSampleBytes = 1 << 10;
constexpr uint64_t kSamples = 8;  // evenly spread, first and last bytes included

void append(std::string& out, std::string_view text) {
  out += text;
  out += '\0';
}

Status append_content(const TensorFile& file, const TensorEntry& entry, std::string& out) {
  const auto append_range = [&](uint64_t offset, uint64_t size) -> Status {
    const size_t start = out.size();
    out.resize(start + size);
    return file.read(entry, offset, std::as_writable_bytes(std::span(out.data() + start, size)));
  };
  if (entry.bytes <= kWholeBytes) return append_range(0, entry.bytes);
  const uint64_t last = entry.bytes - kSampleBytes;
  for (uint64_t i = 0; i < kSamples; ++i) {
    HEADRACE_RETURN_IF_ERROR(append_range(last / (kSamples - 1) * i, kSampleBytes));
  }
  return append_range(last, kSampleBytes);
}

}  // namespace

Result<std::string> content_text(const ModelHeader& header) {
  std::string text;
  append(text, spec_to_json(header.spec));
  if (header.vision) append(text, vision_to_json(*header.vision));
  if (header.encoder) append(text, encoder_to_json(*header.encoder));
  // One hash per tensor keeps the buffer small for models with thousands of tensors.
  std::unordered_set<const TensorEntry*> seen;
  std::vector<WeightEntry> weights = header.weights;
  weights.insert(weights.end(), header.vision_weights.begin(), header.vision_weights.end());
  weights.insert(weights.end(), header.encoder_weights.begin(), header.encoder_weights.end());
  for (const WeightEntry& weight : weights) {
    const TensorEntry* entry = header.file->find(weight.file_name);
    if (!seen.insert(entry).second) continue;  // one tensor may hold several weights
    std::string content;
    append(content, fmt::format("{} {} [{}]", weight.name, dtype_name(entry->dtype), fmt::join(entry->shape, ",")));
    HEADRACE_RETURN_IF_ERROR(append_content(*header.file, *entry, content));
    if (entry->column_order != nullptr) {
      content.append(reinterpret_cast<const char*>(entry->column_order->data()),
                     entry->column_order->size() * sizeof(int32_t));
    }
    const Hash128 hash = hash128(content.data(), content.size());
    append(text, fmt::format("{:016x}{:016x}", hash.high, hash.low));
  }
  return text;
}

Hash128 model_identity(std::string_view content, const PackOptions& options, const Backend& backend) {
  std::string text;
  append(text, "headrace model 1");
  append(text, backend.name());
  append(text, fmt::format("{} {}", static_cast<int>(options.activations), options.decode_to_float));
  text += content;
  return hash128(text.data(), text.size());
}

Hash128 packed_identity(std::string_view content, const TensorFile& file, const PackOptions& options) {
  std::string text;
  append(text, "headrace packed weights 1");
  append(text, decodes_to_float(options) ? "decoded" : "as in the file");
  for (const auto& source : file.sources()) append(text, fmt::format("{} {}", source->size(), source->modified_ns()));
  text += content;
  return hash128(text.data(), text.size());
}

}  // namespace headrace
