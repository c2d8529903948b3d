// headrace export-hidden: hidden states of prompts as safetensors, for training drafters and probes.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "output_file.h"

namespace cli {
namespace {

struct ExportArguments {
  ModelArguments model;
  std::string prompts, folder;
  std::vector<int32_t> layers;
  int64_t max_tokens = 1, shard_megabytes = 1024;
};

// The rows of one prompt, layer by layer.
struct Rows {
  std::vector<int32_t> tokens;                // of the prompt and what was generated, without the last
  std::vector<std::vector<float>> of_layers;  // [rows, hidden_size] of each
  int64_t hidden_size = 0;
};

headrace::Error line_error(size_t line, const std::string& message) {
  return headrace::Error(HEADRACE_INVALID_ARGUMENT, message, "prompts, line " + std::to_string(line));
}

// {"prompt": text}, {"tokens": [ids]} or {"messages": [...]}.
std::vector<int32_t> tokens_of(const nlohmann::json& prompt, const headrace::Model& model, size_t line) {
  if (!prompt.is_object() || prompt.size() != 1) {
    throw line_error(line, "an object with \"prompt\", \"tokens\" or \"messages\" alone is needed");
  }
  const std::string& key = prompt.begin().key();
  const nlohmann::json& value = prompt.begin().value();
  if (key == "prompt" && value.is_string()) return model.tokenizer().encode(value.get<std::string>());
  if (key == "tokens" && value.is_array()) return value.get<std::vector<int32_t>>();
  if (key == "messages")
    return model.tokenizer().encode(headrace::ChatTemplate(model).render({value.dump(), {}, {}, true, {}}));
  throw line_error(line, "an object with \"prompt\", \"tokens\" or \"messages\" is needed");
}

Rows run_prompt(headrace::Scheduler& scheduler, const headrace::Model& model, const ExportArguments& arguments,
                std::vector<int32_t> tokens) {
  headrace::Request request(model);
  request.add_tokens(tokens).set_length(0, arguments.max_tokens).set_hidden_states(arguments.layers);
  Rows rows;
  rows.tokens = std::move(tokens);
  rows.of_layers.resize(arguments.layers.size());
  scheduler.run(request, [&](const headrace::Event& event) {
    for (const int32_t token : event.tokens()) rows.tokens.push_back(token);
    if (event.type() != headrace::EventType::kHidden) return true;
    const headrace_hidden_states part = event.hidden_states();
    rows.hidden_size = part.hidden_size;
    const int64_t values = part.num_rows * part.hidden_size;
    for (size_t layer = 0; layer < rows.of_layers.size(); ++layer) {
      const float* const begin = part.values + static_cast<int64_t>(layer) * values;
      rows.of_layers[layer].insert(rows.of_layers[layer].end(), begin, begin + values);
    }
    return true;
  });
  rows.tokens.pop_back();  // drawn, and not computed
  return rows;
}

// A safetensors file in the making: tensors in memory, written as a whole.
class Shard {
 public:
  size_t bytes() const { return data_.size(); }
  void add(const std::string& name, const char* dtype, std::vector<int64_t> shape, const void* values, size_t size) {
    const auto* const begin = static_cast<const char*>(values);
    header_[name] = {
        {"dtype", dtype}, {"shape", std::move(shape)}, {"data_offsets", {data_.size(), data_.size() + size}}};
    data_.append(begin, size);
  }
  void write(const std::string& path, const nlohmann::json& metadata) {
    header_["__metadata__"] = metadata;
    std::string header = header_.dump();
    header.append((8 - header.size() % 8) % 8, ' ');
    OutputFile file(path);
    for (int byte = 0; byte < 8; ++byte) file.stream().put(static_cast<char>(uint64_t{header.size()} >> (8 * byte)));
    file.stream() << header << data_;
    file.commit();
    header_ = nlohmann::json::object();
    data_.clear();
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : header_.items()) out.push_back(entry.key());
    return out;
  }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

void export_hidden(const ExportArguments& arguments) {
  namespace fs = std::filesystem;
  std::istringstream prompts(read_filled_file(arguments.prompts));
  const headrace::Model model = arguments.model.load();
  headrace::Scheduler scheduler(model, arguments.model.options());
  fs::create_directories(arguments.folder);
  nlohmann::json metadata = {{"model", fs::path(arguments.model.path).filename().string()}};
  metadata["layers"] = nlohmann::json(arguments.layers).dump();
  nlohmann::json weight_map = nlohmann::json::object();
  Shard shard;
  size_t num_shards = 0, num_prompts = 0, num_rows = 0;
  const auto write_shard = [&] {
    char name[64];
    std::snprintf(name, sizeof name, "hidden-%05zu.safetensors", ++num_shards);
    for (const std::string& tensor : shard.names()) weight_map[tensor] = name;
    shard.write((fs::path(arguments.folder) / name).string(), metadata);
  };
  std::string prompt;
  for (size_t line = 1; std::getline(prompts, prompt); ++line) {
    if (prompt.find_first_not_of(" \t\r") == std::string::npos) continue;
    const nlohmann::json json = nlohmann::json::parse(prompt, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) throw line_error(line, "is no JSON");
    const Rows rows = run_prompt(scheduler, model, arguments, tokens_of(json, model, line));
    const auto count = static_cast<int64_t>(rows.tokens.size());
    const std::string at = std::to_string(num_prompts++) + ".";
    num_rows += rows.tokens.size();
    shard.add(at + "input_ids", "I32", {count}, rows.tokens.data(), rows.tokens.size() * sizeof(int32_t));
    for (size_t layer = 0; layer < rows.of_layers.size(); ++layer) {
      const std::vector<float>& values = rows.of_layers[layer];
      shard.add(at + "hidden_states." + std::to_string(arguments.layers[layer]), "F32", {count, rows.hidden_size},
                values.data(), values.size() * sizeof(float));
    }
    if (shard.bytes() >= static_cast<size_t>(arguments.shard_megabytes) << 20) write_shard();
  }
  if (num_prompts == 0) throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "holds no prompts", arguments.prompts);
  if (shard.bytes() > 0) write_shard();
  const nlohmann::json index = {{"metadata", metadata}, {"weight_map", weight_map}};
  write_file((fs::path(arguments.folder) / "hidden.safetensors.index.json").string(), index.dump(1) + "\n");
  print_text(std::to_string(num_rows) + " rows of " + std::to_string(num_prompts) + " prompts in " +
             std::to_string(num_shards) + " files\n");
}

}  // namespace

void add_export_hidden(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export-hidden", "hidden states of prompts, as safetensors");
  arguments->model.add_to(*command);
  add_number_list(*command, "--layers", arguments->layers, 0, 65536,
                  "numbers with commas: 0 is the embeddings, i what enters layer i, and the number of layers what the "
                  "head reads")
      ->required();
  command
      ->add_option("--prompts", arguments->prompts,
                   "a file (- is standard input) with an object on each line: \"prompt\" (text), \"tokens\" or "
                   "\"messages\" (through the chat template)")
      ->required();
  command->add_option("-o,--output", arguments->folder, "the folder that the files go to")->required();
  command
      ->add_option("--max-tokens", arguments->max_tokens,
                   "tokens generated behind each prompt; the rows of all but the last are there too")
      ->transform(at_least(1))
      ->capture_default_str();
  command->add_option("--shard-megabytes", arguments->shard_megabytes, "a file ends behind the prompt that reaches it")
      ->transform(at_least(1))
      ->capture_default_str();
  command->callback([arguments] { export_hidden(*arguments); });
}

}  // namespace cli
