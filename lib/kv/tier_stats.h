// What the tiers of a cache beyond its pool count.
#pragma once

#include <cstdint>

namespace headrace {

// Of one cache since it was made; files are full blocks, and recurrent states behind some of them.
struct KvDiskStats {
  uint64_t max_bytes = 0;  // 0: there is no disk tier
  uint64_t bytes = 0;      // now, of all files in the directory
  int64_t files = 0;       // now
  uint64_t written_files = 0;
  uint64_t written_bytes = 0;  // as they lie on disk
  uint64_t read_files = 0;
  uint64_t read_bytes = 0;      // as they lie in memory
  uint64_t evicted_files = 0;   // that gave way to others
  uint64_t dropped_writes = 0;  // the queue was full, or memory short
  uint64_t failed_writes = 0;   // the disk was full, say
  // Reads that gave nothing, so that values were computed, by the reason. Such a file is removed.
  uint64_t missing_files = 0;     // gone since it was listed
  uint64_t unreadable_files = 0;  // the system gave an error
  uint64_t truncated_files = 0;   // shorter than their header says
  uint64_t damaged_files = 0;     // a checksum is wrong
  uint64_t foreign_files = 0;     // of another model, layout, version or other tokens
};

// Copies are of full blocks, and of recurrent states.
struct KvHostStats {
  uint64_t max_bytes = 0;  // 0: none are kept
  uint64_t bytes = 0;      // now
  int64_t copies = 0;      // now
  uint64_t kept_copies = 0;
  uint64_t read_copies = 0;
  uint64_t read_bytes = 0;
  uint64_t evicted_copies = 0;  // that gave way to others
};

}  // namespace headrace
