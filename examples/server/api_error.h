// What a request is refused with, in the words of the two families of APIs.
#pragma once

#include <headrace/headrace.hpp>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "exchange.h"
#include "json.h"

namespace server {

// Thrown by handlers. `field` is the place in the body ("messages[0].role"), or empty; `code` a word for programs, or empty.
class ApiError : public std::exception {
 public:
  ApiError(int status, std::string message, std::string field = {}, std::string code = {});
  // An error of the library: what of it the client caused keeps its message and place.
  explicit ApiError(const headrace::Error& error);
  // The same, about a field that the library has another name for.
  ApiError(const headrace::Error& error, std::string field);

  int status() const { return status_; }
  const std::string& message() const { return message_; }
  const std::string& field() const { return field_; }
  const std::string& code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int status_;
  std::string message_, field_, code_;
};

// Places in the library's errors, and what the body calls them; what follows a place ("[3]") stays.
using FieldNames = std::vector<std::pair<std::string, std::string>>;
ApiError with_names_of(const headrace::Error& error, const FieldNames& names);
// Of "sequences[i]" that an embedder was given: element first + i of the field.
ApiError at_element(const headrace::Error& error, const std::string& field, size_t first);

enum class ErrorShape { kOpenAi, kAnthropic };

// The object that is the body of the answer, and of an error event in a stream.
OrderedJson error_body(const ApiError& error, ErrorShape shape);
Reply error_reply(const ApiError& error, ErrorShape shape);

}  // namespace server
