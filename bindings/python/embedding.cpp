#include <algorithm>

#include "module.h"

namespace headrace_python {
namespace {

using FloatArray = py::array_t<float>;

FloatArray array_of(const float* rows, size_t num_rows, size_t size) {
  FloatArray out({num_rows, size});
  std::copy_n(rows, num_rows * size, out.mutable_data());
  return out;
}

// `given` as int32 numbers; TypeError with `place` where it is none of those.
std::vector<int32_t> integers_from(const py::handle& given, const std::string& place) {
  try {
    return given.cast<std::vector<int32_t>>();
  } catch (const py::cast_error&) {
    throw py::type_error(place + ": a list of int32 numbers is needed");
  }
}

std::string numbered(const char* name, size_t index) { return name + ("[" + std::to_string(index) + "]"); }

// What was asked for, as C++ has it: texts, or sequences of token ids.
struct Input {
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> sequences;
  bool is_text = true;
};

Input input_from(const py::object& given) {
  Input input;
  if (py::isinstance<py::str>(given)) {
    input.texts = {text_from(given)};
    return input;
  }
  if (py::isinstance<py::bytes>(given)) throw py::type_error("texts: str is needed, not bytes");
  for (const py::handle& item : given) {
    const bool is_text = py::isinstance<py::str>(item);
    if (input.texts.size() + input.sequences.size() > 0 && is_text != input.is_text) {
      throw py::type_error("texts: either all str or all lists of token ids");
    }
    input.is_text = is_text;
    if (is_text) {
      input.texts.push_back(text_from(item));
    } else {
      input.sequences.push_back(integers_from(item, numbered("texts", input.sequences.size())));
    }
  }
  return input;
}

}  // namespace

py::object embed(const headrace::Model& model, const py::object& texts, const std::string& pooling,
                 const std::optional<bool>& normalize, const py::object& token_types, bool special, bool add_special,
                 const py::kwargs& arguments) {
  headrace::Options options = options_from(arguments);
  options.set("embedder.pooling", pooling);
  if (normalize) options.set("embedder.normalize", *normalize ? "true" : "false");
  const Input input = input_from(texts);
  std::vector<std::vector<int32_t>> types;
  if (!token_types.is_none()) {
    if (input.is_text) throw py::type_error("token_types: texts are given, whose tokens are not known");
    if (!py::isinstance<py::sequence>(token_types) || py::len(token_types) != input.sequences.size()) {
      throw py::type_error("token_types: a list for each text is needed");
    }
    for (const py::handle& item : token_types)
      types.push_back(integers_from(item, numbered("token_types", types.size())));
  }
  const uint32_t flags = (special ? HEADRACE_PARSE_SPECIAL : 0u) | (add_special ? HEADRACE_ADD_SPECIAL : 0u);
  std::vector<float> rows;
  std::vector<size_t> counts;  // rows of each, where tokens have rows of their own
  size_t size = 0;
  bool pools = true;
  {
    const py::gil_scoped_release release;
    headrace::Embedder embedder(model, options);
    size = embedder.row_size();
    pools = embedder.pools();
    rows = input.is_text ? embedder.embed(input.texts, flags) : embedder.embed(input.sequences, types);
    if (!pools && input.is_text) {
      const headrace::Tokenizer tokenizer = model.tokenizer();
      for (const std::string& text : input.texts) counts.push_back(tokenizer.encode(text, special, add_special).size());
    }
    for (const auto& sequence : input.sequences) counts.push_back(sequence.size());
  }
  const bool single = py::isinstance<py::str>(texts);
  if (pools) {
    FloatArray out = array_of(rows.data(), rows.size() / size, size);
    return single ? py::object(out[py::int_(0)]) : py::object(std::move(out));
  }
  py::list out;
  size_t first = 0;
  for (const size_t count : counts) {
    out.append(array_of(rows.data() + first * size, count, size));
    first += count;
  }
  return single ? py::object(out[0]) : py::object(std::move(out));
}

}  // namespace headrace_python
