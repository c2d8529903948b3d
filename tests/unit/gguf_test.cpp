// GGUF files written byte by byte: what is read, and that each malformed one is refused with its item's name.
#include "gguf_writer.h"

#include <filesystem>
#include <fstream>
#include <iostream>

#include <catch2/catch.hpp>

#include "formats/gguf_split.h"
#include "formats/safetensors.h"

namespace headrace {
namespace {

constexpr uint32_t kF32 = 0, kQ4_0 = 2, kI8 = 24;

Result<std::shared_ptr<GgufFile>> open_text(const std::string& text) { return GgufFile::open({source_of(text)}); }

// Opening fails with this code, and place or message name the item.
void require_refused(const std::string& text, StatusCode code, std::string_view item) {
  const auto file = open_text(text);
  REQUIRE_FALSE(file.ok());
  CAPTURE(file.status().to_string());
  CHECK(file.status().code() == code);
  CHECK(file.status().to_string().find(item) != std::string::npos);
}
void require_malformed(const Bytes& bytes, std::string_view item) {
  require_refused(bytes.text(), StatusCode::kMalformed, item);
}

// A source that records how far it was read and fails the test on a read outside.
class WatchedSource final : public ByteSource {
 public:
  explicit WatchedSource(std::string text, uint64_t claimed = 0)
      : text_(std::move(text)), size_(claimed ? claimed : text_.size()) {}
  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  Status read(uint64_t offset, std::span<std::byte> destination) override {
    if (offset + destination.size() > size_) return io_error(name_, "read outside");
    for (size_t i = 0; i < destination.size(); ++i) {
      destination[i] = offset + i < text_.size() ? static_cast<std::byte>(text_[offset + i]) : std::byte{0};
    }
    return Status();
  }

