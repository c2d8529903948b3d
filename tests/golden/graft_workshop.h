// Folders and graft files that tests write.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "golden/golden_run.h"

namespace headrace::golden {

namespace fs = std::filesystem;

inline const std::string kShipped = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/";
inline const std::string kLlama = kShipped + "llama";

using Tensors = std::map<std::string, Tensor>;

inline Tensors read_tensors(const std::string& path) {
  auto file = SafetensorsFile::open_path(path);
  REQUIRE(file.ok());
  Tensors out;
  for (const TensorEntry& entry : (*file)->tensors()) {
    Tensor& tensor = out[entry.name];
    tensor.shape = entry.shape;
    tensor.values.resize(entry.bytes / 4);
    REQUIRE((*file)->read(entry, 0, std::as_writable_bytes(std::span(tensor.values))).ok());
  }
  return out;
}

inline void write_tensors(const fs::path& path, const Tensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t end = offset + tensor.values.size() * 4;
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length) << text;
  for (const auto& [name, tensor] : tensors) {
    out.write(reinterpret_cast<const char*>(tensor.values.data()),
              static_cast<std::streamsize>(tensor.values.size() * 4));
  }
  REQUIRE(out.good());
}

// Every key and value head once for each query head.
inline Tensors with_repeated_heads(Tensors tensors, size_t head_dim, size_t times) {
  for (auto& [name, tensor] : tensors) {
    if (name.find("k_proj") == std::string::npos && name.find("v_proj") == std::string::npos) continue;
    const size_t head = head_dim * tensor.shape[1];
    std::vector<float> values;
    for (size_t start = 0; start < tensor.values.size(); start += head) {
      const auto begin = tensor.values.begin() + static_cast<int64_t>(start);
      for (size_t i = 0; i < times; ++i) values.insert(values.end(), begin, begin + static_cast<int64_t>(head));
    }
    tensor.values = std::move(values);
    tensor.shape[0] *= times;
  }
  return tensors;
}

// A folder with "base", whose four key heads are the golden model's two, and room for files beside it.
class Workshop {
 public:
  Workshop() {
    std::string pattern = (fs::temp_directory_path() / "headrace_graft_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    fs::create_directory(folder_ / "base");
    auto config = nlohmann::json::parse(read_file(kLlama + "/config.json"));
    config["num_key_value_heads"] = 4;
    write("base/config.json", config);
    write_tensors(folder_ / "base/model.safetensors",
                  with_repeated_heads(read_tensors(kLlama + "/model.safetensors"), 16, 2));
  }
  ~Workshop() {
    std::error_code error;
    fs::remove_all(folder_, error);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const nlohmann::json& json) const {
    std::ofstream(folder_ / name) << json.dump();
    return path(name);
  }
  std::string graft(const std::vector<nlohmann::json>& replacements) const {
    return write("graft.json", {{"format", "headrace graft 1"}, {"base", "base"}, {"replace", replacements}});
  }

 private:
  fs::path folder_;
};

}  // namespace headrace::golden
