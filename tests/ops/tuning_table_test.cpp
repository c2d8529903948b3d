// The text form of tuning tables: what is read back, what is refused and where; lookup; and the tables that are shipped.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/cpu_features.h"
#include "cpu/cpu_backend.h"
#include "cpu/tuned_tables.h"
#include "cpu/tuning_table.h"

using namespace headrace;

namespace {

const TuningTarget kTarget = {{"GenuineIntel", 6, 143}, "avx2", kTunedKernels};
const std::string kEntry =
    R"({"weights":"Q4_K","activations":"int8","in_features":1536,"out_features":8960,"rows":4,"threads":2,)"
    R"("choice":{"unpack":"memory","run_pairs":4,"task_rows":528},"rule_us":12.5,"best_us":11.0,"rounds":9})";

std::string text_of(const std::string& entries, const std::string& head = "") {
  return R"({"format":"headrace tuning table 1",)" +
         (head.empty() ? R"("cpu":{"vendor":"GenuineIntel","family":6,"model":143},"isa":"avx2","kernels":)" +
                             std::to_string(kTunedKernels)
                       : head) +
         ",\"entries\":[" + entries + "]}";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// A text that must be refused, with a place that ends so.
void check_refused(const std::string& text, const std::string& place) {
  INFO(text);
  const auto table = TuningTable::parse(text, "t.json");
  REQUIRE(!table.ok());
  CHECK(table.status().code() == StatusCode::kMalformed);
  INFO(table.status().to_string());
  CHECK(table.status().place().find(place) != std::string::npos);
  CHECK(!table.status().message().empty());
}

}  // namespace

TEST_CASE("a table is read as it was written") {
  const auto table = TuningTable::parse(text_of(kEntry), "t.json");
  REQUIRE(table.ok());
  CHECK(table->target() == kTarget);
  REQUIRE(table->entries().size() == 1);
  const TuningKey key = {DType::kQ4_K, ActivationType::kInt8, 1536, 8960, 4, 2};
  const TuningEntry* entry = table->find(key);
  REQUIRE(entry != nullptr);
  REQUIRE(entry->choice);
  CHECK(*entry->choice == LinearChoice{Unpack::kMemory, 4, 528});
  CHECK(entry->rule_us == 12.5);
  CHECK(entry->best_us == 11.0);
  CHECK(entry->rounds == 9);
  const auto again = TuningTable::parse(table->to_text(), "again");
  REQUIRE(again.ok());
  CHECK(again->to_text() == table->to_text());

  const ChoicesByRows choices = table->choices(DType::kQ4_K, ActivationType::kInt8, 1536, 8960, 2);
  for (size_t bucket = 0; bucket < kRowBuckets; ++bucket) CHECK(choices[bucket].is_rule() == (bucket != 2));
  for (const auto& other : {table->choices(DType::kQ6_K, ActivationType::kInt8, 1536, 8960, 2),
                            table->choices(DType::kQ4_K, ActivationType::kInt8, 8960, 1536, 2),
                            table->choices(DType::kQ4_K, ActivationType::kInt8, 1536, 8960, 1)}) {
    for (const LinearChoice& choice : other) CHECK(choice.is_rule());
  }
}

TEST_CASE("an entry without a choice keeps to the rule and its evidence") {
  const std::string text = text_of(replaced(kEntry, R"({"unpack":"memory","run_pairs":4,"task_rows":528})", "null"));
  const auto table = TuningTable::parse(text, "t.json");
  REQUIRE(table.ok());
  CHECK(!table->entries().front().choice);
  CHECK(table->choices(DType::kQ4_K, ActivationType::kInt8, 1536, 8960, 2)[2].is_rule());
  CHECK(table->to_text().find("\"choice\":null") != std::string::npos);
}

TEST_CASE("what is no table is refused with its place") {
  check_refused("", "t.json");
  check_refused("[]", "t.json");
  check_refused("{", "t.json: line 1");
  check_refused(replaced(text_of(kEntry), "table 1", "table 2"), "/format");
  check_refused(replaced(text_of(kEntry), "\"isa\"", "\"isas\""), "/isas");
  check_refused(replaced(text_of(kEntry), "\"vendor\":\"GenuineIntel\"", "\"vendor\":7"), "/cpu/vendor");
  check_refused(replaced(text_of(kEntry), "\"family\":6", "\"family\":-1"), "/cpu/family");
  check_refused(replaced(text_of(kEntry), "\"model\":143", "\"model\":143,\"stepping\":1"), "/cpu/stepping");
  check_refused(text_of(kEntry + "," + kEntry), "/entries/1");
  check_refused(text_of("7"), "/entries/0");
  check_refused(R"({"format":"headrace tuning table 1"})", "/cpu");
  const std::pair<const char*, const char*> kBad[] = {
      {"\"weights\":\"Q4_K\"", "\"weights\":\"Q4\""},
      {"\"weights\":\"Q4_K\"", "\"weights\":\"F16\""},
      {"\"activations\":\"int8\"", "\"activations\":\"float32\""},
      {"\"in_features\":1536", "\"in_features\":0"},
      {"\"out_features\":8960", "\"out_features\":8960.5"},
      {"\"out_features\":8960", "\"out_features\":18446744073709551615"},
      {"\"rows\":4", "\"rows\":3"},
      {"\"rows\":4", "\"rows\":1024"},
      {"\"threads\":2", "\"threads\":true"},
      {"\"unpack\":\"memory\"", "\"unpack\":\"by_rows\""},
      {"\"run_pairs\":4", "\"run_pairs\":0"},
      {"\"run_pairs\":4", "\"run_pairs\":65"},
      {"\"task_rows\":528", "\"task_rows\":540"},
      {"\"task_rows\":528", "\"task_rows\":50"},
      {"\"rule_us\":12.5", "\"rule_us\":-1"},
      {"\"best_us\":11.0", "\"best_us\":\"11\""},
      {"\"rounds\":9", "\"rounds\":9e9"},
  };
  for (const auto& [from, to] : kBad) {
    const std::string key = std::string(from).substr(1, std::string(from).find('"', 1) - 1);
    check_refused(text_of(replaced(kEntry, from, to)), key);
    // And a member that is not there.
    check_refused(text_of(replaced(kEntry, from, "\"other\":1")), "/other");
  }
  check_refused(std::string(5 << 20, ' '), "t.json");
}

TEST_CASE("a table of another machine is refused with what differs") {
  const auto table = TuningTable::parse(text_of(kEntry), "t.json");
  REQUIRE(table.ok());
  CHECK(table->check(kTarget, "t.json").ok());
  TuningTarget other = kTarget;
  SECTION("vendor") { other.cpu.vendor = "AuthenticAMD"; }
  SECTION("family") { other.cpu.family = 25; }
  SECTION("model") { other.cpu.model = 1; }
  SECTION("instruction set") { other.isa = "baseline"; }
  SECTION("kernels") { other.kernels = kTunedKernels + 1; }
  const Status status = table->check(other, "t.json");
  CHECK(status.code() == StatusCode::kUnsupported);
  CHECK(status.place() == "t.json");
  CHECK(shipped_tuning_table(kTarget) == nullptr);
  // A backend takes none either.
  CpuBackendOptions options;
  options.tuning = std::make_shared<const TuningTable>(TuningTarget{{"nobody", 1, 1}, "baseline", kTunedKernels});
  const auto backend = make_cpu_backend(options);
  REQUIRE(!backend.ok());
  CHECK(backend.status().code() == StatusCode::kUnsupported);
}

TEST_CASE("this processor has one identity") {
  const CpuIdentity identity = cpu_identity();
  CHECK(!identity.vendor.empty());
  CHECK(identity == cpu_identity());
#if defined(__x86_64__)
  CHECK(identity.vendor.size() == 12);
  CHECK(identity.family > 0);
#endif
}

TEST_CASE("the shipped tables are those of their files") {
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(HEADRACE_SOURCE_DIR "/lib/cpu/tuned")) {
    if (file.path().extension() != ".json") continue;
    INFO(file.path());
    std::ifstream in(file.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const auto table = TuningTable::parse(text, file.path().filename());
    if (!table.ok()) FAIL(table.status().to_string());
    CHECK(table->to_text() == text);
    ++files;
    // Of other kernels than these it is not used: it has to be measured again.
    CHECK(table->target().kernels == kTunedKernels);
    const auto shipped = shipped_tuning_table(table->target());
    REQUIRE(shipped != nullptr);
    size_t chosen = 0;
    for (const TuningEntry& entry : table->entries()) {
      CHECK(entry.refused.empty());
      const TuningEntry* found = shipped->find(entry.key);
      CHECK((found != nullptr) == entry.choice.has_value());
      if (found == nullptr || !entry.choice) continue;
      CHECK(found->choice == entry.choice);
      ++chosen;
    }
    CHECK(shipped->entries().size() == chosen);
  }
  CHECK(tuned_tables().size() == files);
}
