#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/checked.h"
#include "formats/json.h"
#include "formats/text_quote.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr uint64_t kMaxIndexBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  constexpr std::array<DType, 10> kRead = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI8,
                                           DType::kI16, DType::kI32, DType::kI64,  DType::kU8,  DType::kF8_E4M3};
  if (name == "BOOL") return DType::kU8;  // a byte each, 0 or 1
  for (const DType dtype : kRead) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// A JSON integer of at least zero; floats (1.0 too), negative and larger numbers are none.
std::optional<uint64_t> whole_number(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

// One tensor's description. The offsets count from the body's start; body_bytes is the body's length.
Status read_entry(const Json& value, uint64_t body_bytes, TensorEntry* entry) {
  const auto member = [&](const char* key, bool (Json::*is)() const) -> const Json* {
    const auto it = value.find(key);
    return it != value.end() && ((*it).*is)() ? &*it : nullptr;
  };
  if (!value.is_object()) return malformed("", "is described by no object");
  const Json* dtype = member("dtype", &Json::is_string);
  const Json* shape = member("shape", &Json::is_array);
  const Json* offsets = member("data_offsets", &Json::is_array);
  if (!dtype) return malformed("", "has no dtype that is a string");
  if (!shape) return malformed("", "has no shape that is an array");
  if (!offsets || offsets->size() != 2) return malformed("", "has no data_offsets that are two numbers");
  for (const Json& item : *shape) {
    const auto dimension = whole_number(item);
    if (!dimension) return malformed("", "shape {} has a dimension that is no whole number", quote_name(shape->dump()));
    entry->shape.push_back(*dimension);
  }
  const auto begin = whole_number((*offsets)[0]);
  const auto end = whole_number((*offsets)[1]);
  if (!begin || !end) return malformed("", "data_offsets {} are no whole numbers", quote_name(offsets->dump()));
  if (*begin > *end) return malformed("", "data_offsets begin at {} after their end {}", *begin, *end);
  if (*end > body_bytes) {
    return malformed("", "data_offsets end at {}, beyond the body's {} bytes", *end, body_bytes);
  }
  const std::string& dtype_text = dtype->get_ref<const std::string&>();
  const auto known = dtype_from_safetensors(dtype_text);
  if (!known) {
    return unsupported("",
                       "element type {} is not read (F32, F16, BF16, F64, I8, I16, I32, I64, U8, BOOL and F8_E4M3 are)",
                       quote_name(dtype_text));
  }
  entry->dtype = *known;
  const auto elements = num_elements(entry->shape);
  const auto bytes = elements ? row_bytes(*known, *elements) : std::nullopt;
  if (!bytes) return malformed("", "shape {} of {} does not fit in 64 bits", quote_name(shape->dump()), dtype_text);
  if (*bytes != *end - *begin) {
    return malformed("", "shape {} of {} needs {} bytes, but data_offsets span {}", quote_name(shape->dump()),
                     dtype_text, *bytes, *end - *begin);
  }
  entry->offset = *begin;
  entry->bytes = *bytes;
  return Status();
}

// The body must be covered without gap or overlap, as the format demands. Sorts the entries by offset.
Status check_tiling(uint64_t body_bytes, std::vector<TensorEntry>* entries) {
  std::sort(entries->begin(), entries->end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  uint64_t next = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& entry : *entries) {
    if (entry.offset != next) {
      const std::string neighbour = before ? quote_name(before->name) : "the body's start";
      return malformed(quote_name(entry.name), "begins at {}, {} {}, which ends at {}", entry.offset,
                       entry.offset < next ? "overlapping" : "with a gap after", neighbour, next);
    }
    next = entry.offset + entry.bytes;
    before = &entry;
  }
  if (next != body_bytes) return malformed("header", "describes {} of the body's {} bytes", next, body_bytes);
  return Status();
}

Status read_header(ByteSource& source, uint32_t source_index, std::vector<TensorEntry>* entries,
                   SafetensorsFile::Metadata* metadata) {
  uint64_t length = 0;
  if (source.size() < sizeof length) return malformed("header", "{} bytes are no safetensors file", source.size());
  HEADRACE_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(&length, 1))));
  if (length > source.size() - sizeof length) {
    return malformed("header", "its length {} is more than the {} bytes left", length, source.size() - sizeof length);
  }
  if (length > kMaxHeaderBytes) return malformed("header", "its length {} is more than {}", length, kMaxHeaderBytes);
  std::string text(length, '\0');
  HEADRACE_RETURN_IF_ERROR(source.read(sizeof length, std::as_writable_bytes(std::span(text))));
  JsonOptions options;
  options.max_depth = 8;
  HEADRACE_ASSIGN_OR_RETURN(const HeldJson<Json> header, parse_json(text, "header", options));
  if (!header.is_object()) return malformed("header", "is no JSON object");

  const uint64_t body_start = sizeof length + length;
  const uint64_t body_bytes = source.size() - body_start;
  std::vector<TensorEntry> found;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      if (!value.is_object()) return malformed(std::string(kMetadataKey), "is no object");
      for (const auto& [key, item] : value.items()) {
        if (!item.is_string()) return malformed(fmt::format("{}.{}", kMetadataKey, quote_name(key)), "is no string");
        metadata->emplace(key, item.get<std::string>());
      }
      continue;
    }
    TensorEntry entry;
    entry.name = name;
    entry.source_index = source_index;
    const Status status = read_entry(value, body_bytes, &entry);
    if (!status.ok()) return status.within(name.empty() ? "a tensor without name" : quote_name(name));
    if (name.empty()) return malformed("header", "a tensor has no name");
    found.push_back(std::move(entry));
  }
  HEADRACE_RETURN_IF_ERROR(check_tiling(body_bytes, &found));
  for (TensorEntry& entry : found) {
    entry.offset += body_start;
    entries->push_back(std::move(entry));
  }
  return Status();
}

