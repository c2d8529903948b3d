// Arguments that the C functions must refuse by name.
#pragma once

#include <string>

#include <catch2/catch.hpp>

#include <headrace/headrace.h>

namespace capi_test {

// The code and the place of a call that must fail for an argument: NULL in most of them.
template <class Call>
void check_refused(const char* name, const Call& call) {
  INFO(name);
  headrace_error* error = nullptr;
  CHECK(call(&error) == HEADRACE_INVALID_ARGUMENT);
  REQUIRE(error != nullptr);
  CHECK(headrace_error_get_code(error) == HEADRACE_INVALID_ARGUMENT);
  CHECK(std::string(headrace_error_get_place(error)) == name);
  CHECK(std::string(headrace_error_get_message(error)).size() > 0);
  headrace_error_destroy(error);
  CHECK(call(nullptr) == HEADRACE_INVALID_ARGUMENT);
}

}  // namespace capi_test
