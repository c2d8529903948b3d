// Damaged configs and tables of tensors of the golden models, key by key and tensor by tensor: each is refused by the name of
// the key or the tensor, or mutation_reasons.h says why not.
#include <filesystem>

#include "golden/mutation_names.h"
#include "golden/mutation_reasons.h"
#include "golden/mutation_tally.h"
#include "golden/mutations.h"
#include "model/families/family.h"

using namespace headrace;
using namespace headrace::golden;
namespace fs = std::filesystem;

namespace {

const std::string kModels = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";

std::vector<std::string> model_names() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(kModels)) out.push_back(entry.path().filename().string());
  std::erase_if(out, [](const std::string& name) { return name.ends_with("_bf16"); });  // the same keys and tensors
  std::sort(out.begin(), out.end());
  return out;
}

bool same(const ImportedModel& a, const ImportedModel& b) {
  const auto places = [](const ImportedModel& model) {
    std::vector<std::tuple<std::string, std::string, uint64_t>> out;
    for (const auto* part : {&model.weights, &model.vision_weights, &model.encoder_weights}) {
      for (const WeightEntry& weight : *part) out.emplace_back(weight.name, weight.file_name, weight.offset);
    }
    return out;
  };
  return a.spec == b.spec && a.vision == b.vision && a.encoder == b.encoder && places(a) == places(b);
}

// What transformers' configuration classes have for keys that are left out, by model type and place.
const nlohmann::json& class_defaults() {
  static const auto kDefaults =
      nlohmann::json::parse(read_file(std::string(HEADRACE_SOURCE_DIR) + "/tests/data/class_defaults.json"));
  return kDefaults;
}

std::shared_ptr<SafetensorsFile> weights_of(const std::string& name) {
  auto weights = SafetensorsFile::open_path(kModels + name + "/model.safetensors");
  REQUIRE(weights.ok());
  return weights.take();
}

// A golden model, and what becomes of it.
struct Damage {
  const std::string& name;
  const nlohmann::json& config;
  const TensorFile& weights;
  const std::vector<std::string>& tensors;  // their names
  const ImportedModel& original;
  Tally& tally;
};

// A key that is left out is the same as one with the class's default, where that goes with so small a model.
void check_default(const Damage& damage, const ConfigMutation& mutation, const ImportedModel& model) {
  const std::string place = mutation.pointer.to_string();
  const auto& defaults = class_defaults().at(damage.config.at("model_type").get<std::string>());
  if (defaults.contains(place) && mutation.key != "bos_token_id" && mutation.key != "eos_token_id") {
    nlohmann::json config = damage.config;
    config[mutation.pointer] = defaults.at(place);
    const auto written = import_config(config, damage.weights);
    if (written.ok() && same(*written, model)) {
      return damage.tally.harmless(damage.name, mutation.kind, place, "the class's default stands for it");
    }
    if (written.ok()) {
      return damage.tally.wrong(damage.name, "another default than " + defaults.at(place).dump() + " of " + place);
    }
  }
  const bool nothing = same(model, damage.original);
  if (const char* reason = reason_to_leave_out(mutation, nothing, damage.name)) {
    damage.tally.harmless(damage.name, mutation.kind, place, reason);
  } else {
    damage.tally.wrong(damage.name, (nothing ? "left out: " : "another model without ") + place);
  }
}

void check_mutation(const Damage& damage, const ConfigMutation& mutation) {
  const std::string place = mutation.pointer.to_string();
  const auto model = import_config(mutated(damage.config, mutation), damage.weights);
  if (!model.ok()) {
    if (names_its_place(model.status(), mutation, damage.tensors)) {
      damage.tally.refused(damage.name, mutation.kind, place, model.status().to_string());
    } else {
      damage.tally.wrong(damage.name, "unnamed: " + place + ", " + mutation.kind + ": " + model.status().to_string());
    }
    return;
  }
  if (mutation.kind == "left out") return check_default(damage, mutation, *model);
  const bool nothing = same(*model, damage.original);
  const char* const reason =
      nothing ? reason_to_ignore(mutation, damage.name) : reason_for_another(mutation, damage.name);
  if (reason != nullptr) {
    damage.tally.harmless(damage.name, mutation.kind, place, reason);
  } else {
    damage.tally.wrong(damage.name, (nothing ? "ignored: " : "another model: ") + place + ", " + mutation.kind);
  }
}

void damage_config(const std::string& name, const nlohmann::json& config, const TensorFile& weights, Tally& tally) {
  const auto original = import_config(config, weights);
  INFO(name << ": " << original.status().to_string());
  REQUIRE(original.ok());
  std::vector<std::string> tensors;
  for (const TensorEntry& tensor : weights.tensors()) tensors.push_back(tensor.name);
  std::vector<ConfigMutation> mutations;
  collect_mutations(config, nlohmann::json::json_pointer(), mutations);
  for (const ConfigMutation& mutation : mutations) {
    check_mutation({name, config, weights, tensors, *original, tally}, mutation);
  }
}

}  // namespace

TEST_CASE("damaged configs are refused by the key's or a tensor's name") {
  if (!have_golden(kModels + "llama")) return;
  Tally tally("config_mutations.tsv");
  for (const std::string& name : model_names()) {
    for (const char* file : {"config.json", "config_v4.json"}) {
      const std::string text = read_file(kModels + name + "/" + file);
      if (!text.empty()) damage_config(name, nlohmann::json::parse(text), *weights_of(name), tally);
    }
  }
  tally.check("configs", 200);
}

TEST_CASE("damaged tables of tensors are refused by the tensor's name") {
  if (!have_golden(kModels + "llama")) return;
  Tally tally("tensor_mutations.tsv");
  for (const std::string& name : model_names()) {
    const auto config = nlohmann::json::parse(read_file(kModels + name + "/config.json"));
    for (TableMutation& mutation : mutations_of(weights_of(name)->tensors())) {
      const auto file = TableFile::make(std::move(mutation.tensors));
      REQUIRE(file.ok());
      const auto model = import_config(config, **file);
      const std::string status = model.status().to_string();
      const bool named = says(status, mutation.expected) || says(status, mutation.expected + "_x");
      if (!model.ok() && named) {
        tally.refused(name, mutation.kind, mutation.tensor, status);
      } else if (const char* reason = model.ok() ? reason_to_take(mutation) : nullptr) {
        tally.harmless(name, mutation.kind, mutation.tensor, reason);
      } else {
        tally.wrong(name, mutation.kind + ", " + without_digits(mutation.tensor) + ": " + status);
      }
    }
  }
  tally.check("tensors", 200);
}
