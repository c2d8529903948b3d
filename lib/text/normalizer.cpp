#include "text/normalizer.h"

#include <utility>

#include "text/byte_level.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

// Calls visit(code point) for each character.
template <class Visit>
void for_each_char(std::string_view valid, Visit visit) {
  for (size_t at = 0, size = 0; at < valid.size(); at += size) visit(utf8_at(valid, at, size));
}

// Keeps the characters for which keep(c); when the first one goes, what is left no longer starts at the
// origin.
template <class Keep, class Map>
void filter_map(NormalizedText& value, Keep keep, Map map) {
  std::string out;
  out.reserve(value.text.size());
  bool first = true;
  for_each_char(value.text, [&](char32_t c) {
    if (keep(c)) {
      utf8_append(out, map(c));
    } else if (first) {
      value.at_origin = false;
    }
    first = false;
  });
  value.text = std::move(out);
}

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}
  Status apply(NormalizedText& value) const override {
    for (const NormalizerPtr& step : steps_) HEADRACE_RETURN_IF_ERROR(step->apply(value));
    return {};
  }

 private:
  std::vector<NormalizerPtr> steps_;
};

// A normalizer made of one function.
template <class Apply>
class FunctionNormalizer final : public Normalizer {
 public:
  explicit FunctionNormalizer(Apply apply) : apply_(std::move(apply)) {}
  Status apply(NormalizedText& value) const override { return apply_(value); }

 private:
  Apply apply_;
};

template <class Apply>
NormalizerPtr from_function(Apply apply) {
  return std::make_unique<FunctionNormalizer<Apply>>(std::move(apply));
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c) { append_lowercase(out, c); });
  return out;
}

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

Status apply_bert(const BertNormalizerOptions& options, NormalizedText& value) {
  if (options.clean_text) {
    const auto keep = [](char32_t c) {
      if (c == '\t' || c == '\n' || c == '\r') return true;
      return c != 0 && c != 0xFFFD && !is_control_or_format(c);
    };
    filter_map(value, keep, [](char32_t c) { return is_whitespace(c) ? U' ' : c; });
  }
  if (options.handle_chinese_chars) {
    std::string out;
    out.reserve(value.text.size());
    for_each_char(value.text, [&](char32_t c) {
      const bool chinese = is_chinese(c);
      if (chinese) out.push_back(' ');
      utf8_append(out, c);
      if (chinese) out.push_back(' ');
    });
    value.text = std::move(out);
  }
  if (options.strip_accents) {
    value.text = normalize(value.text, NormalForm::kNfd);
    filter_map(
        value, [](char32_t c) { return !is_nonspacing_mark(c); }, [](char32_t c) { return c; });
  }
  if (options.lowercase) value.text = lowercase(value.text);
  return {};
}

bool nmt_keeps(char32_t c) {
  return !((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
}

char32_t nmt_map(char32_t c) {
  switch (c) {
    case 0x09:
    case 0x0A:
    case 0x0C:
    case 0x0D:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x2581:
    case 0xFEFF:
    case 0xFFFD: return ' ';
    default: return c >= 0x200B && c <= 0x200F ? U' ' : c;
  }
}

void strip(NormalizedText& value, bool left, bool right) {
  const std::string& text = value.text;
  size_t begin = 0, end = text.size();
  if (left) {
    for (size_t size = 0; begin < end; begin += size) {
      if (!is_whitespace(utf8_at(text, begin, size))) break;
      value.at_origin = false;
    }
  }
  while (right && end > begin) {
    size_t at = end - 1, size = 0;
    while (at > begin && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_whitespace(utf8_at(text, at, size))) break;
    end = at;
  }
  value.text = text.substr(begin, end - begin);
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const size_t at = text.find(from);
    out.append(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    out.append(to);
    text.remove_prefix(at + from.size());
  }
}

NormalizerPtr make_sequence_normalizer(std::vector<NormalizerPtr> steps) {
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

NormalizerPtr make_unicode_normalizer(NormalForm form) {
  return from_function([form](NormalizedText& value) -> Status {
    value.text = normalize(value.text, form);
    return {};
  });
}

NormalizerPtr make_lowercase_normalizer() {
  return from_function([](NormalizedText& value) -> Status {
    value.text = lowercase(value.text);
    return {};
  });
}

NormalizerPtr make_strip_normalizer(bool left, bool right) {
  return from_function([left, right](NormalizedText& value) -> Status {
    strip(value, left, right);
    return {};
  });
}

NormalizerPtr make_strip_accents_normalizer() {
  return from_function([](NormalizedText& value) -> Status {
    filter_map(
        value, [](char32_t c) { return !is_mark(c); }, [](char32_t c) { return c; });
    return {};
  });
}

NormalizerPtr make_replace_normalizer(std::string literal, std::string content) {
  // A match of several characters takes the place of its last one.
  const bool keeps_origin = literal.size() == utf8_length(literal[0]) && !content.empty();
  return from_function([=](NormalizedText& value) -> Status {
    if (!keeps_origin && value.text.starts_with(literal)) value.at_origin = false;
    value.text = replace_all(value.text, literal, content);
    return {};
  });
}

NormalizerPtr make_regex_replace_normalizer(Regex pattern, std::string content) {
  return from_function([pattern = std::move(pattern), content = std::move(content)](NormalizedText& value) -> Status {
    std::vector<Stretch> stretches;
    RegexScratch scratch;
    HEADRACE_RETURN_IF_ERROR(pattern.split(value.text, 0, stretches, scratch));
    std::string out;
    out.reserve(value.text.size());
    for (const Stretch& stretch : stretches) {
      if (!stretch.is_match) {
        out.append(value.text, stretch.begin, stretch.end - stretch.begin);
        continue;
      }
      if (stretch.begin == 0 && stretch.end > 0 && (content.empty() || stretch.end > utf8_length(value.text[0]))) {
        value.at_origin = false;
      }
      out.append(content);
    }
    value.text = std::move(out);
    return {};
  });
}

NormalizerPtr make_prepend_normalizer(std::string prefix) {
  return from_function([prefix = std::move(prefix)](NormalizedText& value) -> Status {
    if (!value.text.empty()) value.text.insert(0, prefix);
    return {};
  });
}

NormalizerPtr make_bert_normalizer(BertNormalizerOptions options) {
  return from_function([options](NormalizedText& value) { return apply_bert(options, value); });
}

NormalizerPtr make_nmt_normalizer() {
  return from_function([](NormalizedText& value) -> Status {
    filter_map(value, nmt_keeps, nmt_map);
    return {};
  });
}

NormalizerPtr make_byte_level_normalizer() {
  return from_function([](NormalizedText& value) -> Status {
    std::string out;
    out.reserve(value.text.size() * 3 / 2);
    append_byte_level(out, value.text);
    value.text = std::move(out);
    return {};
  });
}

}  // namespace headrace::text
