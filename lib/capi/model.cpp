#include <algorithm>
#include <limits>
#include <optional>

#include "capi/guard.h"
#include "capi/handles.h"
#include "formats/json_writer.h"
#include "model/memory_plan.h"
#include "model/model_header.h"
#include "model/rope_length.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

constexpr size_t kModelInfoSize1 = offsetof(headrace_model_info, has_chat_template) + sizeof(uint32_t);

LoadProgress progress_function(headrace_progress_callback progress, void* user) {
  if (progress == nullptr) return {};
  return [progress, user](double fraction) { return progress(user, fraction) == 0; };
}

Status load(ModelSource source, const headrace_options* given, headrace_progress_callback progress, void* user,
            headrace_model** model) {
  const engine::EngineOptions options = options_or_default(given);
  const std::string name = source.path.empty() ? "sources" : source.path;
  auto loaded = std::make_shared<LoadedModel>();
  HEADRACE_ASSIGN_OR_RETURN(loaded->backend, engine::make_backend(options));
  HEADRACE_ASSIGN_OR_RETURN(loaded->model, engine::load_model(std::move(source), options,
                                                              progress_function(progress, user), *loaded->backend));
  HEADRACE_ASSIGN_OR_RETURN(loaded->engine, engine::make_engine_model(loaded->model, loaded->backend, options));
  log_line(options.log, LogLevel::kInfo, "model", fmt::format("loaded {} on {}", name, loaded->backend->name()));
  *model = new headrace_model{std::move(loaded)};
  return Status();
}

uint64_t kv_bytes_per_token(const MemoryPlan& plan, KvDType dtype) {
  for (const MemoryPlanRow& row : plan.rows) {
    if (row.dtype == dtype) return row.bytes_per_token;
  }
  return 0;
}

void write_plan(JsonWriter& out, const MemoryPlan& plan) {
  out.begin_object();
  out.member("memory_bytes", plan.memory_bytes);
  out.member("weight_bytes", plan.weight_bytes);
  out.member("workspace_bytes", plan.workspace_bytes);
  out.member("state_bytes_per_sequence", plan.state_bytes);
  out.key("fits");
  out.begin_array();
  for (const MemoryPlanRow& row : plan.rows) {
    out.begin_object();
    out.member("kv_dtype", kv_dtype_name(row.dtype));
    out.member("bytes_per_1000_tokens", row.bytes_per_token * 1000);
    out.member("cache_tokens", row.cache_tokens);
    out.member("max_context", row.max_context);
    out.key("max_batch_at_context");
    out.begin_object();
    for (const int64_t context : {1024, 4096, 16384}) out.member(std::to_string(context), row.max_batch(context));
    out.end_object();
    out.end_object();
  }
  out.end_array();
  out.end_object();
}

// A number that the model's files recommend, as the sampler takes it. What float32 cannot hold is out of every range.
float recommended(std::optional<double> value, double fallback) {
  const double number = value.value_or(fallback);
  const double largest = std::numeric_limits<float>::max();
  return number >= -largest && number <= largest ? static_cast<float>(number) : std::numeric_limits<float>::quiet_NaN();
}

// kMalformed with the field as place where the files recommend what no request may ask for.
Result<SamplingParams> recommended_sampling(const GenerationDefaults& defaults, int32_t vocab_size) {
  SamplingParams params;
  params.temperature = 0;
  // As transformers reads generation_config.json: without do_sample the other values are not used.
  if (defaults.do_sample.value_or(false)) {
    params.temperature = recommended(defaults.temperature, 1.0);
    params.top_p = recommended(defaults.top_p, 1.0);
    params.min_p = recommended(defaults.min_p, 0.0);
    const int64_t top_k = defaults.top_k.value_or(50);
    if (top_k > INT32_MAX) return malformed("top_k", "the model's files recommend {}", top_k);
    params.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, -1));  // any negative number is refused below
  }
  params.repetition_penalty = recommended(defaults.repetition_penalty, 1.0);
  const Status status = params.validate(vocab_size);
  if (!status.ok()) return malformed(status.place(), "of the model's recommendation: {}", status.message());
  return params;
}

}  // namespace

