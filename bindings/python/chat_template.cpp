#include "module.h"

namespace headrace_python {
namespace {

// Seconds since the epoch from None, a number, a datetime, or an ISO 8601 string. What has no time zone is UTC. ValueError
// for what is not within the years 1970 to 9999.
std::optional<int64_t> unix_seconds(py::object now) {
  if (now.is_none()) return std::nullopt;
  const py::module_ datetime = py::module_::import("datetime");
  if (py::isinstance<py::str>(now)) now = datetime.attr("datetime").attr("fromisoformat")(now);
  if (py::hasattr(now, "tzinfo") && now.attr("tzinfo").is_none()) {
    using py::literals::operator""_a;
    now = now.attr("replace")("tzinfo"_a = datetime.attr("timezone").attr("utc"));
  }
  if (py::hasattr(now, "timestamp")) now = now.attr("timestamp")();
  if (!PyNumber_Check(now.ptr())) {
    throw py::type_error("now: " + py::repr(now).cast<std::string>() + " is no number, datetime or ISO 8601 text");
  }
  const double seconds = py::float_(now);
  constexpr double kEndOf9999 = 253402300800.0;
  if (!(seconds >= 0 && seconds < kEndOf9999)) {
    throw py::value_error("now: " + py::repr(now).cast<std::string>() + " is not within the years 1970 to 9999");
  }
  return static_cast<int64_t>(seconds);
}

headrace::Prompt render(const headrace::ChatTemplate& self, const py::object& messages, const py::object& tools,
                        bool add_generation_prompt, const py::object& now, const py::kwargs& variables) {
  headrace::RenderArguments arguments;
  arguments.messages = to_json(messages);
  arguments.tools = to_json(tools);
  arguments.variables = to_json(py::dict(variables));
  arguments.add_generation_prompt = add_generation_prompt;
  arguments.now_unix_seconds = unix_seconds(now);
  py::gil_scoped_release release;
  return self.render(arguments);
}

}  // namespace

void register_chat_template(py::module_& module) {
  py::class_<headrace::Prompt>(module, "Prompt", "A rendered conversation and where its bytes came from.")
      .def_property_readonly("text", &headrace::Prompt::text)
      .def_property_readonly(
          "spans",
          [](const headrace::Prompt& self) {
            std::vector<std::tuple<size_t, size_t, bool>> spans;
            for (const auto& span : self.spans()) spans.emplace_back(span.begin, span.end, span.is_content);
            return spans;
          },
          "(begin, end, is_content) in bytes of the UTF-8 text, in order.")
      .def("__str__", &headrace::Prompt::text);

  py::class_<headrace::ChatTemplate>(module, "ChatTemplate",
                                     "A Jinja chat template, rendered as transformers renders it.")
      .def(py::init([](const py::str& source, const py::kwargs& tokens) {
             return headrace::ChatTemplate(text_from(source), to_json(py::dict(tokens)));
           }),
           py::arg("source"), "source: the template; keywords: special tokens such as bos_token='<s>'.")
      .def_static(
          "load", [](const py::object& path) { return headrace::ChatTemplate::load(path_from(path)); }, py::arg("path"),
          "The template of a GGUF file or a Hugging Face folder; weights are not read.")
      .def("render_prompt", &render, py::arg("messages"), py::arg("tools") = py::none(),
           py::arg("add_generation_prompt") = true, py::arg("now") = py::none(), "A Prompt: text and spans.")
      .def(
          "render",
          [](const headrace::ChatTemplate& self, const py::object& messages, const py::object& tools,
             bool add_generation_prompt, const py::object& now, const py::kwargs& variables) {
            return render(self, messages, tools, add_generation_prompt, now, variables).text();
          },
          py::arg("messages"), py::arg("tools") = py::none(), py::arg("add_generation_prompt") = true,
          py::arg("now") = py::none(),
          "The text. now: what strftime_now sees, seconds since the epoch, a datetime or ISO 8601 text; further "
          "keywords are template "
          "variables.");
}

}  // namespace headrace_python
