// Packed weights kept in a file between loads, so that the next load maps them instead of packing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "formats/packed_file.h"
#include "ops/backend.h"

namespace headrace {

// The weights of one load and the file they may come from. A file that does not fit the model, or not whole, is never
// an error: what it lacks is packed as without it, and it is written anew. Every such turn is a line of the log.
class PackedCache {
 public:
  // `identity` is of all that packed bytes depend on but the layout. A file that is made gets `new_mode`.
  PackedCache(std::string path, const Hash128& identity, std::string_view layout, uint32_t new_mode, LogSink log);

  // The weight `name` of this source, packed already: its bytes lie in the mapped file and have been compared with their
  // checksum. Null where the file has no such weight or a damaged one.
  std::unique_ptr<PackedWeight> find(const std::string& name, const WeightSource& source, const PackOptions& options,
                                     Backend& backend);
  // A weight of the model, which must live until finish().
  void add(std::string name, const PackedWeight& weight);
  // Writes the file, unless every weight came from it.
  void finish();

 private:
  void open();
  void distrust(const Status& reason);

  const std::string path_;
  const Hash128 identity_;
  const std::string layout_;
  const uint32_t new_mode_;
  const LogSink log_;
  std::shared_ptr<ByteSource> file_;                       // mapped; null where nothing of it is used
  std::unordered_map<std::string, PackedTensor> tensors_;  // of file_
  bool may_write_ = true;
  bool damaged_ = false;
  size_t num_found_ = 0;
  std::vector<std::pair<std::string, const PackedWeight*>> weights_;
};

}  // namespace headrace
