// safetensors files and model folders written byte by byte: what is read, and what is refused with the item's
// name.
#include "formats/safetensors.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <catch2/catch.hpp>

#include "formats/model_folder.h"
#include "gguf_writer.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

std::string file_text(std::string_view header, size_t body_bytes) {
  std::string body(body_bytes, '\0');
  for (size_t i = 0; i < body_bytes; ++i) body[i] = static_cast<char>(i);
  return Bytes().string(header).raw(body).text();
}

void require_refused(const std::string& text, std::string_view item, StatusCode code = StatusCode::kMalformed) {
  const auto file = SafetensorsFile::open({source_of(text, "file")});
  REQUIRE_FALSE(file.ok());
  CAPTURE(file.status().to_string());
  CHECK(file.status().code() == code);
  CHECK(file.status().to_string().find(item) != std::string::npos);
  CHECK(file.status().place().find("file") == 0);
}
void require_refused_header(std::string_view header, size_t body_bytes, std::string_view item) {
  require_refused(file_text(header, body_bytes), item);
}

// A folder that is gone with the test.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name) : path_(fs::temp_directory_path() / ("headrace_" + name)) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void remove(const std::string& name) const { fs::remove(path_ / name); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST_CASE("a safetensors file gives its tensors", "[safetensors]") {
  const std::string text = file_text(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[4,8]},"c":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
      R"("none":{"dtype":"F16","shape":[0,5],"data_offsets":[8,8]}}   )",
      20);
  const auto file = SafetensorsFile::open({source_of(text)});
  CAPTURE(file.status().to_string());
  REQUIRE(file.ok());
  CHECK((*file)->metadata().at("format") == "pt");
  CHECK((*file)->tensors().size() == 4);
  CHECK((*file)->total_bytes() == 20);
  const TensorEntry* b = (*file)->find("b");
  REQUIRE(b);
  CHECK(b->dtype == DType::kBF16);
  CHECK(b->shape == std::vector<uint64_t>{2, 3});
  std::byte out[2];
  REQUIRE((*file)->read(*b, 10, out).ok());
  CHECK(out[1] == std::byte{19});
  CHECK((*file)->read(*b, 11, out).code() == StatusCode::kInvalidArgument);
  CHECK((*file)->find("none")->bytes == 0);
  const auto empty = SafetensorsFile::open({source_of(file_text("{}", 0))});
  REQUIRE(empty.ok());
  CHECK((*empty)->tensors().empty());
}

