// POST /v1/embeddings
#include <cmath>
#include <cstring>
#include <utility>

#include "context.h"
#include "image_data.h"
#include "sampling_fields.h"

namespace server {
namespace {

constexpr size_t kTextsAtATime = 16;  // between two looks at whether the client is still there

OrderedJson vector_json(const float* values, size_t count, bool is_base64) {
  if (is_base64) {
    std::string bytes(count * sizeof(float), '\0');
    std::memcpy(bytes.data(), values, bytes.size());
    return encode_base64(bytes);
  }
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < count; ++i) list.push_back(values[i]);
  return list;
}

// Of a text, an array of texts, an array of tokens, or an array of arrays of tokens.
bool is_one_text(const Json& input) { return input.is_string() || input[0].is_number(); }

std::vector<std::vector<int32_t>> read_inputs(const Json& input, const headrace::Tokenizer& tokenizer) {
  const auto read = [&tokenizer](const Json& one) {
    if (one.is_string()) return tokenizer.encode(one.get_ref<const std::string&>(), false, true);
    return one.get<std::vector<int32_t>>();
  };
  std::vector<std::vector<int32_t>> inputs;
  if (is_one_text(input)) {
    inputs.push_back(read(input));
  } else {
    for (const Json& one : input) inputs.push_back(read(one));
  }
  return inputs;
}

void embed(Context& context, const Call& call) {
  const Json& body = call.body;
  const ServedModels::Choice choice = context.models.choose(body);
  if (choice.adapter) {
    throw ApiError(400, "an adapter gives no embeddings", "model", "unsupported");
  }
  headrace::Embedder& embedder = choice.served.embedder();
  if (!embedder.pools()) throw ApiError(400, "the server's pooling gives a row for each token", "model", "unsupported");
  const size_t size = embedder.row_size();
  if (integer_field(body, "dimensions", static_cast<int64_t>(size)) != static_cast<int64_t>(size)) {
    throw ApiError(400, "the model's embeddings have " + std::to_string(size) + " dimensions", "dimensions",
                   "unsupported_parameter");
  }
  const bool is_base64 = text_field(body, "encoding_format", "float") == "base64";
  const std::vector<std::vector<int32_t>> inputs = read_inputs(body.at("input"), choice.served.tokenizer());
  const bool is_one = is_one_text(body.at("input"));
  OrderedJson data = OrderedJson::array();
  size_t num_tokens = 0;
  for (size_t begin = 0; begin < inputs.size(); begin += kTextsAtATime) {
    if (call.exchange->is_gone()) return;
    const size_t end = std::min(begin + kTextsAtATime, inputs.size());
    const std::vector<std::vector<int32_t>> part(inputs.begin() + begin, inputs.begin() + end);
    std::vector<float> rows;
    try {
      rows = embedder.embed(part);
    } catch (const headrace::Error& error) {
      throw is_one ? ApiError(error, "input") : at_element(error, "input", begin);
    }
    for (size_t i = begin; i < end; ++i) {
      num_tokens += inputs[i].size();
      data.push_back({{"object", "embedding"},
                      {"index", i},
                      {"embedding", vector_json(rows.data() + (i - begin) * size, size, is_base64)}});
    }
  }
  call.reply({{"object", "list"},
              {"data", std::move(data)},
              {"model", choice.name},
              {"usage", {{"prompt_tokens", num_tokens}, {"total_tokens", num_tokens}}}});
}

}  // namespace

void add_embeddings(Router& router, Context& context) {
  router.add({"POST", "/v1/embeddings", Access::kKey, Place::kCompute, "EmbeddingRequest",
              [&context](Call call) { embed(context, call); }});
}

}  // namespace server
