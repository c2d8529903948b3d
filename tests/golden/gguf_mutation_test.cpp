// Damaged GGUF files of the golden models: each parameter and each tensor's description changed in place, and the file cut.
// Each is refused by the name of the key or the tensor, or mutation_reasons.h says why not.
#include <cstring>
#include <filesystem>

#include "golden/mutation_names.h"
#include "golden/mutation_reasons.h"
#include "golden/mutation_tally.h"
#include "golden/mutations.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;
namespace fs = std::filesystem;

namespace {

const std::string kFiles = std::string(HEADRACE_TEST_DATA) + "/goldens/gguf/";

// Where a key or a tensor lies in the bytes of a file.
struct GgufPlace {
  std::string name;
  uint32_t type = 0;
  size_t name_end = 0, type_at = 0, value_at = 0;  // of a tensor: value_at is that of its dimensions
  uint32_t num_dimensions = 0;
};

class GgufWalk {
 public:
  explicit GgufWalk(const std::string& bytes) : bytes_(bytes) {
    at_ = 8;
    const auto num_tensors = take<uint64_t>(), num_keys = take<uint64_t>();
    for (uint64_t i = 0; i < num_keys; ++i) {
      GgufPlace place = named();
      place.type_at = at_;
      place.type = take<uint32_t>();
      place.value_at = at_;
      skip(place.type);
      keys.push_back(place);
    }
    for (uint64_t i = 0; i < num_tensors; ++i) {
      GgufPlace place = named();
      place.num_dimensions = take<uint32_t>();
      place.value_at = at_;
      at_ += place.num_dimensions * sizeof(uint64_t);
      place.type_at = at_;
      place.type = take<uint32_t>();
      at_ += sizeof(uint64_t);  // its offset
      tensors.push_back(place);
    }
  }

  std::vector<GgufPlace> keys, tensors;

 private:
  template <class T>
  T take() {
    T out;
    REQUIRE(at_ + sizeof out <= bytes_.size());
    std::memcpy(&out, bytes_.data() + at_, sizeof out);
    at_ += sizeof out;
    return out;
  }
  GgufPlace named() {
    const auto length = take<uint64_t>();
    GgufPlace out;
    out.name = bytes_.substr(at_, length);
    at_ += length;
    out.name_end = at_;
    return out;
  }
  void skip(uint32_t type) {
    constexpr size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) {
      at_ += take<uint64_t>();
    } else if (type == 9) {
      const auto element = take<uint32_t>();
      for (auto count = take<uint64_t>(); count > 0; --count) skip(element);
    } else {
      at_ += kBytes[type];
    }
  }

  const std::string& bytes_;
  size_t at_ = 0;
};