TEST_CASE("headers that are wrong", "[safetensors]") {
  require_refused("", "header");
  require_refused("1234567", "header");
  require_refused(Bytes().u64(3).raw("{}").text(), "header");
  require_refused(Bytes().u64(UINT64_MAX).raw("{}").text(), "header");
  require_refused(Bytes().u64(UINT64_MAX - 7).raw("{}").text(), "header");
  require_refused(Bytes().u64(0).raw("{}").text(), "line 1, column 1");
  require_refused_header("[]", 0, "header");
  require_refused_header("{", 0, "line 1, column 2");
  require_refused_header("{\"a\":\n\n  !}", 0, "line 3, column 3");
  require_refused_header("\xff\xfe", 0, "header");
  require_refused_header("{\"__metadata__\":1}", 0, "__metadata__");
  require_refused_header("{\"__metadata__\":{\"k\":1}}", 0, "__metadata__.k");
  require_refused_header(R"({"t":7})", 0, "t: ");
  require_refused_header(R"({"t":{}})", 0, "t: ");
  require_refused_header(R"({"t":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4, "t: ");
  require_refused_header(R"({"t":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "t: ");
  require_refused_header(R"({"t":{"dtype":"F32","shape":[1]}})", 4, "t: ");
  require_refused_header("{\"t\":" + std::string(10000, '[') + std::string(10000, ']') + "}", 0, "nested");
  require_refused_header("{\"t\":" + std::string(10000, '['), 0, "nested");
  // One name twice, which JSON readers otherwise take the last of.
  require_refused_header(R"({"t":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                         R"("t":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})",
                         2, "t: occurs twice");
  require_refused_header(R"({"":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1, "name");
}

TEST_CASE("offsets and shapes that do not fit", "[safetensors]") {
  const auto one = [](const std::string& shape, const std::string& offsets, size_t body = 4,
                      const std::string& dtype = "F32") {
    require_refused_header(
        "{\"bad\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}", body,
        "bad");
  };
  one("[1000,1000]", "[0,4]");
  one("[1000,1000]", "[0,4000000]");
  one("[1]", "[4,0]");
  one("[1]", "[-4,0]");
  one("[1]", "[0,-4]");
  one("[1]", "[4]");
  one("[1]", "[]");
  one("[1]", "[0,4,8]");
  one("[1]", "[0.0,4.0]");
  one("[1]", "[\"0\",\"4\"]");
  one("[1]", "[0,18446744073709551616]");
  one("[1]", "[0,18446744073709551615]");
  one("[1]", "[18446744073709551612,18446744073709551615]");
  one("[-1]", "[0,4]");
  one("[1.0]", "[0,4]");
  one("[4611686018427387904,4]", "[0,4]");  // 2^64 elements: wraps to 0
  one("[4611686018427387905]", "[0,4]");    // bytes wrap to 4
  one("[0,18446744073709551615,2]", "[0,0]", 0);
  one("[1]", "[0,2]", 2);
  one("[1]", "[1,5]", 5);  // a gap at the start
  require_refused_header(R"({"bad":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 6,
                         "header");  // a tail
  require_refused_header(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                         R"("bad":{"dtype":"I8","shape":[4],"data_offsets":[2,6]}})",
                         6, "bad: begins at 2, overlapping a");
  require_refused_header(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                         R"("bad":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
                         4, "overlapping");
  require_refused_header(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                         R"("bad":{"dtype":"I8","shape":[1],"data_offsets":[5,6]}})",
                         6, "bad: begins at 5, with a gap after a");
  for (const std::string dtype : {"F8_E5M2", "U16", "F4", "f32", "XYZ"}) {
    require_refused(file_text("{\"bad\":{\"dtype\":\"" + dtype + "\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4),
                    "bad: ", StatusCode::kUnsupported);
  }
}

std::string tensor_text(const std::string& name) {
  return file_text("{\"" + name + "\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
}

TEST_CASE("shards must hold what their index says, and only that", "[safetensors]") {
  const TemporaryFolder folder("shards");
  const auto refused = [&](const std::string& index, std::string_view item, StatusCode code = StatusCode::kMalformed) {
    folder.write("model.safetensors.index.json", index);
    const auto file = SafetensorsFile::open_folder(folder.path());
    REQUIRE_FALSE(file.ok());
    CAPTURE(file.status().to_string());
    CHECK(file.status().code() == code);
    CHECK(file.status().to_string().find(item) != std::string::npos);
  };
  folder.write("one.safetensors", tensor_text("a"));
  folder.write("two.safetensors", tensor_text("b"));
  folder.write("again.safetensors", tensor_text("a"));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto file = SafetensorsFile::open_folder(folder.path());
  REQUIRE(file.ok());
  CHECK((*file)->tensors().size() == 2);
  CHECK((*file)->find("b")->source_index == 1);

  refused(R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})", "a: ");
  refused(R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})", "b: ");
  refused(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})", "c: ");
  refused(R"({"weight_map":{"a":"one.safetensors","b":"again.safetensors"}})",
          "a: ");  // the tensor is in two shards
  refused(R"({"weight_map":{"a":"one.safetensors","b":"missing.safetensors"}})", "missing.safetensors",
          StatusCode::kNotFound);
  refused(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})", "a: occurs twice");
  for (const std::string name : {"../one.safetensors", "/etc/passwd", "x\\\\y", "", "..", "a\\u0000b"}) {
    refused(R"({"weight_map":{"a":")" + name + "\"}}", "weight_map.a");
  }
  refused(R"({"weight_map":{"a":1}})", "weight_map.a");
  refused(R"({"weight_map":{}})", "weight_map");
  refused(R"({"weight_map":[]})", "weight_map");
  refused(R"([])", "weight_map");
  refused("{", "model.safetensors.index.json: line 1");
}

