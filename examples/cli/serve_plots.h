// What happened in a replay, as charts.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace cli {

// Of the requests of a class or a tenant, milliseconds.
struct Latencies {
  std::vector<double> first_token_ms, inter_token_ms;
};

// The engine at one moment.
struct EngineMoment {
  double seconds = 0;                           // since the start
  double output_tokens = 0, prompt_tokens = 0;  // drawn and computed up to here
  double running = 0, waiting = 0;              // sequences
};

struct ReplayRecord {
  std::map<std::string, Latencies> classes, tenants;
  std::vector<EngineMoment> moments;  // in their order, at least one
};

// File names and contents: first_token.svg and inter_token.svg have the distributions of classes and tenants, timeline.svg rates
// and sequences over time.
std::map<std::string, std::string> serve_plots(const ReplayRecord& record, const std::string& title);

}  // namespace cli
