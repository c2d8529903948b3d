// The named options of the C ABI: one table with key, type, default, range and words, and the typed values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "kv/block_codec.h"
#include "ops/backend.h"
#include "ops/op_profile.h"
#include "schedule/policy.h"
#include "tensor/kv_layout.h"

namespace headrace::engine {

struct Runtime;

// What a host may ask of one option. All views are static.
struct OptionInfo {
  std::string_view key;
  std::string_view type;  // "integer", "boolean", "choice", "list" or "text"
  std::string_view default_value;
  std::string_view range;  // "0..1024", "true|false", "f32|f16|bf16|q8"
  std::string_view doc;
};

// Every option, in the order of the documentation.
std::span<const OptionInfo> option_table();

// What becomes of a sequence's rows.
enum class EmbeddingPooling : int32_t { kAuto, kMean, kCls, kLast, kNone, kPooler, kScore, kLogits };

// Between the gap from one token of a decoding sequence to the next and the tokens of all per second.
enum class ScheduleMode : int32_t { kLatency, kBalanced, kThroughput };

// Values as plain members, so that C++ callers can set them directly; set() is the same by name. Copyable; one thread
// at a time per object.
struct EngineOptions {
  int32_t threads = 0;         // 0: every processor this process may use
  std::vector<int> affinity;   // processors; empty: threads are not bound
  int32_t priority = 0;        // of the model's turns among those of its runtime
  std::string device = "cpu";  // as engine/device_backend.h names them
  std::string isa = "auto";
  std::string tuning = "auto";  // "auto", "off" or a path
  ProfileMode profile = ProfileMode::kOff;
  ActivationType activations = ActivationType::kInt8;
  bool exact = false;  // weights decoded to float32
  bool use_mmap = false;
  std::string packed_cache = "off";  // "off", "auto" or a path
  bool self_check = false;
  KvDType kv_dtype = KvDType::kF16;
  int64_t kv_max_tokens = 0;  // 0: the model's context, at most 4096
  int32_t kv_block_size = 16;
  bool kv_prefix_index = true;
  int32_t kv_max_states = 0;  // of models with recurrent state; 0: max_num_seqs + 16
  int32_t kv_max_snapshots = 16;
  int32_t kv_snapshot_interval = 256;
  int64_t kv_host_bytes = 0;         // of copies of blocks that left the pool; 0: none are kept
  std::string kv_disk_path = "off";  // "off" or a folder
  int64_t kv_disk_bytes = int64_t{4} << 30;
  kv::BlockCodec kv_disk_codec = kv::BlockCodec::kNone;
  schedule::LoadChoice kv_load = schedule::LoadChoice::kAuto;
  bool zero_retention = false;
  int64_t runtime_max_bytes = 0;  // 0: no limit
  int32_t runtime_max_overtakes = 8;
  int32_t runtime_patience_us = 5000;
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 512;
  int32_t max_queue = 1024;
  ScheduleMode schedule_mode = ScheduleMode::kBalanced;
  int32_t max_gap_percent = 0;         // 0: what the mode says
  int32_t max_burst_gap_percent = 0;   // 0: what the mode says
  int32_t max_tenant_gap_percent = 0;  // 0: what the mode says
  int32_t max_gap_ms = 0;              // 0: the percentage counts
  int32_t min_prompt_rows = 0;         // 0: what the mode says
  int32_t output_weight = 2;           // an output token's service, in prompt tokens
  int32_t aging_ms = 10000;            // waiting that is worth a priority; 0: none is
  int32_t prefix_window = 8;
  int32_t max_overtakes = 8;
  int32_t max_events = 4096;  // of one request that nobody has taken; 0: no limit
  int32_t max_tenants = 1024;
  std::string drafter = "off";
  int32_t max_draft_tokens = 32;
  bool draft_always = false;
  // Of tenants without limits of their own; 0: none.
  int32_t tenant_max_num_seqs = 0;
  int32_t tenant_max_queue = 0;
  int32_t tenant_tokens_per_second = 0;
  int32_t prefill_chunk = 512;  // rows of one forward pass of Session::evaluate
  EmbeddingPooling embedder_pooling = EmbeddingPooling::kAuto;
  std::optional<bool> embedder_normalize;  // absent: embeddings are, scores and the like are not
  int32_t embedder_max_num_batched_tokens = 512;
  LogSink log;
  std::shared_ptr<const Runtime> runtime;  // null: models have threads of their own, and memory as they ask for it

  // kInvalidArgument with the key as place: an unknown key (the message lists near ones), a value that cannot be read
  // or lies out of range. Nothing changes then.
  Status set(std::string_view key, std::string_view value);
};

}  // namespace headrace::engine