 private:
  std::string text_;
  uint64_t size_;
  std::string name_ = "watched";
};

TEST_CASE("a GGUF file gives its metadata and tensors", "[gguf]") {
  for (uint32_t version : {2u, 3u}) {
    Bytes bytes = gguf_header(2, 9, version);
    bytes.key_string("general.architecture", "llama");
    bytes.key_u32("llama.block_count", 7);
    bytes.string("negative").type(GgufType::kI8).number<int8_t>(-5);
    bytes.string("epsilon").type(GgufType::kF32).number(1e-5f);
    bytes.string("flag").type(GgufType::kBool).number<uint8_t>(1);
    bytes.string("big").type(GgufType::kU64).u64(UINT64_MAX);
    bytes.key_array("tokens", GgufType::kString, 3).string("a").string("").string("\xc3\xa9");
    bytes.key_array("heads", GgufType::kU16, 2).number<uint16_t>(4).number<uint16_t>(8);
    bytes.key_array("empty", GgufType::kF32, 0);
    bytes.tensor("weight", {64, 2}, kQ4_0, 0);
    bytes.tensor("bias", {3}, kF32, 96);
    bytes.pad();
    std::string body(96 + 12, '\0');
    for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>(i);
    const auto file = open_text(bytes.text() + body);
    REQUIRE(file.ok());
    const GgufFile& gguf = **file;
    CHECK(gguf.version() == version);
    CHECK(*gguf.get_string("general.architecture") == "llama");
    CHECK(*gguf.get_u64("llama.block_count") == 7);
    CHECK(*gguf.get_i64("negative") == -5);
    CHECK(gguf.get_u64("negative").status().code() == StatusCode::kMalformed);
    CHECK(gguf.get_u64("negative").status().place() == "negative");
    CHECK(*gguf.get_f64("epsilon") == static_cast<double>(1e-5f));
    CHECK(*gguf.get_f64("llama.block_count") == 7.0);
    CHECK(*gguf.get_bool("flag"));
    CHECK(*gguf.get_u64("big") == UINT64_MAX);
    CHECK(gguf.get_i64("big").status().code() == StatusCode::kMalformed);
    CHECK(gguf.get_f64("big").status().code() == StatusCode::kMalformed);
    CHECK(gguf.get_string("absent").status().code() == StatusCode::kNotFound);
    CHECK(*gguf.get_u64_or("absent", 9) == 9);
    CHECK(gguf.get_u64_or("flag", 9).status().code() == StatusCode::kMalformed);
    const auto tokens = gguf.get_string_array("tokens");
    REQUIRE(tokens.ok());
    REQUIRE(tokens->size() == 3);
    CHECK((*tokens)[0] == "a");
    CHECK((*tokens)[1].empty());
    CHECK((*tokens)[2] == "\xc3\xa9");
    CHECK(*gguf.get_i32_array("heads") == std::vector<int32_t>{4, 8});
    CHECK(gguf.get_f32_array("heads").status().code() == StatusCode::kMalformed);
    CHECK(gguf.get_f32_array("empty")->empty());
    CHECK(gguf.get_string("tokens").status().code() == StatusCode::kMalformed);
    CHECK(gguf.metadata().size() == 9);

    const TensorEntry* weight = gguf.find("weight");
    REQUIRE(weight);
    CHECK(weight->shape == std::vector<uint64_t>{2, 64});
    CHECK(weight->dtype == DType::kQ4_0);
    CHECK(weight->bytes == 72);
    CHECK(gguf.total_bytes() == 84);
    const TensorEntry* bias = gguf.find("bias");
    REQUIRE(bias);
    std::byte out[4];
    REQUIRE(gguf.read(*bias, 8, out).ok());
    CHECK(out[0] == std::byte{104});
    CHECK(gguf.mapped(*bias)[1] == std::byte{97});
    CHECK(gguf.read(*bias, 9, out).code() == StatusCode::kInvalidArgument);
    CHECK(gguf.read(*bias, UINT64_MAX, out).code() == StatusCode::kInvalidArgument);
    CHECK(gguf.find("absent") == nullptr);
  }
}

TEST_CASE("what is no GGUF of a version that is read", "[gguf]") {
  require_refused("", StatusCode::kMalformed, "header");
  require_refused("GGU", StatusCode::kMalformed, "header");
  require_refused("GGML" + std::string(20, '\0'), StatusCode::kMalformed, "GGUF");
  require_refused(gguf_header(0, 0, 1).text(), StatusCode::kUnsupported, "version 1");
  require_refused(gguf_header(0, 0, 4).text(), StatusCode::kUnsupported, "version 4");
  require_refused(gguf_header(0, 0, 0x03000000).text(), StatusCode::kUnsupported, "big-endian");
}

TEST_CASE("counts and lengths beyond the file are refused before anything is allocated", "[gguf]") {
  require_malformed(gguf_header(0, uint64_t{1} << 60).zeros(64), "metadata keys");
  require_malformed(gguf_header(uint64_t{1} << 60, 0).zeros(64), "tensors");
  require_malformed(gguf_header(UINT64_MAX, UINT64_MAX).zeros(64), "header");
  // Counts whose product with any record size wraps around.
  require_malformed(gguf_header(UINT64_MAX / 33 + 2, 0).zeros(200), "tensors");
  require_malformed(gguf_header(0, 1).u64(UINT64_MAX).zeros(32), "key 1");
  require_malformed(gguf_header(0, 1).u64(0).u32(4).u32(1).zeros(8), "is empty");
  require_malformed(gguf_header(0, 1).string("k").type(GgufType::kString).u64(1000).zeros(8), "k: ");
  require_malformed(gguf_header(0, 1).string("k").type(GgufType::kString).u64(UINT64_MAX - 7).zeros(8), "k: ");
  require_malformed(gguf_header(0, 1).key_array("k", GgufType::kU8, 100).zeros(8), "k: ");
  require_malformed(gguf_header(0, 1).key_array("k", GgufType::kU64, (uint64_t{1} << 61) + 1).zeros(8), "k: ");
  require_malformed(gguf_header(0, 1).key_array("k", GgufType::kString, uint64_t{1} << 60).zeros(8), "k: ");
  require_malformed(gguf_header(0, 1).key_array("k", GgufType::kString, 2).string("a").zeros(7), "k: ");
  require_malformed(gguf_header(1, 0).u64(70).zeros(64), "tensor 1");
  require_malformed(gguf_header(1, 0).u64(0).zeros(64), "has no name");
}

TEST_CASE("a giant file cannot make its header take giant memory", "[gguf]") {
  // A terabyte that reads as zeros after an array that claims to fill it.
  for (const GgufType type : {GgufType::kU64, GgufType::kString}) {
    const Bytes bytes = gguf_header(0, 1).key_array("k", type, uint64_t{1} << 36);
    const auto file = GgufFile::open({std::make_shared<WatchedSource>(bytes.text(), uint64_t{1} << 40)});
    REQUIRE_FALSE(file.ok());
    CHECK(file.status().code() == StatusCode::kMalformed);
    CHECK(file.status().to_string().find("k: ") != std::string::npos);
  }
}

TEST_CASE("every truncation of a good file is refused or reads the same", "[gguf]") {
  Bytes bytes = gguf_header(1, 2);
  bytes.key_string("a", "b").key_array("c", GgufType::kString, 2).string("x").string("yz");
  bytes.tensor("t", {4}, kF32, 0).pad().zeros(16);
  REQUIRE(open_text(bytes.text()).ok());
  for (size_t size = 0; size < bytes.text().size(); ++size) {
    const auto file = open_text(bytes.text().substr(0, size));
    REQUIRE_FALSE(file.ok());
    REQUIRE(file.status().code() == StatusCode::kMalformed);
  }
}

TEST_CASE("metadata values that are wrong", "[gguf]") {
  require_malformed(gguf_header(0, 1).string("k").u32(13).zeros(16), "k: ");
  require_malformed(gguf_header(0, 1).string("k").u32(UINT32_MAX).zeros(16), "k: ");
  require_malformed(gguf_header(0, 1).string("k").type(GgufType::kBool).number<uint8_t>(2).zeros(16), "bool");
  require_malformed(gguf_header(0, 1).key_array("k", static_cast<GgufType>(77), 1).zeros(16), "k: ");
  require_malformed(gguf_header(0, 2).key_u32("same", 1).key_u32("same", 1), "same");
  // An array in an array, ten thousand deep.
  Bytes nested = gguf_header(0, 1);
  nested.string("deep").type(GgufType::kArray);
  for (int i = 0; i < 10000; ++i) nested.type(GgufType::kArray).u64(1);
  nested.type(GgufType::kU8).u64(1).zeros(1);
  require_malformed(nested, "deep");
}

TEST_CASE("general.alignment must be a u32 and a power of two", "[gguf]") {
  const auto with_alignment = [](uint32_t alignment) {
    return gguf_header(1, 1).key_u32("general.alignment", alignment).tensor("t", {4}, kF32, 0);
  };
  for (uint32_t bad : {0u, 3u, 33u, 1u << 31, UINT32_MAX}) {
    require_malformed(with_alignment(bad).zeros(256), "general.alignment");
  }
  require_malformed(gguf_header(0, 1).string("general.alignment").type(GgufType::kI32).u32(32), "general.alignment");
  require_malformed(gguf_header(0, 1).key_array("general.alignment", GgufType::kU32, 1).u32(32), "general.alignment");
  require_malformed(gguf_header(0, 1).key_string("general.alignment", "32"), "general.alignment");
  for (uint32_t good : {1u, 8u, 32u, 4096u}) {
    REQUIRE(open_text(with_alignment(good).pad(good).zeros(16).text()).ok());
  }
}

TEST_CASE("tensors whose shape, type or place is wrong", "[gguf]") {
  const auto one = [](const std::vector<uint64_t>& dimensions, uint32_t type, uint64_t offset) {
    return gguf_header(1, 0).tensor("bad.weight", dimensions, type, offset).pad().zeros(64);
  };
  require_malformed(one({static_cast<uint64_t>(INT64_MAX), 2, 1, 1}, kI8, 0), "bad.weight");
  require_malformed(one({static_cast<uint64_t>(INT64_MAX)}, kI8, 0), "bad.weight");
  require_malformed(one({UINT64_MAX}, kI8, 0), "bad.weight");
  require_malformed(one({uint64_t{1} << 62}, kF32, 0), "bad.weight");
  require_malformed(one({uint64_t{1} << 32, uint64_t{1} << 32}, kF32, 0), "bad.weight");
  require_malformed(one({4, 0}, kF32, 0), "bad.weight");
  require_malformed(one({0, uint64_t{1} << 63}, kF32, 0), "bad.weight");
  require_malformed(one({0}, kQ4_0, 0), "bad.weight");
  require_malformed(one({}, kF32, 0), "bad.weight");
  require_malformed(one({1, 1, 1, 1, 1, 1, 1, 1, 1}, kF32, 0), "bad.weight");
  require_malformed(one({33}, kQ4_0, 0), "bad.weight");
  require_malformed(one({16, 2}, kQ4_0, 0), "bad.weight");  // 32 elements, but rows of half a block
  require_malformed(one({17}, kF32, 0), "bad.weight");      // 68 bytes in a body of 64
  require_malformed(one({4}, kF32, 64), "bad.weight");
  require_malformed(one({4}, kF32, 4), "bad.weight");
  require_malformed(one({4}, kF32, UINT64_MAX - 31), "bad.weight");
  for (uint32_t unknown : {4u, 31u, 36u, 43u, UINT32_MAX}) {
    require_refused(one({32}, unknown, 0).text(), StatusCode::kUnsupported, "bad.weight");
  }
  // Nine dimensions' worth of count without the bytes.
  require_malformed(gguf_header(1, 0).string("bad.weight").u32(UINT32_MAX).zeros(64), "bad.weight");
}

TEST_CASE("two tensors of one name, or over the same bytes", "[gguf]") {
  const auto twins =
      open_text(gguf_header(2, 0).tensor("twin", {4}, kF32, 0).tensor("twin", {4}, kF32, 0).pad().zeros(64).text());
  CHECK(twins.status().message() == "is the name of two tensors");  // and not an overlap
  require_malformed(gguf_header(2, 0).tensor("twin", {4}, kF32, 0).tensor("twin", {4}, kF32, 32).pad().zeros(64),
                    "twin");
  require_malformed(gguf_header(2, 0).tensor("one", {16}, kF32, 0).tensor("two", {4}, kF32, 32).pad().zeros(64), "two");
  require_malformed(gguf_header(2, 0).tensor("one", {4}, kF32, 0).tensor("two", {4}, kF32, 0).pad().zeros(64), "two");
  REQUIRE(open_text(gguf_header(2, 0).tensor("one", {4}, kF32, 32).tensor("two", {8}, kF32, 0).pad().zeros(64).text())
              .ok());
}

TEST_CASE("a read that fails names the tensor", "[gguf]") {
  const Bytes bytes = gguf_header(1, 0).tensor("t", {4}, kF32, 0).pad().zeros(16);
  auto text = std::make_shared<std::string>(bytes.text());
  auto source = open_reader(text->size(),
                            [text](uint64_t offset, std::byte* out, uint64_t size) {
                              if (offset >= text->size() - 16) return false;
                              std::memcpy(out, text->data() + offset, size);
                              return true;
                            },
                            "host", {});
  const auto file = GgufFile::open({source});
  REQUIRE(file.ok());
  std::byte out[16];
  const Status status = (*file)->read((*file)->tensors()[0], 0, out);
  CHECK(status.code() == StatusCode::kIo);
  CHECK(status.place().find("t: host") == 0);
}

// Part `number` (from 0) of a split model with one tensor and perhaps a key.
std::string part(uint64_t number, uint64_t count, std::string_view tensor, std::string_view value = {},
                 uint32_t total = 0) {
  Bytes bytes = gguf_header(1, 2 + (value.empty() ? 0 : 1) + (total ? 1 : 0));
  bytes.string("split.no").type(GgufType::kU16).number(static_cast<uint16_t>(number));
  bytes.string("split.count").type(GgufType::kU16).number(static_cast<uint16_t>(count));
  if (total) bytes.string("split.tensors.count").type(GgufType::kI32).u32(total);
  if (!value.empty()) bytes.key_string("key", value);
  return bytes.tensor(tensor, {1}, kF32, 0).pad().number(static_cast<float>(number)).text();
}

TEST_CASE("split models are whole or refused", "[gguf]") {
  const auto open_parts = [](const std::vector<std::string>& texts) {
    std::vector<std::shared_ptr<ByteSource>> sources;
    for (size_t i = 0; i < texts.size(); ++i) sources.push_back(source_of(texts[i], fmt::format("part{}", i)));
    return GgufFile::open(std::move(sources));
  };
  const auto refused = [&](const std::vector<std::string>& texts, std::string_view item) {
    const auto file = open_parts(texts);
    REQUIRE_FALSE(file.ok());
    CAPTURE(file.status().to_string());
    CHECK(file.status().code() == StatusCode::kMalformed);
    CHECK(file.status().to_string().find(item) != std::string::npos);
  };
  const auto whole = open_parts({part(1, 2, "b"), part(0, 2, "a", "v", 2)});
  REQUIRE(whole.ok());
  CHECK((*whole)->shard_count() == 2);
  CHECK((*whole)->tensors()[0].name == "a");
  CHECK((*whole)->tensors()[1].source_index == 1);
  CHECK(*(*whole)->get_string("key") == "v");
  float value = -1;
  REQUIRE((*whole)->read(*(*whole)->find("b"), 0, std::as_writable_bytes(std::span(&value, 1))).ok());
  CHECK(value == 1.0f);

  refused({part(0, 2, "a")}, "split.count");                                   // one missing
  refused({part(0, 2, "a"), part(0, 2, "b")}, "given twice");                  // one repeated
  refused({part(0, 3, "a"), part(1, 3, "b")}, "split.count");                  // fewer than counted
  refused({part(0, 2, "a"), part(2, 2, "b")}, "split.no");                     // number out of range
  refused({part(0, 2, "a"), part(1, 2, "a")}, "a: ");                          // a tensor in both
  refused({part(0, 2, "a", "v"), part(1, 2, "b", "w")}, "key");                // a key in both, differently
  refused({part(0, 2, "a", "v", 3), part(1, 2, "b")}, "split.tensors.count");  // a tensor missing
  refused({part(0, 2, "a"), gguf_header(0, 0).text()}, "split.count");         // a stranger
  refused({gguf_header(0, 0).text(), gguf_header(0, 0).text()}, "split.count");
  Bytes first = gguf_header(1, 3);
  first.string("split.no").type(GgufType::kU8).number<uint8_t>(0);
  first.string("split.count").type(GgufType::kU8).number<uint8_t>(2);
  first.key_u32("general.alignment", 64).tensor("a", {1}, kF32, 0).pad(64).zeros(4);
  const auto unclear = open_parts({first.text(), part(1, 2, "b")});
  CHECK(unclear.status().code() == StatusCode::kUnsupported);
  CHECK(unclear.status().place() == "part1: general.alignment");
  CHECK(open_parts({}).status().code() == StatusCode::kInvalidArgument);
  CHECK(open_parts({part(0, 0, "a")}).ok());  // put together again
}

TEST_CASE("split models are found by the path of any part", "[gguf]") {
  CHECK_FALSE(parse_split_name("model.gguf").has_value());
  CHECK_FALSE(parse_split_name("model-00003-of-00002.gguf").has_value());
  CHECK_FALSE(parse_split_name("model-00000-of-00002.gguf").has_value());
  CHECK_FALSE(parse_split_name("model-1-of-2.gguf").has_value());
  CHECK_FALSE(parse_split_name("model-00001-of-99999999999999.gguf").has_value());
  const auto name = parse_split_name("/x/a-00001-of-b-00002-of-00003.gguf");
  REQUIRE(name.has_value());
  CHECK(split_path(*name, 3) == "/x/a-00001-of-b-00003-of-00003.gguf");

  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "headrace_gguf_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto path = [&](int number) { return (folder / fmt::format("m-{:05}-of-00002.gguf", number)).string(); };
  std::ofstream(path(1), std::ios::binary) << part(0, 2, "a", "v");
  CHECK(GgufFile::open_path(path(1)).status().code() == StatusCode::kNotFound);
  CHECK(GgufFile::open_path(path(1)).status().place() == path(2));
  std::ofstream(path(2), std::ios::binary) << part(1, 2, "b");
  for (int number : {1, 2}) {
    for (bool use_mmap : {false, true}) {
      const auto file = GgufFile::open_path(path(number), use_mmap);
      REQUIRE(file.ok());
      CHECK((*file)->tensors().size() == 2);
      CHECK(((*file)->mapped((*file)->tensors()[0]) != nullptr) == use_mmap);
    }
  }
  // A single name over a part of a split model.
  std::filesystem::copy_file(path(1), folder / "single.gguf");
  CHECK(GgufFile::open_path((folder / "single.gguf").string()).status().to_string().find("split.count") !=
        std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST_CASE("the golden GGUF files open, and llama's weights are those of its safetensors twin", "[gguf]") {
  const std::string data = HEADRACE_TEST_DATA;
  const std::filesystem::path folder = std::filesystem::path(data) / "goldens" / "gguf";
  if (data.empty() || !std::filesystem::exists(folder)) {
    std::cout << "SKIPPED: no golden GGUF files under HEADRACE_TEST_DATA\n";
    return;
  }
  int opened = 0;
  for (const auto& item : std::filesystem::directory_iterator(folder)) {
    if (item.path().extension() != ".gguf") continue;
    const auto file = GgufFile::open_path(item.path().string());
    CAPTURE(item.path().string(), file.status().to_string());
    REQUIRE(file.ok());
    CHECK_FALSE((*file)->tensors().empty());
    CHECK((*file)->get_string("general.architecture").ok());
    ++opened;
  }
  CHECK(opened >= 40);

  const auto gguf = GgufFile::open_path((folder / "llama.gguf").string());
  const auto twin = SafetensorsFile::open_folder((folder.parent_path() / "models" / "llama").string());
  REQUIRE(gguf.ok());
  REQUIRE(twin.ok());
  const uint64_t heads = *(*gguf)->get_u64("llama.attention.head_count");
  const uint64_t kv_heads = *(*gguf)->get_u64("llama.attention.head_count_kv");
  const auto bytes_of = [](const TensorFile& file, const TensorEntry& entry) {
    std::vector<std::byte> bytes(entry.bytes);
    REQUIRE(file.read(entry, 0, bytes).ok());
    return bytes;
  };
  const std::pair<std::string, std::string> parts[] = {
      {"attn_norm", "input_layernorm"}, {"attn_output", "self_attn.o_proj"}, {"attn_v", "self_attn.v_proj"},
      {"attn_q", "self_attn.q_proj"},   {"attn_k", "self_attn.k_proj"},      {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},           {"ffn_down", "mlp.down_proj"}};
  size_t compared = 0;
  for (const TensorEntry& entry : (*gguf)->tensors()) {
    CAPTURE(entry.name);
    std::string name;
    uint64_t rotated_heads = 0;  // the converter reorders the rows of q and k within a head
    if (entry.name == "token_embd.weight") name = "model.embed_tokens.weight";
    if (entry.name == "output.weight") name = "lm_head.weight";
    if (entry.name == "output_norm.weight") name = "model.norm.weight";
    if (entry.name.starts_with("blk.")) {
      const size_t dot = entry.name.find('.', 4);
      for (const auto& [short_name, long_name] : parts) {
        if (entry.name.substr(dot + 1) != short_name + ".weight") continue;
        name = "model.layers." + entry.name.substr(4, dot - 4) + "." + long_name + ".weight";
        if (short_name == "attn_q") rotated_heads = heads;
        if (short_name == "attn_k") rotated_heads = kv_heads;
      }
    }
    if (name.empty()) continue;
    const TensorEntry* other = (*twin)->find(name);
    REQUIRE(other);
    CHECK(other->shape == entry.shape);
    CHECK(other->dtype == entry.dtype);
    auto expected = bytes_of(**twin, *other);
    if (rotated_heads) {
      // [heads, 2, half, in] becomes [heads, half, 2, in].
      const uint64_t row = entry.bytes / entry.shape[0];
      const uint64_t half = entry.shape[0] / rotated_heads / 2;
      std::vector<std::byte> moved(expected.size());
      for (uint64_t h = 0; h < rotated_heads; ++h) {
        for (uint64_t two = 0; two < 2; ++two) {
          for (uint64_t i = 0; i < half; ++i) {
            std::memcpy(moved.data() + (h * 2 * half + 2 * i + two) * row,
                        expected.data() + (h * 2 * half + two * half + i) * row, row);
          }
        }
      }
      expected = std::move(moved);
    }
    CHECK(bytes_of(**gguf, entry) == expected);
    ++compared;
  }
  CHECK(compared >= (*twin)->tensors().size());
}

}  // namespace
}  // namespace headrace
