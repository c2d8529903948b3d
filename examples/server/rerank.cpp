// POST /v1/rerank: documents in the order of how well they answer a query.
#include <algorithm>
#include <cmath>
#include <utility>

#include "context.h"
#include "sampling_fields.h"

namespace server {
namespace {

constexpr size_t kDocumentsAtATime = 16;

struct Ranked {
  size_t index;
  double score;
};

using Tokens = std::vector<int32_t>;

std::string text_of(const Json& document) {
  return document.is_string() ? document.get<std::string>() : document.at("text").get<std::string>();
}

// A pair as the model's tokenizer writes it: what it sets before and behind a text goes before, between and behind both.
class PairWriter {
 public:
  PairWriter(const ServedModel& served, const std::string& query) : tokenizer_(served.tokenizer()) {
    const Tokens plain = tokenizer_.encode(query, false, false), whole = tokenizer_.encode(query, false, true);
    const auto found = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
    query_ = whole;
    suffix_.assign(found == whole.end() ? whole.end() : found + plain.size(), whole.end());
    const Json& description = served.description();
    has_segments_ = description.value("token_types", 0) > 1;
    // RoBERTa and its kin, which count positions from behind the padding token, end the first text twice.
    repeats_suffix_ = description.contains("position_padding_id");
  }

  void write(const std::string& document, Tokens& tokens, Tokens& segments) const {
    tokens = query_;
    if (repeats_suffix_) tokens.insert(tokens.end(), suffix_.begin(), suffix_.end());
    segments.assign(tokens.size(), 0);
    const Tokens text = tokenizer_.encode(document, false, false);
    tokens.insert(tokens.end(), text.begin(), text.end());
    tokens.insert(tokens.end(), suffix_.begin(), suffix_.end());
    segments.resize(tokens.size(), has_segments_ ? 1 : 0);
  }

 private:
  const headrace::Tokenizer& tokenizer_;
  Tokens query_, suffix_;
  bool has_segments_ = false, repeats_suffix_ = false;
};

double cosine(const float* a, const float* b, size_t size) {
  double product = 0, norm_a = 0, norm_b = 0;
  for (size_t i = 0; i < size; ++i) {
    product += static_cast<double>(a[i]) * b[i];
    norm_a += static_cast<double>(a[i]) * a[i];
    norm_b += static_cast<double>(b[i]) * b[i];
  }
  return norm_a > 0 && norm_b > 0 ? product / std::sqrt(norm_a * norm_b) : 0;
}

// A classifier of one label reads query and document together; of the other models the vectors of both are compared.
void rerank(Context& context, const Call& call) {
  const Json& body = call.body;
  const ServedModels::Choice choice = context.models.choose(body);
  if (choice.adapter) {
    throw ApiError(400, "an adapter reranks nothing", "model", "unsupported");
  }
  headrace::Embedder& embedder = choice.served.embedder();
  if (!embedder.pools()) throw ApiError(400, "the server's pooling gives a row for each token", "model", "unsupported");
  const bool is_classifier = choice.served.description().value("num_labels", 0) > 0;
  const size_t size = embedder.row_size();
  if (is_classifier && size != 1)
    throw ApiError(400, "the model's classifier has more than one label", "model", "unsupported");
  const std::string query = body.at("query").get<std::string>();
  const Json& documents = body.at("documents");
  const headrace::Tokenizer& tokenizer = choice.served.tokenizer();
  const PairWriter pairs(choice.served, query);
  std::vector<float> query_row;
  try {
    if (!is_classifier) query_row = embedder.embed(std::vector<Tokens>{tokenizer.encode(query, false, true)});
  } catch (const headrace::Error& error) {
    throw ApiError(error, "query");
  }

  std::vector<Ranked> ranked;
  size_t num_tokens = 0;
  for (size_t begin = 0; begin < documents.size(); begin += kDocumentsAtATime) {
    if (call.exchange->is_gone()) return;
    std::vector<Tokens> sequences, segments;
    for (size_t i = begin; i < std::min(begin + kDocumentsAtATime, documents.size()); ++i) {
      const std::string text = text_of(documents[i]);
      sequences.emplace_back();
      segments.emplace_back();
      if (is_classifier) {
        pairs.write(text, sequences.back(), segments.back());
      } else {
        sequences.back() = tokenizer.encode(text, false, true);
      }
      num_tokens += sequences.back().size();
    }
    std::vector<float> rows;
    try {
      rows = is_classifier ? embedder.embed(sequences, segments) : embedder.embed(sequences);
    } catch (const headrace::Error& error) {
      throw at_element(error, "documents", begin);
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      const float* row = rows.data() + i * size;
      ranked.push_back({begin + i, is_classifier ? 1 / (1 + std::exp(-static_cast<double>(*row)))
                                                 : cosine(query_row.data(), row, size)});
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.score > b.score; });
  ranked.resize(std::min<size_t>(ranked.size(), static_cast<size_t>(integer_field(body, "top_n", INT32_MAX))));
  OrderedJson results = OrderedJson::array();
  for (const Ranked& one : ranked) {
    OrderedJson result = {{"index", one.index}, {"relevance_score", one.score}};
    if (flag_field(body, "return_documents", false)) result["document"] = {{"text", text_of(documents[one.index])}};
    results.push_back(std::move(result));
  }
  call.reply({{"id", new_id("rerank-")},
              {"model", choice.name},
              {"usage", {{"total_tokens", num_tokens}}},
              {"results", std::move(results)}});
}

}  // namespace

void add_rerank(Router& router, Context& context) {
  router.add({"POST", "/v1/rerank", Access::kKey, Place::kCompute, "RerankRequest",
              [&context](Call call) { rerank(context, call); }});
}

}  // namespace server
