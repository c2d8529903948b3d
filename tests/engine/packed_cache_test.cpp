// Packed weights kept in a file: the logits are those of a load without it, whatever is in the file or happens to it.
#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <mutex>
#include <thread>

#include "base/cpu_features.h"
#include "base/hash.h"
#include "engine/model_executor.h"
#include "engine/session.h"
#include "formats/packed_file.h"
#include "model/model_header.h"
#include "quantized_model.h"

namespace fs = std::filesystem;
using namespace headrace;
using namespace headrace::engine;

namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "headrace_packed_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

// What a load did, and what it said.
struct Loaded {
  std::shared_ptr<const EngineModel> model;
  std::string log;

  bool mapped() const { return log.find("mapped from") != std::string::npos; }
  bool written() const { return log.find("written to") != std::string::npos && !warned(); }
  bool warned() const { return log.find("warning") != std::string::npos; }
  bool says(const char* words) const { return log.find(words) != std::string::npos; }
};

Loaded load(ModelSource source, EngineOptions options) {
  Loaded out;
  options.log = [&](LogLevel level, std::string_view, std::string_view line) {
    out.log += fmt::format("{}: {}\n", level >= LogLevel::kWarning ? "warning" : "info", line);
  };
  auto model = load_engine_model(std::move(source), options);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  out.model = model.take();
  return out;
}

Loaded load(const std::string& path, const EngineOptions& options) {
  ModelSource source;
  source.path = path;
  return load(std::move(source), options);
}

EngineOptions with_cache(const std::string& cache, EngineOptions options = {}) {
  options.threads = 2;
  options.kv_max_tokens = 64;
  options.packed_cache = cache;
  return options;
}

std::vector<float> logits_of(const Loaded& loaded, const EngineOptions& options) {
  const auto vocab_size = static_cast<size_t>(loaded.model->executor->vocab_size());
  std::vector<int32_t> tokens;
  for (uint64_t i = 0; i < 17; ++i) tokens.push_back(static_cast<int32_t>(hash64(&i, sizeof i) % vocab_size));
  std::vector<float> logits(tokens.size() * vocab_size);
  auto session = Session::create(loaded.model, nullptr, options);
  REQUIRE(session.ok());
  REQUIRE((*session)->evaluate(tokens, logits.data()).ok());
  return logits;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Every product's bytes lie within one stretch as long as the file.
bool lies_in_one_mapping(const Loaded& loaded, uint64_t file_bytes) {
  uintptr_t first = UINTPTR_MAX, end = 0;
  for (const PackedWeight* weight : loaded.model->model->weights().products) {
    const auto start = reinterpret_cast<uintptr_t>(weight->packed().data());
    if (start % 64 != 0) return false;
    first = std::min(first, start);
    end = std::max<uintptr_t>(end, start + weight->bytes());
  }
  return end - first <= file_bytes;
}

// The same logits without a cache, when it is written and when it is mapped.
void check_loads(const std::string& path, const EngineOptions& given, const std::string& cache) {
  INFO(path);
  const EngineOptions off = with_cache("off", given), on = with_cache(cache, given);
  const std::vector<float> expected = logits_of(load(path, off), off);
  const Loaded first = load(path, on);
  INFO(first.log);
  CHECK(first.written());
  CHECK(same_bits(logits_of(first, on), expected));
  const Loaded second = load(path, on);
  INFO(second.log);
  CHECK(second.mapped());
  CHECK(second.model->model->weights().bytes == first.model->model->weights().bytes);
  const std::string file = cache == "auto" ? path + ".packed" : cache;
  CHECK(lies_in_one_mapping(second, fs::file_size(file)));
  CHECK_FALSE(lies_in_one_mapping(first, 1));
  CHECK(same_bits(logits_of(second, on), expected));
  fs::remove(file);
  CHECK(same_bits(logits_of(second, on), expected));  // the mapping holds the file
}

// A model of Q8_0 weights in a folder of its own, its cache, and its logits.
struct Fixture {
  TemporaryFolder folder;
  std::string path = folder / "model.gguf", cache = folder / "model.gguf.packed";
  EngineOptions options = with_cache("auto");
  std::vector<float> expected;
  std::string good;  // the cache's bytes

  Fixture() {
    write_file(path, headrace_test::QuantizedModel::bytes());
    expected = logits_of(load(path, with_cache("off")), options);
    REQUIRE(load(path, options).written());
    good = read_file(cache);
  }

  // A load over these bytes has the right logits, and leaves the right file.
  void check_repaired(const std::string& bytes) const {
    write_file(cache, bytes);
    const Loaded loaded = load(path, options);
    INFO(loaded.log);
    CHECK(loaded.warned());
    CHECK(same_bits(logits_of(loaded, options), expected));
    CHECK(read_file(cache) == good);
  }
};

void put(std::string& bytes, size_t offset, uint64_t value) { std::memcpy(&bytes[offset], &value, sizeof value); }
uint64_t get(const std::string& bytes, size_t offset) {
  uint64_t value;
  std::memcpy(&value, &bytes[offset], sizeof value);
  return value;
}

// Makes the checksums of the header and the table right.
std::string sealed(std::string bytes) {
  put(bytes, 48, hash64(&bytes[64], get(bytes, 40)));
  put(bytes, 56, hash64(bytes.data(), 56));
  return bytes;
}

}  // namespace

