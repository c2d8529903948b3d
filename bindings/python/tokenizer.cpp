#include "module.h"

namespace headrace_python {

void register_tokenizer(py::module_& module) {
  py::class_<headrace::Tokenizer>(module, "Tokenizer", "Text to token ids and back; immutable, usable from any thread.")
      .def_static(
          "load",
          [](const py::object& given) {
            const std::string path = path_from(given);
            py::gil_scoped_release release;
            return headrace::Tokenizer::load(path);
          },
          py::arg("path"), "From a GGUF file, or a folder that holds tokenizer.json.")
      .def(
          "encode",
          [](const headrace::Tokenizer& self, const py::str& given, bool special, bool add_special) {
            const std::string text = text_from(given);
            py::gil_scoped_release release;
            return self.encode(text, special, add_special);
          },
          py::arg("text"), py::arg("special") = true, py::arg("add_special") = true,
          "Token ids. special: special tokens written in the text count as tokens (otherwise they are plain text); "
          "add_special: add what the model's post-processor adds (BOS, ...).")
      .def("encode_prompt", py::overload_cast<const headrace::Prompt&>(&headrace::Tokenizer::encode, py::const_),
           py::arg("prompt"), py::call_guard<py::gil_scoped_release>(),
           "Token ids of a rendered prompt: special tokens count in the template's parts and never in the caller's.")
      .def(
          "decode",
          [](const headrace::Tokenizer& self, const std::vector<int32_t>& ids, bool skip_special) {
            return self.decode(ids, skip_special);
          },
          py::arg("ids"), py::arg("skip_special") = false, py::call_guard<py::gil_scoped_release>(),
          "Text of the ids; bytes that are no UTF-8 become U+FFFD. An id outside [0, vocab_size) raises Error.")
      .def(
          "token_bytes", [](const headrace::Tokenizer& self, int32_t id) { return py::bytes(self.bytes(id)); },
          py::arg("id"), "The bytes one token stands for.")
      .def(
          "token_id", [](const headrace::Tokenizer& self, const py::str& token) { return self.id(text_from(token)); },
          py::arg("token"), "The id of the token spelled exactly so, or None.")
      .def("is_special", &headrace::Tokenizer::is_special, py::arg("id"))
      .def_property_readonly("vocab_size", &headrace::Tokenizer::vocab_size)
      .def_property_readonly("bos_id", &headrace::Tokenizer::bos)
      .def_property_readonly("eos_id", &headrace::Tokenizer::eos);
}

}  // namespace headrace_python