// model.safetensors.index.json: tensor names to shard files.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  HEADRACE_ASSIGN_OR_RETURN(auto source, open_path(path));
  HEADRACE_ASSIGN_OR_RETURN(const std::string text, read_all(*source, kMaxIndexBytes));
  HEADRACE_ASSIGN_OR_RETURN(const HeldJson<Json> index, parse_json(text, path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return malformed(path + ": weight_map", "is no object");
  }
  std::map<std::string, std::string> out;
  for (const auto& [name, file] : map->items()) {
    const std::string place = fmt::format("{}: weight_map.{}", path, quote_name(name));
    if (!file.is_string()) return malformed(place, "is no file name");
    const std::string& shard = file.get_ref<const std::string&>();
    // A shard lies in the folder itself: an index must not reach files elsewhere.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return malformed(place, "'{}' is no name of a file in the folder", quote_name(shard));
    }
    out.emplace(name, shard);
  }
  if (out.empty()) return malformed(path + ": weight_map", "is empty");
  return out;
}

}  // namespace

Result<std::shared_ptr<SafetensorsFile>> SafetensorsFile::open(std::vector<std::shared_ptr<ByteSource>> sources) {
  if (sources.empty()) return invalid_argument("sources", "none were given");
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile());
  std::vector<TensorEntry> entries;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i]) return invalid_argument("sources", "one is null");
    const Status status = read_header(*sources[i], static_cast<uint32_t>(i), &entries, &file->metadata_);
    if (!status.ok()) return status.within(sources[i]->name());
  }
  HEADRACE_RETURN_IF_ERROR(file->set_tensors(std::move(sources), std::move(entries)));
  return file;
}

Result<std::shared_ptr<SafetensorsFile>> SafetensorsFile::open_path(const std::string& path, bool use_mmap) {
  HEADRACE_ASSIGN_OR_RETURN(auto source, headrace::open_path(path, use_mmap));
  return open({std::move(source)});
}

Result<std::shared_ptr<SafetensorsFile>> SafetensorsFile::open_folder(const std::string& folder, bool use_mmap) {
  const std::filesystem::path root(folder);
  const std::string index_path = (root / "model.safetensors.index.json").string();
  std::error_code error;
  if (!std::filesystem::exists(index_path, error)) {
    const std::string single = (root / "model.safetensors").string();
    if (!std::filesystem::exists(single, error)) {
      return not_found(folder, "holds neither model.safetensors.index.json nor model.safetensors");
    }
    return open_path(single, use_mmap);
  }
  HEADRACE_ASSIGN_OR_RETURN(const auto index, read_index(index_path));
  std::set<std::string> shards;
  for (const auto& [name, shard] : index) shards.insert(shard);
  std::vector<std::shared_ptr<ByteSource>> sources;
  for (const std::string& shard : shards) {
    HEADRACE_ASSIGN_OR_RETURN(auto source, headrace::open_path((root / shard).string(), use_mmap));
    sources.push_back(std::move(source));
  }
  HEADRACE_ASSIGN_OR_RETURN(auto file, open(std::move(sources)));

  // The index and the shards must agree in both directions.
  const std::vector<std::string> shard_names(shards.begin(), shards.end());
  for (const auto& [name, shard] : index) {
    const TensorEntry* entry = file->find(name);
    if (!entry) return malformed(quote_name(name), "is listed in {} but in no shard", index_path);
    if (shard_names[entry->source_index] != shard) {
      return malformed(quote_name(name), "lies in {}, but {} says {}", shard_names[entry->source_index], index_path,
                       shard);
    }
  }
  for (const TensorEntry& entry : file->tensors()) {
    if (!index.contains(entry.name)) {
      return malformed(quote_name(entry.name), "lies in {} but is not listed in {}", shard_names[entry.source_index],
                       index_path);
    }
  }
  return file;
}

}  // namespace headrace
