// Tuning tables as JSON text.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "cpu/tuning_table.h"
#include "formats/json.h"
#include "formats/json_writer.h"
#include "formats/text_quote.h"

namespace headrace {
namespace {

constexpr std::string_view kFormat = "headrace tuning table 1";
constexpr size_t kMostBytes = size_t{4} << 20;
constexpr size_t kMostEntries = 65536;
constexpr size_t kMostRefused = 1024;  // of one entry
constexpr int32_t kMostFeatures = 1 << 30;
constexpr int32_t kMostThreads = 1024;

// One object of the text with the place it has in it; each member must be read by name.
class ObjectReader {
 public:
  // kMalformed where the value is no object or has other members than `names`.
  static Result<ObjectReader> open(const nlohmann::json& value, std::string place,
                                   std::initializer_list<std::string_view> names) {
    if (!value.is_object()) return malformed(std::move(place), "is no object");
    for (const auto& [key, member] : value.items()) {
      if (std::find(names.begin(), names.end(), key) == names.end()) {
        return malformed(fmt::format("{}/{}", place, quote_name(key, 64)), "is no member of a tuning table");
      }
    }
    return ObjectReader(value, std::move(place));
  }

  std::string place(std::string_view name) const { return fmt::format("{}/{}", place_, name); }
  const nlohmann::json* find(std::string_view name) const {
    const auto at = value_->find(std::string(name));
    return at == value_->end() ? nullptr : &*at;
  }
  Result<const nlohmann::json*> get(std::string_view name) const {
    const nlohmann::json* member = find(name);
    if (member == nullptr) return malformed(place(name), "is missing");
    return member;
  }
  Result<std::string> text(std::string_view name) const {
    HEADRACE_ASSIGN_OR_RETURN(const nlohmann::json* member, get(name));
    if (!member->is_string()) return malformed(place(name), "is no string");
    const std::string& value = member->get_ref<const std::string&>();
    if (value.empty() || value.size() > 64) return malformed(place(name), "is not 1 to 64 bytes long");
    return value;
  }
  Result<int32_t> integer(std::string_view name, int32_t low, int32_t high) const {
    HEADRACE_ASSIGN_OR_RETURN(const nlohmann::json* member, get(name));
    if (!member->is_number_integer()) return malformed(place(name), "is no whole number");
    const bool is_huge = member->is_number_unsigned() &&
                         member->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    const int64_t value = is_huge ? std::numeric_limits<int64_t>::max() : member->get<int64_t>();
    if (value < low || value > high) return malformed(place(name), "is not between {} and {}", low, high);
    return static_cast<int32_t>(value);
  }
  Result<double> microseconds(std::string_view name) const {
    HEADRACE_ASSIGN_OR_RETURN(const nlohmann::json* member, get(name));
    const auto value = json_number(*member);
    if (!value || !(*value >= 0 && *value <= 1e12)) return malformed(place(name), "is no time in microseconds");
    return *value;
  }

