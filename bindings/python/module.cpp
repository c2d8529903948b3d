#include "module.h"

namespace headrace_python {
namespace {

std::string option_text(const py::handle& value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>() ? "true" : "false";
  return text_from(py::str(value));
}

// Short names for the settings people reach for first.
const std::map<std::string, std::string>& short_names() {
  static const std::map<std::string, std::string> names = {
      {"threads", "engine.threads"},
      {"isa", "engine.isa"},
      {"device", "model.device"},
      {"activations", "model.activations"},
      {"exact", "model.exact"},
      {"use_mmap", "model.use_mmap"},
      {"kv_dtype", "kv.dtype"},
      {"max_tokens", "kv.max_tokens"},
      {"block_size", "kv.block_size"},
      {"prefix_index", "kv.prefix_index"},
      {"max_num_seqs", "scheduler.max_num_seqs"},
      {"max_num_batched_tokens", "scheduler.max_num_batched_tokens"},
      {"prefill_chunk", "session.prefill_chunk"},
  };
  return names;
}

}  // namespace

headrace::Options options_from(const py::kwargs& arguments) {
  headrace::Options options;
  for (const auto& [key, value] : arguments) {
    const std::string name = key.cast<std::string>();
    if (value.is_none()) continue;
    if (name == "options") {
      if (!py::isinstance<py::dict>(value)) throw py::type_error("options: a dict of names and values is needed");
      for (const auto& [full, text] : value.cast<py::dict>()) options.set(option_text(full), option_text(text));
      continue;
    }
    const auto known = short_names().find(name);
    if (known == short_names().end()) throw py::type_error("unknown option: " + name);
    options.set(known->second, option_text(value));
  }
  return options;
}

std::string path_from(const py::object& path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) throw py::error_already_set();
  const py::object owner = py::reinterpret_steal<py::object>(bytes);
  return std::string(PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
}

std::string text_from(const py::handle& text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) throw py::error_already_set();  // UnicodeEncodeError, a ValueError
  return std::string(bytes, static_cast<size_t>(size));
}

std::string to_json(const py::object& value) {
  if (value.is_none()) return std::string();
  if (py::isinstance<py::str>(value)) return text_from(value);
  using py::literals::operator""_a;
  return text_from(py::module_::import("json").attr("dumps")(value, "ensure_ascii"_a = false));
}

py::object from_json(const std::string& text) { return py::module_::import("json").attr("loads")(text); }

}  // namespace headrace_python

PYBIND11_MODULE(_headrace, module) {
  using namespace headrace_python;
  module.doc() = "Bindings of headrace.hpp; use the package headrace";

  // headrace.Error(message) with the attributes code (int), status (name), message and place.
  static py::exception<headrace::Error> error_type(module, "Error");
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const headrace::Error& error) {
      py::object value = py::reinterpret_borrow<py::object>(error_type)(error.what());
      value.attr("code") = error.code();
      value.attr("status") = headrace_status_get_name(error.code());
      value.attr("message") = error.message();
      value.attr("place") = error.place();
      PyErr_SetObject(error_type.ptr(), value.ptr());
    }
  });

  register_tokenizer(module);
  register_chat_template(module);
  register_model(module);
  register_generation(module);

  module.def("version", &headrace::version, "The library's version.");
  module.def(
      "system", [] { return from_json(headrace::describe_system()); },
      "Version, available instruction sets, processors.");
  module.def(
      "options",
      [] {
        py::list list;
        for (const std::string& info : headrace::Options::list()) list.append(from_json(info));
        return list;
      },
      "Every option: key, type, default, range, doc.");
  module.def(
      "inspect",
      [](const py::object& given, uint64_t memory_bytes) {
        const std::string path = path_from(given);
        std::string text;
        {
          py::gil_scoped_release release;
          text = headrace::Model::inspect(path, memory_bytes);
        }
        return from_json(text);
      },
      py::arg("path"), py::arg("memory_bytes") = 0,
      "What a file holds, and what fits into memory_bytes; weights are not read.");
}
