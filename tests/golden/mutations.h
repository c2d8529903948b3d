// Damage to a model's config and to its table of tensors, of every kind at every place.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/tensor_file.h"
#include "golden/golden_run.h"

namespace headrace::golden {

// One change of a config: the key at `pointer` has another value, or another name.
struct ConfigMutation {
  std::string kind;
  nlohmann::json::json_pointer pointer;
  std::string key;       // the pointer's last name
  nlohmann::json value;  // null: the key is left out
  std::string new_name;  // not empty: the key has it
};

inline nlohmann::json mutated(nlohmann::json config, const ConfigMutation& mutation) {
  nlohmann::json& object = config[mutation.pointer.parent_pointer()];
  if (!mutation.new_name.empty()) {
    object[mutation.new_name] = object[mutation.key];
    object.erase(mutation.key);
  } else if (mutation.value.is_null()) {
    object.erase(mutation.key);
  } else {
    object[mutation.key] = mutation.value;
  }
  return config;
}

// What else might stand in place of a value.
inline std::vector<std::pair<std::string, nlohmann::json>> other_values(const nlohmann::json& value) {
  using nlohmann::json;
  std::vector<std::pair<std::string, json>> out;
  const auto as_float = [](const char* text) { return json{{"__float__", text}}; };  // how configs write them
  if (value.is_string()) return {{"number", 7}, {"unknown text", "no such thing"}};
  if (value.is_boolean()) return {{"text", "seven"}, {"number", 7}, {"other", !value.get<bool>()}};
  if (value.is_null()) return {{"text", "seven"}, {"negative", -3}};
  if (value.is_object()) return {{"text", "seven"}, {"list", json::array({1})}};
  if (value.is_array()) {
    out = {{"text", "seven"}, {"number", -7}, {"empty", json::array()}};
    if (value.empty()) return out;
    json shorter = value, longer = value, other = value;
    shorter.erase(shorter.size() - 1);
    longer.push_back(value.back());
    other[0] = value[0].is_string() ? json(7) : json("seven");
    if (!shorter.empty()) out.emplace_back("shorter", shorter);
    out.emplace_back("longer", longer);
    out.emplace_back("other item", other);
    if (value[0].is_string()) {
      other[0] = "no such thing";
      out.emplace_back("unknown item", other);
    }
    return out;
  }
  out = {
      {"text", "seven"}, {"list", json::array({1, 2})}, {"nan", as_float("NaN")}, {"infinite", as_float("Infinity")}};
  if (value.is_number_integer()) {
    out.emplace_back("negative", -std::abs(value.get<int64_t>()) - 3);
    out.emplace_back("zero", 0);
    out.emplace_back("huge", int64_t{1} << 62);
    out.emplace_back("fraction", value.get<double>() + 0.5);
    out.emplace_back("one more", value.get<int64_t>() + 1);
  } else {
    out.emplace_back("negative", -std::abs(value.get<double>()) - 0.25);
    out.emplace_back("zero", 0.0);
    out.emplace_back("huge", 1e300);
  }
  return out;
}

// Every kind of change at every key, those of nested objects too, and a key that no config has in every object.
inline void collect_mutations(const nlohmann::json& object, const nlohmann::json::json_pointer& at,
                              std::vector<ConfigMutation>& out) {
  out.push_back({"unknown key", at / "no_such_factor", "no_such_factor", 2.0, {}});
  for (const auto& [key, value] : object.items()) {
    const auto pointer = at / key;
    out.push_back({"left out", pointer, key, nullptr, {}});
    if (!value.is_null()) out.push_back({"renamed", pointer, key, nullptr, key + "_x"});
    for (auto& [kind, other] : other_values(value)) {
      if (other != value) out.push_back({kind, pointer, key, other, {}});
    }
    if (value.is_object() && !value.contains("__float__")) collect_mutations(value, pointer, out);
  }
}

// A table of tensors without their bytes, which reads as zeros.
class TableFile : public TensorFile {
 public:
  static Result<std::shared_ptr<TableFile>> make(std::vector<TensorEntry> tensors) {
    struct Made : TableFile {};
    auto file = std::make_shared<Made>();
    for (TensorEntry& tensor : tensors) {
      const auto count = num_elements(tensor.shape);
      const auto bytes = count ? row_bytes(tensor.dtype, *count) : std::nullopt;
      if (!bytes) return malformed(tensor.name, "does not fit");
      tensor.bytes = *bytes;
      tensor.offset = 0;
      tensor.source_index = 0;
    }
    const auto zeros = [](uint64_t, std::byte* to, uint64_t size) {
      std::fill_n(to, size, std::byte{0});
      return true;
    };
    HEADRACE_RETURN_IF_ERROR(
        file->set_tensors({open_reader(uint64_t{1} << 40, zeros, "zeros", {})}, std::move(tensors)));
    return std::shared_ptr<TableFile>(file);
  }
};

// One change of a table: the tensor that is damaged, the word that a refusal has to say, and the table.
struct TableMutation {
  std::string kind, tensor, expected;
  std::vector<TensorEntry> tensors;
};

// Numbers of layers and experts aside, which are alike.
inline std::string without_digits(std::string name) {
  std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
  return name;
}

// Every kind of change of the first tensor of each kind.
inline std::vector<TableMutation> mutations_of(const std::vector<TensorEntry>& tensors) {
  std::vector<TableMutation> out;
  std::set<std::string> seen;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].name;
    if (!seen.insert(without_digits(name)).second) continue;
    const auto add = [&](const std::string& kind, const std::function<void(TensorEntry&)>& change) {
      TableMutation mutation{kind, name, name, tensors};
      change(mutation.tensors[i]);
      if (mutation.tensors[i].shape != tensors[i].shape || mutation.tensors[i].name != name ||
          mutation.tensors[i].dtype != tensors[i].dtype) {
        out.push_back(std::move(mutation));
      }
    };
    TableMutation missing{"left out", name, name, tensors};
    missing.tensors.erase(missing.tensors.begin() + static_cast<int64_t>(i));
    out.push_back(std::move(missing));
    add("renamed", [](TensorEntry& tensor) { tensor.name += "_x"; });
    for (const DType dtype : {DType::kI8, DType::kI32, DType::kI64, DType::kU8}) {
      add("integers", [&](TensorEntry& tensor) { tensor.dtype = dtype; });
    }
    add("an axis of two more", [](TensorEntry& tensor) { tensor.shape.push_back(2); });
    add("no axes", [](TensorEntry& tensor) { tensor.shape.clear(); });
    for (size_t axis = 0; axis < tensors[i].shape.size(); ++axis) {
      const std::string of_axis = " in axis " + std::to_string(axis);
      add("one more" + of_axis, [&](TensorEntry& tensor) { ++tensor.shape[axis]; });
      add("none" + of_axis, [&](TensorEntry& tensor) { tensor.shape[axis] = 0; });
      add("twice" + of_axis, [&](TensorEntry& tensor) { tensor.shape[axis] *= 2; });
      if (tensors[i].shape[axis] > 1) add("one less" + of_axis, [&](TensorEntry& tensor) { --tensor.shape[axis]; });
      if (axis == 0) continue;
      add("swapped" + of_axis, [&](TensorEntry& tensor) { std::swap(tensor.shape[axis - 1], tensor.shape[axis]); });
    }
    TableMutation surplus{"surplus", name, name + ".surplus", tensors};
    surplus.tensors.push_back(tensors[i]);
    surplus.tensors.back().name += ".surplus";
    out.push_back(std::move(surplus));
  }
  TableMutation other{"surplus", "another.weight", "another.weight", tensors};
  other.tensors.push_back(tensors[0]);
  other.tensors.back().name = "another.weight";
  out.push_back(std::move(other));
  return out;
}

}  // namespace headrace::golden
