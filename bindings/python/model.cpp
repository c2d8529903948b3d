#include "module.h"

namespace headrace_python {
namespace {

using FloatArray = py::array_t<float>;

// A function of Python objects as the library calls it, from any thread.
headrace::Session::Summarizer summarizer(py::function function) {
  const std::shared_ptr<py::function> held(new py::function(std::move(function)), [](py::function* last) {
    const py::gil_scoped_acquire acquire;
    delete last;
  });
  return [held](std::string_view dropped) {
    const py::gil_scoped_acquire acquire;
    const py::module_ json = py::module_::import("json");
    return json.attr("dumps")((*held)(json.attr("loads")(py::str(dropped.data(), dropped.size())))).cast<std::string>();
  };
}

// Logits of tokens as they are appended to a session, `chunk` of them in one call (0: all at once).
FloatArray evaluate(headrace::Session& session, const headrace::Model& model, const std::vector<int32_t>& tokens,
                    size_t chunk) {
  const size_t vocab_size = static_cast<size_t>(model.info().vocab_size);
  FloatArray logits({tokens.size(), vocab_size});
  float* out = logits.mutable_data();
  py::gil_scoped_release release;
  if (chunk == 0) chunk = std::max<size_t>(tokens.size(), 1);
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t count = std::min(chunk, tokens.size() - begin);
    session.evaluate(tokens.data() + begin, count, out + begin * vocab_size, count * vocab_size);
  }
  return logits;
}

headrace::Model load(const py::object& given, const py::object& progress, const py::kwargs& arguments) {
  const std::string path = path_from(given);
  if (!progress.is_none() && PyCallable_Check(progress.ptr()) == 0) {
    throw py::type_error("progress: a function of the fraction done is needed, or None");
  }
  const headrace::Options options = options_from(arguments);
  headrace::Progress report;
  std::exception_ptr failure;
  if (!progress.is_none()) {
    report = [&](double fraction) {
      py::gil_scoped_acquire acquire;
      try {
        // Only False ends the load: a function that returns nothing goes on. Another answer is a mistake.
        const py::object answer = progress(fraction);
        if (!answer.is_none() && !py::isinstance<py::bool_>(answer)) {
          throw py::type_error("progress: it returned " + py::repr(answer).cast<std::string>() +
                               ", where True, False or None is needed");
        }
        return !answer.is(py::bool_(false));
      } catch (...) {
        failure = std::current_exception();
        return false;
      }
    };
  }
  try {
    py::gil_scoped_release release;
    return headrace::Model::load(path, options, report);
  } catch (const headrace::Error&) {
    if (failure) std::rethrow_exception(failure);
    throw;
  }
}

py::dict info(const headrace::Model& model) {
  const headrace_model_info info = model.info();
  py::dict out;
  out["vocab_size"] = info.vocab_size;
  out["hidden_size"] = info.hidden_size;
  out["num_layers"] = info.num_layers;
  out["max_position_embeddings"] = info.max_position_embeddings;
  out["num_parameters"] = info.num_parameters;
  out["weight_bytes"] = info.weight_bytes;
  out["kv_bytes_per_token"] = info.kv_bytes_per_token;
  out["num_threads"] = info.num_threads;
  out["has_chat_template"] = info.has_chat_template != 0;
  return out;
}

}  // namespace

