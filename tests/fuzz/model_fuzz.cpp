// A config.json and the header of a safetensors file, with a zero byte between them, or a GGUF file: reading the model from
// them refuses by name or gives a spec whose tensors are all in the file, and small ones load. Tensors' bytes are zeros.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "formats/json.h"
#include "model/model.h"
#include "model/model_header.h"
#include "ops/backend.h"

namespace {

using namespace headrace;

constexpr uint64_t kMaxLoadedBytes = 1 << 20;

// Where the header says that the last tensor ends.
uint64_t body_bytes(std::string_view header) {
  uint64_t out = 0;
  const auto json = parse_json(header, "header");
  if (!json.ok() || !json->is_object()) return out;
  for (const auto& item : json->items()) {
    if (!item.value().is_object()) continue;
    const auto offsets = item.value().find("data_offsets");
    if (offsets == item.value().end() || !offsets->is_array() || offsets->size() != 2) continue;
    const auto end = json_integer((*offsets)[1]);
    if (end && *end > 0) out = std::max(out, static_cast<uint64_t>(*end));
  }
  return std::min(out, uint64_t{1} << 40);
}

std::shared_ptr<ByteSource> source_with_header(std::string_view header) {
  const uint64_t length = header.size();
  std::string front(reinterpret_cast<const char*>(&length), sizeof length);
  front += header;
  const uint64_t size = front.size() + body_bytes(header);
  const auto read = [front = std::move(front)](uint64_t offset, std::byte* to, uint64_t count) {
    std::memset(to, 0, count);
    if (offset < front.size()) std::memcpy(to, front.data() + offset, std::min<uint64_t>(count, front.size() - offset));
    return true;
  };
  return open_reader(size, read, "model.safetensors", {});
}

void check_named(const Status& status) {
  if (status.message().empty() || status.place().empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  ModelSource source;
  if (input.starts_with("GGUF")) {
    source.sources.push_back(open_memory(std::as_bytes(std::span(data, size)), "model.gguf", {}));
  } else {
    const size_t end = input.find('\0');
    if (end == std::string_view::npos) return 0;
    source.config_json = std::string(input.substr(0, end));
    source.sources.push_back(source_with_header(input.substr(end + 1)));
  }
  auto header = ModelHeader::read(source);
  if (!header.ok()) {
    check_named(header.status());
    return 0;
  }
  for (const auto* part : {&header->weights, &header->vision_weights, &header->encoder_weights}) {
    for (const WeightEntry& weight : *part) {
      if (header->file->find(weight.file_name) == nullptr) std::abort();
    }
  }
  if (header->describe().empty()) std::abort();
  if (header->file->total_bytes() > kMaxLoadedBytes) return 0;
  static const std::unique_ptr<Backend> backend = make_reference_backend();
  ModelLoadOptions options;
  options.load_tokenizer = false;
  const auto model = Model::load(header.take(), options, *backend);
  if (!model.ok()) check_named(model.status());
  return 0;
}
