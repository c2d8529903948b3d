// What sentence-transformers' files beside a model say about pooling.
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "formats/embedding_modules.h"

using namespace headrace;

namespace {

namespace fs = std::filesystem;

// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() : root_(fs::temp_directory_path() / ("headrace_modules_" + std::to_string(std::hash<const void*>()(this)))) {
    fs::remove_all(root_);
    fs::create_directories(root_ / "1_Pooling");
  }
  ~Folder() { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(root_ / name) << text; }
  Result<EmbeddingModules> read() const { return read_embedding_modules(root_.string()); }

 private:
  fs::path root_;
};

const char* const kModules =
    R"([{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},)"
    R"({"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"},)"
    R"({"idx":2,"name":"2","path":"2_Normalize","type":"sentence_transformers.models.Normalize"}])";

}  // namespace

TEST_CASE("a folder without modules says nothing") {
  const Folder folder;
  const auto modules = folder.read();
  REQUIRE(modules.ok());
  CHECK(modules->pooling.empty());
  CHECK(modules->problem.ok());
}

TEST_CASE("the pooling is the one mode that is on") {
  const Folder folder;
  folder.write("modules.json", kModules);
  for (const auto& [config, expected] : {
           std::pair(R"({"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":false})", "cls"),
           std::pair(R"({"word_embedding_dimension":8,"pooling_mode_mean_tokens":true})", "mean"),
           std::pair(R"({"pooling_mode_lasttoken":true,"include_prompt":true})", "lasttoken"),
           std::pair(R"({"pooling_mode":"mean"})", "mean"),
       }) {
    folder.write("1_Pooling/config.json", config);
    const auto modules = folder.read();
    INFO(config << " " << modules.status().to_string());
    REQUIRE(modules.ok());
    CHECK(modules->pooling == expected);
  }
}

TEST_CASE("modules that cannot be followed are no error of the model, but are told") {
  const Folder folder;
  folder.write("modules.json", kModules);
  for (const char* config : {R"({"pooling_mode_max_tokens":true})", R"({})",
                             R"({"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":true})"}) {
    folder.write("1_Pooling/config.json", config);
    const auto modules = folder.read();
    REQUIRE(modules.ok());
    CHECK(modules->pooling.empty());
    CHECK(modules->problem.code() == StatusCode::kUnsupported);
  }
  folder.write("modules.json", R"([{"path":"","type":"a.Transformer"},{"path":"2_Dense","type":"a.b.Dense"}])");
  CHECK(folder.read()->problem.message().find("a.b.Dense") != std::string::npos);
}

TEST_CASE("broken module files are refused with their names") {
  const Folder folder;
  folder.write("modules.json", "[");
  CHECK(folder.read().status().place().find("modules.json") != std::string::npos);
  folder.write("modules.json", "{}");
  CHECK(folder.read().status().code() == StatusCode::kMalformed);
  folder.write("modules.json", kModules);
  CHECK(folder.read().status().place().find("config.json") != std::string::npos);  // there is none
  folder.write("modules.json", R"([{"path":"../elsewhere","type":"a.Pooling"}])");
  CHECK(folder.read().status().code() == StatusCode::kMalformed);
}
