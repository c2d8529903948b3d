// Filters on sequences, mappings and any value.
#include <algorithm>
#include <set>

#include "text/jinja/interpreter.h"
#include "text/jinja/text_operations.h"

namespace headrace::text::jinja {
namespace {

int64_t integer(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) fail("'{}' object cannot be interpreted as an integer", type_name(value));
  return value.as_int();
}

Value lowered(Interpreter& in, const Value& value) {
  if (!value.is_string()) return value;
  return make_string(in.heap(), map_text_case(in.heap(), value.text(), CaseMapping::kLower));
}

// The key that sort, unique, min, max and groupby compare by.
Value key_of(Interpreter& in, const Value& value, const Value* attribute, bool case_sensitive,
             const Value* fallback = nullptr) {
  const Value key = attribute ? in.attribute_path(value, *attribute, fallback) : value;
  return case_sensitive ? key : lowered(in, key);
}

// Stable merge sort by `keys`; gives the order of indices. Safe with orders that fail or aren't strict.
std::vector<size_t> sorted_indices(Heap& heap, const Values& keys, bool reverse) {
  std::vector<size_t> indices(keys.size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  std::vector<size_t> merged(keys.size());
  // Reversed, equal elements still keep their order.
  const auto before = [&](size_t a, size_t b) {
    const auto result = order(heap, keys[a], keys[b]);
    return result && (reverse ? *result > 0 : *result < 0);
  };
  for (size_t width = 1; width < indices.size(); width *= 2) {
    for (size_t begin = 0; begin < indices.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, indices.size());
      const size_t end = std::min(begin + 2 * width, indices.size());
      size_t left = begin, right = middle;
      for (size_t at = begin; at < end; ++at) {
        const bool take_right = left == middle || (right < end && before(indices[right], indices[left]));
        merged[at] = take_right ? indices[right++] : indices[left++];
      }
    }
    indices.swap(merged);
  }
  return indices;
}

Value default_value(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("default", arguments, {"default_value", "boolean"});
  const bool boolean = bound[1] && truthy(in.heap(), *bound[1]);
  if (!input.is_undefined() && !(boolean && !truthy(in.heap(), input))) return input;
  return bound[0] ? *bound[0] : make_string(in.heap(), "", kTrusted);
}

Value length(Interpreter&, const Value& input, const CallArguments& arguments) {
  BoundArguments("length", arguments, {});
  const auto size = length_of(input);
  if (!size) fail("object of type '{}' has no len()", type_name(input));
  return Value::integer(static_cast<int64_t>(*size));
}

Value join(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("join", arguments, {"d", "attribute"});
  Heap& heap = in.heap();
  TextBuilder out(heap);
  bool first = true;
  const Value separator = bound[0] ? to_str(heap, *bound[0]) : make_string(heap, "", kTrusted);
  for (const Value& item : iterate(heap, input)) {
    if (!first) out.append(separator.text());
    first = false;
    append_str(out, bound[1] && !bound[1]->is_none() ? in.attribute_path(item, *bound[1], nullptr) : item);
  }
  return make_string(heap, out.finish());
}

Value first(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("first", arguments, {});
  if (input.is_string() && !input.bytes().empty()) return in.item(input, Value::integer(0));
  if (input.is(Kind::kGenerator)) {
    auto& generator = input.as<GeneratorObject>();
    if (generator.next < generator.items.size()) return generator.items[generator.next++];
  }
  const Values items = iterate(in.heap(), input);
  return items.empty() ? make_undefined(in.heap(), "No first item, sequence was empty.") : items.front();
}

Value last(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("last", arguments, {});
  if (input.is(Kind::kGenerator)) fail("'generator' object is not reversible");
  if (input.is_string() && !input.bytes().empty()) return in.item(input, Value::integer(-1));
  const Values items = iterate(in.heap(), input);
  return items.empty() ? make_undefined(in.heap(), "No last item, sequence was empty.") : items.back();
}

Value list(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("list", arguments, {});
  return make_sequence(in.heap(), Kind::kList, iterate(in.heap(), input));
}

Value reverse(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("reverse", arguments, {});
  if (input.is_string()) return slice_value(in.heap(), input, Value(), Value(), Value::integer(-1));
  if (input.is(Kind::kGenerator))
    return make_sequence(in.heap(), Kind::kList, [&] {
      Values items = iterate(in.heap(), input);
      std::reverse(items.begin(), items.end());
      return items;
    }());
  if (!iterable(input)) fail("argument must be iterable");
  Values items = iterate(in.heap(), input);
  std::reverse(items.begin(), items.end());
  return make_generator(in.heap(), std::move(items));
}

Value sort(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  Heap& heap = in.heap();
  const bool descending = bound[0] && truthy(heap, *bound[0]);
  const bool case_sensitive = bound[1] && truthy(heap, *bound[1]);
  const Values items = iterate(heap, input);
  Values keys;
  keys.reserve(items.size());
  // "a,b.c": several attributes, compared one after the other.
  Values paths;
  if (bound[2] && bound[2]->is_string()) {
    const std::string separator = ",";
    paths = split_text(heap, bound[2]->text(), &separator, -1, false);
  } else if (bound[2] && !bound[2]->is_none()) {
    paths.push_back(*bound[2]);
  }
  for (const Value& item : items) {
    if (paths.empty()) {
      keys.push_back(key_of(in, item, nullptr, case_sensitive));
      continue;
    }
    Values parts;
    for (const Value& path : paths) parts.push_back(key_of(in, item, &path, case_sensitive));
    keys.push_back(make_sequence(heap, Kind::kList, std::move(parts)));
  }
  Values out;
  out.reserve(items.size());
  for (const size_t index : sorted_indices(heap, keys, descending)) out.push_back(items[index]);
  return make_sequence(heap, Kind::kList, std::move(out));
}

Value unique(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("unique", arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = bound[0] && truthy(in.heap(), *bound[0]);
  std::set<std::string> seen;
  size_t bytes = 0;
  Values out;
  for (const Value& item : iterate(in.heap(), input)) {
    const Value key = key_of(in, item, bound[1], case_sensitive);
    auto encoded = encode_key(key);
    if (!encoded) fail("unhashable type: '{}'", type_name(key));
    bytes += encoded->size();
    in.heap().check_string(bytes);
    if (seen.insert(std::move(*encoded)).second) out.push_back(item);
  }
  return make_generator(in.heap(), std::move(out));
}

template <bool largest>
Value extreme(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = bound[0] && truthy(in.heap(), *bound[0]);
  const Values items = iterate(in.heap(), input);
  if (items.empty()) return make_undefined(in.heap(), "No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = key_of(in, items[0], bound[1], case_sensitive);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(in, items[i], bound[1], case_sensitive);
    const auto result = order(in.heap(), key, best_key);
    if (!result || (largest ? *result <= 0 : *result >= 0)) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value sum(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("sum", arguments, {"attribute", "start"});
  Value total = bound[1] ? *bound[1] : Value::integer(0);
  if (total.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  const bool by_attribute = bound[0] && !bound[0]->is_none();
  for (const Value& item : iterate(in.heap(), input))
    total = binary_operation(in.heap(), BinaryOp::kAdd, total,
                             by_attribute ? in.attribute_path(item, *bound[0], nullptr) : item);
  return total;
}

Value items(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("items", arguments, {});
  Values out;
  if (!input.is_undefined()) {
    if (!input.is(Kind::kDict)) fail("Can only get item pairs from a mapping.");
    for (const auto& [key, value] : input.as<DictObject>().entries)
      out.push_back(make_sequence(in.heap(), Kind::kTuple, {key, value}));
  }
  return make_generator(in.heap(), std::move(out));
}

Value dictsort(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  Heap& heap = in.heap();
  const bool case_sensitive = bound[0] && truthy(heap, *bound[0]);
  const std::string by = bound[1] && bound[1]->is_string() ? bound[1]->bytes() : bound[1] ? "" : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  const bool descending = bound[2] && truthy(heap, *bound[2]);
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is(Kind::kDict)) fail("'{}' object has no attribute 'items'", type_name(input));
  const auto& entries = input.as<DictObject>().entries;
  Values keys;
  keys.reserve(entries.size());
  for (const auto& [key, value] : entries)
    keys.push_back(key_of(in, by == "key" ? key : value, nullptr, case_sensitive));
  Values out;
  for (const size_t index : sorted_indices(heap, keys, descending))
    out.push_back(make_sequence(heap, Kind::kTuple, {entries[index].first, entries[index].second}));
  return make_sequence(heap, Kind::kList, std::move(out));
}

Value groupby(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  Heap& heap = in.heap();
  const bool case_sensitive = bound[2] && truthy(heap, *bound[2]);
  const Value* fallback = bound[1] && !bound[1]->is_none() ? bound[1] : nullptr;
  const Values values = iterate(heap, input);
  Values keys;
  keys.reserve(values.size());
  for (const Value& value : values) keys.push_back(key_of(in, value, bound[0], case_sensitive, fallback));
  const auto indices = sorted_indices(heap, keys, false);
  Values out;
  for (size_t begin = 0; begin < indices.size();) {
    Values group;
    size_t end = begin;
    while (end < indices.size() && equal(heap, keys[indices[begin]], keys[indices[end]]))
      group.push_back(values[indices[end++]]);
    if (end == begin) group.push_back(values[indices[end++]]);
    const Value grouper = in.attribute_path(values[indices[begin]], *bound[0], fallback);
    Value pair = make_sequence(heap, Kind::kTuple, {grouper, make_sequence(heap, Kind::kList, std::move(group))});
    pair.as<SequenceObject>().group = true;
    out.push_back(std::move(pair));
    begin = end;
  }
  return make_sequence(heap, Kind::kList, std::move(out));
}

Value batch(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("batch", arguments, {"linecount", "fill_with"}, 1);
  Heap& heap = in.heap();
  const int64_t size = integer(*bound[0]);
  const bool fills = bound[1] && !bound[1]->is_none();
  Values out, line;
  for (const Value& item : iterate(heap, input)) {
    if (static_cast<int64_t>(line.size()) == size) {
      out.push_back(make_sequence(heap, Kind::kList, std::move(line)));
      line = {};
    }
    line.push_back(item);
  }
  if (!line.empty()) {
    if (fills && static_cast<int64_t>(line.size()) < size) {
      heap.check_items(static_cast<uint64_t>(size));
      heap.step(static_cast<uint64_t>(size));
      line.resize(static_cast<size_t>(size), *bound[1]);
    }
    out.push_back(make_sequence(heap, Kind::kList, std::move(line)));
  }
  return make_generator(heap, std::move(out));
}

Value slice(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("slice", arguments, {"slices", "fill_with"}, 1);
  Heap& heap = in.heap();
  const Values items = iterate(heap, input);
  const int64_t slices = integer(*bound[0]);
  if (slices == 0) fail("integer division or modulo by zero");
  if (slices < 0) return make_generator(heap, {});
  const auto count = static_cast<uint64_t>(slices);
  heap.check_items(count);
  heap.step(count);
  const bool fills = bound[1] && !bound[1]->is_none();
  const size_t each = items.size() / count;
  const size_t extra = items.size() % count;
  Values out;
  size_t begin = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const size_t end = begin + each + (i < extra ? 1 : 0);
    Values part(items.begin() + static_cast<std::ptrdiff_t>(begin), items.begin() + static_cast<std::ptrdiff_t>(end));
    if (fills && i >= extra) part.push_back(*bound[1]);
    out.push_back(make_sequence(heap, Kind::kList, std::move(part)));
    begin = end;
  }
  return make_generator(heap, std::move(out));
}

// map(attribute=...), or map('filter', arguments...).
Value map(Interpreter& in, const Value& input, const CallArguments& arguments) {
  Heap& heap = in.heap();
  Values out;
  if (arguments.positional.empty() && !arguments.named.empty()) {
    const BoundArguments bound("map", arguments, {"attribute", "default"}, 1);
    const Value* fallback = bound[1] && !bound[1]->is_none() ? bound[1] : nullptr;
    for (const Value& item : iterate(heap, input)) out.push_back(in.attribute_path(item, *bound[0], fallback));
    return make_generator(heap, std::move(out));
  }
  if (arguments.positional.empty() || !arguments.positional[0].is_string()) fail("map requires a filter argument");
  const std::string& name = arguments.positional[0].bytes();
  CallArguments rest;
  rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  rest.named = arguments.named;
  if (!find_filter(name)) fail("No filter named '{}'.", name);
  for (const Value& item : iterate(heap, input)) out.push_back(in.apply_filter(name, item, rest));
  return make_generator(heap, std::move(out));
}

template <bool by_attribute, bool keeps>
Value select(Interpreter& in, const Value& input, const CallArguments& arguments) {
  Heap& heap = in.heap();
  size_t next = 0;
  if (by_attribute) {
    if (arguments.positional.empty()) fail("Missing parameter for attribute name");
    next = 1;
  }
  const bool has_test = arguments.positional.size() > next;
  std::string name;
  CallArguments rest;
  if (has_test) {
    if (!arguments.positional[next].is_string()) fail("a test's name must be a string");
    name = arguments.positional[next].bytes();
    if (!find_test(name)) fail("No test named '{}'.", name);
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(next) + 1,
                           arguments.positional.end());
    rest.named = arguments.named;
  }
  Values out;
  for (const Value& item : iterate(heap, input)) {
    const Value tested = by_attribute ? in.attribute_path(item, arguments.positional[0], nullptr) : item;
    if ((has_test ? in.apply_test(name, tested, rest) : truthy(heap, tested)) == keeps) out.push_back(item);
  }
  return make_generator(heap, std::move(out));
}

Value attr(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("attr", arguments, {"name"}, 1);
  const Value name = to_str(in.heap(), *bound[0]);
  // Attributes only: a dict's items don't count.
  if (input.is(Kind::kDict) && input.as<DictObject>().find(name.bytes()) &&
      !find_container_method(Kind::kDict, name.bytes()))
    return make_undefined(in.heap(), fmt::format("'dict object' has no attribute '{}'", name.bytes()));
  return in.attribute(input, name.bytes());
}

constexpr FilterEntry kFilters[] = {
    {"default", default_value},
    {"d", default_value},
    {"length", length},
    {"count", length},
    {"join", join},
    {"first", first},
    {"last", last},
    {"list", list},
    {"reverse", reverse},
    {"sort", sort},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"items", items},
    {"dictsort", dictsort},
    {"groupby", groupby},
    {"batch", batch},
    {"slice", slice},
    {"map", map},
    {"select", select<false, true>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<true, false>},
    {"attr", attr},
};

}  // namespace

const FilterEntry* find_sequence_filter(std::string_view name) { return find_entry(kFilters, name); }

}  // namespace headrace::text::jinja
