// A saved session: its tokens and messages, and the cached values in KvCache's own form.
//
//   bytes 0..7    "HDRSESS" and a zero
//   uint32        version, kSessionFileVersion
//   uint32        zero
//   uint64        size of the JSON text that follows
//   uint64 x2     XXH3-128 of the JSON text (low, high)
//   JSON          {"identity", "created_unix_seconds", "tokens", "messages": [[role, content], ...], "num_cached"}
//   rest          KvCache::save of the first num_cached tokens; nothing when that is 0
// Numbers are little-endian.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_source.h"
#include "base/hash.h"
#include "base/replace_file.h"
#include "base/status.h"

namespace headrace::engine {

inline constexpr uint32_t kSessionFileVersion = 1;

struct SessionRecord {
  Hash128 identity;  // of the model
  int64_t created_unix_seconds = 0;
  std::vector<int32_t> tokens;
  std::vector<std::pair<std::string, std::string>> messages;  // role, content
  int64_t num_cached = 0;
  int64_t rope_length = 0;  // of those values
};

// Everything before the cached values.
Status write_session_record(const SessionRecord& record, const WriteBytes& write);

struct OpenedSessionFile {
  SessionRecord record;
  std::shared_ptr<ByteSource> values;  // the rest; null when num_cached is 0
};
// kMalformed for damage, kFailedPrecondition for another version. The source must outlive the use of `values`.
Result<OpenedSessionFile> open_session_file(const std::shared_ptr<ByteSource>& source);

}  // namespace headrace::engine
