// The template language: what jinja2 renders (tests/data/chat/snippets.json, written by generate_chat.py),
// places of errors, and limits.
#include <chrono>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "text/chat_template.h"

using headrace::Result;
using headrace::StatusCode;
using headrace::text::ChatTemplate;
using headrace::text::RenderedPrompt;
using headrace::text::RenderOptions;
using Json = nlohmann::ordered_json;

namespace {

Result<RenderedPrompt> render(const std::string& source, const Json& kwargs = nullptr,
                              const RenderOptions& options = {}) {
  auto parsed = ChatTemplate::parse(source, {});
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->render(Json::array(), nullptr, kwargs, options);
}

std::string text(const std::string& source, const Json& kwargs = nullptr) {
  auto result = render(source, kwargs);
  INFO(source);
  INFO(result.status().to_string());
  REQUIRE(result.ok());
  return result->text;
}

void check_parse_error(const std::string& source, const std::string& place) {
  INFO(source);
  auto parsed = ChatTemplate::parse(source, {});
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.status().code() == StatusCode::kMalformed);
  CHECK(parsed.status().place() == place);
}

std::string repeat(std::string_view what, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += what;
  return out;
}

}  // namespace

TEST_CASE("snippets render as jinja2 renders them") {
  std::ifstream file(std::string(HEADRACE_SOURCE_DIR) + "/tests/data/chat/snippets.json");
  REQUIRE(file.good());
  const Json data = Json::parse(file);
  Json kwargs = data["variables"];
  const Json messages = kwargs["messages"];
  const Json tools = kwargs["tools"];
  kwargs.erase("messages");
  kwargs.erase("tools");
  RenderOptions options;
  options.now_unix_seconds = data["now"].get<int64_t>();
  REQUIRE(data["cases"].size() > 600);
  for (const Json& item : data["cases"]) {
    const auto source = item["template"].get<std::string>();
    INFO(source);
    auto parsed = ChatTemplate::parse(source, {});
    if (!parsed.ok()) {
      CHECK(item.contains("error"));
      CHECK(parsed.status().code() == StatusCode::kMalformed);
      CHECK(parsed.status().place().rfind("line ", 0) == 0);
      continue;
    }
    auto result = (*parsed)->render(messages, tools, kwargs, options);
    if (item.contains("error")) {
      CHECK_FALSE(result.ok());
      if (!result.ok()) CHECK(result.status().place().rfind("line ", 0) == 0);
      continue;
    }
    INFO(result.status().to_string());
    REQUIRE(result.ok());
    CHECK(result->text == item["text"].get<std::string>());
    // Spans cover the text in order.
    size_t end = 0;
    for (const auto& span : result->spans) {
      CHECK(span.begin == end);
      CHECK(span.end > span.begin);
      end = span.end;
    }
    CHECK(end == result->text.size());
  }
}

TEST_CASE("J1: break and continue in a for loop") {
  CHECK(text("{% for i in [1,2,3,4,5] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% "
             "endif %}"
             "{{ i }}{% endfor %}") == "13");
}

TEST_CASE("J2: slices with steps, negative bounds and variables") {
  CHECK(text("{{ 'abcdef'[5:2:-1] }}") == "fed");
  CHECK(text("{{ items[::-1] | join }}{% set n = 2 %}{{ items[:-n] | join }}", {{"items", {1, 2, 3}}}) == "3211");
}