TEST_CASE("logits from mapped weights are the same bits, for tiny models") {
  const TemporaryFolder folder;
  const fs::path shipped = fs::path(HEADRACE_SOURCE_DIR) / "tests/data/goldens";
  for (const char* name : {"llama", "qwen3", "gemma3"}) {
    const std::string path = folder / (std::string(name) + ".gguf");
    fs::copy_file(shipped / name / "model.gguf", path);
    check_loads(path, {}, "auto");
    check_loads((shipped / name).string(), {}, folder / (std::string(name) + ".cache"));
  }
  const std::string quantized = folder / "quantized.gguf";
  write_file(quantized, headrace_test::QuantizedModel::bytes());
  EngineOptions options;
  for (const ActivationType type : {ActivationType::kInt8, ActivationType::kInt16, ActivationType::kFloat32}) {
    options.activations = type;
    check_loads(quantized, options, "auto");
  }
  options.activations = ActivationType::kInt8;
  options.exact = true;
  check_loads(quantized, options, "auto");
  options.exact = false;
  options.profile = ProfileMode::kSums;
  check_loads(quantized, options, "auto");
}

// Experts, heads and other weights that are parts of a tensor or gathered from several places of it.
TEST_CASE("logits from mapped weights are the same bits, for weights that are parts of tensors") {
  const std::string models = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";
  if (!fs::exists(models + "mixtral/config.json")) {
    std::cout << "SKIPPED: no golden models in HEADRACE_TEST_DATA\n";
    return;
  }
  const TemporaryFolder folder;
  for (const char* name : {"phi3", "gpt2", "mixtral", "gpt_oss", "deepseek_v3", "falcon_h1", "qwen3_5_text"}) {
    check_loads(models + name, {}, folder / name);
  }
}

TEST_CASE("logits from mapped weights are the same bits, for quantized models") {
  const TemporaryFolder folder;
  int found = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(HEADRACE_MODELS_DIR, ignored)) {
    if (entry.path().extension() != ".gguf" || entry.file_size() >= uint64_t{600} << 20) continue;
    check_loads(entry.path().string(), {}, folder / "cache");
    ++found;
  }
  if (found == 0) std::cout << "SKIPPED: no GGUF file below 600 MiB in HEADRACE_MODELS_DIR\n";
}

TEST_CASE("one file serves every instruction set and both integer types of activations") {
  const Fixture fixture;
  for (const Isa isa : available_isas()) {
    for (const ActivationType type : {ActivationType::kInt8, ActivationType::kInt16}) {
      INFO(isa_name(isa));
      EngineOptions options;
      options.isa = std::string(isa_name(isa));
      options.activations = type;
      const EngineOptions off = with_cache("off", options), on = with_cache("auto", options);
      const Loaded loaded = load(fixture.path, on);
      CHECK(loaded.mapped());
      CHECK(same_bits(logits_of(loaded, on), logits_of(load(fixture.path, off), off)));
    }
  }
  // Decoded weights are other bytes.
  EngineOptions exact;
  exact.exact = true;
  const Loaded loaded = load(fixture.path, with_cache("auto", exact));
  CHECK(loaded.says("of another model, or of other options"));
  CHECK(load(fixture.path, with_cache("auto", exact)).mapped());
}

TEST_CASE("a damaged byte never gives wrong logits, and the file is mended") {
  const Fixture fixture;
  const size_t tensors = 64 + get(fixture.good, 40);
  for (size_t i = 8; i < tensors; ++i) {
    std::string bytes = fixture.good;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    INFO("byte " << i);
    fixture.check_repaired(bytes);
  }
  const auto source = open_path(fixture.cache);
  REQUIRE(source.ok());
  const auto header = read_packed_header(**source);
  REQUIRE(header.ok());
  for (const PackedTensor& tensor : header->tensors) {
    for (const uint64_t at : {uint64_t{0}, tensor.bytes / 2, tensor.bytes - 1}) {
      std::string bytes = fixture.good;
      bytes[tensor.offset + at] = static_cast<char>(bytes[tensor.offset + at] ^ 0x10);
      INFO(tensor.name << " byte " << at);
      fixture.check_repaired(bytes);
    }
  }
}

