#include "formats/gguf_split.h"

#include <charconv>

#include "formats/text_quote.h"

namespace headrace {
namespace {

constexpr uint32_t kMaxShards = 99999;  // what five digits hold

// A number of digits only, of at least five (writers pad to five).
std::optional<uint32_t> parse_number(std::string_view digits) {
  if (digits.size() < 5 || digits.size() > 9) return std::nullopt;
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// An integer of the header's metadata; nothing when absent.
Result<std::optional<uint64_t>> split_number(const GgufHeader& header, std::string_view key) {
  const auto it = header.metadata.find(key);
  if (it == header.metadata.end()) return std::optional<uint64_t>();
  const auto number = it->second.is_array() ? std::nullopt : it->second.as_u64();
  if (!number) return malformed(std::string(key), "is no count: {}", it->second.to_display());
  return number;
}

}  // namespace

std::optional<SplitName> parse_split_name(const std::string& path) {
  constexpr std::string_view kSuffix = ".gguf";
  constexpr std::string_view kOf = "-of-";
  std::string_view rest = path;
  if (!rest.ends_with(kSuffix)) return std::nullopt;
  rest.remove_suffix(kSuffix.size());
  const size_t of = rest.rfind(kOf);
  if (of == std::string_view::npos) return std::nullopt;
  const auto count = parse_number(rest.substr(of + kOf.size()));
  rest = rest.substr(0, of);
  const size_t dash = rest.rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto number = parse_number(rest.substr(dash + 1));
  if (!count || !number || *number < 1 || *number > *count || *count > kMaxShards) return std::nullopt;
  return SplitName{std::string(rest.substr(0, dash)), *number, *count};
}

std::string split_path(const SplitName& name, uint32_t number) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", name.prefix, number, name.count);
}

Status order_shards(std::vector<std::shared_ptr<ByteSource>>* sources, std::vector<GgufHeader>* headers) {
  const size_t given = headers->size();
  std::vector<size_t> at(given, SIZE_MAX);  // which header is part i
  size_t tensors = 0;
  for (size_t i = 0; i < given; ++i) {
    const GgufHeader& header = (*headers)[i];
    const std::string& name = (*sources)[i]->name();
    const auto count = split_number(header, "split.count");
    if (!count.ok()) return count.status().within(name);
    const auto number = split_number(header, "split.no");
    if (!number.ok()) return number.status().within(name);
    // No split model: 0 is what tools write that put the parts together again.
    if (given == 1 && (!*count || **count <= 1)) return Status();
    if (!*count || !*number) {
      return malformed(name + ": " + (*count ? "split.no" : "split.count"),
                       "is missing, but {} files were given as one split model", given);
    }
    if (**count != given) {
      return malformed(name + ": split.count", "the model is split in {} files, {} {} given", **count, given,
                       given == 1 ? "was" : "were");
    }
    if (**number >= given) return malformed(name + ": split.no", "is {} of {} files", **number, given);
    if (at[**number] != SIZE_MAX) {
      return malformed(name + ": split.no", "is {}, as in {}: one part was given twice", **number,
                       (*sources)[at[**number]]->name());
    }
    at[**number] = i;
    tensors += header.tensors.size();
  }
  for (size_t i = 0; i < given; ++i) {
    const auto total = split_number((*headers)[i], "split.tensors.count");
    const std::string& name = (*sources)[i]->name();
    if (!total.ok()) return total.status().within(name);
    if (*total && **total != tensors) {
      return malformed(name + ": split.tensors.count", "is {}, but the files hold {} tensors", **total, tensors);
    }
  }
  std::vector<std::shared_ptr<ByteSource>> ordered_sources;
  std::vector<GgufHeader> ordered_headers;
  for (const size_t i : at) {
    ordered_sources.push_back(std::move((*sources)[i]));
    ordered_headers.push_back(std::move((*headers)[i]));
  }
  *sources = std::move(ordered_sources);
  *headers = std::move(ordered_headers);
  return Status();
}

}  // namespace headrace