TEST_CASE("J4: tojson writes what transformers writes") {
  const Json kwargs = Json::parse(R"({"v": {"b": "é<>&'", "a": [1, 2.0, null, true]}})");
  CHECK(text("{{ v | tojson }}", kwargs) == R"({"b": "é<>&'", "a": [1, 2.0, null, true]})");
  CHECK(text("{{ v | tojson(ensure_ascii=False) }}", kwargs) == R"({"b": "é<>&'", "a": [1, 2.0, null, true]})");
  CHECK(text("{{ v.a | tojson(indent=2) }}", kwargs) == "[\n  1,\n  2.0,\n  null,\n  true\n]");
}

TEST_CASE("J10: a Go-style template is an error with its place, and nothing else is rendered instead") {
  check_parse_error("{{- if .System }}<|system|>{{ .System }}{{ end }}", "line 1, column 5");
  check_parse_error("ab\n  {{ range .Messages }}{{ .Content }}{{ end }}", "line 2, column 27");
}

TEST_CASE("what can be known when parsing fails there, with line and column") {
  check_parse_error("a\nb {{ x | nofilter }}", "line 2, column 10");
  check_parse_error("{{ x is notest }}", "line 1, column 9");
  check_parse_error("{{ nofunction(1) }}", "line 1, column 4");
  check_parse_error("é{% frobnicate %}", "line 1, column 5");
  check_parse_error("{% if true %}\n{% endfor %}", "line 2, column 4");
  check_parse_error("x {% for i in [] %}", "line 1, column 6");
  check_parse_error("{% include 'other' %}", "line 1, column 4");
  check_parse_error("{{ 'open }}", "line 1, column 4");
  check_parse_error("{{ 99999999999999999999 }}", "line 1, column 4");
  check_parse_error(std::string("ab\xFF"), "line 1, column 3");
}

TEST_CASE("a use that is guarded by a condition only fails when it is reached") {
  CHECK(text("{% if false %}{{ x | nofilter }}{% endif %}ok") == "ok");
  CHECK(text("{% if f is defined %}{{ f() }}{% endif %}ok") == "ok");
  CHECK_FALSE(render("{% if true %}{{ f() }}{% endif %}").ok());
}

TEST_CASE("deep nesting is an error, not a stack overflow") {
  for (const auto& [open, close] : {std::pair("(", ")"), std::pair("[", "]"), std::pair("-", ""), std::pair("not ", ""),
                                    std::pair("{'a':", "}"), std::pair("f(", ")")}) {
    CHECK_FALSE(ChatTemplate::parse("{{ " + repeat(open, 50000) + "1" + repeat(close, 50000) + " }}", {}).ok());
  }
  CHECK_FALSE(ChatTemplate::parse(repeat("{% if 1 %}", 50000), {}).ok());
  CHECK_FALSE(ChatTemplate::parse("{{ 1" + repeat(" + 1", 50000) + " }}", {}).ok());
  CHECK_FALSE(ChatTemplate::parse("{{ a" + repeat(".b", 50000) + " }}", {}).ok());
  CHECK(text("{{ 1" + repeat(" + 1", 400) + " }}") == "401");
  CHECK(text("{{ 'a'" + repeat(" ~ 'a'", 20000) + " }}").size() == 20001);
  Json deep = 1;
  for (int i = 0; i < 2000; ++i) deep = Json::array({deep});
  CHECK_FALSE(render("{{ deep }}", {{"deep", deep}}).ok());
}

TEST_CASE("limits hold") {
  const auto exhausts = [](const std::string& source) {
    INFO(source);
    auto result = render(source);
    REQUIRE_FALSE(result.ok());
    INFO(result.status().to_string());
    CHECK(result.status().code() == StatusCode::kResourceExhausted);
    CHECK_FALSE(result.status().place().empty());
  };
  exhausts("{{ 'a' * 10**9 }}");
  exhausts("{{ [0] * 10**9 }}");
  exhausts(
      "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor "
      "%}");
  exhausts("{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}");
  exhausts("{% set ns = namespace(s=[]) %}{% for i in range(1000) %}{% set ns.s = [ns.s] %}{% endfor %}");
  exhausts(
      "{% set ns = namespace(s=[]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ "
      "ns.s }}");
  exhausts(
      "{% set ns = namespace(l=[]) %}{% for i in range(10000) %}{% set ns.l = ns.l + ['a' * 10000000] %}{% "
      "endfor %}");
  exhausts("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  exhausts("{{ '%999999999d' % 1 }}");
  exhausts("{{ '{:>999999999}'.format(1) }}");
  exhausts("{{ 'a'.center(999999999) }}");
  exhausts("{{ 'a' | indent(999999999, true) }}");
  exhausts("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
  CHECK_FALSE(render("{{ range(10**9) }}").ok());
  CHECK_FALSE(render("{{ 2 ** 64 }}").ok());
  CHECK_FALSE(render("{{ 9223372036854775807 + 1 }}").ok());
  RenderOptions options;
  options.deadline = std::chrono::steady_clock::now();
  auto late = render("{% for a in range(100000) %}{{ a }}{% endfor %}", nullptr, options);
  REQUIRE_FALSE(late.ok());
  CHECK(late.status().code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("values that hold each other in circles are given back") {
  // Checked by the leak detector of a sanitizer build.
  CHECK(text("{% set a = namespace() %}{% set a.self = a %}{% set a.l = [a] %}ok") == "ok");
  CHECK(text("{% set a = namespace() %}{% for i in [1, 2] %}{% set a.l = loop %}{{ loop.changed(loop) }}{% "
             "endfor %}") == "TrueFalse");
  CHECK(text("{% macro m() %}{{ m is callable }}{% endmacro %}{% set a = namespace(m=m) %}{{ a.m() }}") == "True");
}
