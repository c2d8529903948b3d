#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "text/byte_level.h"
#include "text/piece_model.h"
#include "text/utf8.h"

namespace headrace::text {

std::vector<int32_t> byte_token_ids(const Vocabulary& vocabulary) {
  std::vector<int32_t> ids(256, -1);
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (const auto id = vocabulary.find(fmt::format("<0x{:02X}>", byte))) ids[byte] = *id;
  }
  return ids;
}

std::optional<uint8_t> parse_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : token.substr(3, 2)) {
    unsigned digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<unsigned>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<unsigned>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<unsigned>(c - 'A' + 10);
    } else {
      return std::nullopt;
    }
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

namespace {

// Pairs of ids to merges, by open addressing.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = UINT32_MAX;  // UINT32_MAX: no merge
    int32_t merged = 0;
  };

  explicit MergeTable(const std::vector<BpeMerge>& merges) {
    size_t size = 16;
    while (size * 2 < merges.size() * 3) size *= 2;
    slots_.resize(size);
    mask_ = size - 1;
    uint32_t rank = 0;
    for (const BpeMerge& merge : merges) {
      const uint64_t key = key_of(merge.left, merge.right);
      size_t at = hash(key) & mask_;
      while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask_;
      slots_[at] = {key, {rank++, merge.merged}};  // of two equal pairs the later one counts, as in the reference
    }
  }

  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = hash(key) & mask_; slots_[at].key != kFree; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return slots_[at].merge;
    }
    return {};
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static size_t hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15ull;
    return static_cast<size_t>(key ^ key >> 32);
  }
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

struct Symbol {
  int32_t id;  // -1: merged into the one before
  int32_t previous, next;
};