TEST_CASE("a truncated or longer file is written anew") {
  const Fixture fixture;
  for (size_t size = 8; size < fixture.good.size(); size += size < 200 ? 1 : 1013) {
    INFO(size << " bytes");
    fixture.check_repaired(fixture.good.substr(0, size));
  }
  fixture.check_repaired("");
  fixture.check_repaired(fixture.good + '\0');
}

TEST_CASE("headers that lie with right checksums are seen through") {
  const Fixture fixture;
  const std::string& good = fixture.good;
  const auto with = [&](size_t offset, uint64_t value) {
    std::string bytes = good;
    put(bytes, offset, value);
    return sealed(bytes);
  };
  fixture.check_repaired(with(8, get(good, 8) + 1));                    // version
  fixture.check_repaired(with(8, get(good, 8) + (uint64_t{1} << 32)));  // tensors
  fixture.check_repaired(with(8, get(good, 8) | uint64_t{0xffffffff} << 32));
  fixture.check_repaired(with(16, get(good, 16) ^ 1));  // identity
  fixture.check_repaired(with(32, good.size() + 64));
  std::string bytes = good;
  put(bytes, 40, UINT64_MAX);
  put(bytes, 56, hash64(bytes.data(), 56));
  fixture.check_repaired(bytes);
  fixture.check_repaired(with(64, UINT32_MAX));  // size of the layout's name

  std::string layout = good;
  REQUIRE(layout.substr(68, 3) == "cpu");
  layout[68] = 'x';
  fixture.check_repaired(sealed(layout));

  // The first tensor: name, type, rows, columns, offset, bytes, checksum.
  const size_t name = 68 + static_cast<uint32_t>(get(good, 64));
  const size_t dtype = name + 4 + static_cast<uint32_t>(get(good, name));
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{0x7fffffff}, uint64_t{0xffffffff}}) {
    fixture.check_repaired(with(name, get(good, name) >> 32 << 32 | size));
  }
  for (const size_t field : {dtype, dtype + 4, dtype + 12, dtype + 20, dtype + 28, dtype + 36}) {
    for (const uint64_t value :
         {uint64_t{0}, uint64_t{1}, get(good, field) + 64, get(good, field) - 64, uint64_t{1} << 63, UINT64_MAX}) {
      INFO("field at " << field << " = " << value);
      if (value == get(good, field)) continue;
      fixture.check_repaired(with(field, value));
    }
  }
  // As many bytes as are there, with their checksum, but not those of the shape.
  std::string shorter = good;
  const uint64_t offset = get(good, dtype + 20), size = get(good, dtype + 28) - 64;
  put(shorter, dtype + 28, size);
  put(shorter, dtype + 36, hash64(&good[offset], size));
  fixture.check_repaired(sealed(shorter));
}

TEST_CASE("a file that is none of ours is left alone") {
  const Fixture fixture;
  const auto check_refused = [&](const std::string& path) {
    const EngineOptions options = with_cache(path);
    const Loaded loaded = load(fixture.path, options);
    INFO(loaded.log);
    CHECK(loaded.warned());
    CHECK(loaded.says("left as it is"));
    CHECK(same_bits(logits_of(loaded, options), fixture.expected));
  };
  const auto check_left = [&](const std::string& path, const std::string& bytes) {
    check_refused(path);
    CHECK(read_file(path) == bytes);
  };
  check_left(fixture.path, read_file(fixture.path));  // the model itself
  for (const size_t i : {0, 7}) {
    std::string bytes = fixture.good;
    bytes[i] = 'x';
    write_file(fixture.cache, bytes);
    check_left(fixture.cache, bytes);
  }
  write_file(fixture.cache, "a");
  check_left(fixture.cache, "a");
  check_refused(fixture.folder / "");  // a folder
  check_refused("/dev/null");
}