extern "C" {

headrace_status headrace_model_load(const char* path, size_t path_size, const headrace_options* options,
                                    headrace_progress_callback progress, void* user, headrace_model** model,
                                    headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, path_argument(path, path_size));
    ModelSource source;
    source.path = std::string(text);
    return load(std::move(source), options, progress, user, model);
  });
}

headrace_status headrace_model_load_sources(headrace_source* const* sources, size_t num_sources,
                                            const headrace_options* options, headrace_progress_callback progress,
                                            void* user, headrace_model** model, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (sources == nullptr || num_sources == 0) return invalid_argument("sources", "there are none");
    ModelSource source;
    for (size_t i = 0; i < num_sources; ++i) {
      if (sources[i] == nullptr) return invalid_argument(fmt::format("sources[{}]", i), "is NULL");
      source.sources.push_back(sources[i]->source);
    }
    return load(std::move(source), options, progress, user, model);
  });
}

void headrace_model_destroy(headrace_model* model) { delete model; }

void headrace_model_info_init(headrace_model_info* info) { init_struct(info); }

headrace_status headrace_model_get_info(const headrace_model* model, headrace_model_info* info,
                                        headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    const Model& loaded = *model->loaded->model;
    headrace_model_info values = {};
    values.vocab_size = loaded.spec().vocab_size;
    values.hidden_size = loaded.spec().hidden_size;
    values.num_layers = static_cast<int32_t>(loaded.spec().layers.size());
    values.max_position_embeddings = longest_sequence(loaded.spec());
    values.num_parameters = loaded.num_parameters();
    values.weight_bytes = loaded.weights().bytes;
    values.kv_bytes_per_token = kv_bytes_per_token(loaded.plan(0), KvDType::kF16);
    values.num_threads = model->loaded->backend->num_threads();
    values.has_chat_template = loaded.holds_chat_templates() ? 1 : 0;
    return write_struct("info", values, info, kModelInfoSize1);
  });
}

headrace_status headrace_model_describe(const headrace_model* model, char* buffer, size_t capacity, size_t* needed,
                                        headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    const Model& loaded = *model->loaded->model;
    const std::string_view backend = model->loaded->backend->name();
    JsonWriter out;
    out.begin_object();
    out.members_of(loaded.description());
    out.member("backend", backend);
    out.member("isa", backend.substr(backend.find('/') + 1));
    out.member("threads", model->loaded->backend->num_threads());
    // A decode step reads every weight once, but of the embedding table only the rows of its tokens.
    const uint64_t embedding_bytes = loaded.weights().embedding.weight->bytes();
    out.member("decode_weight_bytes", loaded.weights().bytes - (loaded.weights().lm_head ? embedding_bytes : 0));
    out.end_object();
    return copy_text(out.text(), buffer, capacity, needed);
  });
}

headrace_status headrace_model_inspect(const char* path, size_t path_size, uint64_t memory_bytes, char* buffer,
                                       size_t capacity, size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, path_argument(path, path_size));
    ModelSource source;
    source.path = std::string(text);
    HEADRACE_ASSIGN_OR_RETURN(const ModelHeader header, ModelHeader::read(source));
    const MemoryPlan plan = header.plan(memory_bytes);
    JsonWriter out;
    out.begin_object();
    out.members_of(header.describe());
    out.key("kv_bytes_per_1000_tokens");
    out.begin_object();
    for (const MemoryPlanRow& row : plan.rows) out.member(kv_dtype_name(row.dtype), row.bytes_per_token * 1000);
    out.end_object();
    if (memory_bytes != 0) {
      out.key("memory_plan");
      write_plan(out, plan);
    }
    out.end_object();
    return copy_text(out.text(), buffer, capacity, needed);
  });
}

headrace_status headrace_model_get_sampling(const headrace_model* model, headrace_sampling* sampling,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    const Model& loaded = *model->loaded->model;
    HEADRACE_ASSIGN_OR_RETURN(const SamplingParams params,
                              recommended_sampling(loaded.generation_defaults(), loaded.spec().vocab_size));
    headrace_sampling values;
    headrace_sampling_init(&values);
    values.temperature = params.temperature;
    values.top_k = params.top_k;
    values.top_p = params.top_p;
    values.min_p = params.min_p;
    values.repetition_penalty = params.repetition_penalty;
    return write_struct("sampling", values, sampling, kSamplingSize1);
  });
}

}  // extern "C"