class BpeModel final : public PieceModel {
 public:
  BpeModel(const Vocabulary& vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options)
      : vocabulary_(vocabulary), merges_(merges), options_(std::move(options)), byte_ids_(byte_token_ids(vocabulary)) {
    all_bytes_ = std::all_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id >= 0; });
    plain_ = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
    std::string text;
    for (char32_t c = 0; c < kTable; ++c) {
      text.clear();
      utf8_append(text, c);
      char_ids_[c] = vocabulary_.find(text).value_or(-1);
    }
  }

  Status tokenize(std::string_view piece, const ForbiddenIds* forbidden, std::vector<int32_t>& out) const override {
    if (options_.ignore_merges) {
      const auto id = vocabulary_.find(piece);
      if (id && !is_forbidden(forbidden, *id)) {
        out.push_back(*id);
        return {};
      }
    }
    const size_t start = out.size();
    HEADRACE_RETURN_IF_ERROR(spell(piece, forbidden, out));
    const size_t count = out.size() - start;
    if (count > kShort) {
      merge_long(forbidden, out, start);
    } else if (count > 1) {
      merge_short(forbidden, out, start);
    }
    return {};
  }

 private:
  static constexpr size_t kShort = 24;
  static constexpr char32_t kTable = 0x400;

  MergeTable::Merge find(int32_t left, int32_t right, const ForbiddenIds* forbidden) const {
    const MergeTable::Merge merge = merges_.find(left, right);
    return merge.rank != UINT32_MAX && is_forbidden(forbidden, merge.merged) ? MergeTable::Merge{} : merge;
  }

  int32_t char_id(std::string_view piece, size_t at, size_t size, char32_t c, std::string& affixed) const {
    if (plain_) return c < kTable ? char_ids_[c] : vocabulary_.find(piece.substr(at, size)).value_or(-1);
    affixed.clear();
    if (at != 0) affixed += options_.continuing_subword_prefix;
    affixed += piece.substr(at, size);
    if (at + size == piece.size()) affixed += options_.end_of_word_suffix;
    return vocabulary_.find(affixed).value_or(-1);
  }

  // Appends the ids of the single characters.
  Status spell(std::string_view piece, const ForbiddenIds* forbidden, std::vector<int32_t>& out) const {
    std::string affixed;
    bool unknown_open = false;  // an unknown token that following ones fuse with; written when it ends
    for (size_t at = 0, size = 0; at < piece.size(); at += size) {
      const char32_t c = utf8_at(piece, at, size);
      const int32_t id = char_id(piece, at, size, c, affixed);
      if (id >= 0 && !is_forbidden(forbidden, id)) {
        if (std::exchange(unknown_open, false)) out.push_back(*options_.unk_id);
        out.push_back(id);
        continue;
      }
      if (options_.byte_fallback) {
        // The reference falls back with prefix and suffix included, and without ending an open unknown token.
        const std::string_view bytes = plain_ ? piece.substr(at, size) : std::string_view(affixed);
        const bool spelled = all_bytes_ || std::all_of(bytes.begin(), bytes.end(), [&](char byte) {
                               return byte_ids_[static_cast<uint8_t>(byte)] >= 0;
                             });
        if (spelled) {
          for (const char byte : bytes) out.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
          continue;
        }
      }
      if (options_.unk_missing) {
        return failed_precondition("/model/unk_token", "an unknown character, and the token is not in the vocabulary");
      }
      if (!options_.unk_id) continue;  // dropped, as the reference does
      if (unknown_open && !options_.fuse_unk) out.push_back(*options_.unk_id);
      unknown_open = true;
    }
    if (unknown_open) out.push_back(*options_.unk_id);
    return {};
  }

  // Few symbols: look for the best pair in each round.
  void merge_short(const ForbiddenIds* forbidden, std::vector<int32_t>& out, size_t start) const {
    int32_t* ids = out.data() + start;
    size_t count = out.size() - start;
    MergeTable::Merge pairs[kShort];
    for (size_t i = 0; i + 1 < count; ++i) pairs[i] = find(ids[i], ids[i + 1], forbidden);
    while (count > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < count; ++i) {
        if (pairs[i].rank < pairs[best].rank) best = i;
      }
      if (pairs[best].rank == UINT32_MAX) break;
      ids[best] = pairs[best].merged;
      std::copy(ids + best + 2, ids + count, ids + best + 1);
      std::copy(pairs + best + 1, pairs + count - 1, pairs + best);
      --count;
      if (best > 0) pairs[best - 1] = find(ids[best - 1], ids[best], forbidden);
      if (best + 1 < count) pairs[best] = find(ids[best], ids[best + 1], forbidden);
    }
    out.resize(start + count);
  }

  // Many symbols: a heap of pairs over a linked list, n log n.
  void merge_long(const ForbiddenIds* forbidden, std::vector<int32_t>& out, size_t start) const {
    const auto count = static_cast<int32_t>(out.size() - start);
    std::vector<Symbol> symbols(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      symbols[static_cast<size_t>(i)] = {out[start + static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1};
    }
    const auto symbol = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
    // Rank above position: one number orders them.
    std::vector<uint64_t> heap;
    const auto entry = [](uint32_t rank, int32_t at) {
      return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(at);
    };
    for (int32_t i = 0; i + 1 < count; ++i) {
      const auto merge = find(symbol(i).id, symbol(i + 1).id, forbidden);
      if (merge.rank != UINT32_MAX) heap.push_back(entry(merge.rank, i));
    }
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>(), std::move(heap));
    while (!queue.empty()) {
      const uint64_t top = queue.top();
      queue.pop();
      const auto at = static_cast<int32_t>(top & UINT32_MAX);
      Symbol& left = symbol(at);
      if (left.id < 0 || left.next < 0) continue;
      Symbol& right = symbol(left.next);
      const auto merge = find(left.id, right.id, forbidden);
      if (merge.rank != top >> 32) continue;  // one of the two has changed since
      left.id = merge.merged;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) symbol(left.next).previous = at;
      if (left.previous >= 0) {
        const auto before = find(symbol(left.previous).id, left.id, forbidden);
        if (before.rank != UINT32_MAX) queue.push(entry(before.rank, left.previous));
      }
      if (left.next >= 0) {
        const auto after = find(left.id, symbol(left.next).id, forbidden);
        if (after.rank != UINT32_MAX) queue.push(entry(after.rank, at));
      }
    }
    out.resize(start);
    for (int32_t i = 0; i >= 0; i = symbol(i).next) out.push_back(symbol(i).id);
  }

  const Vocabulary& vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::vector<int32_t> byte_ids_;
  bool all_bytes_ = false;
  bool plain_ = true;
  int32_t char_ids_[kTable];
};

