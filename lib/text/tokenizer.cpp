#include "text/tokenizer.h"

#include <algorithm>
#include <limits>

#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

// Positions are held in 32 bits while pieces merge.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// The part of `allowed` within [begin, end), relative to begin.
std::vector<AllowedRange> clip(std::span<const AllowedRange> allowed, size_t begin, size_t end) {
  std::vector<AllowedRange> out;
  auto range = std::lower_bound(allowed.begin(), allowed.end(), begin,
                                [](const AllowedRange& r, size_t at) { return r.end <= at; });
  for (; range != allowed.end() && range->begin < end; ++range) {
    out.push_back({std::max(range->begin, begin) - begin, std::min(range->end, end) - begin});
  }
  return out;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

size_t common_suffix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
}

// Carries `allowed` from a text over to its normalised form. A border falls between what the text before it
// and the text behind it normalise to by themselves; where the two disagree the stretch between is not
// allowed.
Result<std::vector<AllowedRange>> carry_over(std::span<const AllowedRange> allowed, std::string_view text,
                                             std::string_view normalized, const Normalizer& normalizer) {
  const auto zone = [&](size_t border) -> Result<std::pair<size_t, size_t>> {
    if (border == 0) return std::pair<size_t, size_t>(0, 0);
    if (border == text.size()) return std::pair<size_t, size_t>(normalized.size(), normalized.size());
    NormalizedText before{std::string(text.substr(0, border)), false};
    NormalizedText behind{std::string(text.substr(border)), false};
    HEADRACE_RETURN_IF_ERROR(normalizer.apply(before));
    HEADRACE_RETURN_IF_ERROR(normalizer.apply(behind));
    const size_t a = common_prefix(before.text, normalized);
    const size_t b = normalized.size() - common_suffix(behind.text, normalized);
    return std::pair<size_t, size_t>(std::min(a, b), std::max(a, b));
  };
  std::vector<AllowedRange> out;
  for (const AllowedRange& range : allowed) {
    HEADRACE_ASSIGN_OR_RETURN(const auto from, zone(range.begin));
    HEADRACE_ASSIGN_OR_RETURN(const auto to, zone(range.end));
    const size_t begin = std::max(from.second, out.empty() ? 0 : out.back().end);
    if (begin < to.first) out.push_back({begin, to.first});
  }
  return out;
}

class Encoder {
 public:
  Encoder(const TokenizerParts& parts, std::string_view text, std::span<const AllowedRange> allowed)
      : parts_(parts), text_(text), allowed_(allowed) {
    const bool all = allowed.size() == 1 && allowed[0].begin == 0 && allowed[0].end == text.size();
    forbidden_ = all || text.empty() ? nullptr : &parts.added.marker_ids();
  }

  Status run(std::vector<int32_t>& out) {
    for (const AddedMatch& match : parts_.added.find(text_, false, allowed_)) {
      if (match.id >= 0) {
        out.push_back(match.id);
      } else {
        HEADRACE_RETURN_IF_ERROR(stretch(match.begin, match.end, out));
      }
    }
    return {};
  }

 private:
  // A stretch without tokens of the raw text: normalise, look for the others, cut and encode the rest.
  Status stretch(size_t begin, size_t end, std::vector<int32_t>& out) {
    const std::string_view raw = text_.substr(begin, end - begin);
    NormalizedText text{std::string(raw), begin == 0};
    if (parts_.normalizer) HEADRACE_RETURN_IF_ERROR(parts_.normalizer->apply(text));
    if (!parts_.added.has_normalized()) return pieces(std::move(text.text), text.at_origin, out);

    std::vector<AllowedRange> allowed = clip(allowed_, begin, end);
    const bool all = allowed.size() == 1 && allowed[0].begin == 0 && allowed[0].end == raw.size();
    if (all) {
      allowed = {{0, text.text.size()}};
    } else if (!allowed.empty() && parts_.normalizer) {
      HEADRACE_ASSIGN_OR_RETURN(allowed, carry_over(allowed, raw, text.text, *parts_.normalizer));
    }
    for (const AddedMatch& match : parts_.added.find(text.text, true, allowed)) {
      if (match.id >= 0) {
        out.push_back(match.id);
      } else {
        HEADRACE_RETURN_IF_ERROR(
            pieces(text.text.substr(match.begin, match.end - match.begin), text.at_origin && match.begin == 0, out));
      }
    }
    return {};
  }

