// headrace inspect: what a file holds, and what fits into memory.
#include <algorithm>
#include <cctype>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"

namespace cli {
namespace {

struct InspectArguments {
  std::string model, memory;
  bool json = false, self_check = false;
  SettingArguments settings;
};

// "16G", "512M", "1.5GiB", plain bytes; units are powers of 1024.
uint64_t parse_bytes(const std::string& text) {
  size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  size_t power = 0;
  if (!unit.empty())
    power = std::string("BKMGT").find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
  const std::string rest = unit.size() > 1 ? unit.substr(1) : "";
  bool is_amount = end != 0 && power <= 4 && (rest.empty() || (power > 0 && (rest == "B" || rest == "iB")));
  for (size_t i = 0; is_amount && i < power; ++i) value *= 1024;
  is_amount = is_amount && value >= 0 && value < 0x1p63;  // false for NaN too
  if (!is_amount) throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is not an amount of memory such as 16G", text);
  return static_cast<uint64_t>(value);
}

std::string cell_text(const nlohmann::ordered_json& cell) {
  return cell.is_string() ? cell.get<std::string>() : cell.dump();
}

// An object on one line: "kind=gqa num_heads=4 rope.theta=10000.0"; what is off (false, zero, null) is left out.
std::string one_line(const nlohmann::ordered_json& object, const std::string& prefix = "") {
  std::string line;
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object()) {
      line += one_line(value, name);
    } else if (!(value.is_null() || value == false || value == 0)) {
      line += name + "=" + cell_text(value) + "  ";
    }
  }
  return line;
}

// Layers that are alike share a line: "0-4, 6-10: ...".
void print_layers(const nlohmann::ordered_json& layers) {
  std::vector<std::pair<std::string, std::vector<size_t>>> kinds;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string line = one_line(layers[i]);
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == line; });
    if (known != kinds.end()) {
      known->second.push_back(i);
    } else {
      kinds.push_back({line, {i}});
    }
  }
  std::cout << "layers: " << layers.size() << "\n";
  for (const auto& [line, indices] : kinds) {
    std::cout << "  ";
    for (size_t i = 0; i < indices.size();) {
      size_t last = i;
      while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) ++last;
      std::cout << (i ? ", " : "") << indices[i];
      if (last > i) std::cout << "-" << indices[last];
      i = last + 1;
    }
    std::cout << ": " << line << "\n";
  }
}

// Scalars as "key: value", objects indented below their key, arrays of objects a line each.
void print(const nlohmann::ordered_json& value, const std::string& indent) {
  for (const auto& [key, item] : value.items()) {
    if (key == "layers" && item.is_array()) {
      print_layers(item);
    } else if (item.is_object()) {
      std::cout << indent << key << ":\n";
      print(item, indent + "  ");
    } else if (item.is_array() && !item.empty() && item[0].is_object()) {
      std::cout << indent << key << ":\n";
      for (const auto& row : item) std::cout << indent << "  " << one_line(row) << "\n";
    } else {
      std::cout << indent << key << ": " << cell_text(item) << "\n";
    }
  }
}

void inspect(const InspectArguments& arguments) {
  const uint64_t memory = arguments.memory.empty() ? 0 : parse_bytes(arguments.memory);
  const std::string text = headrace::Model::inspect(arguments.model, memory);
  if (arguments.self_check) {
    headrace::Options options = arguments.settings.options({"model.self_check"});
    options.set("model.self_check", "true");
    headrace::Model::load(arguments.model, options);
  }
  if (arguments.json) {
    std::cout << text << "\n";
    return;
  }
  print(nlohmann::ordered_json::parse(text), "");
  if (arguments.self_check) std::cout << "self_check: each op of this model is computed here as it should be\n";
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand("inspect", "architecture, tensor types and memory plan of a file");
  command->add_option("model,-m,--model", arguments->model, "GGUF file, safetensors file, Hugging Face folder or graft")
      ->required();
  command->add_option("--memory", arguments->memory, "plan for this much memory: 16G, 800M, ...");
  command->add_flag("--json", arguments->json, "print JSON");
  command->add_flag("--self-check", arguments->self_check,
                    "load the model and compare each op that it needs with a scalar reference");
  arguments->settings.add_to(*command);
  command->callback([arguments] { inspect(*arguments); });
}

}  // namespace cli
