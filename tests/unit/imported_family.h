// What an importer makes of a config and the shapes of a file, whose values are zero.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/byte_source.h"
#include "formats/safetensors.h"
#include "model/families/family.h"

namespace headrace {

using Shapes = std::map<std::string, std::vector<uint64_t>>;

inline std::string file_of(const Shapes& shapes) {
  nlohmann::json header = nlohmann::json::object();
  uint64_t offset = 0;
  for (const auto& [name, shape] : shapes) {
    uint64_t bytes = 4;
    for (const uint64_t size : shape) bytes *= size;
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string out(reinterpret_cast<const char*>(&length), 8);
  return out + text + std::string(offset, '\0');
}

inline Result<ImportedModel> import(const nlohmann::json& config, const Shapes& shapes) {
  const std::string bytes = file_of(shapes);
  auto file = SafetensorsFile::open({open_memory(std::as_bytes(std::span(bytes)), "model.safetensors", [] {})});
  REQUIRE(file.ok());
  return import_config(config, **file);
}

inline void check_refused(const Result<ImportedModel>& result, StatusCode code, const std::string& place) {
  REQUIRE_FALSE(result.ok());
  INFO("expected " << place << ", got " << result.status().to_string());
  CHECK(result.status().code() == code);
  CHECK(result.status().place().find(place) != std::string::npos);
}

inline const WeightEntry& weight(const ImportedModel& model, const std::string& name) {
  for (const WeightEntry& entry : model.weights) {
    if (entry.name == name) return entry;
  }
  FAIL("no weight " << name);
  return model.weights[0];
}

}  // namespace headrace
