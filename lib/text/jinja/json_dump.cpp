// json.dumps as transformers' tojson calls it.
#include <algorithm>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/utf8.h"

namespace headrace::text::jinja {
namespace {

class Dumper {
 public:
  Dumper(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  void dump(const Value& value, size_t level) {
    heap_.step();
    heap_.check_stack();
    heap_.check_string(out.size());
    switch (value.kind()) {
      case Kind::kNone: out += "null"; return;
      case Kind::kBool: out += value.as_bool() ? "true" : "false"; return;
      case Kind::kInt:
      case Kind::kBigUint: out += repr(heap_, value); return;
      case Kind::kFloat: out += number(value.as_double()); return;
      case Kind::kString: quote(value.bytes()); return;
      case Kind::kList:
      case Kind::kTuple: {
        const Values& items = value.items();
        if (items.empty()) {
          out += "[]";
          return;
        }
        out += '[';
        for (size_t i = 0; i < items.size(); ++i) {
          if (i != 0) out += style_.item_separator;
          line(level + 1);
          dump(items[i], level + 1);
        }
        line(level);
        out += ']';
        return;
      }
      case Kind::kDict: dump_dict(value.as<DictObject>(), level); return;
      default: fail("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  std::string out;

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void line(size_t level) {
    if (!style_.indent) return;
    out += '\n';
    for (size_t i = 0; i < level; ++i) {
      out += *style_.indent;
      heap_.check_string(out.size());
    }
  }

  void dump_dict(const DictObject& dict, size_t level) {
    if (dict.entries.empty()) {
      out += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    entries.reserve(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      // Insertion into place: stable, and safe with an order that fails half-way.
      for (size_t i = 1; i < entries.size(); ++i) {
        const auto* entry = entries[i];
        size_t low = 0, high = i;
        while (low < high) {
          const size_t middle = (low + high) / 2;
          if (order(heap_, entry->first, entries[middle]->first).value_or(0) < 0) {
            high = middle;
          } else {
            low = middle + 1;
          }
        }
        heap_.step((i - low) / 16);
        std::move_backward(entries.begin() + static_cast<std::ptrdiff_t>(low),
                           entries.begin() + static_cast<std::ptrdiff_t>(i),
                           entries.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        entries[low] = entry;
      }
    }
    out += '{';
    bool first = true;
    for (const auto* entry : entries) {
      if (!first) out += style_.item_separator;
      first = false;
      line(level + 1);
      dump_key(entry->first);
      out += style_.key_separator;
      dump(entry->second, level + 1);
    }
    line(level);
    out += '}';
  }

  void dump_key(const Value& key) {
    switch (key.kind()) {
      case Kind::kString: return quote(key.bytes());
      case Kind::kNone: return quote("null");
      case Kind::kBool: return quote(key.as_bool() ? "true" : "false");
      case Kind::kInt:
      case Kind::kBigUint: return quote(repr(heap_, key));
      case Kind::kFloat: return quote(number(key.as_double()));
      default: fail("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
  }

  void quote(std::string_view bytes) {
    heap_.step(bytes.size() / 64);
    out += '"';
    for (size_t at = 0; at < bytes.size();) {
      size_t size = 0;
      const char32_t c = utf8_at(bytes, at, size);
      switch (c) {
        case U'"': out += "\\\""; break;
        case U'\\': out += "\\\\"; break;
        case U'\n': out += "\\n"; break;
        case U'\r': out += "\\r"; break;
        case U'\t': out += "\\t"; break;
        case U'\f': out += "\\f"; break;
        case U'\b': out += "\\b"; break;
        default: {
          const auto code = static_cast<uint32_t>(c);
          if (code >= 0x20 && (code < 0x7F || !style_.ensure_ascii)) {
            out.append(bytes.substr(at, size));
          } else if (code < 0x10000) {
            out += fmt::format("\\u{:04x}", code);
          } else {
            const uint32_t rest = code - 0x10000;
            out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
          }
        }
      }
      at += size;
    }
    out += '"';
  }

  Heap& heap_;
  const JsonStyle& style_;
};

}  // namespace

std::string dump_json(Heap& heap, const Value& value, const JsonStyle& style) {
  Dumper dumper(heap, style);
  dumper.dump(value, 0);
  heap.check_string(dumper.out.size());
  return std::move(dumper.out);
}

}  // namespace headrace::text::jinja