 private:
  ObjectReader(const nlohmann::json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const nlohmann::json* value_;
  std::string place_;
};

Result<LinearChoice> read_choice(const nlohmann::json& value, const std::string& place) {
  HEADRACE_ASSIGN_OR_RETURN(const ObjectReader object,
                            ObjectReader::open(value, place, {"unpack", "run_pairs", "task_rows"}));
  HEADRACE_ASSIGN_OR_RETURN(const std::string unpack, object.text("unpack"));
  if (unpack != "registers" && unpack != "memory") {
    return malformed(object.place("unpack"), "is neither \"registers\" nor \"memory\"");
  }
  LinearChoice choice;
  choice.unpack = unpack == "memory" ? Unpack::kMemory : Unpack::kRegisters;
  HEADRACE_ASSIGN_OR_RETURN(choice.run_pairs, object.integer("run_pairs", 1, LinearChoice::kMostRunPairs));
  HEADRACE_ASSIGN_OR_RETURN(choice.task_rows, object.integer("task_rows", LinearChoice::kRowStep, kOutlierGroupRows));
  if (!choice.is_valid()) {
    return malformed(object.place("task_rows"), "is no multiple of {}", LinearChoice::kRowStep);
  }
  return choice;
}

Result<TuningKey> read_key(const ObjectReader& object) {
  TuningKey key;
  HEADRACE_ASSIGN_OR_RETURN(const std::string weights, object.text("weights"));
  const auto* dtype = [&]() -> const DTypeInfo* {
    for (int32_t i = 0; i < static_cast<int32_t>(DType::kCount); ++i) {
      const DTypeInfo& info = dtype_info(static_cast<DType>(i));
      if (info.name == weights && is_block_format(info.dtype)) return &info;
    }
    return nullptr;
  }();
  if (dtype == nullptr) return malformed(object.place("weights"), "is no block format");
  key.weights = dtype->dtype;
  HEADRACE_ASSIGN_OR_RETURN(const std::string activations, object.text("activations"));
  if (activations != "int8" && activations != "int16") {
    return malformed(object.place("activations"), "is neither \"int8\" nor \"int16\"");
  }
  key.activations = activations == "int8" ? ActivationType::kInt8 : ActivationType::kInt16;
  HEADRACE_ASSIGN_OR_RETURN(key.in_features, object.integer("in_features", 1, kMostFeatures));
  HEADRACE_ASSIGN_OR_RETURN(key.out_features, object.integer("out_features", 1, kMostFeatures));
  HEADRACE_ASSIGN_OR_RETURN(key.rows, object.integer("rows", 1, bucket_rows(kRowBuckets - 1)));
  if (key.rows != bucket_rows(row_bucket(key.rows))) {
    return malformed(object.place("rows"), "is no power of two");
  }
  HEADRACE_ASSIGN_OR_RETURN(key.threads, object.integer("threads", 1, kMostThreads));
  return key;
}

Result<TuningEntry> read_entry(const nlohmann::json& value, const std::string& place) {
  HEADRACE_ASSIGN_OR_RETURN(const ObjectReader object,
                            ObjectReader::open(value, place,
                                               {"weights", "activations", "in_features", "out_features", "rows",
                                                "threads", "choice", "rule_us", "best_us", "rounds", "refused"}));
  TuningEntry entry;
  HEADRACE_ASSIGN_OR_RETURN(entry.key, read_key(object));
  HEADRACE_ASSIGN_OR_RETURN(const nlohmann::json* choice, object.get("choice"));
  if (!choice->is_null()) {
    HEADRACE_ASSIGN_OR_RETURN(entry.choice, read_choice(*choice, object.place("choice")));
  }
  HEADRACE_ASSIGN_OR_RETURN(entry.rule_us, object.microseconds("rule_us"));
  HEADRACE_ASSIGN_OR_RETURN(entry.best_us, object.microseconds("best_us"));
  HEADRACE_ASSIGN_OR_RETURN(entry.rounds, object.integer("rounds", 0, 1 << 20));
  if (const nlohmann::json* refused = object.find("refused")) {
    if (!refused->is_array() || refused->size() > kMostRefused) {
      return malformed(object.place("refused"), "is no array of at most {}", kMostRefused);
    }
    for (size_t i = 0; i < refused->size(); ++i) {
      HEADRACE_ASSIGN_OR_RETURN(const LinearChoice one,
                                read_choice((*refused)[i], fmt::format("{}/refused/{}", place, i)));
      entry.refused.push_back(one);
    }
  }
  return entry;
}

void write_choice(JsonWriter& out, const LinearChoice& choice) {
  out.begin_object();
  out.member("unpack", choice.unpack == Unpack::kMemory ? "memory" : "registers");
  out.member("run_pairs", choice.run_pairs);
  out.member("task_rows", choice.task_rows);
  out.end_object();
}

double tenths(double value) { return std::round(value * 10) / 10; }

// On a line of its own, so that tables can be compared by lines.
std::string entry_text(const TuningEntry& entry) {
  JsonWriter out;
  out.begin_object();
  out.member("weights", dtype_name(entry.key.weights));
  out.member("activations", activation_name(entry.key.activations));
  out.member("in_features", entry.key.in_features);
  out.member("out_features", entry.key.out_features);
  out.member("rows", entry.key.rows);
  out.member("threads", entry.key.threads);
  out.key("choice");
  if (entry.choice) {
    write_choice(out, *entry.choice);
  } else {
    out.value(std::numeric_limits<double>::quiet_NaN());  // null
  }
  out.member("rule_us", tenths(entry.rule_us));
  out.member("best_us", tenths(entry.best_us));
  out.member("rounds", entry.rounds);
  if (!entry.refused.empty()) {
    out.key("refused");
    out.begin_array();
    for (const LinearChoice& choice : entry.refused) write_choice(out, choice);
    out.end_array();
  }
  out.end_object();
  return out.take();
}

}  // namespace

Result<TuningTable> TuningTable::parse(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes) return malformed(name, "is larger than {} bytes", kMostBytes);
  JsonOptions options;
  options.max_depth = 8;
  HEADRACE_ASSIGN_OR_RETURN(const auto json, parse_json(text, name, options));
  if (!json.is_object()) return malformed(name, "is no object");
  const std::string root = name + ": ";
  HEADRACE_ASSIGN_OR_RETURN(const ObjectReader object,
                            ObjectReader::open(json, root, {"format", "cpu", "isa", "kernels", "entries"}));
  HEADRACE_ASSIGN_OR_RETURN(const std::string format, object.text("format"));
  if (format != kFormat) return malformed(object.place("format"), "is not \"{}\"", kFormat);
  HEADRACE_ASSIGN_OR_RETURN(const nlohmann::json* cpu, object.get("cpu"));
  HEADRACE_ASSIGN_OR_RETURN(const ObjectReader identity,
                            ObjectReader::open(*cpu, object.place("cpu"), {"vendor", "family", "model"}));
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  TuningTarget target;
  HEADRACE_ASSIGN_OR_RETURN(target.cpu.vendor, identity.text("vendor"));
  HEADRACE_ASSIGN_OR_RETURN(target.cpu.family, identity.integer("family", 0, kMost));
  HEADRACE_ASSIGN_OR_RETURN(target.cpu.model, identity.integer("model", 0, kMost));
  HEADRACE_ASSIGN_OR_RETURN(target.isa, object.text("isa"));
  HEADRACE_ASSIGN_OR_RETURN(target.kernels, object.integer("kernels", 0, kMost));
  HEADRACE_ASSIGN_OR_RETURN(const nlohmann::json* entries, object.get("entries"));
  if (!entries->is_array() || entries->size() > kMostEntries) {
    return malformed(object.place("entries"), "is no array of at most {}", kMostEntries);
  }
  TuningTable table(std::move(target));
  table.reserve(entries->size());
  for (size_t i = 0; i < entries->size(); ++i) {
    const std::string place = fmt::format("{}/entries/{}", root, i);
    HEADRACE_ASSIGN_OR_RETURN(TuningEntry entry, read_entry((*entries)[i], place));
    if (table.find(entry.key) != nullptr) return malformed(place, "an entry before is of the same product");
    table.put(std::move(entry));
  }
  return table;
}

std::string TuningTable::to_text() const {
  JsonWriter head;
  head.begin_object();
  head.member("format", kFormat);
  head.key("cpu");
  head.begin_object();
  head.member("vendor", target_.cpu.vendor);
  head.member("family", target_.cpu.family);
  head.member("model", target_.cpu.model);
  head.end_object();
  head.member("isa", target_.isa);
  head.member("kernels", target_.kernels);
  head.key("entries");
  head.begin_array();
  std::string text = head.take();
  for (size_t i = 0; i < entries_.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    text += entry_text(entries_[i]);
  }
  return text + "\n]}\n";
}

}  // namespace headrace
