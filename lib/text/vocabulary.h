// A vocabulary: spellings in one block of memory, found by hash or by id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::text {

// Ids of a file beyond this are refused: the table by id is as long as the highest one.
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

class Vocabulary {
 public:
  void reserve(size_t tokens, size_t bytes);

  // id in [0, kMaxTokenId]. A spelling given twice keeps the later id; an id given twice shows the later
  // spelling.
  void add(std::string_view token, int32_t id);

  std::optional<int32_t> find(std::string_view token) const;
  // Empty for an id that has no token. Valid until the next add.
  std::string_view token(int32_t id) const;
  bool has(int32_t id) const;

  int32_t id_limit() const { return static_cast<int32_t>(by_id_.size()); }  // highest id + 1
  size_t size() const { return entries_.size(); }                           // different spellings

  // Calls visit(spelling, id) once for each spelling.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Entry& entry : entries_) visit(spelling(entry), entry.id);
  }

 private:
  struct Entry {
    uint64_t offset;
    uint32_t length;
    int32_t id;
  };
  struct Slot {
    uint32_t tag = 0;
    uint32_t entry = 0;  // index + 1; 0 is free
  };
  std::string_view spelling(const Entry& e) const { return {arena_.data() + e.offset, e.length}; }
  void grow(size_t slots);

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_id_;  // entry index + 1
  std::vector<Slot> slots_;      // a power of two, linear probing, at most 2/3 full
};

}  // namespace headrace::text
