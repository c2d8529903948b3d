#include "model/graft_donor.h"

#include <filesystem>
#include <utility>

#include "formats/safetensors.h"
#include "model/families/family.h"
#include "model/quantization/checkpoint.h"

namespace headrace {

namespace fs = std::filesystem;

Result<DonorFolder> open_donor_folder(const std::string& path, const std::string& base, nlohmann::json* changes,
                                      bool use_mmap) {
  std::error_code error;
  std::string folder_path = path;
  DonorFolder out;
  if (!fs::is_directory(path, error)) {
    HEADRACE_ASSIGN_OR_RETURN(out.file, SafetensorsFile::open_path(path, use_mmap));
    folder_path = fs::path(path).parent_path().string();
    if (!fs::exists(fs::path(folder_path) / "config.json", error)) folder_path = base;
  }
  HEADRACE_ASSIGN_OR_RETURN(out.folder, open_model_folder(folder_path, use_mmap));
  if (out.file == nullptr) out.file = out.folder.weights;
  if (out.file == nullptr) return not_found("model.safetensors", "the folder has no weights");
  if (changes != nullptr && out.folder.config.is_object()) {
    for (auto& [key, value] : changes->items()) out.folder.config[key] = std::move(value);
  }
  HEADRACE_ASSIGN_OR_RETURN(out.file, open_quantized(std::move(out.file), out.folder.config));
  return out;
}

Result<Donor> open_donor(const std::string& path, const std::string& base, nlohmann::json* changes, bool use_mmap) {
  std::error_code error;
  if (!fs::is_directory(path, error) && fs::path(path).extension() != ".safetensors") {
    if (changes != nullptr) return unsupported("config", "a GGUF file's metadata is not changed");
    HEADRACE_ASSIGN_OR_RETURN(const auto gguf, GgufFile::open_path(path, use_mmap));
    HEADRACE_ASSIGN_OR_RETURN(FamilyReading reading, read_metadata(*gguf));
    return Donor{std::move(reading.spec), reading.naming, gguf};
  }
  HEADRACE_ASSIGN_OR_RETURN(DonorFolder donor, open_donor_folder(path, base, changes, use_mmap));
  HEADRACE_ASSIGN_OR_RETURN(FamilyReading reading, read_config(donor.folder.config, *donor.file));
  return Donor{std::move(reading.spec), reading.naming, std::move(donor.file)};
}

}  // namespace headrace