TEST_CASE("the file of another model, or of the model before it changed, is not used") {
  const Fixture fixture;
  std::string bytes = headrace_test::QuantizedModel::bytes();
  bytes[bytes.size() - 1000] = static_cast<char>(bytes[bytes.size() - 1000] ^ 1);  // of a tensor, in no sample
  const auto time = fs::last_write_time(fixture.path);
  write_file(fixture.path, bytes);
  fs::last_write_time(fixture.path, time + std::chrono::seconds(1));
  const std::vector<float> changed = logits_of(load(fixture.path, with_cache("off")), fixture.options);
  const Loaded loaded = load(fixture.path, fixture.options);
  CHECK(loaded.says("of another model"));
  CHECK(same_bits(logits_of(loaded, fixture.options), changed));
  CHECK_FALSE(same_bits(changed, fixture.expected));

  const std::string other = fixture.folder / "other.gguf";
  fs::copy_file(fs::path(HEADRACE_SOURCE_DIR) / "tests/data/goldens/llama/model.gguf", other);
  const EngineOptions options = with_cache(fixture.cache);
  const std::vector<float> expected = logits_of(load(other, with_cache("off")), options);
  const Loaded first = load(other, options);
  CHECK(first.says("of another model"));
  CHECK(same_bits(logits_of(first, options), expected));
  CHECK(load(other, options).mapped());
}

TEST_CASE("where the file cannot be written the model loads with a warning") {
  const Fixture fixture;
  const auto check_warned = [&](const std::string& cache) {
    const EngineOptions options = with_cache(cache);
    const Loaded loaded = load(fixture.path, options);
    INFO(loaded.log);
    CHECK(loaded.warned());
    CHECK(loaded.says("not written"));
    CHECK(same_bits(logits_of(loaded, options), fixture.expected));
  };
  check_warned(fixture.folder / "no such folder/cache");
  check_warned("/proc/headrace.packed");  // not even root may
  if (::geteuid() != 0) {
    const std::string folder = fixture.folder / "read only";
    fs::create_directory(folder);
    fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
    check_warned(folder + "/cache");
    fs::permissions(folder, fs::perms::owner_all);
  }
  // A file that is there and whole needs no leave to write.
  fs::permissions(fixture.cache, fs::perms::owner_read);
  CHECK(load(fixture.path, fixture.options).mapped());
}

TEST_CASE("the file may be read by whoever may read the model") {
  Fixture fixture;
  for (const mode_t mode : {0600, 0644, 0440}) {
    fs::remove(fixture.cache);
    REQUIRE(::chmod(fixture.path.c_str(), mode) == 0);
    REQUIRE(load(fixture.path, fixture.options).written());
    struct stat info;
    REQUIRE(::stat(fixture.cache.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == mode);
  }
}

TEST_CASE("a model that the host opened has no file beside it, but may have one of a name") {
  const Fixture fixture;
  const std::string bytes = headrace_test::QuantizedModel::bytes();
  ModelSource source;
  source.sources = {open_memory(std::as_bytes(std::span(bytes)), "memory", {})};
  const Loaded beside = load(source, fixture.options);
  CHECK(beside.says("has no place beside it"));
  CHECK(same_bits(logits_of(beside, fixture.options), fixture.expected));
  const EngineOptions options = with_cache(fixture.folder / "memory.packed");
  CHECK(load(source, options).written());
  const Loaded named = load(source, options);
  CHECK(named.mapped());
  CHECK(same_bits(logits_of(named, options), fixture.expected));
}

TEST_CASE("loads at once each have the right weights, and leave a right file") {
  const Fixture fixture;
  for (int round = 0; round < 8; ++round) {
    std::string bytes = fixture.good;
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    if (round % 2 == 0) {
      fs::remove(fixture.cache);
    } else {
      write_file(fixture.cache, bytes);
    }
    std::vector<std::thread> threads;
    std::vector<std::vector<float>> logits(4);
    for (auto& out : logits) {
      threads.emplace_back([&] {
        ModelSource source;
        source.path = fixture.path;
        auto model = load_engine_model(source, fixture.options);
        if (model.ok()) out = logits_of({model.take(), ""}, fixture.options);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& out : logits) CHECK(same_bits(out, fixture.expected));
    CHECK(read_file(fixture.cache) == fixture.good);
    CHECK(std::distance(fs::directory_iterator(fs::path(fixture.cache).parent_path()), fs::directory_iterator()) == 2);
  }
}

TEST_CASE("a load that is cancelled writes nothing") {
  Fixture fixture;
  fs::remove(fixture.cache);
  ModelSource source;
  source.path = fixture.path;
  const auto model = load_engine_model(source, fixture.options, [](double fraction) { return fraction < 0.5; });
  CHECK(model.status().code() == StatusCode::kCancelled);
  CHECK_FALSE(fs::exists(fixture.cache));
}
