// The global functions, and how arguments are matched to parameters.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/utf8.h"

namespace headrace::text::jinja {

BoundArguments::BoundArguments(std::string_view function, const CallArguments& arguments,
                               std::initializer_list<std::string_view> names, size_t required)
    : values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size())
    fail("{}() takes at most {} argument(s) ({} given)", function, names.size(), arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), std::string_view(name));
    if (found == names.end()) fail("{}() got an unexpected keyword argument '{}'", function, name);
    const Value*& slot = values_[static_cast<size_t>(found - names.begin())];
    if (slot) fail("{}() got multiple values for argument '{}'", function, name);
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    std::string_view name = *(names.begin() + i);
    if (name.starts_with("/")) name.remove_prefix(1);
    if (!values_[i]) fail("{}() missing required argument '{}'", function, name);
  }
}

namespace {

constexpr std::string_view kFunctions[] = {"range",        "dict",   "namespace", "raise_exception",
                                           "strftime_now", "cycler", "joiner"};

// dict(*args, **kwargs): a mapping or pairs, then the named ones.
void fill_dict(Heap& heap, DictObject& dict, std::string_view function, const CallArguments& arguments) {
  if (arguments.positional.size() > 1)
    fail("{} expected at most 1 argument, got {}", function, arguments.positional.size());
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.as<DictObject>().entries) {
        heap.step();
        dict.set(key, value);
      }
    } else {
      for (const Value& pair : iterate(heap, source)) {
        const Values items = iterate(heap, pair);
        if (items.size() != 2) fail("dictionary update sequence element has length {}; 2 is required", items.size());
        dict.set(items[0], items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(make_string(heap, name, kTrusted), value);
}

Value make_range(Heap& heap, const CallArguments& arguments) {
  const Values& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) fail("range expected 1 to 3 arguments");
  for (const Value& value : given) {
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_integer()) fail("'{}' object cannot be interpreted as an integer", type_name(value));
  }
  auto range = std::make_shared<RangeObject>();
  range->stop = given[given.size() == 1 ? 0 : 1].as_int();
  if (given.size() > 1) range->start = given[0].as_int();
  if (given.size() > 2) range->step = given[2].as_int();
  if (range->step == 0) fail("range() arg 3 must not be zero");
  // The sandbox's own bound.
  constexpr uint64_t kMaxRange = 100000;
  if (range->length() > kMaxRange)
    fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
  heap.step();
  return Value::object(Kind::kRange, std::move(range));
}

}  // namespace

bool is_global_function(std::string_view name) {
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
}

Value Interpreter::call_function(const std::string& name, const CallArguments& arguments) {
  if (name == "range") return make_range(heap_, arguments);
  if (name == "dict") {
    auto dict = std::make_shared<DictObject>();
    fill_dict(heap_, *dict, "dict", arguments);
    return make_dict(heap_, std::move(dict));
  }
  if (name == "namespace") {
    auto object = std::make_shared<NamespaceObject>();
    fill_dict(heap_, object->attributes, "namespace", arguments);
    for (const auto& [key, value] : object->attributes.entries)
      if (key.is_string() && key.bytes().starts_with("_"))
        fail("a namespace can't have the attribute '{}'", key.bytes());
    const size_t size = sizeof(NamespaceObject) + 128 * (object->attributes.entries.size() + 1);
    heap_.step();
    heap_.charge(size);
    object->heap = &heap_;
    object->charged = size;
    namespaces_.push_back(object);
    return Value::object(Kind::kNamespace, std::move(object));
  }
  if (name == "raise_exception") {
    const BoundArguments bound(name, arguments, {"message"}, 1);
    throw Failure{StatusCode::kInvalidArgument, to_str(heap_, *bound[0]).bytes(), position_};
  }
  if (name == "strftime_now") {
    const BoundArguments bound(name, arguments, {"format"}, 1);
    if (!bound[0]->is_string()) fail("strftime() argument 1 must be str, not {}", type_name(*bound[0]));
    if (!clock_) fail("the template asks for the time (strftime_now), and no clock was given");
    const std::string text = clock_(bound[0]->bytes());
    if (utf8_invalid_offset(text) != std::string::npos) fail("strftime_now gave a text that is not valid UTF-8");
    return make_string(heap_, text, bound[0]->text().origins());
  }
  if (name == "cycler") {
    if (arguments.positional.empty()) fail("at least one item has to be provided");
    if (!arguments.named.empty()) fail("cycler() takes no keyword arguments");
    Value value = callable(CallableObject::What::kCycler, name, Value());
    auto& object = value.as<CallableObject>();
    int depth = 0;
    for (const Value& item : arguments.positional) depth = std::max(depth, item.depth());
    register_depth(object, depth + 1);
    object.items = arguments.positional;
    return value;
  }
  const BoundArguments bound(name, arguments, {"sep"});
  Value value = callable(CallableObject::What::kJoiner, name, Value());
  value.as<CallableObject>().items.push_back(bound[0] ? *bound[0] : make_string(heap_, ", ", kTrusted));
  register_depth(value.as<CallableObject>(), value.as<CallableObject>().items[0].depth() + 1);
  return value;
}

}  // namespace headrace::text::jinja