// Pieces are stretches of the text here, so a symbol needs no id until the end.
class ScoreBpeModel final : public PieceModel {
 public:
  ScoreBpeModel(const Vocabulary& vocabulary, std::vector<float> scores, std::optional<int32_t> unk_id)
      : vocabulary_(vocabulary), scores_(std::move(scores)), unk_id_(unk_id), byte_ids_(byte_token_ids(vocabulary)) {
    vocabulary.for_each([&](std::string_view token, int32_t id) {
      if (takes_part(id)) longest_ = std::max(longest_, token.size());
    });
  }

  Status tokenize(std::string_view piece, const ForbiddenIds* forbidden, std::vector<int32_t>& out) const override {
    struct Part {
      size_t begin, size;  // size 0: merged into the one before
      int32_t previous, next;
    };
    std::vector<Part> parts;
    for (size_t at = 0; at < piece.size();) {
      const size_t size = utf8_length(piece[at]);
      const auto index = static_cast<int32_t>(parts.size());
      parts.push_back({at, size, index - 1, index + 1});
      at += size;
    }
    parts.back().next = -1;
    struct Candidate {
      float score;
      int32_t at;
      size_t size;
      bool operator<(const Candidate& o) const { return score != o.score ? score < o.score : at > o.at; }
    };
    std::priority_queue<Candidate> queue;
    const auto part = [&](int32_t i) -> Part& { return parts[static_cast<size_t>(i)]; };
    const auto consider = [&](int32_t at) {
      if (at < 0 || part(at).next < 0) return;
      const size_t size = part(at).size + part(part(at).next).size;
      if (size > longest_) return;
      const int32_t id = find(piece.substr(part(at).begin, size), forbidden);
      if (id >= 0) queue.push({scores_[static_cast<size_t>(id)], at, size});
    };
    for (int32_t i = 0; i + 1 < static_cast<int32_t>(parts.size()); ++i) consider(i);
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      Part& left = part(top.at);
      if (left.size == 0 || left.next < 0 || left.size + part(left.next).size != top.size) continue;
      Part& right = part(left.next);
      left.size = top.size;
      left.next = right.next;
      right.size = 0;
      if (left.next >= 0) part(left.next).previous = top.at;
      consider(left.previous);
      consider(top.at);
    }
    for (int32_t i = 0; i >= 0; i = part(i).next) {
      const std::string_view text = piece.substr(part(i).begin, part(i).size);
      const int32_t id = find(text, forbidden);
      if (id >= 0) {
        out.push_back(id);
        continue;
      }
      const bool spelled =
          std::all_of(text.begin(), text.end(), [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)] >= 0; });
      if (spelled) {
        for (const char byte : text) out.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
      } else if (unk_id_) {
        out.push_back(*unk_id_);
      }
    }
    return {};
  }

 private:
  bool takes_part(int32_t id) const {
    return static_cast<size_t>(id) < scores_.size() && !std::isnan(scores_[static_cast<size_t>(id)]);
  }
  int32_t find(std::string_view text, const ForbiddenIds* forbidden) const {
    const auto id = vocabulary_.find(text);
    return id && takes_part(*id) && !is_forbidden(forbidden, *id) ? *id : -1;
  }

  const Vocabulary& vocabulary_;
  std::vector<float> scores_;
  std::optional<int32_t> unk_id_;
  std::vector<int32_t> byte_ids_;
  size_t longest_ = 0;
};

}  // namespace

PieceModelPtr make_bpe_model(const Vocabulary& vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options) {
  return std::make_unique<BpeModel>(vocabulary, merges, std::move(options));
}

PieceModelPtr make_score_bpe_model(const Vocabulary& vocabulary, std::vector<float> scores,
                                   std::optional<int32_t> unk_id) {
  return std::make_unique<ScoreBpeModel>(vocabulary, std::move(scores), unk_id);
}

}  // namespace headrace::text