template <class T>
void put(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

using Change = std::pair<std::string, std::function<void(std::string&)>>;

std::vector<Change> changes_of_key(const GgufPlace& key) {
  std::vector<Change> out = {{"renamed", [=](std::string& bytes) { bytes[key.name_end - 1] = '~'; }}};
  const auto value = [&](const std::string& kind, auto number) {
    out.emplace_back(kind, [=](std::string& bytes) { put(bytes, key.value_at, number); });
  };
  const auto type = [&](const std::string& kind, uint32_t number) {
    out.emplace_back(kind, [=](std::string& bytes) { put(bytes, key.type_at, number); });
  };
  if (key.type == 4 || key.type == 5) {
    value("zero", uint32_t{0});
    value("huge", uint32_t{0x7fffffff});
    value("beyond int32", uint32_t{0xfffffff0});
    type("a float's type", 6);
  } else if (key.type == 6) {
    value("zero", 0.0f);
    value("negative", -1.0f);
    value("nan", std::nanf(""));
    value("infinite", INFINITY);
    type("an integer's type", 4);
  } else if (key.type == 7) {
    out.emplace_back("other", [=](std::string& bytes) { bytes[key.value_at] ^= 1; });
    value("neither true nor false", uint8_t{2});
    type("an integer's type", 0);
  }
  return out;
}

std::vector<Change> changes_of_tensor(const GgufPlace& tensor) {
  std::vector<Change> out = {{"renamed", [=](std::string& bytes) { bytes[tensor.name_end - 1] = '~'; }},
                             {"unknown type", [=](std::string& bytes) { put(bytes, tensor.type_at, uint32_t{99}); }}};
  if (tensor.type == 0) {
    out.emplace_back("integers", [=](std::string& bytes) { put(bytes, tensor.type_at, uint32_t{26}); });
  }
  for (uint32_t axis = 0; axis < tensor.num_dimensions; ++axis) {
    const size_t at = tensor.value_at + axis * sizeof(uint64_t);
    const std::string of_axis = " in axis " + std::to_string(axis);
    out.emplace_back("one more" + of_axis, [=](std::string& bytes) { ++bytes[at]; });
    out.emplace_back("none" + of_axis, [=](std::string& bytes) { put(bytes, at, uint64_t{0}); });
    out.emplace_back("huge" + of_axis, [=](std::string& bytes) { put(bytes, at, uint64_t{1} << 62); });
    if (axis == 0) continue;
    out.emplace_back("swapped" + of_axis, [=](std::string& bytes) {
      uint64_t sizes[2];
      std::memcpy(sizes, bytes.data() + at - sizeof(uint64_t), sizeof sizes);
      std::swap(sizes[0], sizes[1]);
      std::memcpy(bytes.data() + at - sizeof(uint64_t), sizes, sizeof sizes);
    });
  }
  return out;
}

Result<ModelHeader> read(const std::string& bytes) {
  ModelSource source;
  source.sources.push_back(open_memory(std::as_bytes(std::span(bytes)), "model.gguf", {}));
  return ModelHeader::read(source);
}

// Whether a refusal says which tensor or key it is about: its own name, or the one that the damage gave it. Where tensors tell
// what a layer is, a damaged one makes another layer of it, whose tensors are missing or too many then.
bool names_its_place(const Status& status, std::string name, const std::vector<std::string>& tensors) {
  if (says(status.to_string(), name)) return true;
  name.back() = '~';
  return status.to_string().find(name) != std::string::npos || names_a_tensor(status, tensors);
}

void damage(const std::string& model, const std::string& bytes, Tally& tally) {
  if (!read(bytes).ok()) return;  // of a family that has no such files
  const GgufWalk walk(bytes);
  std::vector<std::string> tensors;
  for (const GgufPlace& tensor : walk.tensors) tensors.push_back(tensor.name);
  // Keys begin with the architecture's name.
  const auto check = [&](const std::string& name, size_t begin, const Change& change) {
    std::string damaged = bytes;
    change.second(damaged);
    if (damaged == bytes) return;
    const auto header = read(damaged);
    const std::string own = name.substr(begin);
    if (!header.ok() && names_its_place(header.status(), name, tensors)) {
      tally.refused(model, change.first, name, header.status().to_string());
    } else if (const char* reason = header.ok() ? reason_to_take_gguf(own, change.first) : nullptr) {
      tally.harmless(model, change.first, name, reason);
    } else {
      tally.wrong(model, change.first + ", " + without_digits(name) + ": " + header.status().to_string());
    }
  };
  for (const GgufPlace& key : walk.keys) {
    if (key.name.starts_with("general.") || key.name.starts_with("tokenizer.")) continue;
    for (const Change& change : changes_of_key(key)) check(key.name, key.name.find('.') + 1, change);
  }
  std::set<std::string> seen;
  for (const GgufPlace& tensor : walk.tensors) {
    if (!seen.insert(without_digits(tensor.name)).second) continue;
    for (const Change& change : changes_of_tensor(tensor)) check(tensor.name, 0, change);
  }
  check(walk.tensors.back().name, 0, {"cut", [](std::string& damaged) { damaged.resize(damaged.size() - 1000); }});
}

}  // namespace

TEST_CASE("damaged GGUF files are refused by the key's or the tensor's name") {
  if (!file_exists(kFiles + "llama.gguf")) return;
  Tally tally("gguf_mutations.tsv");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFiles)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (name.ends_with(".gguf") && !name.ends_with("_bf16.gguf")) damage(name, read_file(kFiles + name), tally);
  }
  tally.check("GGUF files", 200);
}