  Status pieces(std::string text, bool at_origin, std::vector<int32_t>& out) {
    if (text.empty()) return {};
    Pieces cut;
    cut.pieces.push_back({0, text.size(), at_origin});
    cut.text = std::move(text);
    if (parts_.pre_tokenizer) HEADRACE_RETURN_IF_ERROR(parts_.pre_tokenizer->apply(cut));
    for (const Piece& piece : cut.pieces) {
      const std::string_view spelling(cut.text.data() + piece.begin, piece.end - piece.begin);
      HEADRACE_RETURN_IF_ERROR(parts_.model->tokenize(spelling, forbidden_, out));
    }
    return {};
  }

  const TokenizerParts& parts_;
  std::string_view text_;
  std::span<const AllowedRange> allowed_;
  const ForbiddenIds* forbidden_ = nullptr;
};

Result<std::vector<int32_t>> encode_text(const TokenizerParts& parts, std::string_view text,
                                         std::span<const AllowedRange> allowed, bool add_special) {
  if (text.size() > kMaxTextBytes) {
    return invalid_argument("text", "{} bytes; the most is {}", text.size(), kMaxTextBytes);
  }
  if (const size_t at = utf8_invalid_offset(text); at != std::string_view::npos) {
    return invalid_argument(fmt::format("byte {}", at), "the text is not UTF-8");
  }
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 4);
  if (add_special) out = parts.prefix_ids;
  HEADRACE_RETURN_IF_ERROR(Encoder(parts, text, allowed).run(out));
  if (add_special) out.insert(out.end(), parts.suffix_ids.begin(), parts.suffix_ids.end());
  return out;
}

}  // namespace

bool decode_spelling(const TokenizerParts& parts, int32_t id, bool skip_special, std::string_view& spelling) {
  if (parts.added.contains(id)) {
    spelling = parts.added.decode_spelling(id);
  } else if (parts.vocabulary.has(id)) {
    spelling = parts.vocabulary.token(id);
  } else {
    return false;
  }
  return !(skip_special && parts.added.skips(spelling));
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view utf8, EncodeOptions options) const {
  const AllowedRange whole{0, utf8.size()};
  const size_t ranges = options.parse_special && !utf8.empty() ? 1 : 0;
  return encode_text(*parts_, utf8, std::span<const AllowedRange>(&whole, ranges), options.add_special);
}

Result<std::vector<int32_t>> Tokenizer::encode_spans(std::span<const Span> spans, bool add_special) const {
  std::string text;
  std::vector<AllowedRange> allowed;
  for (const Span& span : spans) {
    if (span.text.empty()) continue;
    const size_t begin = text.size();
    text.append(span.text);
    if (!span.parse_special) continue;
    if (!allowed.empty() && allowed.back().end == begin) {
      allowed.back().end = text.size();
    } else {
      allowed.push_back({begin, text.size()});
    }
  }
  return encode_text(*parts_, text, allowed, add_special);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  Decoder::State state = parts_->decoder.start();
  for (const int32_t id : ids) {
    std::string_view spelling;
    if (decode_spelling(*parts_, id, skip_special, spelling)) parts_->decoder.push(state, spelling, out);
  }
  parts_->decoder.finish(state, out);
  return out;
}

std::string Tokenizer::token_bytes(int32_t id) const {
  std::string_view spelling;
  if (!decode_spelling(*parts_, id, false, spelling)) return {};
  return parts_->decoder.bytes(spelling);
}

int32_t Tokenizer::vocab_size() const {
  return std::max(parts_->vocabulary.id_limit(), parts_->added.index().id_limit());
}
std::optional<int32_t> Tokenizer::bos_id() const { return parts_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return parts_->eos_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return parts_->pad_id; }
std::optional<int32_t> Tokenizer::unk_id() const { return parts_->unk_id; }
std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const { return parts_->find(token); }
std::string_view Tokenizer::id_to_token(int32_t id) const {
  return parts_->added.contains(id) ? parts_->added.index().token(id) : parts_->vocabulary.token(id);
}
bool Tokenizer::is_special(int32_t id) const { return parts_->added.is_special(id); }
bool Tokenizer::is_added(int32_t id) const { return parts_->added.contains(id); }
const std::vector<int32_t>& Tokenizer::end_of_generation_ids() const { return parts_->end_of_generation_ids; }

}  // namespace headrace::text
