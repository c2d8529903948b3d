#include "text/onig_pattern.h"

#include <utility>
#include <vector>

namespace headrace::text {
namespace {

constexpr std::string_view kSpace = "\\x09-\\x0d\\x{85}\\p{Z}";
// Everything but White_Space, as ranges, for use inside a class.
constexpr std::string_view kNotSpace =
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{"
    "2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHex = "0-9A-Fa-f";

// PCRE2 spells the general categories with one or two letters; Oniguruma knows long names as well.
std::string_view category_name(std::string_view name) {
  struct Pair {
    std::string_view from, to;
  };
  static constexpr Pair kNames[] = {
      {"Letter", "L"},
      {"Lowercase_Letter", "Ll"},
      {"Uppercase_Letter", "Lu"},
      {"Titlecase_Letter", "Lt"},
      {"Modifier_Letter", "Lm"},
      {"Other_Letter", "Lo"},
      {"Mark", "M"},
      {"Nonspacing_Mark", "Mn"},
      {"Spacing_Mark", "Mc"},
      {"Enclosing_Mark", "Me"},
      {"Number", "N"},
      {"Decimal_Number", "Nd"},
      {"Letter_Number", "Nl"},
      {"Other_Number", "No"},
      {"Punctuation", "P"},
      {"Symbol", "S"},
      {"Math_Symbol", "Sm"},
      {"Currency_Symbol", "Sc"},
      {"Modifier_Symbol", "Sk"},
      {"Other_Symbol", "So"},
      {"Separator", "Z"},
      {"Other", "C"},
      {"Control", "Cc"},
      {"Format", "Cf"},
      {"Alpha", "Alphabetic"},
      {"Digit", "Nd"},
      {"Upper", "Uppercase"},
      {"Lower", "Lowercase"},
      {"Alphabetic", "Alphabetic"},
      {"Uppercase", "Uppercase"},
      {"Lowercase", "Lowercase"},
      {"Any", "Any"},
      {"White_Space", "White_Space"},
      {"Emoji", "Emoji"},
      {"Extended_Pictographic", "Extended_Pictographic"},
  };
  for (const Pair& pair : kNames) {
    if (pair.from == name) return pair.to;
  }
  return {};
}

class Rewriter {
 public:
  Rewriter(std::string_view pattern, std::string_view place) : in_(pattern), place_(place) {}

  Result<std::string> run() {
    size_t atom = 0;              // where the last atom starts in out_
    bool after_interval = false;  // the last thing was {n,m}
    std::vector<size_t> groups;
    while (at_ < in_.size()) {
      const char c = in_[at_];
      const bool interval = std::exchange(after_interval, false);
      switch (c) {
        case '\\':
          atom = out_.size();
          HEADRACE_RETURN_IF_ERROR(escape(out_, false));
          break;
        case '[': {
          atom = out_.size();
          std::string set;
          HEADRACE_RETURN_IF_ERROR(char_class(set, 0));
          out_ += set;
          break;
        }
        case '(':
          groups.push_back(out_.size());
          HEADRACE_RETURN_IF_ERROR(group_start());
          break;
        case ')':
          if (groups.empty()) return fail("a ')' without its '('");
          atom = groups.back();
          groups.pop_back();
          out_ += in_[at_++];
          break;
        case '{':
          if (is_interval()) {
            const size_t end = in_.find('}', at_);
            std::string body(in_.substr(at_, end - at_ + 1));
            if (body[1] == ',') body.insert(1, "0");
            out_ += body;
            at_ = end + 1;
            after_interval = true;
          } else {
            atom = out_.size();
            out_ += "\\{";
            ++at_;
          }
          break;
        case '+':
          if (interval) {
            out_.insert(atom, "(?:");
            out_ += ")";
          }
          out_ += in_[at_++];
          break;
        case '*':
        case '?':
        case '|': out_ += in_[at_++]; break;
        default:
          atom = out_.size();
          out_ += in_[at_++];
          while (at_ < in_.size() && (static_cast<uint8_t>(in_[at_]) & 0xC0) == 0x80) out_ += in_[at_++];
      }
    }
    if (!groups.empty()) return fail("a '(' without its ')'");
    return std::move(out_);
  }

 private:
  Status fail(std::string_view why) const {
    return unsupported(std::string(place_), "pattern {}: {} at byte {}", in_, why, at_);
  }

  bool is_interval() const {
    size_t i = at_ + 1, digits = 0, commas = 0;
    for (; i < in_.size() && in_[i] != '}'; ++i) {
      if (in_[i] >= '0' && in_[i] <= '9') {
        ++digits;
      } else if (in_[i] == ',') {
        ++commas;
      } else {
        return false;
      }
    }
    return i < in_.size() && digits > 0 && commas <= 1;
  }

  // "(" and what belongs to it: options, look-around, names.
  Status group_start() {
    out_ += in_[at_++];
    if (at_ >= in_.size() || in_[at_] != '?') return {};
    size_t end = at_ + 1;
    while (end < in_.size() && (in_[end] == '-' || (in_[end] >= 'a' && in_[end] <= 'z'))) ++end;
    if (end == at_ + 1 || end >= in_.size() || (in_[end] != ':' && in_[end] != ')')) return {};
    for (char& c : options_ = std::string(in_.substr(at_, end - at_))) {
      if (c == 'm') {
        c = 's';
      } else if (c != 'i' && c != 'x' && c != '-' && c != '?') {
        return fail("an option that is not known");
      }
      if (c == 'x') return fail("extended syntax");
    }
    out_ += options_;
    at_ = end;
    return {};
  }

  // A backslash sequence, into `out`.
  Status escape(std::string& out, bool in_class) {
    if (at_ + 1 >= in_.size()) return fail("a backslash at the end");
    const char c = in_[at_ + 1];
    const auto set = [&](std::string_view members, bool negated) {
      if (in_class) {
        out += members;
      } else {
        out += negated ? "[^" : "[";
        out += members;
        out += "]";
      }
      at_ += 2;
    };
    const std::string word(kWord);
    switch (c) {
      case 's': set(kSpace, false); return {};
      case 'S': set(in_class ? kNotSpace : kSpace, true); return {};
      case 'w': set(kWord, false); return {};
      case 'W':
        if (in_class) return fail("\\W in a class");
        set(kWord, true);
        return {};
      case 'h': set(kHex, false); return {};
      case 'H':
        if (in_class) return fail("\\H in a class");
        set(kHex, true);
        return {};
      case 'b':
      case 'B':
        if (in_class) {
          if (c == 'B') return fail("\\B in a class");
          out += "\\x08";
        } else if (c == 'b') {
          out += "(?:(?<=[" + word + "])(?![" + word + "])|(?<![" + word + "])(?=[" + word + "]))";
        } else {
          out += "(?:(?<=[" + word + "])(?=[" + word + "])|(?<![" + word + "])(?![" + word + "]))";
        }
        at_ += 2;
        return {};
      case 'u': {
        if (at_ + 6 > in_.size()) return fail("a short \\u");
        out += "\\x{";
        out += in_.substr(at_ + 2, 4);
        out += "}";
        at_ += 6;
        return {};
      }
      case 'p':
      case 'P': return property(out);
      case 'x':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'v':
      case 'a':
      case 'e':
      case 'd':
      case 'D':
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
      case 'K':
      case 'R':
      case 'X':
      case 'k':
      case '0':
        if (c == 'v') {
          out += "\\x0b";
        } else {
          out += in_.substr(at_, 2);
        }
        at_ += 2;
        return {};
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return fail("an escape that is not known");
        out += in_.substr(at_, 2);
        at_ += 2;
        return {};
    }
  }

  Status property(std::string& out) {
    const bool negated = in_[at_ + 1] == 'P';
    size_t begin = at_ + 2;
    if (begin >= in_.size() || in_[begin] != '{') return fail("a property without braces");
    const size_t end = in_.find('}', begin);
    if (end == std::string_view::npos) return fail("a property without end");
    ++begin;
    const bool caret = begin < end && in_[begin] == '^';
    if (caret) ++begin;
    const std::string_view name = in_.substr(begin, end - begin);
    for (const char c : name) {
      const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ' ' || c == '-' || c == '&';
      if (!ok) return fail("a property name");
    }
    out += negated != caret ? "\\P{" : "\\p{";
    if (name.size() <= 2) {
      out += name;
    } else if (const std::string_view known = category_name(name); !known.empty()) {
      out += known;
    } else {
      out += "sc:";
      out += name;
    }
    out += "}";
    at_ = end + 1;
    return {};
  }

  // A bracketed class; a && b becomes a look-ahead for a and then b.
  Status char_class(std::string& out, int depth) {
    if (depth > 8) return fail("classes nested too deep");
    ++at_;  // '['
    const bool negated = at_ < in_.size() && in_[at_] == '^';
    if (negated) ++at_;
    std::vector<std::string> operands(1);  // members of a plain class
    std::vector<std::string> whole(1);     // or one bracketed class that is the whole operand
    bool first = true;
    while (true) {
      if (at_ >= in_.size()) return fail("a class without end");
      const char c = in_[at_];
      if (c == ']' && !first) break;
      first = false;
      if (in_.substr(at_, 2) == "&&") {
        at_ += 2;
        operands.emplace_back();
        whole.emplace_back();
        continue;
      }
      std::string& members = operands.back();
      if (c == '[' && at_ + 1 < in_.size() && in_[at_ + 1] == ':') {
        const size_t end = in_.find(":]", at_);
        if (end == std::string_view::npos) return fail("a POSIX class without end");
        members += in_.substr(at_, end + 2 - at_);
        at_ = end + 2;
      } else if (c == '[') {
        std::string nested;
        HEADRACE_RETURN_IF_ERROR(char_class(nested, depth + 1));
        if (nested.starts_with("[^") || nested.starts_with("(")) {
          if (!members.empty() || !whole.back().empty()) return fail("a union with a negated class");
          whole.back() = nested;
        } else {
          members += nested.substr(1, nested.size() - 2);
        }
      } else if (c == '\\') {
        HEADRACE_RETURN_IF_ERROR(escape(members, true));
      } else {
        members += c;
        ++at_;
      }
      if (!whole.back().empty() && !members.empty()) return fail("a union with a negated class");
    }
    ++at_;  // ']'
    const auto operand = [&](size_t i) { return whole[i].empty() ? "[" + operands[i] + "]" : whole[i]; };
    if (operands.size() == 1) {
      if (whole[0].empty()) {
        out += negated ? "[^" + operands[0] + "]" : "[" + operands[0] + "]";
      } else {
        out += negated ? "(?:(?!" + whole[0] + ")(?s:.))" : whole[0];
      }
      return {};
    }
    std::string both;
    for (size_t i = 0; i + 1 < operands.size(); ++i) both += "(?=" + operand(i) + ")";
    both += operand(operands.size() - 1);
    out += negated ? "(?:(?!" + both + ")(?s:.))" : "(?:" + both + ")";
    return {};
  }

  std::string_view in_;
  std::string_view place_;
  size_t at_ = 0;
  std::string out_;
  std::string options_;
};

}  // namespace

Result<std::string> onig_to_pcre2(std::string_view pattern, std::string_view place) {
  return Rewriter(pattern, place).run();
}

}  // namespace headrace::text
