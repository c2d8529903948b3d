// Requests to real models: loading one, tokens and values that a seed stands for, and runs to the end.
#pragma once

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "base/hash.h"
#include "engine/model_executor.h"
#include "engine/scheduler.h"
#include "model/model_header.h"

namespace headrace::engine::real {

using ModelHandle = std::shared_ptr<const EngineModel>;

inline const std::string kModels = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";

// Whether HEADRACE_TEST_DATA has that golden model; says so where not.
inline bool have_model(const std::string& name) {
  if (std::ifstream(kModels + name + "/config.json").good()) return true;
  std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
  return false;
}

inline ModelHandle load_source(ModelSource source, const EngineOptions& options) {
  auto model = load_engine_model(std::move(source), options);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  return model.take();
}

// A golden model by its name.
inline ModelHandle load_golden(const std::string& name, int32_t threads) {
  EngineOptions options;
  options.threads = threads;
  ModelSource source;
  source.path = kModels + name;
  return load_source(std::move(source), options);
}

// Of `count` ids from `first` on.
inline std::vector<int32_t> seeded_tokens(size_t size, uint64_t seed, int32_t first = 8, uint64_t count = 300) {
  std::vector<int32_t> out(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t key[2] = {seed, i};
    out[i] = first + static_cast<int32_t>(hash64(key, sizeof key) % count);
  }
  return out;
}

// In [-1, 1).
inline std::vector<float> seeded_floats(size_t size, uint64_t seed) {
  std::vector<float> out(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t key[2] = {seed, i};
    out[i] = static_cast<float>(hash64(key, sizeof key) >> 40) * 0x1p-23f - 1.0f;
  }
  return out;
}

inline bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Of the most likely tokens at each position.
inline void add_logprobs(std::vector<float>& to, const Event& event) {
  for (const TopLogprobs& top : event.top_logprobs) to.insert(to.end(), top.logprobs.begin(), top.logprobs.end());
}

// Submits all and steps until nothing is left; `hear` is told every event, and none is of a failure.
inline void run_requests(Scheduler& scheduler, std::vector<RequestParams> requests,
                         const std::function<void(const Event&)>& hear) {
  for (RequestParams& params : requests) {
    const auto id = scheduler.submit(std::move(params));
    INFO(id.status().to_string());
    REQUIRE(id.ok());
  }
  for (bool more = true; more;) {
    const auto stepped = scheduler.step();
    REQUIRE(stepped.ok());
    more = *stepped;
    while (auto event = scheduler.next_event()) {
      INFO(event->status.to_string());
      REQUIRE(event->type != EventType::kFailed);
      hear(*event);
    }
    const Status law = scheduler.check_invariants();
    INFO(law.to_string());
    REQUIRE(law.ok());
  }
}

// In order of the keys.
template <class Key, class Value>
std::vector<Value> values_of(std::map<Key, Value> by_key) {
  std::vector<Value> out;
  for (auto& [key, value] : by_key) out.push_back(std::move(value));
  return out;
}

inline std::shared_ptr<Scheduler> scheduler_of(const ModelHandle& model, const EngineOptions& options,
                                               std::shared_ptr<KvCache> cache = nullptr) {
  auto scheduler = Scheduler::create(model, std::move(cache), options);
  INFO(scheduler.status().to_string());
  REQUIRE(scheduler.ok());
  return scheduler.take();
}

}  // namespace headrace::engine::real
