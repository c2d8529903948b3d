#include "formats/gguf.h"

#include <cmath>
#include <limits>

#include "formats/gguf_split.h"
#include "formats/text_quote.h"

namespace headrace {
namespace {

Status absent(std::string_view key) { return not_found(quote_name(key), "the file has no such key"); }

Status wrong_kind(std::string_view key, const GgufValue& value, std::string_view wanted) {
  const bool array = value.is_array();
  return malformed(quote_name(key), "is {}{} ({}); {} is wanted", array ? "an array of " : "",
                   gguf_type_name(value.element_type()), value.to_display(), wanted);
}

// A scalar through one of GgufValue's as_ functions.
template <class T, class Get>
Result<T> scalar(const GgufFile& file, std::string_view key, std::string_view wanted, Get get) {
  const GgufValue* value = file.find_metadata(key);
  if (!value) return absent(key);
  if (!value->is_array()) {
    if (auto got = get(*value)) return T(*got);
  }
  return wrong_kind(key, *value, wanted);
}

template <class T>
Result<T> with_fallback(Result<T> result, T fallback) {
  if (!result.ok() && result.status().code() == StatusCode::kNotFound) return fallback;
  return result;
}

// An array through get(value, i), which gives nothing for an element of another kind.
template <class T, class Get>
Result<std::vector<T>> array(const GgufFile& file, std::string_view key, std::string_view wanted, Get get) {
  const GgufValue* value = file.find_metadata(key);
  if (!value) return absent(key);
  if (!value->is_array()) return wrong_kind(key, *value, wanted);
  std::vector<T> out;
  out.reserve(value->count());
  for (uint64_t i = 0; i < value->count(); ++i) {
    const auto element = get(*value, i);
    if (!element) return wrong_kind(key, *value, wanted);
    out.push_back(static_cast<T>(*element));
  }
  return out;
}

constexpr std::string_view kAlignmentKey = "general.alignment";

bool is_shard_key(std::string_view key) { return key.starts_with("split.") || key == "general.alignment"; }

// Where the first part has an alignment of its own and a later one states none, writers disagree on whether
// that part has the default or the first one's: its tensors could be read from the wrong place.
Status check_alignments(const std::vector<GgufHeader>& headers,
                        const std::vector<std::shared_ptr<ByteSource>>& sources) {
  constexpr uint64_t kDefaultAlignment = 32;
  const auto first = headers[0].metadata.find(kAlignmentKey);
  if (first == headers[0].metadata.end() || first->second.as_u64() == kDefaultAlignment) return Status();
  for (size_t i = 1; i < headers.size(); ++i) {
    if (headers[i].tensors.empty() || headers[i].metadata.contains(kAlignmentKey)) continue;
    return unsupported(sources[i]->name() + ": " + std::string(kAlignmentKey),
                       "is absent, where the first part has {}: this part's own is unknown",
                       first->second.to_display());
  }
  return Status();
}

// Keys of a later part join the first one's; the same key with another value would make the model ambiguous.
Status merge_metadata(GgufFile::Metadata* into, GgufFile::Metadata from, const std::string& source_name) {
  for (auto it = from.begin(); it != from.end();) {
    auto node = from.extract(it++);
    if (is_shard_key(node.key())) continue;
    const auto existing = into->find(node.key());
    if (existing == into->end()) {
      into->insert(std::move(node));
    } else if (!(existing->second == node.mapped())) {
      return malformed(quote_name(node.key()), "is {} here and {} in an earlier part", node.mapped().to_display(),
                       existing->second.to_display())
          .within(source_name);
    }
  }
  return Status();
}

}  // namespace

Result<std::shared_ptr<GgufFile>> GgufFile::open(std::vector<std::shared_ptr<ByteSource>> sources) {
  if (sources.empty()) return invalid_argument("sources", "none were given");
  std::vector<GgufHeader> headers;
  for (const auto& source : sources) {
    if (!source) return invalid_argument("sources", "one is null");
    auto header = GgufParser(*source).parse();
    if (!header.ok()) return header.status().within(source->name());
    headers.push_back(header.take());
  }
  HEADRACE_RETURN_IF_ERROR(order_shards(&sources, &headers));
  HEADRACE_RETURN_IF_ERROR(check_alignments(headers, sources));

  std::shared_ptr<GgufFile> file(new GgufFile());
  file->version_ = headers[0].version;
  file->shard_count_ = static_cast<uint32_t>(headers.size());
  file->metadata_ = std::move(headers[0].metadata);
  std::vector<TensorEntry> tensors;
  for (size_t i = 0; i < headers.size(); ++i) {
    if (i > 0) {
      HEADRACE_RETURN_IF_ERROR(merge_metadata(&file->metadata_, std::move(headers[i].metadata), sources[i]->name()));
    }
    for (TensorEntry& entry : headers[i].tensors) {
      entry.source_index = static_cast<uint32_t>(i);
      tensors.push_back(std::move(entry));
    }
  }
  const std::string name = sources[0]->name();
  const Status status = file->set_tensors(std::move(sources), std::move(tensors));
  if (!status.ok()) return status.within(name);
  return file;
}

Result<std::shared_ptr<GgufFile>> GgufFile::open_path(const std::string& path, bool use_mmap) {
  const auto split = parse_split_name(path);
  std::vector<std::shared_ptr<ByteSource>> sources;
  if (!split) {
    HEADRACE_ASSIGN_OR_RETURN(auto source, headrace::open_path(path, use_mmap));
    sources.push_back(std::move(source));
    return open(std::move(sources));
  }
  for (uint32_t number = 1; number <= split->count; ++number) {
    const std::string part = number == split->number ? path : split_path(*split, number);
    auto source = headrace::open_path(part, use_mmap);
    if (!source.ok()) {
      const Status& status = source.status();
      return Status(status.code(), fmt::format("part {} of {}: {}", number, split->count, status.message()),
                    status.place());
    }
    sources.push_back(source.take());
  }
  return open(std::move(sources));
}

const GgufValue* GgufFile::find_metadata(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

Result<std::string> GgufFile::get_string(std::string_view key) const {
  return scalar<std::string>(*this, key, "a string", [](const GgufValue& value) { return value.as_string(); });
}

Result<uint64_t> GgufFile::get_u64(std::string_view key) const {
  return scalar<uint64_t>(*this, key, "an integer of at least 0",
                          [](const GgufValue& value) { return value.as_u64(); });
}

Result<int64_t> GgufFile::get_i64(std::string_view key) const {
  return scalar<int64_t>(*this, key, "an integer", [](const GgufValue& value) { return value.as_i64(); });
}

Result<double> GgufFile::get_f64(std::string_view key) const {
  return scalar<double>(*this, key, "a number", [](const GgufValue& value) { return value.as_f64(); });
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  return scalar<bool>(*this, key, "a bool", [](const GgufValue& value) { return value.as_bool(); });
}

Result<std::string> GgufFile::get_string_or(std::string_view key, std::string fallback) const {
  return with_fallback(get_string(key), std::move(fallback));
}

Result<uint64_t> GgufFile::get_u64_or(std::string_view key, uint64_t fallback) const {
  return with_fallback(get_u64(key), fallback);
}

Result<int64_t> GgufFile::get_i64_or(std::string_view key, int64_t fallback) const {
  return with_fallback(get_i64(key), fallback);
}

Result<double> GgufFile::get_f64_or(std::string_view key, double fallback) const {
  return with_fallback(get_f64(key), fallback);
}

Result<bool> GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  return with_fallback(get_bool(key), fallback);
}

Result<std::span<const std::string_view>> GgufFile::get_string_array(std::string_view key) const {
  const GgufValue* value = find_metadata(key);
  if (!value) return absent(key);
  if (!value->is_array() || value->element_type() != GgufType::kString) {
    return wrong_kind(key, *value, "an array of strings");
  }
  return value->strings();
}

Result<std::vector<int32_t>> GgufFile::get_i32_array(std::string_view key) const {
  return array<int32_t>(*this, key, "an array of 32-bit integers", [](const GgufValue& value, uint64_t i) {
    auto element = value.as_i64(i);
    if (element && (*element < INT32_MIN || *element > INT32_MAX)) element.reset();
    return element;
  });
}

Result<std::vector<uint64_t>> GgufFile::get_u64_array(std::string_view key) const {
  return array<uint64_t>(*this, key, "an array of integers of at least 0",
                         [](const GgufValue& value, uint64_t i) { return value.as_u64(i); });
}

Result<std::vector<float>> GgufFile::get_f32_array(std::string_view key) const {
  return array<float>(*this, key, "an array of floats", [](const GgufValue& value, uint64_t i) {
    const bool is_float = value.element_type() == GgufType::kF32 || value.element_type() == GgufType::kF64;
    return is_float ? value.as_f64(i) : std::nullopt;
  });
}

Result<std::vector<uint8_t>> GgufFile::get_bool_array(std::string_view key) const {
  return array<uint8_t>(*this, key, "an array of bools",
                        [](const GgufValue& value, uint64_t i) { return value.as_bool(i); });
}

}  // namespace headrace
