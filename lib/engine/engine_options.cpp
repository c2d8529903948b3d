#include "engine/engine_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "base/cpu_features.h"
#include "base/processor_list.h"
#include "engine/device_backend.h"

namespace headrace::engine {
namespace {

using Setter = Status (*)(EngineOptions& options, const OptionInfo& info, std::string_view value);

struct Option {
  OptionInfo info;
  Setter set;
};

template <class T>
std::optional<T> read_integer(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// The value is quoted in messages: bounded, and without bytes that are no text.
std::string quoted(std::string_view value) {
  std::string out = "\"";
  for (const char c : value.substr(0, 40)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return out + (value.size() > 40 ? "...\"" : "\"");
}

Status refuse(const OptionInfo& info, std::string_view value) {
  return invalid_argument(std::string(info.key), "{} is no {} of the range {}", quoted(value), info.type, info.range);
}

template <auto Member, int64_t Low, int64_t High>
Status set_integer(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  const auto number = read_integer<int64_t>(value);
  if (!number || *number < Low || *number > High) return refuse(info, value);
  using T = std::remove_reference_t<decltype(options.*Member)>;
  options.*Member = static_cast<T>(*number);
  return Status();
}

template <auto Member>
Status set_boolean(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  if (value != "true" && value != "false") return refuse(info, value);
  options.*Member = value == "true";
  return Status();
}

Status set_isa(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  // Known names only; whether this machine has it is asked when a model is loaded.
  bool known = value == "auto";
  for (const Isa isa : kAllIsas) known |= value == isa_name(isa);
  if (!known) return refuse(info, value);
  options.isa = std::string(value);
  return Status();
}

Status set_device(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  // Names alone; whether there is such a device is asked when a model is loaded.
  if (value.size() > 32 || !is_device_name(value)) return refuse(info, value);
  options.device = std::string(value);
  return Status();
}

Status set_affinity(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  auto processors = parse_processor_list(value);
  if (!processors.ok()) {
    return invalid_argument(std::string(info.key), "{}: {}", quoted(value), processors.status().message());
  }
  options.affinity = processors.take();
  return Status();
}

// A word, or a path that the system's calls take.
template <auto Member>
Status set_path(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  constexpr size_t kLongestPath = 4096;
  if (value.empty() || value.size() > kLongestPath || value.find('\0') != std::string_view::npos) {
    return refuse(info, value);
  }
  options.*Member = std::string(value);
  return Status();
}

Status set_profile(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  if (value == "off") {
    options.profile = ProfileMode::kOff;
  } else if (value == "ops") {
    options.profile = ProfileMode::kSums;
  } else if (value == "trace") {
    options.profile = ProfileMode::kTrace;
  } else {
    return refuse(info, value);
  }
  return Status();
}

Status set_activations(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  if (value == "int8") {
    options.activations = ActivationType::kInt8;
  } else if (value == "int16") {
    options.activations = ActivationType::kInt16;
  } else if (value == "float32") {
    options.activations = ActivationType::kFloat32;
  } else {
    return refuse(info, value);
  }
  return Status();
}

Status set_kv_dtype(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    if (value == kv_dtype_name(dtype)) {
      options.kv_dtype = dtype;
      return Status();
    }
  }
  return refuse(info, value);
}

Status set_disk_codec(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  // Known names only; whether this build has it is asked when a cache is made.
  for (const kv::BlockCodec codec : {kv::BlockCodec::kNone, kv::BlockCodec::kZstd}) {
    if (value == kv::codec_name(codec)) {
      options.kv_disk_codec = codec;
      return Status();
    }
  }
  return refuse(info, value);
}

Status set_load(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  if (value == "auto") {
    options.kv_load = schedule::LoadChoice::kAuto;
  } else if (value == "always") {
    options.kv_load = schedule::LoadChoice::kAlways;
  } else if (value == "never") {
    options.kv_load = schedule::LoadChoice::kNever;
  } else {
    return refuse(info, value);
  }
  return Status();
}

Status set_block_size(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  const auto number = read_integer<int32_t>(value);
  if (!number || *number < kKvTile || *number > 1024 || *number % kKvTile != 0) return refuse(info, value);
  options.kv_block_size = *number;
  return Status();
}

Status set_schedule_mode(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  if (value == "latency") {
    options.schedule_mode = ScheduleMode::kLatency;
  } else if (value == "balanced") {
    options.schedule_mode = ScheduleMode::kBalanced;
  } else if (value == "throughput") {
    options.schedule_mode = ScheduleMode::kThroughput;
  } else {
    return refuse(info, value);
  }
  return Status();
}

// Names; whether a scheduler has such drafters is asked when it is made.
Status set_drafter(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  if (value.empty() || value.size() > 4096 || value.find('\0') != std::string_view::npos) return refuse(info, value);
  options.drafter = std::string(value);
  return Status();
}

Status set_pooling(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  using Kind = EmbeddingPooling;
  constexpr std::pair<std::string_view, Kind> kNames[] = {
      {"auto", Kind::kAuto}, {"mean", Kind::kMean},     {"cls", Kind::kCls},     {"last", Kind::kLast},
      {"none", Kind::kNone}, {"pooler", Kind::kPooler}, {"score", Kind::kScore}, {"logits", Kind::kLogits}};
  for (const auto& [name, kind] : kNames) {
    if (value != name) continue;
    options.embedder_pooling = kind;
    return Status();
  }
  return refuse(info, value);
}

Status set_normalize(EngineOptions& options, const OptionInfo& info, std::string_view value) {
  if (value != "auto" && value != "true" && value != "false") return refuse(info, value);
  options.embedder_normalize.reset();
  if (value != "auto") options.embedder_normalize = value == "true";
  return Status();
}

constexpr Option kOptions[] = {
    {{"engine.threads", "integer", "0", "0..1024",
      "Threads of the kernels; 0 takes every processor that the process may use."},
     set_integer<&EngineOptions::threads, 0, 1024>},
    {{"engine.isa", "choice", "auto", "auto|baseline|avx2|avx_vnni|avx512_vnni|neon|neon_dotprod",
      "Instruction set of the kernels; auto is the strongest of the machine. One the machine lacks is refused when a "
      "model is loaded."},
     set_isa},
    {{"engine.affinity", "list", "", "0..8191",
      "Processors such as 0-3,8: thread t is bound to the one at t in the list, which is gone over again where it is "
      "shorter. Thread 0 is the host's, which calls; it is left as it is, to be bound by the host. With engine.threads "
      "= 0 there are as many threads as processors. One that the process cannot have is refused when a model is "
      "loaded."},
     set_affinity},
    {{"engine.priority", "integer", "0", "-1000..1000",
      "Of the model's forward passes among those of other models on its runtime; higher goes first."},
     set_integer<&EngineOptions::priority, -1000, 1000>},
    {{"engine.tuning", "text", "auto", "auto|off|path",
      "Measured choices of how products are computed, none of which changes a bit: auto takes the table shipped for "
      "this processor, if there is one; a path, the file that headrace tune wrote. One of another processor or "
      "instruction set is refused when a model is loaded."},
     set_path<&EngineOptions::tuning>},
    {{"engine.profile", "choice", "off", "off|ops|trace",
      "Measure the model's ops for headrace_model_describe_profile; trace also keeps each call, for "
      "headrace_model_describe_trace. Off costs nothing."},
     set_profile},
    {{"model.device", "text", "cpu", "cpu|cuda|cuda:N|emulated-cuda",
      "Where the model is computed and its cache lies: the processor, or the CUDA device of this number by way of "
      "libheadrace-cuda.so; emulated-cuda, of test builds, is CUDA on the processor. A device that is not there, or "
      "lacks an op that the model needs, is refused when the model is loaded; nothing goes to the processor instead."},
     set_device},
    {{"model.activations", "choice", "int8", "int8|int16|float32",
      "How layers with quantized weights see their inputs; float32 keeps the weights decoded, as model.exact does."},
     set_activations},
    {{"model.exact", "boolean", "false", "true|false",
      "Keep quantized weights decoded in float32: four bytes per weight, and no rounding of activations."},
     set_boolean<&EngineOptions::exact>},
    {{"model.use_mmap", "boolean", "false", "true|false",
      "Map the file while loading instead of reading it; a file that shrinks meanwhile then raises SIGBUS."},
     set_boolean<&EngineOptions::use_mmap>},
    {{"model.packed_cache", "text", "off", "off|auto|path",
      "Keep packed weights in this file: the first load writes it and later ones map it, share its pages and pack "
      "nothing. auto is the model's first file with .packed added. A file that does not fit is written anew; one that "
      "is changed or cut while mapped changes results or raises SIGBUS."},
     set_path<&EngineOptions::packed_cache>},
    {{"model.self_check", "boolean", "false", "true|false",
      "Before a model is used, compare each op that it needs, with its own weights and kv.dtype, with the scalar "
      "reference: a kernel that this machine computes wrongly fails the load, by the op's name. It costs about as much "
      "as a prompt of 50 tokens."},
     set_boolean<&EngineOptions::self_check>},
    {{"kv.dtype", "choice", "f16", "f32|f16|bf16|q8",
      "Type of cached keys and values; q8 has 8-bit codes with a float16 scale per 32."},
     set_kv_dtype},
    {{"kv.max_tokens", "integer", "0", "0..1073741824",
      "Tokens the cache holds over all sequences, rounded up to blocks; 0 is the model's context, at most 4096. It "
      "also "
      "bounds the context of one sequence."},
     set_integer<&EngineOptions::kv_max_tokens, 0, int64_t{1} << 30>},
    {{"kv.block_size", "integer", "16", "16..1024, multiples of 16", "Tokens of one block, the unit of sharing."},
     set_block_size},
    {{"kv.prefix_index", "boolean", "true", "true|false", "Find the blocks of prompts seen before and share them."},
     set_boolean<&EngineOptions::kv_prefix_index>},
    {{"kv.max_states", "integer", "0", "0..65536",
      "Models with recurrent layers: sequences that hold a state at once, running ones and sessions at rest; 0 is "
      "scheduler.max_num_seqs + 16. Memory is used as states are written."},
     set_integer<&EngineOptions::kv_max_states, 0, 65536>},
    {{"kv.max_snapshots", "integer", "16", "0..65536",
      "Models with recurrent layers: states kept beside those of sequences, from which prompts seen before and rewound "
      "sessions go on; the least recently used one gives way."},
     set_integer<&EngineOptions::kv_max_snapshots, 0, 65536>},
    {{"kv.snapshot_interval", "integer", "256", "0..1048576",
      "Models with recurrent layers: tokens between snapshots of a sequence's state, rounded up to blocks; what "
      "follows the last snapshot is computed again. 0 makes none."},
     set_integer<&EngineOptions::kv_snapshot_interval, 0, 1 << 20>},
    {{"kv.host_bytes", "integer", "0", "0..1125899906842624",
      "Memory for copies of cached blocks that lose their place in the pool, those of preempted sequences among them; "
      "the "
      "least recently used go. They are read back by prompts that begin with them. 0 keeps none."},
     set_integer<&EngineOptions::kv_host_bytes, 0, int64_t{1} << 50>},
    {{"kv.disk_path", "text", "off", "off|path",
      "A folder (made if need be) where cached blocks go that lose their place in memory, to be read back by prompts "
      "that begin with them, in later processes too. Processes may share it."},
     set_path<&EngineOptions::kv_disk_path>},
    {{"kv.disk_bytes", "integer", "4294967296", "1..1125899906842624",
      "Bytes of the files in that folder; the least recently used go. Each process that shares it may be a sixteenth "
      "above."},
     set_integer<&EngineOptions::kv_disk_bytes, 1, int64_t{1} << 50>},
    {{"kv.disk_codec", "choice", "none", "none|zstd",
      "How those files are compressed, without loss; zstd is refused by builds without it. Files of either are read "
      "with either."},
     set_disk_codec},
    {{"kv.load", "choice", "auto", "auto|always|never",
      "Whether values that left the pool, of prefixes and of preempted sequences, are read back from kv.host_bytes and "
      "kv.disk_path or computed again; auto does what is sooner by the times that reads and steps took so far."},
     set_load},
    {{"kv.zero_retention", "boolean", "false", "true|false",
      "Keep nothing of what requests and sessions compute: their blocks are not found by others, never go to disk, and "
      "are wiped when they end; such sessions are not saved. headrace_request_set_zero_retention says it of one "
      "request."},
     set_boolean<&EngineOptions::zero_retention>},
    {{"runtime.max_bytes", "integer", "0", "0..1152921504606846976",
      "What the weights, caches and workspaces of a runtime's models may take together; what does not fit is refused. "
      "0 "
      "is no limit."},
     set_integer<&EngineOptions::runtime_max_bytes, 0, int64_t{1} << 60>},
    {{"runtime.max_overtakes", "integer", "8", "0..1000000",
      "Forward passes of models of higher priority that may go before one that waits."},
     set_integer<&EngineOptions::runtime_max_overtakes, 0, 1000000>},
    {{"runtime.patience_us", "integer", "5000", "0..1000000",
      "Microseconds that the threads are left to a model of higher priority between two of its steps, while it has "
      "requests."},
     set_integer<&EngineOptions::runtime_patience_us, 0, 1000000>},
    {{"scheduler.max_num_seqs", "integer", "64", "1..4096",
      "Sequences that run at once; the n samples of a request all count."},
     set_integer<&EngineOptions::max_num_seqs, 1, 4096>},
    {{"scheduler.max_num_batched_tokens", "integer", "512", "1..65536",
      "Rows of one step. Prompts are cut to fit beside the decoding sequences, so that this bounds how long a step "
      "holds them up. Where it is less than max_num_seqs it bounds them too."},
     set_integer<&EngineOptions::max_num_batched_tokens, 1, 65536>},
    {{"scheduler.max_queue", "integer", "1024", "1..1048576", "Requests that wait; a further submit is refused."},
     set_integer<&EngineOptions::max_queue, 1, 1 << 20>},
    {{"scheduler.mode", "choice", "balanced", "latency|balanced|throughput",
      "What prompts may cost decoding sequences: latency bounds a step at 1.5 times the predicted time of its decoding "
      "sequences alone, balanced at twice, throughput by its rows only."},
     set_schedule_mode},
    {{"scheduler.max_gap_percent", "integer", "0", "0..1000000",
      "The same bound in percent, 100 or more; 0 is what the mode says."},
     set_integer<&EngineOptions::max_gap_percent, 0, 1000000>},
    {{"scheduler.max_burst_gap_percent", "integer", "0", "0..1000000",
      "Where several prompts are there, and all sequences are of one tenant, each adds 100 percent up to this bound; "
      "0 is 300 in balanced mode, and no growth in the others or with max_gap_percent."},
     set_integer<&EngineOptions::max_burst_gap_percent, 0, 1000000>},
    {{"scheduler.max_tenant_gap_percent", "integer", "0", "0..1000000",
      "The same bound while a prompt goes that gives its tenant no more sequences than its part of them; 0 adds twice "
      "what "
      "max_gap_percent or the mode adds: 200 or 300 percent, or no bound."},
     set_integer<&EngineOptions::max_tenant_gap_percent, 0, 1000000>},
    {{"scheduler.max_gap_ms", "integer", "0", "0..86400000",
      "The same bound in milliseconds, instead of the percentages; 0 is none."},
     set_integer<&EngineOptions::max_gap_ms, 0, 86400000>},
    {{"scheduler.min_prompt_rows", "integer", "0", "0..65536",
      "What prompts get in any step, so that they end: the time of so many rows at the front of a context, and one row "
      "at least; 0 is what the mode says: 4, 8 or 64."},
     set_integer<&EngineOptions::min_prompt_rows, 0, 65536>},
    {{"scheduler.output_weight", "integer", "2", "0..1000",
      "What an output token counts for in a tenant's service; a prompt token that was not cached counts for 1."},
     set_integer<&EngineOptions::output_weight, 0, 1000>},
    {{"scheduler.aging_ms", "integer", "10000", "0..3600000",
      "Waiting that is worth one priority, among a tenant's requests; 0 is none, so that lower priorities can wait "
      "for ever."},
     set_integer<&EngineOptions::aging_ms, 0, 3600000>},
    {{"scheduler.prefix_window", "integer", "8", "1..1024",
      "Of so many requests at the front of a tenant's queue, and of one priority, the one with the longest cached "
      "prefix is admitted first; 1 keeps their order."},
     set_integer<&EngineOptions::prefix_window, 1, 1024>},
    {{"scheduler.max_overtakes", "integer", "8", "0..1000000",
      "Later requests of a tenant that may go before one for their cached prefixes."},
     set_integer<&EngineOptions::max_overtakes, 0, 1000000>},
    {{"scheduler.max_events", "integer", "4096", "0..1048576",
      "Events of one request that the host has not taken; beyond that it waits, and others go on. 0 is no limit."},
     set_integer<&EngineOptions::max_events, 0, 1 << 20>},
    {{"scheduler.max_tenants", "integer", "1024", "1..1048576",
      "Tenants whose counts are kept; beyond that the one without requests for the longest time is forgotten."},
     set_integer<&EngineOptions::max_tenants, 1, 1 << 20>},
    {{"scheduler.tenant_max_num_seqs", "integer", "0", "0..4096",
      "Sequences of one tenant that run at once, unless it has limits of its own; 0 is no limit."},
     set_integer<&EngineOptions::tenant_max_num_seqs, 0, 4096>},
    {{"scheduler.tenant_max_queue", "integer", "0", "0..1048576",
      "Requests of one tenant that wait; a further submit is refused. 0 is no limit."},
     set_integer<&EngineOptions::tenant_max_queue, 0, 1 << 20>},
    {{"scheduler.tenant_tokens_per_second", "integer", "0", "0..1000000000",
      "Service of one tenant on average, in computed prompt tokens and weighted output tokens; its requests wait "
      "meanwhile. 0 is no limit."},
     set_integer<&EngineOptions::tenant_tokens_per_second, 0, 1000000000>},
    {{"scheduler.drafter", "text", "off",
      "off|auto|ngram|suffix|model:PATH|mtp|mtp:PATH|eagle:PATH|eagle3:PATH|medusa:PATH|dflash:PATH",
      "Who guesses at the next tokens of requests that do not say themselves, so that one step checks several; what "
      "comes out never changes. ngram looks for the last tokens further up, suffix for longer runs, in earlier outputs "
      "of the tenant too, model:PATH has a smaller model write on, mtp asks the layer of the model's own files that "
      "predicts further ahead (mtp:PATH that of other files of the same model), eagle:PATH, eagle3:PATH, medusa:PATH "
      "and dflash:PATH heads in folders of their own; auto takes all that may pay. Several have commas between."},
     set_drafter},
    {{"scheduler.max_draft_tokens", "integer", "32", "1..256",
      "Guesses of one sequence in a step at most. As many are made as are likely to pay."},
     set_integer<&EngineOptions::max_draft_tokens, 1, 256>},
    {{"scheduler.draft_always", "boolean", "false", "true|false",
      "Verify every guess, whether it is likely to pay or not: for measurements."},
     set_boolean<&EngineOptions::draft_always>},
    {{"session.prefill_chunk", "integer", "512", "1..65536", "Rows of one forward pass of a session's evaluation."},
     set_integer<&EngineOptions::prefill_chunk, 1, 65536>},
    {{"embedder.pooling", "choice", "auto", "auto|mean|cls|last|none|pooler|score|logits",
      "What an embedder gives of a sequence: the mean of its tokens' rows, the first or the last of them, all of them "
      "(none), what the model's pooler or classifier makes of it (pooler, score), or all tokens' logits. auto is what "
      "the model's files name, and the score of a classifier."},
     set_pooling},
    {{"embedder.normalize", "choice", "auto", "auto|true|false",
      "Scale embeddings to length 1; auto does so for mean, cls and last."},
     set_normalize},
    {{"embedder.max_num_batched_tokens", "integer", "512", "1..65536",
      "Rows of one forward pass of an embedder. A longer sequence of a model that attends both ways takes a pass of "
      "its "
      "own, and memory by its length."},
     set_integer<&EngineOptions::embedder_max_num_batched_tokens, 1, 65536>},
};

constexpr auto kInfos = [] {
  std::array<OptionInfo, std::size(kOptions)> infos{};
  for (size_t i = 0; i < infos.size(); ++i) infos[i] = kOptions[i].info;
  return infos;
}();

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const OptionInfo> option_table() { return kInfos; }

Status EngineOptions::set(std::string_view key, std::string_view value) {
  for (const Option& option : kOptions) {
    if (option.info.key == key) return option.set(*this, option.info, value);
  }
  std::string place = quoted(key);
  place = place.substr(1, place.size() - 2);
  const Option* nearest = nullptr;
  size_t best = 5;  // further away is another word, not a slip
  if (key.size() <= 64) {
    for (const Option& option : kOptions) {
      const size_t distance = edit_distance(key, option.info.key);
      if (distance < best) {
        best = distance;
        nearest = &option;
      }
    }
  }
  if (nearest != nullptr) {
    return invalid_argument(std::move(place), "is no option; {} is", nearest->info.key);
  }
  return invalid_argument(std::move(place), "is no option");
}

}  // namespace headrace::engine
