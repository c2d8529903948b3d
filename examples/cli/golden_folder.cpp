#include "golden_folder.h"

#include <headrace/headrace.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "arguments.h"

namespace cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void malformed(const std::string& file, const std::string& message) {
  throw headrace::Error(HEADRACE_MALFORMED, message, file);
}

nlohmann::json read_object(const std::string& file) {
  nlohmann::json json = nlohmann::json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) malformed(file, "is no JSON object");
  return json;
}

std::string prompt_of(const std::string& tensor) {
  const size_t dot = tensor.find('.');
  return dot == std::string::npos ? "" : tensor.substr(0, dot);
}

}  // namespace

GoldenFolder::GoldenFolder(const std::string& path) : path_(path) {
  const std::string file = path + "/golden.safetensors";
  std::string bytes = read_file(file);
  uint64_t header_size = 0;
  if (bytes.size() < sizeof header_size) malformed(file, "is cut short");
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  if (header_size > bytes.size() - sizeof header_size) malformed(file, "is cut short");
  const auto header = nlohmann::json::parse(
      bytes.begin() + sizeof header_size, bytes.begin() + static_cast<std::ptrdiff_t>(sizeof header_size + header_size),
      nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) malformed(file, "has a header that is no JSON object");
  data_ = bytes.substr(sizeof header_size + header_size);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const bool whole = value.is_object() && value.contains("dtype") && value["dtype"].is_string() &&
                       value.contains("data_offsets") && value["data_offsets"].is_array() &&
                       value["data_offsets"].size() == 2 && value["data_offsets"][0].is_number_unsigned() &&
                       value["data_offsets"][1].is_number_unsigned();
    if (!whole) malformed(file, "describes the tensor " + name + " incompletely");
    Entry entry{value["dtype"], value["data_offsets"][0], value["data_offsets"][1], {}};
    for (const auto& size : value.value("shape", nlohmann::json::array())) {
      entry.shape.push_back(size.is_number_unsigned() ? size.get<uint64_t>() : 0);
    }
    if (entry.begin > entry.end || entry.end > data_.size()) malformed(file, "is cut short at the tensor " + name);
    tensors_.emplace(name, entry);
  }

  json_ = read_object(path + "/golden.json");
  if (json_.contains("noise") && json_["noise"].is_object()) {
    for (const auto& pair : json_["noise"]) {
      for (const auto& value : pair) {
        if (value.is_number()) noise_ = std::max(noise_, value.get<double>());
      }
    }
  }
  architecture_ = json_.value("architecture", "");
  if (architecture_.empty() && fs::exists(path + "/config.json")) {
    const nlohmann::json config = read_object(path + "/config.json");
    if (config.contains("architectures") && !config["architectures"].empty() &&
        config["architectures"][0].is_string()) {
      architecture_ = config["architectures"][0];
    }
  }
}

double GoldenFolder::tolerance() const { return std::max(10 * noise_, 1e-4); }

std::vector<std::string> GoldenFolder::cases() const {
  std::vector<std::string> names;
  for (const auto& [tensor, entry] : tensors_) {
    if (tensor == prompt_of(tensor) + ".input_ids") names.push_back(prompt_of(tensor));
  }
  std::stable_sort(names.begin(), names.end(), [this](const std::string& a, const std::string& b) {
    const Entry &left = tensors_.at(a + ".input_ids"), &right = tensors_.at(b + ".input_ids");
    return left.end - left.begin < right.end - right.begin;
  });
  return names;
}

std::vector<std::string> GoldenFolder::parts(const std::string& name) const {
  std::vector<std::string> parts;
  for (const auto& [tensor, entry] : tensors_) {
    if (prompt_of(tensor) == name) parts.push_back(name.empty() ? tensor : tensor.substr(name.size() + 1));
  }
  return parts;
}

size_t GoldenFolder::stable_greedy_tokens(const std::string& name, size_t num_tokens) const {
  if (!json_.contains("cached_generate_equal")) return num_tokens;
  const auto& equal = json_["cached_generate_equal"];
  if (!equal.is_object() || !equal.contains(name) || !equal[name].is_number_unsigned()) return num_tokens;
  return equal[name].get<size_t>() < num_tokens ? 0 : num_tokens;
}

const GoldenFolder::Entry& GoldenFolder::entry(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) malformed(path_ + "/golden.safetensors", "lacks the tensor " + tensor);
  return found->second;
}

std::vector<float> GoldenFolder::floats(const std::string& tensor) const {
  const Entry& found = entry(tensor);
  const char* bytes = data_.data() + found.begin;
  const size_t size = found.end - found.begin;
  if (found.dtype == "BF16" && size % 2 == 0) {
    std::vector<float> out(size / 2);
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t half;
      std::memcpy(&half, bytes + 2 * i, 2);
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      std::memcpy(&out[i], &bits, 4);
    }
    return out;
  }
  if (found.dtype != "F32" || size % 4 != 0)
    malformed(path_ + "/golden.safetensors", tensor + " is not of type F32 or BF16");
  std::vector<float> out(size / 4);
  if (!out.empty()) std::memcpy(out.data(), bytes, size);
  return out;
}

std::vector<int32_t> GoldenFolder::ids(const std::string& tensor) const {
  const Entry& found = entry(tensor);
  const size_t size = found.end - found.begin;
  if (found.dtype != "I32" || size % 4 != 0) malformed(path_ + "/golden.safetensors", tensor + " is not of type I32");
  std::vector<int32_t> out(size / 4);
  if (!out.empty()) std::memcpy(out.data(), data_.data() + found.begin, size);
  return out;
}

std::vector<uint64_t> GoldenFolder::shape(const std::string& tensor) const { return entry(tensor).shape; }

std::vector<std::string> find_golden_folders(const std::string& path) {
  if (!fs::is_directory(path)) throw headrace::Error(HEADRACE_NOT_FOUND, "is no folder", path);
  std::vector<std::string> folders;
  if (fs::exists(path + "/golden.safetensors")) folders.push_back(path);
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_directory() && fs::exists(entry.path() / "golden.safetensors"))
      folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::vector<std::string> find_models(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".gguf") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  if (fs::exists(folder + "/config.json")) files.insert(files.begin(), folder);
  return files;
}

}  // namespace cli
