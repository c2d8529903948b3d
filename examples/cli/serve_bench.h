// Replays a trace against a scheduler in this process, and says how long each class of requests and each tenant waited.
#pragma once

#include <string>
#include <vector>

#include <headrace/headrace.hpp>
#include <nlohmann/json.hpp>

#include "serve_plots.h"
#include "serve_trace.h"

namespace cli {

// Requests come when the trace says so, by the wall clock. {"seconds", "classes": [...], "tenants": [...], "total", "scheduler"};
// each row has "requests", "prompt_tokens", "cached_tokens", "output_tokens", "tokens_per_second" and the percentiles 50, 95 and
// 99 of "first_token_ms" and "inter_token_ms". record: filled where it is not null. Throws a request's failure.
nlohmann::ordered_json replay(const std::vector<TraceRequest>& trace, const headrace::Model& model,
                              headrace::Scheduler& scheduler, ReplayRecord* record = nullptr);
std::string replay_table(const nlohmann::ordered_json& result);

}  // namespace cli
