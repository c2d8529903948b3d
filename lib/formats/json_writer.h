// Writes JSON text from front to back. What the library tells as JSON is written by this and not built as nlohmann's values
// first, whose temporaries ask for memory in their destructors.
#pragma once

#include <concepts>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/format.h"

namespace headrace {

// Appends a string of UTF-8 as JSON writes it, with its quotes.
void append_json_string(std::string& out, std::string_view text);

// Calls come in the order of the text; commas come by themselves. Keys and texts are UTF-8.
class JsonWriter {
 public:
  void begin_object() { open('{'); }
  void end_object() { text_ += '}'; }
  void begin_array() { open('['); }
  void end_array() { text_ += ']'; }
  void key(std::string_view name);

  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  // null where it is not finite. A number without fraction keeps one ("1.0").
  void value(double number);
  void value(std::same_as<bool> auto flag) {
    separate();
    text_ += flag ? "true" : "false";
  }
  template <std::integral Integer>
  requires(!std::same_as<Integer, bool>) void value(Integer number) {
    separate();
    fmt::format_to(std::back_inserter(text_), "{}", number);
  }

  // A value that is JSON text already.
  void raw(std::string_view json) {
    separate();
    text_ += json;
  }

  // One member of the open object.
  template <class Value>
  void member(std::string_view name, const Value& given) {
    key(name);
    value(given);
  }
  template <class Values>
  void list(std::string_view name, const Values& values) {
    key(name);
    begin_array();
    for (const auto& item : values) value(item);
    end_array();
  }
  // The members of an object that is text already, as members of the open one.
  void members_of(std::string_view object);

  const std::string& text() const { return text_; }
  std::string take() { return std::move(text_); }

 private:
  void open(char bracket) {
    separate();
    text_ += bracket;
  }
  // A comma where something stands before in the same array or object. Strings end in a quote, so that the last character
  // tells.
  void separate();

  std::string text_;
};

}  // namespace headrace
