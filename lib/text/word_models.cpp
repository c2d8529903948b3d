// Unigram, WordPiece and word-level models.
#include <algorithm>
#include <cmath>
#include <limits>

#include "text/piece_model.h"
#include "text/trie.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

constexpr double kUnknownPenalty = 10.0;

Status no_unknown_token() {
  return failed_precondition("/model", "a character outside the vocabulary, and the model names no unknown token");
}

class UnigramModel final : public PieceModel {
 public:
  UnigramModel(const Vocabulary& vocabulary, std::vector<double> scores, UnigramOptions options)
      : vocabulary_(vocabulary), scores_(std::move(scores)), options_(options), byte_ids_(byte_token_ids(vocabulary)) {
    std::vector<Trie::Key> keys;
    keys.reserve(vocabulary.size());
    vocabulary.for_each([&](std::string_view token, int32_t id) {
      if (static_cast<size_t>(id) < scores_.size() && !std::isnan(scores_[static_cast<size_t>(id)])) {
        keys.emplace_back(token, id);
      }
    });
    trie_ = Trie(std::move(keys));
    double lowest = std::numeric_limits<double>::infinity();
    for (const double score : scores_) {
      if (score < lowest) lowest = score;
    }
    unknown_score_ = lowest - kUnknownPenalty;
  }

  Status tokenize(std::string_view piece, const ForbiddenIds* forbidden, std::vector<int32_t>& out) const override {
    struct Node {
      double score = 0;
      size_t from = SIZE_MAX;  // SIZE_MAX: not reached
      int32_t id = 0;
    };
    std::vector<Node> nodes(piece.size() + 1);
    const auto offer = [&](size_t from, size_t to, double score, int32_t id) {
      Node& node = nodes[to];
      if (node.from == SIZE_MAX || score > node.score) node = {score, from, id};
    };
    for (size_t at = 0; at < piece.size();) {
      const double here = nodes[at].score;
      const size_t char_end = at + utf8_length(piece[at]);
      bool has_single = false;
      if (!trie_.empty()) {
        uint32_t node = Trie::kRoot;
        for (size_t end = at; end < piece.size();) {
          node = trie_.step(node, static_cast<uint8_t>(piece[end++]));
          if (node == Trie::kNone) break;
          const int32_t id = trie_.value(node);
          if (id < 0 || is_forbidden(forbidden, id)) continue;
          offer(at, end, here + scores_[static_cast<size_t>(id)], id);
          has_single = has_single || end == char_end;
        }
      }
      if (!has_single) {
        if (!options_.unk_id) return no_unknown_token();
        offer(at, char_end, here + unknown_score_, *options_.unk_id);
      }
      at = char_end;
    }

    // Walk back; neighbouring unknowns are one stretch.
    struct Part {
      size_t begin, end;
      bool unknown;
    };
    std::vector<Part> parts;
    for (size_t end = piece.size(); end > 0;) {
      const Node& node = nodes[end];
      const bool unknown = options_.unk_id && node.id == *options_.unk_id;
      if (unknown && !parts.empty() && parts.back().unknown) {
        parts.back().begin = node.from;
      } else {
        parts.push_back({node.from, end, unknown});
      }
      end = node.from;
    }
    for (size_t i = parts.size(); i-- > 0;) {
      const std::string_view text = piece.substr(parts[i].begin, parts[i].end - parts[i].begin);
      HEADRACE_RETURN_IF_ERROR(append(text, forbidden, out));
    }
    return {};
  }

 private:
  Status append(std::string_view text, const ForbiddenIds* forbidden, std::vector<int32_t>& out) const {
    const auto id = vocabulary_.find(text);
    if (id && !is_forbidden(forbidden, *id)) {
      out.push_back(*id);
      return {};
    }
    const bool spelled = options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char byte) {
                           return byte_ids_[static_cast<uint8_t>(byte)] >= 0;
                         });
    if (spelled) {
      for (const char byte : text) out.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
      return {};
    }
    if (!options_.unk_id) return no_unknown_token();
    out.push_back(*options_.unk_id);
    return {};
  }

  const Vocabulary& vocabulary_;
  std::vector<double> scores_;
  UnigramOptions options_;
  std::vector<int32_t> byte_ids_;
  Trie trie_;
  double unknown_score_ = 0;
};

class WordPieceModel final : public PieceModel {
 public:
  WordPieceModel(const Vocabulary& vocabulary, WordPieceOptions options) : options_(std::move(options)) {
    std::vector<Trie::Key> keys;
    keys.reserve(vocabulary.size());
    vocabulary.for_each([&](std::string_view token, int32_t id) { keys.emplace_back(token, id); });
    trie_ = Trie(std::move(keys));
    continuing_ = trie_.empty() ? Trie::kNone : Trie::kRoot;
    for (const char byte : options_.continuing_subword_prefix) {
      if (continuing_ != Trie::kNone) continuing_ = trie_.step(continuing_, static_cast<uint8_t>(byte));
    }
  }

  Status tokenize(std::string_view piece, const ForbiddenIds* forbidden, std::vector<int32_t>& out) const override {
    size_t chars = 0;
    for (size_t at = 0; at < piece.size(); at += utf8_length(piece[at])) ++chars;
    const size_t start = out.size();
    bool bad = chars > options_.max_input_chars_per_word || trie_.empty();
    for (size_t at = 0; at < piece.size() && !bad;) {
      uint32_t node = at == 0 ? Trie::kRoot : continuing_;
      int32_t best = -1;
      size_t best_end = at;
      for (size_t end = at; end < piece.size() && node != Trie::kNone;) {
        node = trie_.step(node, static_cast<uint8_t>(piece[end++]));
        if (node == Trie::kNone) break;
        const int32_t id = trie_.value(node);
        if (id >= 0 && !is_forbidden(forbidden, id)) best = id, best_end = end;
      }
      bad = best < 0;
      if (!bad) out.push_back(best);
      at = best_end;
    }
    if (bad) {
      out.resize(start);
      if (!options_.unk_id) return no_unknown_token();
      out.push_back(*options_.unk_id);
    }
    return {};
  }

 private:
  WordPieceOptions options_;
  Trie trie_;
  uint32_t continuing_ = Trie::kNone;
};

class WordLevelModel final : public PieceModel {
 public:
  WordLevelModel(const Vocabulary& vocabulary, std::optional<int32_t> unk_id)
      : vocabulary_(vocabulary), unk_id_(unk_id) {}

  Status tokenize(std::string_view piece, const ForbiddenIds* forbidden, std::vector<int32_t>& out) const override {
    const auto id = vocabulary_.find(piece);
    if (id && !is_forbidden(forbidden, *id)) {
      out.push_back(*id);
      return {};
    }
    if (!unk_id_) return no_unknown_token();
    out.push_back(*unk_id_);
    return {};
  }

 private:
  const Vocabulary& vocabulary_;
  std::optional<int32_t> unk_id_;
};

}  // namespace

PieceModelPtr make_unigram_model(const Vocabulary& vocabulary, std::vector<double> scores, UnigramOptions options) {
  return std::make_unique<UnigramModel>(vocabulary, std::move(scores), options);
}

PieceModelPtr make_wordpiece_model(const Vocabulary& vocabulary, WordPieceOptions options) {
  return std::make_unique<WordPieceModel>(vocabulary, std::move(options));
}

PieceModelPtr make_word_level_model(const Vocabulary& vocabulary, std::optional<int32_t> unk_id) {
  return std::make_unique<WordLevelModel>(vocabulary, unk_id);
}

}  // namespace headrace::text
