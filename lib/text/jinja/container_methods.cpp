// The methods of dict, list and tuple that only read.
#include <algorithm>

#include "text/jinja/interpreter.h"

namespace headrace::text::jinja {
namespace {

Value dict_items(Interpreter& in, const Value& self, const CallArguments& arguments) {
  BoundArguments("items", arguments, {});
  Values out;
  for (const auto& [key, value] : self.as<DictObject>().entries)
    out.push_back(make_sequence(in.heap(), Kind::kTuple, {key, value}));
  return make_view(in.heap(), "dict_items", std::move(out));
}

Value dict_keys(Interpreter& in, const Value& self, const CallArguments& arguments) {
  BoundArguments("keys", arguments, {});
  return make_view(in.heap(), "dict_keys", iterate(in.heap(), self));
}

Value dict_values(Interpreter& in, const Value& self, const CallArguments& arguments) {
  BoundArguments("values", arguments, {});
  Values out;
  for (const auto& [key, value] : self.as<DictObject>().entries) out.push_back(value);
  in.heap().step(out.size());
  return make_view(in.heap(), "dict_values", std::move(out));
}

Value dict_get(Interpreter&, const Value& self, const CallArguments& arguments) {
  const BoundArguments bound("get", arguments, {"/key", "/default"}, 1);
  const Value* value = self.as<DictObject>().find(*bound[0]);
  if (value) return *value;
  return bound[1] ? *bound[1] : Value();
}

Value same(Interpreter&, const Value& self, const CallArguments& arguments) {
  // Nothing can change a container, so it is its own copy.
  BoundArguments("copy", arguments, {});
  return self;
}

Value list_count(Interpreter& in, const Value& self, const CallArguments& arguments) {
  const BoundArguments bound("count", arguments, {"/value"}, 1);
  int64_t count = 0;
  for (const Value& item : self.items()) count += equal(in.heap(), item, *bound[0]);
  return Value::integer(count);
}

Value list_index(Interpreter& in, const Value& self, const CallArguments& arguments) {
  const BoundArguments bound("index", arguments, {"/value", "/start", "/stop"}, 1);
  const Values& items = self.items();
  const auto size = static_cast<int64_t>(items.size());
  const auto place = [&](const Value* value, int64_t absent) {
    if (!value) return absent;
    if (!value->is_integer()) fail("slice indices must be integers");
    const int64_t at = value->as_int();
    return at < 0 ? std::max<int64_t>(at + size, 0) : std::min(at, size);
  };
  for (int64_t i = place(bound[1], 0), end = place(bound[2], size); i < end; ++i)
    if (equal(in.heap(), items[static_cast<size_t>(i)], *bound[0])) return Value::integer(i);
  fail("the value is not in the {}", type_name(self));
}

constexpr MethodEntry kDictMethods[] = {
    {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {"copy", same}};
constexpr MethodEntry kTupleMethods[] = {{"count", list_count}, {"index", list_index}};
constexpr MethodEntry kListMethods[] = {{"count", list_count}, {"index", list_index}, {"copy", same}};
constexpr std::string_view kForbiddenList[] = {"append", "clear",  "pop",  "reverse",
                                               "insert", "extend", "sort", "remove"};
constexpr std::string_view kForbiddenDict[] = {"clear", "pop", "popitem", "setdefault", "update"};

}  // namespace

const MethodEntry* find_container_method(Kind kind, std::string_view name) {
  if (kind == Kind::kDict) return find_entry(kDictMethods, name);
  return kind == Kind::kList ? find_entry(kListMethods, name) : find_entry(kTupleMethods, name);
}

bool is_forbidden_method(Kind kind, std::string_view name) {
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return kind == Kind::kDict ? among(kForbiddenDict) : kind == Kind::kList && among(kForbiddenList);
}

}  // namespace headrace::text::jinja
