// Embeddings, scores and masked-language logits of whole texts.
#include "engine/embedder.h"

#include <span>
#include <vector>

#include "base/checked.h"
#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

// Checks, tells the size, and computes where the buffer has room for it.
Status embed(engine::Embedder& embedder, const engine::EmbeddingInput& input, float* rows, size_t capacity,
             size_t* needed) {
  if (needed == nullptr) return null_argument("needed");
  if (rows == nullptr && capacity != 0) return null_argument("rows");
  HEADRACE_RETURN_IF_ERROR(embedder.check(input));
  const std::optional<size_t> count =
      checked_mul(embedder.num_rows(input), static_cast<size_t>(embedder.kind().row_size));
  if (!count) return invalid_argument("sequence_starts", "more rows than can be counted");
  *needed = *count;
  if (*count > capacity) {
    return Status(StatusCode::kBufferTooSmall,
                  fmt::format("{} floats do not fit into a capacity of {}", *count, capacity));
  }
  return embedder.embed(input, rows);
}

Status encode_texts(const text::Tokenizer& tokenizer, const char* const* texts, const size_t* text_sizes,
                    size_t num_texts, const text::EncodeOptions& options, std::vector<int32_t>& tokens,
                    std::vector<size_t>& starts) {
  for (size_t i = 0; i < num_texts; ++i) {
    const std::string place = fmt::format("texts[{}]", i);
    if (texts[i] == nullptr && text_sizes[i] != 0) return null_argument(place.c_str());
    if (text_sizes[i] == 0) return invalid_argument(place, "is empty");
    auto encoded = tokenizer.encode(std::string_view(texts[i], text_sizes[i]), options);
    if (!encoded.ok()) return encoded.status().within(place);
    tokens.insert(tokens.end(), encoded->begin(), encoded->end());
    starts.push_back(tokens.size());
  }
  return {};
}

}  // namespace

extern "C" {

headrace_status headrace_embedder_create(const headrace_model* model, const headrace_options* options,
                                         headrace_embedder** embedder, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (embedder == nullptr) return null_argument("embedder");
    HEADRACE_ASSIGN_OR_RETURN(auto created,
                              engine::Embedder::create(model->loaded->engine, options_or_default(options)));
    *embedder = new headrace_embedder{model->loaded, std::move(created)};
    return Status();
  });
}

void headrace_embedder_destroy(headrace_embedder* embedder) { delete embedder; }

size_t headrace_embedder_get_row_size(const headrace_embedder* embedder) {
  return embedder == nullptr ? 0 : static_cast<size_t>(embedder->embedder->kind().row_size);
}

int32_t headrace_embedder_get_pools(const headrace_embedder* embedder) {
  return embedder != nullptr && embedder->embedder->kind().pooling != Pooling::kUnknown ? 1 : 0;
}

headrace_status headrace_embedder_embed_tokens(headrace_embedder* embedder, const int32_t* tokens,
                                               const int32_t* token_types, const size_t* sequence_starts,
                                               size_t num_sequences, float* rows, size_t capacity, size_t* needed,
                                               headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (embedder == nullptr) return null_argument("embedder");
    if (sequence_starts == nullptr) return null_argument("sequence_starts");
    if (num_sequences > SIZE_MAX / sizeof(size_t) - 1) {
      return invalid_argument("num_sequences", "{} is more than can be counted", num_sequences);
    }
    engine::EmbeddingInput input;
    input.starts = std::span(sequence_starts, num_sequences + 1);
    const size_t num_tokens = input.starts.back();
    if (tokens == nullptr && num_tokens != 0) return null_argument("tokens");
    input.tokens = std::span(tokens, num_tokens);
    if (token_types != nullptr) input.token_types = std::span(token_types, num_tokens);
    return embed(*embedder->embedder, input, rows, capacity, needed);
  });
}

headrace_status headrace_embedder_embed_texts(headrace_embedder* embedder, const char* const* texts,
                                              const size_t* text_sizes, size_t num_texts, uint32_t flags, float* rows,
                                              size_t capacity, size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (embedder == nullptr) return null_argument("embedder");
    if (texts == nullptr && num_texts != 0) return null_argument("texts");
    if (text_sizes == nullptr && num_texts != 0) return null_argument("text_sizes");
    HEADRACE_ASSIGN_OR_RETURN(const text::EncodeOptions encode, encode_options(flags));
    const auto& tokenizer = embedder->loaded->engine->tokenizer;
    if (!tokenizer) return not_found("tokenizer", "the model's files hold no tokenizer");
    std::vector<int32_t> tokens;
    std::vector<size_t> starts = {0};
    HEADRACE_RETURN_IF_ERROR(encode_texts(*tokenizer, texts, text_sizes, num_texts, encode, tokens, starts));
    return embed(*embedder->embedder, {tokens, {}, starts}, rows, capacity, needed);
  });
}

}  // extern "C"
