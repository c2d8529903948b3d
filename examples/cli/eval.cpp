// headrace eval: perplexity of a text, and the distance to a reference run of the same text.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "output_file.h"
#include "progress.h"
#include "reference_file.h"
#include "statistics.h"

namespace cli {
namespace {

struct EvalArguments {
  ModelArguments model;
  std::string text, save_reference, reference;
  int context = 512, max_tokens = 0;
  bool exact = false, json = false;
};

// What one scored position says.
struct Scores {
  std::vector<double> negative_log_probs;  // of the token that follows
  std::vector<double> kl;                  // sum p_ref (log p_ref - log p), nats
  int64_t same_top = 0;
};

double kl_divergence(const std::vector<double>& reference, const std::vector<double>& log_probs) {
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) kl += std::exp(reference[i]) * (reference[i] - log_probs[i]);
  return kl;
}

size_t argmax(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

// Whole windows of the text; each begins with BOS where the model's tokenizer adds one.
std::vector<int32_t> window_tokens(const EvalArguments& arguments, const headrace::Model& model) {
  const headrace::Tokenizer tokenizer = model.tokenizer();
  std::vector<int32_t> tokens = tokenizer.encode(read_file(arguments.text), /*parse_special=*/false);
  const bool adds_bos = tokenizer.bos() && !tokens.empty() && tokens[0] == *tokenizer.bos();
  size_t count = tokens.size();
  if (arguments.max_tokens > 0) count = std::min(count, static_cast<size_t>(arguments.max_tokens));
  const size_t context = static_cast<size_t>(arguments.context);
  tokens.resize(count / context * context);
  if (tokens.empty()) {
    throw headrace::Error(HEADRACE_INVALID_ARGUMENT,
                          std::to_string(count) + " tokens are fewer than one window of " + std::to_string(context),
                          arguments.text);
  }
  for (size_t begin = 0; adds_bos && begin < tokens.size(); begin += context) tokens[begin] = *tokenizer.bos();
  return tokens;
}

nlohmann::ordered_json report(const Scores& scores, const EvalArguments& arguments, size_t num_tokens) {
  const Mean nll = mean(scores.negative_log_probs);
  nlohmann::ordered_json out = {{"tokens", num_tokens},
                                {"context", arguments.context},
                                {"scored", scores.negative_log_probs.size()},
                                {"perplexity", std::exp(nll.value)},
                                {"perplexity_standard_error", std::exp(nll.value) * nll.standard_error}};
  if (scores.kl.empty()) return out;
  const Mean kl = mean(scores.kl);
  const Mean top = share(scores.same_top, static_cast<int64_t>(scores.kl.size()));
  out["mean_kl"] = kl.value;
  out["mean_kl_standard_error"] = kl.standard_error;
  nlohmann::ordered_json percentiles;
  for (const char* name : {"0", "1", "5", "10", "50", "90", "95", "99", "99.9", "100"}) {
    percentiles[name] = percentile(scores.kl, std::stod(name) / 100);
  }
  out["kl_percentiles"] = percentiles;
  out["top1_agreement"] = top.value;
  out["top1_agreement_standard_error"] = top.standard_error;
  return out;
}

void evaluate(const EvalArguments& arguments) {
  if (!arguments.save_reference.empty()) {
    require_output(arguments.save_reference, arguments.model.path, {arguments.reference, arguments.text});
  }
  headrace::Options options =
      arguments.exact ? arguments.model.options({"kv.max_tokens", "kv.prefix_index", "kv.dtype", "model.exact"})
                      : arguments.model.options({"kv.max_tokens", "kv.prefix_index"});
  if (arguments.exact) options.set("model.exact", "true");
  if (arguments.exact && arguments.model.kv_dtype.empty()) options.set("kv.dtype", "f32");
  options.set("kv.max_tokens", std::to_string(std::max(arguments.context, 64)));
  options.set("kv.prefix_index", "false");
  const headrace::Model model = arguments.model.load(options);
  const std::vector<int32_t> tokens = window_tokens(arguments, model);
  const size_t vocab_size = static_cast<size_t>(model.info().vocab_size);

  std::unique_ptr<ReferenceWriter> writer;
  std::unique_ptr<ReferenceReader> reader;
  const ReferenceHeader header{arguments.context, model.info().vocab_size, tokens};
  if (!arguments.reference.empty()) {
    reader = std::make_unique<ReferenceReader>(arguments.reference);
    if (reader->header().context != header.context || reader->header().vocab_size != header.vocab_size ||
        reader->header().tokens != header.tokens) {
      throw headrace::Error(HEADRACE_FAILED_PRECONDITION, "was made from another text, context or vocabulary",
                            arguments.reference);
    }
  }
  if (!arguments.save_reference.empty()) writer = std::make_unique<ReferenceWriter>(arguments.save_reference, header);

  const size_t context = static_cast<size_t>(arguments.context), first = context / 2;
  constexpr size_t kChunk = 64;  // bounds the memory for logits; the result does not depend on it
  std::vector<float> logits(kChunk * vocab_size);
  std::vector<double> log_probs, reference;
  Scores scores;
  ProgressBar bar("evaluating");
  headrace::Session session(model, options);
  for (size_t window = 0; window < tokens.size(); window += context) {
    session.rewind(0);
    for (size_t begin = 0; begin < context; begin += kChunk) {
      const size_t count = std::min(kChunk, context - begin);
      session.evaluate(tokens.data() + window + begin, count, logits.data(), logits.size());
      for (size_t row = 0; row < count; ++row) {
        const size_t position = begin + row;
        if (position < first || position + 1 >= context)
          continue;  // half a window of past at least, and a token to predict
        const float* row_logits = logits.data() + row * vocab_size;
        log_softmax(row_logits, vocab_size, log_probs);
        scores.negative_log_probs.push_back(-log_probs[static_cast<size_t>(tokens[window + position + 1])]);
        if (writer) writer->write(row_logits);
        if (!reader) continue;
        reader->read(reference);
        scores.kl.push_back(kl_divergence(reference, log_probs));
        scores.same_top += argmax(reference) == argmax(log_probs) ? 1 : 0;
      }
      bar.show(static_cast<double>(window + begin + count) / static_cast<double>(tokens.size()));
    }
  }
  if (writer) writer->close();

  const nlohmann::ordered_json out = report(scores, arguments, tokens.size());
  if (arguments.json) {
    std::cout << out.dump() << "\n";
    return;
  }
  std::cout << "tokens " << out["tokens"] << ", scored " << out["scored"] << ", perplexity " << out["perplexity"]
            << " +- " << out["perplexity_standard_error"] << "\n";
  if (reader) {
    std::cout << "mean KL " << out["mean_kl"] << " +- " << out["mean_kl_standard_error"] << ", top-1 agreement "
              << out["top1_agreement"] << " +- " << out["top1_agreement_standard_error"] << "\n"
              << "KL percentiles " << out["kl_percentiles"].dump() << "\n";
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand("eval", "perplexity of a text, and KL against a reference run");
  arguments->model.add_to(*command);
  command->add_option("--text", arguments->text, "the text; - reads standard input")->required();
  command->add_option("--context", arguments->context, "tokens of a window, the second half is scored")
      ->transform(within(8, 1 << 20));
  command->add_option("--tokens", arguments->max_tokens, "use at most this many tokens of the text (0: all)")
      ->transform(within(0, INT32_MAX));
  command->add_option("--save-reference", arguments->save_reference, "write this run's log-probabilities to a file");
  command->add_option("--reference", arguments->reference, "compare with such a file");
  command->add_flag("--exact", arguments->exact, "run the same weights dequantized, everything in float32");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments] { evaluate(*arguments); });
}

}  // namespace cli