TEST_CASE("a model folder gives its files", "[model_folder]") {
  const TemporaryFolder folder("model_folder");
  CHECK(open_model_folder(folder.path()).status().code() == StatusCode::kNotFound);
  CHECK(open_model_folder(folder.path() + "/absent").status().code() == StatusCode::kNotFound);
  folder.write("config.json", "{\"a\": [1, Infinity, -Infinity, NaN, \"NaN Infinity\"], \"a\": [0, Infinity]}");
  folder.write("tokenizer.json", "{}");
  auto opened = open_model_folder(folder.path());
  CAPTURE(opened.status().to_string());
  REQUIRE(opened.ok());
  CHECK(opened->weights == nullptr);
  CHECK(*json_number(opened->config["a"][0]) == 0.0);
  CHECK(std::isinf(*json_number(opened->config["a"][1])));
  CHECK(opened->generation_config.is_null());
  CHECK(opened->tokenizer_json == "{}");
  CHECK(opened->chat_template.empty());

  folder.write("tokenizer_config.json",
               R"({"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"}]})");
  folder.write("model.safetensors", tensor_text("a"));
  opened = open_model_folder(folder.path(), true);
  REQUIRE(opened.ok());
  CHECK(opened->chat_template == "D");
  CHECK(opened->named_chat_templates.at("tool_use") == "T");
  REQUIRE(opened->weights);
  CHECK(opened->weights->mapped(opened->weights->tensors()[0]) != nullptr);

  folder.write("tokenizer.json", "");
  const Status empty = open_model_folder(folder.path()).status();
  CHECK(empty.code() == StatusCode::kMalformed);
  CHECK(empty.message() == "is empty");
  CHECK(empty.place().find("tokenizer.json") != std::string::npos);
  folder.write("tokenizer.json", "{}");
  folder.write("config.json", "{\"a\": }");
  const Status damaged = open_model_folder(folder.path()).status();
  CHECK(damaged.code() == StatusCode::kMalformed);
  CHECK(damaged.message().find("json.exception") == std::string::npos);
  folder.write("config.json", "{}");

  folder.write("chat_template.jinja", "J");
  folder.write("additional_chat_templates/rag.jinja", "R");
  opened = open_model_folder(folder.path());
  REQUIRE(opened.ok());
  CHECK(opened->chat_template == "J");
  CHECK(opened->named_chat_templates == std::map<std::string, std::string>{{"rag", "R"}});

  const auto refused = [&](const std::string& name, const std::string& text, std::string_view item) {
    folder.write(name, text);
    const auto result = open_model_folder(folder.path());
    REQUIRE_FALSE(result.ok());
    CAPTURE(result.status().to_string());
    CHECK(result.status().to_string().find(item) != std::string::npos);
    folder.remove(name);
  };
  refused("config.json", "{\"a\":\n Infinit}", "config.json: line 2, column");
  refused("config.json", "[1]", "config.json");
  refused("generation_config.json", std::string(100000, '['), "generation_config.json: line 1, column 129");
  folder.remove("chat_template.jinja");
  fs::remove_all(folder.path() + "/additional_chat_templates");
  refused("tokenizer_config.json", R"({"chat_template":{"a":1}})", "chat_template");
  refused("tokenizer_config.json", R"({"chat_template":[{"name":"x"}]})", "chat_template[0]");
  refused("tokenizer_config.json", R"({"chat_template":[{"name":"x","template":""},{"name":"x","template":""}]})",
          "chat_template[1]");
  folder.write("chat_template.json", R"({"chat_template":"S"})");
  CHECK(open_model_folder(folder.path())->chat_template == "S");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"gone.safetensors"}})");
  CHECK(open_model_folder(folder.path()).status().to_string().find("gone.safetensors") != std::string::npos);
}

TEST_CASE("places in JSON errors are those of the file, also behind Python's floats", "[json]") {
  JsonOptions options;
  options.python_floats = true;
  const auto result = parse_json("[Infinity, NaN,\n -Infinity, oops]", "f", options);
  REQUIRE_FALSE(result.ok());
  CHECK(result.status().place().find("f: line 2, column 1") == 0);
  CHECK_FALSE(parse_json("[NaN]", "f").ok());
  CHECK_FALSE(parse_json("[\"\xff\"]", "f").ok());
  CHECK_FALSE(parse_json("[1e999]", "f").ok());
  CHECK_FALSE(parse_json("[1] x", "f").ok());
  CHECK(parse_json("[1, {\"a\": [2]}]", "f").ok());
}

TEST_CASE("of two members of one name the last counts, at the place of the first", "[json]") {
  JsonOptions options;
  options.refuse_duplicate_keys = false;
  const std::string text = R"({"b":{"x":[1]},"a":2,"c":{"y":1,"x":2},"b":[{"z":null}],"":true})";
  const auto ordered = parse_ordered_json(text, "f", options);
  REQUIRE(ordered.ok());
  CHECK(ordered->dump() == R"({"b":[{"z":null}],"a":2,"c":{"y":1,"x":2},"":true})");
  const auto sorted = parse_json(text, "f", options);
  REQUIRE(sorted.ok());
  CHECK(sorted->dump() == R"({"":true,"a":2,"b":[{"z":null}],"c":{"x":2,"y":1}})");
  const auto refused = parse_ordered_json(text, "f");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().place() == "f: b");
}

TEST_CASE("the golden model folders open", "[model_folder]") {
  const std::string data = HEADRACE_TEST_DATA;
  const fs::path folder = fs::path(data) / "goldens" / "models";
  if (data.empty() || !fs::exists(folder)) {
    std::cout << "SKIPPED: no golden models under HEADRACE_TEST_DATA\n";
    return;
  }
  int opened = 0;
  for (const auto& item : fs::directory_iterator(folder)) {
    const auto model = open_model_folder(item.path().string());
    CAPTURE(item.path().string(), model.status().to_string());
    REQUIRE(model.ok());
    CHECK(model->weights);
    CHECK(model->config.is_object());
    const auto golden = SafetensorsFile::open_path((item.path() / "golden.safetensors").string());
    CAPTURE(golden.status().to_string());
    CHECK(golden.ok());
    ++opened;
  }
  CHECK(opened >= 70);
}

}  // namespace
}  // namespace headrace