void register_model(py::module_& module) {
  py::class_<headrace::Model>(module, "Model", "A loaded model; immutable, usable from any thread.")
      .def_static(
          "load", &load, py::arg("path"), py::arg("progress") = py::none(),
          "From a GGUF file, a safetensors file or a Hugging Face folder. progress(fraction) returns False to cancel, "
          "True or None to go on. "
          "Keywords: threads, isa, activations, exact, use_mmap, options={...}.")
      .def(
          "logits",
          [](const headrace::Model& self, const std::vector<int32_t>& token_ids, std::optional<size_t> chunk,
             const py::kwargs& arguments) {
            headrace::Options options = options_from(arguments);
            if (!arguments.contains("max_tokens")) {
              options.set("kv.max_tokens", std::to_string(std::max<size_t>(token_ids.size(), 64)));
            }
            constexpr size_t kMostRows = 65536;
            if (chunk.value_or(0) > 0)
              options.set("session.prefill_chunk", std::to_string(std::min(*chunk, kMostRows)));
            headrace::Session session(self, options);
            return evaluate(session, self, token_ids, 0);
          },
          py::arg("token_ids"), py::arg("chunk") = py::none(),
          "float32 [num_tokens, vocab_size]: row t scores the token after token_ids[t]. chunk: tokens of one forward "
          "pass.")
      .def(
          "embed", &embed, py::arg("texts"), py::arg("pooling") = "auto", py::arg("normalize") = py::none(),
          py::arg("token_types") = py::none(), py::arg("special") = false, py::arg("add_special") = true,
          "float32 [num_texts, size]: a vector (or with pooling='score' the scores) of each text or list of token ids; "
          "of one str, [size]. pooling: auto (what the model's files name), mean, cls, last, pooler, score; none and "
          "logits give a list of arrays, a row for each token. normalize: None does so for mean, cls and last. "
          "token_types: segments, with lists of token ids. Keywords: max_tokens, options={...}.")
      .def_property_readonly("tokenizer", &headrace::Model::tokenizer)
      .def_property_readonly("chat_template", [](const headrace::Model& self) { return headrace::ChatTemplate(self); })
      .def_property_readonly("info", &info)
      .def("describe", [](const headrace::Model& self) { return from_json(self.describe()); });

  py::class_<headrace::Adapter>(module, "Adapter",
                                "A low-rank adapter of a model, for requests and sessions; any thread.")
      .def_static(
          "load",
          [](const headrace::Model& model, const py::object& given) {
            const std::string path = path_from(given);
            py::gil_scoped_release release;
            return headrace::Adapter::load(model, path);
          },
          py::arg("model"), py::arg("path"), "From a PEFT folder: adapter_config.json and adapter_model.safetensors.")
      .def("describe", [](const headrace::Adapter& self) { return from_json(self.describe()); });

  py::class_<headrace::KVCache>(module, "KVCache",
                                "Blocks of keys and values, shared by sessions and schedulers of a model.")
      .def(py::init([](const headrace::Model& model, const py::kwargs& arguments) {
             return headrace::KVCache(model, options_from(arguments));
           }),
           py::arg("model"), "Keywords: kv_dtype, max_tokens, block_size, prefix_index.")
      .def("clear", &headrace::KVCache::clear, "Forget cached prefixes that nothing holds.")
      .def("flush", &headrace::KVCache::flush, py::call_guard<py::gil_scoped_release>(),
           "Wait until all prefixes that it knows are on disk (kv.disk_path).")
      .def_property_readonly("stats", [](const headrace::KVCache& self) {
        const headrace_kv_cache_stats stats = self.stats();
        py::dict out;
        out["block_size"] = stats.block_size;
        out["num_blocks"] = stats.num_blocks;
        out["free_blocks"] = stats.free_blocks;
        out["cached_blocks"] = stats.cached_blocks;
        out["lookup_tokens"] = stats.lookup_tokens;
        out["hit_tokens"] = stats.hit_tokens;
        out["pool_bytes"] = stats.pool_bytes;
        return out;
      });

  py::class_<PythonSession>(module, "Session", "A conversation; one thread at a time.")
      .def(py::init([](const headrace::Model& model, const std::optional<headrace::KVCache>& kv_cache,
                       const py::kwargs& arguments) {
             const headrace::Options options = options_from(arguments);
             return PythonSession{
                 model, kv_cache ? headrace::Session(model, *kv_cache, options) : headrace::Session(model, options)};
           }),
           py::arg("model"), py::arg("kv_cache") = py::none())
      .def_static(
          "restore",
          [](const headrace::Model& model, const headrace::KVCache& kv_cache, const py::object& path,
             const py::kwargs& arguments) {
            return PythonSession{model,
                                 headrace::Session::restore(model, kv_cache, path_from(path), options_from(arguments))};
          },
          py::arg("model"), py::arg("kv_cache"), py::arg("path"))
      .def("append_tokens",
           [](PythonSession& self, const std::vector<int32_t>& tokens) { self.session.append(tokens); })
      .def(
          "append_text",
          [](PythonSession& self, const py::str& text, bool special, bool add_special) {
            self.session.append_text(
                text_from(text), (special ? HEADRACE_PARSE_SPECIAL : 0u) | (add_special ? HEADRACE_ADD_SPECIAL : 0u));
          },
          py::arg("text"), py::arg("special") = false, py::arg("add_special") = true)
      .def(
          "append_message",
          [](PythonSession& self, const py::str& role, const py::str& content) {
            self.session.append_message(text_from(role), text_from(content));
          },
          py::arg("role"), py::arg("content"))
      .def(
          "evaluate",
          [](PythonSession& self, const std::vector<int32_t>& tokens, std::optional<size_t> chunk,
             bool logits) -> py::object {
            if (logits) return evaluate(self.session, self.model, tokens, chunk.value_or(0));
            py::gil_scoped_release release;
            const size_t step = chunk.value_or(0) > 0 ? *chunk : std::max<size_t>(tokens.size(), 1);
            for (size_t begin = 0; begin < tokens.size(); begin += step) {
              const size_t end = begin + std::min(step, tokens.size() - begin);
              self.session.evaluate({tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                     tokens.begin() + static_cast<std::ptrdiff_t>(end)});
            }
            py::gil_scoped_acquire acquire;
            return py::none();
          },
          py::arg("tokens"), py::arg("chunk") = py::none(), py::arg("logits") = true,
          "Append tokens; float32 logits [num_tokens, vocab_size], or None with logits=False, which computes the "
          "tokens "
          "without reading them. chunk: tokens of one call, for models that rotate by length one prompt after another.")
      .def("fork",
           [](const PythonSession& self) {
             return PythonSession{self.model, self.session.fork()};
           })
      .def(
          "set_adapter",
          [](PythonSession& self, const std::optional<headrace::Adapter>& adapter) {
            self.session.set_adapter(adapter ? &*adapter : nullptr);
          },
          py::arg("adapter"), "The adapter of all that is computed from here on, or None.")
      .def(
          "rewind", [](PythonSession& self, size_t num_tokens) { self.session.rewind(num_tokens); },
          py::arg("num_tokens"))
      .def(
          "set_message",
          [](PythonSession& self, size_t index, const py::str& content) {
            self.session.set_message(index, text_from(content));
          },
          py::arg("index"), py::arg("content"), "Another content of a message; those behind it stay.")
      .def(
          "truncate_messages",
          [](PythonSession& self, size_t num_messages) { self.session.truncate_messages(num_messages); },
          py::arg("num_messages"))
      .def("refuse_overflow", [](PythonSession& self) { self.session.refuse_overflow(); })
      .def(
          "drop_overflow",
          [](PythonSession& self, int64_t keep_first, int64_t free_tokens) {
            self.session.drop_overflow(keep_first, free_tokens);
          },
          py::arg("keep_first"), py::arg("free_tokens") = 0,
          "A request that would exceed the context drops the oldest messages, or tokens, behind the first keep_first.")
      .def(
          "summarize_overflow",
          [](PythonSession& self, py::function summarize, int64_t keep_first, int64_t free_tokens) {
            self.session.summarize_overflow(summarizer(std::move(summarize)), keep_first, free_tokens);
          },
          py::arg("summarize"), py::arg("keep_first"), py::arg("free_tokens") = 0,
          "Likewise; summarize(dropped) gives what takes their place: for a list of messages, dicts of role and "
          "content, "
          "such a list, and tokens for tokens. What it raises fails the request.")
      .def_property_readonly("dropped",
                             [](const PythonSession& self) {
                               const headrace_dropped dropped = self.session.dropped();
                               py::dict out;
                               out["times"] = dropped.times;
                               out["messages"] = dropped.messages;
                               out["tokens"] = dropped.tokens;
                               return out;
                             })
      .def(
          "save",
          [](const PythonSession& self, const py::object& given) {
            const std::string path = path_from(given);
            py::gil_scoped_release release;
            self.session.save(path);
          },
          py::arg("path"),
          "Write tokens, messages and cached values to a file, which keeps its mode; a new one has 0600.")
      .def(
          "park",
          [](PythonSession& self, const py::object& given) {
            const std::string path = path_from(given);
            py::gil_scoped_release release;
            self.session.park(path);
          },
          py::arg("path"),
          "The same, and give the cached values up; they come back from the file when they are needed.")
      .def_property_readonly("tokens", [](const PythonSession& self) { return self.session.tokens(); });
}

}  // namespace headrace_python
