#include "model/graft.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/format_full.h"
#include "formats/joined_file.h"
#include "formats/json.h"
#include "model/graft_donor.h"
#include "model/graft_images.h"
#include "model/model_header.h"

namespace headrace {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kFormat = "headrace graft 1";
constexpr uint64_t kMostBytes = 16 << 20;  // of the JSON file
constexpr int64_t kMostLayers = 1 << 20;

struct Replacement {
  std::string place;
  std::vector<int64_t> layers, from_layers;  // equally many
  std::string part, from;
  json* config = nullptr;  // or null
  std::vector<std::string> keep;
};

Result<HeldJson<json>> read_json(const std::string& path) {
  HEADRACE_ASSIGN_OR_RETURN(const auto bytes, open_path(path));
  HEADRACE_ASSIGN_OR_RETURN(const std::string text, read_all(*bytes, kMostBytes));
  return parse_json(text, fs::path(path).filename().string());
}

Status read_layers(const ConfigReader& reader, std::string_view key, std::vector<int64_t>& out) {
  HEADRACE_ASSIGN_OR_RETURN(out, reader.integers(key));
  for (const int64_t layer : out) {
    if (layer < 0 || layer >= kMostLayers) return malformed(reader.place_of(key), "{} is no number of a layer", layer);
  }
  return {};
}

Result<Replacement> read_replacement(json& object, std::string place) {
  if (!object.is_object()) return malformed(place, "not an object");
  const ConfigReader reader(object, place);
  constexpr std::string_view kKeys[] = {"layers", "part", "from", "from_layers", "config", "keep"};
  HEADRACE_RETURN_IF_ERROR(reader.check_known(kKeys));
  Replacement out;
  HEADRACE_RETURN_IF_ERROR(read_layers(reader, "layers", out.layers));
  if (out.layers.empty()) return malformed(reader.place_of("layers"), "names no layer");
  HEADRACE_RETURN_IF_ERROR(read_layers(reader, "from_layers", out.from_layers));
  if (out.from_layers.empty()) out.from_layers = out.layers;
  if (out.from_layers.size() != out.layers.size()) {
    return malformed(reader.place_of("from_layers"), "{} layers for {}", out.from_layers.size(), out.layers.size());
  }
  HEADRACE_ASSIGN_OR_RETURN(out.part, reader.text_or("part", ""));
  if (out.part != "attention" && out.part != "feed_forward" && out.part != "layer") {
    return malformed(reader.place_of("part"), "'{}' is neither attention, feed_forward nor layer", out.part);
  }
  HEADRACE_ASSIGN_OR_RETURN(out.from, reader.text_or("from", ""));
  if (out.from.empty()) return malformed(reader.place_of("from"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(out.keep, reader.texts("keep"));
  if (reader.has("config")) {
    out.config = &object["config"];
    if (!out.config->is_object()) return malformed(reader.place_of("config"), "not an object");
  }
  out.place = std::move(place);
  return out;
}

// The norms of all layers are of one kind.
Status check_fits(const ModelSpec& base, const ModelSpec& donor) {
  if (donor.hidden_size != base.hidden_size) {
    return unsupported("", "rows of {} values do not fit a base of {}", donor.hidden_size, base.hidden_size);
  }
  if (donor.norm != base.norm || donor.norm_bias != base.norm_bias || donor.norm_eps != base.norm_eps ||
      donor.norm_weight_offset != base.norm_weight_offset) {
    return unsupported("", "its norms are not of the base's kind");
  }
  if (donor.streams != base.streams || donor.per_layer_inputs != base.per_layer_inputs) {
    return unsupported("", "its streams, or inputs of the layers' own, are not the base's");
  }
  if (has_cross_attention(base) || has_cross_attention(donor)) {
    return unsupported("", "layers of decoders that see an encoder are not exchanged");
  }
  return {};
}

// Whether the layer's attention sees what another layer keeps.
bool leans_on_another(const LayerSpec& layer) {
  const auto* attention = std::get_if<GqaAttention>(&layer.attention);
  const auto* sparse = std::get_if<SparseLatentAttention>(&layer.attention);
  return (attention != nullptr &&
          (attention->kv_layer >= 0 || (attention->position_buckets && attention->position_buckets->layer >= 0))) ||
         (sparse != nullptr && !sparse->indexer);
}

Status replace_part(LayerSpec& layer, const LayerSpec& donor, std::string_view part) {
  if (part != "feed_forward" && leans_on_another(donor)) {
    return unsupported("", "its attention sees what another of its layers keeps");
  }
  if (part == "layer") {
    layer = donor;
    return {};
  }
  if (layer.parallel != donor.parallel || layer.stream_norms || donor.stream_norms) {
    return unsupported("", "attention and feed-forward are not joined as in the base; only a whole layer fits");
  }
  if (part == "attention") {
    layer.attention = donor.attention;
    layer.attention_norm = donor.attention_norm;
    layer.post_attention_norm = donor.post_attention_norm;
    layer.attention_residual = donor.attention_residual;
  } else {
    layer.feed_forward = donor.feed_forward;
    layer.feed_forward_norm = donor.feed_forward_norm;
    layer.post_feed_forward_norm = donor.post_feed_forward_norm;
    layer.feed_forward_residual = donor.feed_forward_residual;
  }
  return {};
}

// A weight's name without "layers.N.", of the layers' weights.
std::string_view name_in_layer(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  return name.starts_with(kLayers) ? name.substr(name.find('.', kLayers.size()) + 1) : std::string_view();
}

// Names within a layer of the weights of its part.
std::unordered_set<std::string> names_of_part(const ModelSpec& spec, LayerSpec layer, std::string_view part) {
  if (part == "attention") {
    layer.feed_forward = NoFeedForward{};
    layer.post_feed_forward_norm = false;
  } else if (part == "feed_forward") {
    layer.attention = NoAttention{};
    layer.post_attention_norm = false;
  }
  ModelSpec alone = spec;
  if (part != "layer") {  // what belongs to neither
    alone.streams = OneStream{};
    alone.per_layer_inputs.reset();
    layer.laurel_rank = 0;
    layer.output_scale = false;
  }
  alone.layers = {std::move(layer)};
  std::unordered_set<std::string> out;
  for (const WeightEntry& entry : list_weights(alone)) {
    if (const std::string_view name = name_in_layer(entry.name); !name.empty()) out.emplace(name);
  }
  return out;
}

bool is_kept(std::string_view name, std::string_view module) {
  return name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.');
}

// A model that grows by replacements.
class Graft {
 public:
  explicit Graft(ModelHeader base) : header_(std::move(base)) {
    parts_.push_back({"", header_.file});
    for (const WeightEntry& entry : header_.weights) origins_.emplace(entry.name, entry);
  }

  const ModelSpec& spec() const { return header_.spec; }

  Status replace(const Replacement& replacement, const Donor& donor) {
    HEADRACE_RETURN_IF_ERROR(check_fits(header_.spec, donor.spec));
    // Another config makes another view of the same file.
    const std::string prefix =
        replacement.config == nullptr ? replacement.from + ":" : replacement.from + replacement.place + ":";
    bool known = false;
    for (const JoinedFile::Part& part : parts_) known = known || part.prefix == prefix;
    if (!known) parts_.push_back({prefix, donor.file});
    for (size_t i = 0; i < replacement.layers.size(); ++i) {
      HEADRACE_RETURN_IF_ERROR(replace_layer(replacement, donor, prefix, i));
    }
    header_.grafts.push_back({replacement.layers, replacement.part, replacement.from, replacement.from_layers});
    return {};
  }

  Status put_images_in_front(json& object, const std::string& folder, bool use_mmap) {
    return add_images(object, folder, use_mmap, header_, parts_);
  }

  void add_adapter(const std::string& folder, const std::string& name) {
    header_.adapters.push_back(folder);
    header_.grafts.push_back({{}, "adapter", name, {}});
  }

  Result<ModelHeader> take() {
    HEADRACE_RETURN_IF_ERROR(validate_spec(header_.spec));
    header_.weights.clear();
    for (const WeightEntry& wanted : list_weights(header_.spec)) {
      const auto origin = origins_.find(wanted.name);
      if (origin == origins_.end()) return not_found(wanted.name, "neither the base nor a donor has this weight");
      if (origin->second.shape != wanted.shape) {
        return malformed(wanted.name, "shape [{}], expected [{}]", fmt::join(origin->second.shape, ", "),
                         fmt::join(wanted.shape, ", "));
      }
      header_.weights.push_back(origin->second);
    }
    HEADRACE_ASSIGN_OR_RETURN(header_.file, JoinedFile::join(parts_));
    return std::move(header_);
  }

 private:
  Status replace_layer(const Replacement& replacement, const Donor& donor, const std::string& prefix, size_t i) {
    const int64_t to = replacement.layers[i], from = replacement.from_layers[i];
    if (to >= static_cast<int64_t>(header_.spec.layers.size())) {
      return malformed("layers", "{} is past the base's {} layers", to, header_.spec.layers.size());
    }
    if (from >= static_cast<int64_t>(donor.spec.layers.size())) {
      return malformed("from_layers", "{} is past the donor's {} layers", from, donor.spec.layers.size());
    }
    const LayerSpec& block = donor.spec.layers[static_cast<size_t>(from)];
    LayerSpec& layer = header_.spec.layers[static_cast<size_t>(to)];
    HEADRACE_RETURN_IF_ERROR(replace_part(layer, block, replacement.part));
    const auto names = names_of_part(donor.spec, block, replacement.part);
    for (const std::string& module : replacement.keep) {
      const auto keeps = [&](const std::string& name) { return is_kept(name, module); };
      if (std::none_of(names.begin(), names.end(), keeps)) {
        return malformed("keep", "'{}' is no weight of the {}", module, replacement.part);
      }
    }
    HEADRACE_ASSIGN_OR_RETURN(const auto entries, resolve_layer(donor.spec, from, donor.naming, *donor.file));
    for (WeightEntry entry : entries) {
      const std::string name(name_in_layer(entry.name));
      const auto keeps = [&](const std::string& module) { return is_kept(name, module); };
      if (!names.contains(name) || std::any_of(replacement.keep.begin(), replacement.keep.end(), keeps)) continue;
      if (donor.file->find(entry.file_name) == nullptr) {
        return not_found(entry.file_name, "the file has no such tensor ({})", name);
      }
      entry.name = fmt::format("layers.{}.{}", to, name);
      entry.file_name = prefix + entry.file_name;
      const std::string key = entry.name;
      origins_.insert_or_assign(key, std::move(entry));
    }
    return {};
  }

  ModelHeader header_;
  std::vector<JoinedFile::Part> parts_;
  std::unordered_map<std::string, WeightEntry> origins_;  // by our names
};

Result<ModelHeader> compose(const std::string& path, bool use_mmap) {
  HEADRACE_ASSIGN_OR_RETURN(auto file, read_json(path));
  if (!file.is_object()) return malformed("", "not an object");
  const ConfigReader reader(file, "");
  constexpr std::string_view kKeys[] = {"format", "base", "replace", "images", "adapters"};
  HEADRACE_ASSIGN_OR_RETURN(const std::string format, reader.text_or("format", ""));
  if (format != kFormat) return unsupported("/format", "'{}' is not '{}'", format, kFormat);
  HEADRACE_RETURN_IF_ERROR(reader.check_known(kKeys));
  HEADRACE_ASSIGN_OR_RETURN(const std::string base, reader.text_or("base", ""));
  if (base.empty()) return malformed("/base", "missing");
  const fs::path folder = fs::path(path).parent_path();
  const std::string base_path = (folder / base).string();
  if (fs::path(base).extension() == ".json") return unsupported("/base", "a graft's base is a model, not a graft");
  ModelSource source;
  source.path = base_path;
  source.use_mmap = use_mmap;
  HEADRACE_ASSIGN_OR_RETURN(ModelHeader header, ModelHeader::read(source));
  Graft graft(std::move(header));
  std::map<std::string, Donor> donors;  // by path, as their own config describes them
  if (reader.has("replace") && !file["replace"].is_array()) return malformed("/replace", "not a list");
  for (size_t i = 0; reader.has("replace") && i < file["replace"].size(); ++i) {
    HEADRACE_ASSIGN_OR_RETURN(const Replacement replacement,
                              read_replacement(file["replace"][i], fmt::format("/replace/{}", i)));
    const auto replace = [&]() -> Status {
      auto known = donors.find(replacement.from);
      if (known != donors.end() && replacement.config == nullptr) return graft.replace(replacement, known->second);
      const std::string donor_path = (folder / replacement.from).string();
      HEADRACE_ASSIGN_OR_RETURN(Donor donor, open_donor(donor_path, base_path, replacement.config, use_mmap));
      HEADRACE_RETURN_IF_ERROR(graft.replace(replacement, donor));
      if (replacement.config == nullptr) donors.emplace(replacement.from, std::move(donor));
      return {};
    };
    if (const Status status = replace(); !status.ok()) {
      return status.within(replacement.from).within(replacement.place);
    }
  }
  if (reader.has("images")) {
    HEADRACE_RETURN_IF_ERROR(graft.put_images_in_front(file["images"], folder.string(), use_mmap));
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> adapters, reader.texts("adapters"));
  for (const std::string& adapter : adapters) graft.add_adapter((folder / adapter).string(), adapter);
  return graft.take();
}

}  // namespace

Result<ModelHeader> read_graft(const std::string& path, bool use_mmap) {
  auto header = compose(path, use_mmap);
  if (!header.ok()) return header.status().within(path);
  header->name = path;
  header->by_path = true;
  return header;
}

}  // namespace headrace
