// The parts of the Python module: each file registers its classes.
#pragma once

#include <headrace/headrace.hpp>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace headrace_python {

namespace py = pybind11;

void register_tokenizer(py::module_& module);
void register_chat_template(py::module_& module);
void register_model(py::module_& module);
void register_generation(py::module_& module);

// Rows of texts or token sequences: Model.embed.
py::object embed(const headrace::Model& model, const py::object& texts, const std::string& pooling,
                 const std::optional<bool>& normalize, const py::object& token_types, bool special, bool add_special,
                 const py::kwargs& arguments);

// A session remembers its model for the size of its logits.
struct PythonSession {
  headrace::Model model;
  headrace::Session session;
};

// Keyword arguments as options: threads=4 is "engine.threads", kv_dtype="f16" is "kv.dtype", and any full key goes through
// options={"scheduler.max_num_seqs": 8}. True and False become "true" and "false".
headrace::Options options_from(const py::kwargs& arguments);

// A path as str, bytes or os.PathLike; TypeError for anything else.
std::string path_from(const py::object& path);

// The UTF-8 of a str: ValueError for a lone surrogate, which is no text.
std::string text_from(const py::handle& text);

// A Python value as JSON text, through the json module (so that anything it takes is taken), "" for None.
std::string to_json(const py::object& value);
py::object from_json(const std::string& text);

}  // namespace headrace_python
