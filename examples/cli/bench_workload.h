// What `bench` runs: prompts of arbitrary tokens, and the rates at which they are computed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <headrace/headrace.hpp>

namespace cli {

// Ids spread over the vocabulary, another sequence for each seed, no special tokens among them.
std::vector<int32_t> arbitrary_tokens(const headrace::Tokenizer& tokenizer, int count, uint64_t seed);

struct Workload {
  int prompt_tokens = 512, gen_tokens = 128, batch = 1;
};

struct Rates {
  double prefill = 0, decode = 0;                  // tokens per second, all sequences together
  double prefill_seconds = 0, decode_seconds = 0;  // of wall time
};

// Runs `batch` sequences to their end. Prefill ends with the last sequence's first token, and on_prefilled is called then;
// its time belongs to neither rate, nor do tokens that other sequences decoded before. Throws a request's failure.
Rates run_workload(const Workload& workload, const headrace::Model& model, headrace::Scheduler& scheduler,
                   uint64_t seed, const std::function<void()>& on_prefilled = {});

// Runs requests to their end and gives the rate of the tokens drawn after the first of each.
double decode_rate(const std::vector<headrace::Request>& requests, headrace::Scheduler& scheduler);

}  // namespace cli
