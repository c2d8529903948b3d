// What stands behind the opaque handles: shared pointers, so that children keep parents alive and order of destruction
// does not matter.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <headrace/headrace.h>
#include <headrace/headrace_experimental.h>

#include "base/byte_source.h"
#include "engine/embedder.h"
#include "engine/engine_options.h"
#include "engine/event.h"
#include "engine/model_executor.h"
#include "engine/request.h"
#include "engine/runtime.h"
#include "engine/scheduler.h"
#include "engine/session.h"
#include "engine/transcription.h"
#include "kv/kv_cache.h"
#include "model/adapter.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace headrace::capi {

// headrace_sampling as ABI version 1 knows it, for read_struct and write_struct.
inline constexpr size_t kSamplingSize1 = offsetof(headrace_sampling, reserved) + sizeof(uint32_t);

// What a loaded model is made of. Members are destroyed from the last to the first.
struct LoadedModel {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
  std::shared_ptr<const engine::EngineModel> engine;
};

// Shared by request.cpp and session.cpp: an image of rgb [height, width, 3] bytes as the model takes it. Errors are those of
// headrace_request_add_image.
Result<std::shared_ptr<const engine::RequestImage>> read_rgb(const LoadedModel& loaded, const uint8_t* rgb,
                                                             size_t rgb_size, uint32_t height, uint32_t width);

}  // namespace headrace::capi

struct headrace_options {
  headrace::engine::EngineOptions values;
};

struct headrace_runtime {
  std::shared_ptr<const headrace::engine::Runtime> runtime;
};

struct headrace_source {
  std::shared_ptr<headrace::ByteSource> source;
};

struct headrace_model {
  std::shared_ptr<const headrace::capi::LoadedModel> loaded;
};

struct headrace_adapter {
  std::shared_ptr<const headrace::capi::LoadedModel> loaded;
  std::shared_ptr<const headrace::Adapter> adapter;
};

struct headrace_tuning {
  std::string table;
};

struct headrace_tokenizer {
  std::shared_ptr<const headrace::text::Tokenizer> tokenizer;
};

struct headrace_detokenizer {
  headrace::text::StreamingDetokenizer detokenizer;
  std::string text;  // what the last call gave out
};

struct headrace_chat_template {
  std::shared_ptr<const headrace::text::ChatTemplate> chat_template;
};

struct headrace_prompt {
  headrace::text::RenderedPrompt rendered;
};

struct headrace_kv_cache {
  std::shared_ptr<const headrace::capi::LoadedModel> loaded;
  std::shared_ptr<headrace::KvCache> cache;
};

struct headrace_session {
  std::shared_ptr<const headrace::capi::LoadedModel> loaded;
  std::shared_ptr<headrace::engine::Session> session;
  std::vector<std::shared_ptr<const headrace::engine::RequestImage>> images;  // of the next message with parts
};

struct headrace_embedder {
  std::shared_ptr<const headrace::capi::LoadedModel> loaded;
  std::shared_ptr<headrace::engine::Embedder> embedder;
};

struct headrace_request {
  std::shared_ptr<const headrace::capi::LoadedModel> loaded;
  headrace::engine::RequestParams params;
};

struct headrace_transcription {
  std::shared_ptr<const headrace::capi::LoadedModel> loaded;
  std::unique_ptr<headrace::engine::Transcription> transcription;
};

struct headrace_scheduler {
  std::shared_ptr<const headrace::capi::LoadedModel> loaded;
  std::shared_ptr<headrace::engine::Scheduler> scheduler;
};

struct headrace_event {
  std::shared_ptr<const headrace::engine::Event> event;
};

namespace headrace::capi {

// NULL options are the defaults.
inline engine::EngineOptions options_or_default(const headrace_options* options) {
  return options == nullptr ? engine::EngineOptions() : options->values;
}

// HEADRACE_ADD_SPECIAL and HEADRACE_PARSE_SPECIAL; other bits are kInvalidArgument.
Result<text::EncodeOptions> encode_options(uint32_t flags);

// Shared by chat_template.cpp and request.cpp: the three JSON arguments parsed and the template rendered. kMalformed
// with the argument's name as place for text that is not JSON.
Result<text::RenderedPrompt> render_chat(const text::ChatTemplate& chat_template, std::string_view messages,
                                         std::string_view tools, std::string_view variables, bool add_generation_prompt,
                                         int64_t now_unix_seconds);
// Special tokens count in the template's parts and never in the caller's.
Result<std::vector<int32_t>> encode_rendered(const text::Tokenizer& tokenizer, const text::RenderedPrompt& prompt);

}  // namespace headrace::capi
