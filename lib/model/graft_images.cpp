#include "model/graft_images.h"

#include <filesystem>
#include <utility>

#include "formats/safetensors.h"
#include "model/families/family.h"
#include "model/graft_donor.h"
#include "model/model_header.h"

namespace headrace {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "images:", kProjectorPrefix = "images' projector:";

bool is_of_projector(std::string_view name) { return name.starts_with("projector.") || name.starts_with("deep."); }

Status check_decoder(const VisionSpec& vision, const ModelSpec& decoder) {
  if (vision.grid_positions && decoder.position_axes < 3) {
    return unsupported("", "rows of its images rotate by their places, {} positions each; the base's rotate by one", 3);
  }
  if (vision.out_size != decoder.hidden_size) {
    return unsupported("", "gives rows of {} values, the base's have {}", vision.out_size, decoder.hidden_size);
  }
  if (vision.deep_layers.size() > decoder.layers.size()) {
    return unsupported("", "adds rows to {} layers of a base that has {}", vision.deep_layers.size(),
                       decoder.layers.size());
  }
  return {};
}

// Entries of one part with their tensors' names in the joined file.
Status take_part(std::vector<WeightEntry> entries, const WeightNaming& naming, const TensorFile& file,
                 std::string_view prefix, std::vector<WeightEntry>& out) {
  HEADRACE_ASSIGN_OR_RETURN(entries, resolve_listed(std::move(entries), naming, file));
  for (WeightEntry& entry : entries) {
    if (file.find(entry.file_name) == nullptr) {
      return not_found(entry.file_name, "the file has no such tensor ({})", entry.name);
    }
    entry.file_name = std::string(prefix) + entry.file_name;
    out.push_back(std::move(entry));
  }
  return {};
}

}  // namespace

Status add_images(nlohmann::json& object, const std::string& folder, bool use_mmap, ModelHeader& header,
                  std::vector<JoinedFile::Part>& parts) {
  const std::string place = "/images";
  if (!object.is_object()) return malformed(place, "not an object");
  const ConfigReader reader(object, place);
  constexpr std::string_view kKeys[] = {"from", "token", "projector", "config"};
  HEADRACE_RETURN_IF_ERROR(reader.check_known(kKeys));
  HEADRACE_ASSIGN_OR_RETURN(const std::string from, reader.text_or("from", ""));
  if (from.empty()) return malformed(reader.place_of("from"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(const std::string projector, reader.text_or("projector", ""));
  // The donor's own is a token of its vocabulary.
  HEADRACE_ASSIGN_OR_RETURN(const int64_t token, reader.integer("token", 0, header.spec.vocab_size - 1));
  nlohmann::json* changes = reader.has("config") ? &object["config"] : nullptr;
  if (changes != nullptr && !changes->is_object()) return malformed(reader.place_of("config"), "not an object");

  const auto read = [&]() -> Status {
    const std::string path = (fs::path(folder) / from).string();
    HEADRACE_ASSIGN_OR_RETURN(DonorFolder donor, open_donor_folder(path, path, changes, use_mmap));
    HEADRACE_ASSIGN_OR_RETURN(VisionReading reading, read_vision(donor.folder.config, *donor.file, header.spec));
    VisionSpec& vision = reading.spec;
    vision.image_token_id = static_cast<int32_t>(token);
    HEADRACE_RETURN_IF_ERROR(check_decoder(vision, header.spec));
    std::vector<WeightEntry> own = list_vision_weights(vision), projected;
    if (!projector.empty()) {
      for (const WeightEntry& entry : own) {
        if (is_of_projector(entry.name)) projected.push_back(entry);
      }
      std::erase_if(own, [](const WeightEntry& entry) { return is_of_projector(entry.name); });
    }
    header.vision_weights.clear();
    HEADRACE_RETURN_IF_ERROR(take_part(std::move(own), reading.naming, *donor.file, kPrefix, header.vision_weights));
    parts.push_back({std::string(kPrefix), donor.file});
    if (!projector.empty()) {
      HEADRACE_ASSIGN_OR_RETURN(const std::shared_ptr<TensorFile> file,
                                SafetensorsFile::open_path((fs::path(folder) / projector).string(), use_mmap));
      HEADRACE_RETURN_IF_ERROR(
          take_part(std::move(projected), reading.naming, *file, kProjectorPrefix, header.vision_weights));
      parts.push_back({std::string(kProjectorPrefix), file});
    }
    header.spec.deep_embeddings = static_cast<int32_t>(vision.deep_layers.size());
    header.vision = std::move(vision);
    header.folder.preprocessor_config = std::move(donor.folder.preprocessor_config);
    return {};
  };
  if (const Status status = read(); !status.ok()) return status.within(from).within(place);
  header.grafts.push_back({{}, "images", projector.empty() ? from : from + ", projector " + projector, {}});
  return {};
}

}  // namespace headrace
