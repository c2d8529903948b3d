#include "engine/session_file.h"

#include <array>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>
#include "base/format_full.h"

#include "formats/json.h"
#include "formats/json_writer.h"
#include "formats/text_quote.h"

namespace headrace::engine {
namespace {

constexpr char kMagic[8] = {'H', 'D', 'R', 'S', 'E', 'S', 'S', '\0'};
constexpr size_t kHeaderBytes = 8 + 4 + 4 + 8 + 16;
// A conversation's text and tokens; far above any context, and a bound on what a damaged size can cost.
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;

void put(std::vector<std::byte>& out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

uint64_t get(const std::byte* bytes, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

Result<SessionRecord> parse_record(const std::string& text, const std::string& name) {
  SessionRecord record;
  try {
    HEADRACE_ASSIGN_OR_RETURN(const auto json, parse_json(text, name));
    const auto integer = [&](const nlohmann::json& value, int64_t low, int64_t high) -> Result<int64_t> {
      const std::optional<int64_t> number = json_integer(value);
      if (number && *number >= low && *number <= high) return *number;
      return malformed(name, "the session's record has {}, where a whole number in [{}, {}] is wanted",
                       quote_name(value.dump(), 40), low, high);
    };
    const auto half = [&](const nlohmann::json& value) -> Result<uint64_t> {
      if (!value.is_number_unsigned()) return malformed(name, "the session's record names no model");
      return value.get<uint64_t>();
    };
    HEADRACE_ASSIGN_OR_RETURN(record.identity.low, half(json.at("identity").at(0)));
    HEADRACE_ASSIGN_OR_RETURN(record.identity.high, half(json.at("identity").at(1)));
    HEADRACE_ASSIGN_OR_RETURN(record.created_unix_seconds,
                              integer(json.at("created_unix_seconds"), INT64_MIN, INT64_MAX));
    const nlohmann::json& tokens = json.at("tokens");
    if (!tokens.is_array()) return malformed(name, "the session's record has no list of tokens");
    record.tokens.reserve(tokens.size());
    for (const nlohmann::json& token : tokens) {
      HEADRACE_ASSIGN_OR_RETURN(const int64_t id, integer(token, 0, INT32_MAX));
      record.tokens.push_back(static_cast<int32_t>(id));
    }
    for (const auto& message : json.at("messages")) {
      record.messages.emplace_back(message.at(0).get<std::string>(), message.at(1).get<std::string>());
    }
    HEADRACE_ASSIGN_OR_RETURN(record.num_cached, integer(json.at("num_cached"), 0, INT32_MAX));
    if (json.contains("rope_length")) {
      HEADRACE_ASSIGN_OR_RETURN(record.rope_length, integer(json.at("rope_length"), 0, INT32_MAX));
    }
  } catch (const nlohmann::json::exception& e) {
    return malformed(name, "the session's record cannot be read: {}", json_error_text(e.what()));
  }
  if (record.num_cached > static_cast<int64_t>(record.tokens.size())) {
    return malformed(name, "values of {} tokens, but there are {}", record.num_cached, record.tokens.size());
  }
  return record;
}

// Written here and not by nlohmann's values, which do not survive running out of memory while they are filled.
std::string record_text(const SessionRecord& record) {
  std::string out = fmt::format("{{\"created_unix_seconds\":{},\"identity\":[{},{}],\"messages\":[",
                                record.created_unix_seconds, record.identity.low, record.identity.high);
  for (const auto& [role, content] : record.messages) {
    out += out.back() == '[' ? "[" : ",[";
    append_json_string(out, role);
    out += ',';
    append_json_string(out, content);
    out += ']';
  }
  fmt::format_to(std::back_inserter(out), "],\"num_cached\":{}", record.num_cached);
  if (record.rope_length != 0) fmt::format_to(std::back_inserter(out), ",\"rope_length\":{}", record.rope_length);
  fmt::format_to(std::back_inserter(out), ",\"tokens\":[{}]}}", fmt::join(record.tokens, ","));
  return out;
}

}  // namespace

Status write_session_record(const SessionRecord& record, const WriteBytes& write) {
  const std::string text = record_text(record);
  const Hash128 checksum = hash128(text.data(), text.size());
  std::vector<std::byte> header;
  for (const char c : kMagic) header.push_back(static_cast<std::byte>(c));
  put(header, kSessionFileVersion, 4);
  put(header, 0, 4);
  put(header, text.size(), 8);
  put(header, checksum.low, 8);
  put(header, checksum.high, 8);
  HEADRACE_RETURN_IF_ERROR(write(header));
  return write(std::as_bytes(std::span<const char>(text)));
}

Result<OpenedSessionFile> open_session_file(const std::shared_ptr<ByteSource>& source) {
  const std::string& name = source->name();
  std::array<std::byte, kHeaderBytes> header;
  if (source->size() < header.size()) return malformed(name, "{} bytes are no saved session", source->size());
  HEADRACE_RETURN_IF_ERROR(source->read(0, header));
  if (std::memcmp(header.data(), kMagic, sizeof kMagic) != 0) return malformed(name, "is no saved session");
  const uint64_t version = get(header.data() + 8, 4);
  if (version != kSessionFileVersion) {
    return failed_precondition(name, "was written in version {}, this library reads {}", version, kSessionFileVersion);
  }
  if (get(header.data() + 12, 4) != 0) return malformed(name, "reserved bytes are not zero");
  const uint64_t size = get(header.data() + 16, 8);
  if (size > kMaxRecordBytes || size > source->size() - header.size()) {
    return malformed(name, "a record of {} bytes does not fit a file of {}", size, source->size());
  }
  std::string text(static_cast<size_t>(size), '\0');
  HEADRACE_RETURN_IF_ERROR(source->read(header.size(), std::as_writable_bytes(std::span<char>(text))));
  const Hash128 checksum{get(header.data() + 24, 8), get(header.data() + 32, 8)};
  if (hash128(text.data(), text.size()) != checksum) return malformed(name, "the record's checksum does not fit");

  OpenedSessionFile opened;
  HEADRACE_ASSIGN_OR_RETURN(opened.record, parse_record(text, name));
  const uint64_t start = header.size() + size;
  const uint64_t rest = source->size() - start;
  if (opened.record.num_cached == 0) {
    if (rest != 0) return malformed(name, "{} bytes follow the record", rest);
    return opened;
  }
  opened.values = open_reader(rest,
                              [source, start](uint64_t offset, std::byte* destination, uint64_t bytes) {
                                return source->read(start + offset, {destination, static_cast<size_t>(bytes)}).ok();
                              },
                              name, {});
  return opened;
}

}  // namespace headrace::engine
