// Rates over the number of sequences and the length of their context.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "arguments.h"

namespace cli {

struct SweepArguments {
  std::vector<int> contexts = {512, 1024, 2048, 4096, 8192, 16384, 32768};  // tokens
  std::vector<int> batches = {1, 2, 4, 8, 16, 32, 64};
  int gen_tokens = 16;   // of each sequence in each cell
  double memory_gb = 0;  // for keys and values; 0: half of what the machine has free
};

// {"gen_tokens", "max_context", "cache_memory_bytes", "prefill": [{"context", "tokens_per_second"}], "decode": [{"context",
// "batch", "tokens_per_second"}], "left_out": [text]}. A prompt is computed once and grows from context to context; its saved
// session is restored for each sequence, so that each has keys and values of its own in memory. The contexts beyond
// max_context, the longest that leaves room for what is generated, become that one; contexts and batches whose keys and
// values exceed the memory are not measured. `left_out` says each such thing in words.
nlohmann::ordered_json run_sweep(const SweepArguments& arguments, const headrace::Model& model,
                                 const ModelArguments& model_arguments);

std::string sweep_table(const nlohmann::ordered_json& sweep);
std::string sweep_svg(const nlohmann::ordered_json& sweep, const std::string& title);

}  // namespace cli
