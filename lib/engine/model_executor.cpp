#include "engine/model_executor.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/byte_source.h"
#include "base/cpu_features.h"
#include "base/memory_budget.h"
#include "base/turn_queue.h"
#include "cpu/cpu_backend.h"
#include "engine/device_backend.h"
#include "engine/image_reader.h"
#include "engine/input_reader.h"
#include "engine/runtime.h"
#include "model/forward.h"
#include "model/input_encoder.h"
#include "model/model_header.h"
#include "model/rope_length.h"
#include "model/self_check.h"
#include "model/vision_encoder.h"
#include "ops/profiling_backend.h"

namespace headrace::engine {
namespace {

constexpr const char* kWeightsPlace = "weights";  // of what the runtime's budget refuses
constexpr uint64_t kMostTuningBytes = uint64_t{4} << 20;

class ModelExecutor : public StepExecutor, public ImageReader, public InputReader {
 public:
  ModelExecutor(std::shared_ptr<const Model> model, std::shared_ptr<Backend> backend,
                std::optional<AdapterParts> own_adapter, std::shared_ptr<TurnQueue> turns, int32_t priority,
                MemoryShare memory)
      : model_(std::move(model)),
        backend_(std::move(backend)),
        own_adapter_(std::move(own_adapter)),
        turn_(std::move(turns), priority),
        memory_(std::move(memory)),
        weight_bytes_(memory_.bytes()),
        forward_(model_->spec(), model_->weights(), *backend_) {
    if (model_->vision() != nullptr) image_encoder_.emplace(*model_->vision(), model_->vision_weights(), *backend_);
    if (model_->encoder() != nullptr) {
      input_encoder_.emplace(*model_->encoder(), model_->encoder_weights(), model_->spec(), model_->weights(),
                             *backend_);
    }
  }

  int32_t vocab_size() const override { return model_->spec().vocab_size; }
  int64_t max_context() const override { return longest_sequence(model_->spec()); }
  std::vector<KvLayout> kv_layouts(KvDType dtype, int32_t block_size) const override {
    return headrace::kv_layouts(model_->spec(), dtype, block_size);
  }
  uint64_t state_floats() const override { return headrace::state_floats(model_->spec()); }
  Hash128 kv_identity() const override {
    const Hash128 model = model_->identity();
    if (!own_adapter_) return model;
    const uint64_t both[] = {model.high, model.low, own_adapter_->identity.high, own_adapter_->identity.low};
    return hash128(both, sizeof both);
  }
  int64_t rope_length(int64_t length) const override { return headrace::rope_length(model_->spec(), length); }
  int64_t longest_of_rope_length(int64_t rope_length) const override {
    return headrace::longest_of_rope_length(model_->spec(), rope_length);
  }
  int32_t hidden_size() const override { return model_->spec().hidden_size; }
  Status check_hidden_layers(std::span<const int32_t> layers) const override {
    return headrace::check_hidden_layers(model_->spec(), layers);
  }
  std::string_view backend_name() const override { return backend_->name(); }
  std::shared_ptr<DeviceMemory> memory() const override { return backend_->memory(); }
  int num_threads() const override { return backend_->num_threads(); }
  OpProfile* profile() const override { return backend_->profile(); }

  Status run(const Batch& batch, KvCache& kv_cache, float* logits) override {
    return run_forward(batch, kv_cache, logits, nullptr);
  }

  Status run_hidden(const Batch& batch, KvCache& kv_cache, float* hidden) override {
    return run_forward(batch, kv_cache, nullptr, hidden);
  }

  Status run_head(const float* rows, int64_t num_rows, float* out) override {
    const std::lock_guard lock(turn_);
    return forward_.run_head(rows, num_rows, out);
  }

  ImageReader* images() override { return image_encoder_ ? this : nullptr; }
  const VisionSpec& vision() const override { return *model_->vision(); }
  const ModelSpec& decoder() const override { return model_->spec(); }
  const Result<ImageProcessorSpec>& processor() const override { return model_->image_processor(); }
  Status encode(const RequestImage& image, std::vector<float>& rows) override {
    const std::lock_guard lock(turn_);
    return image_encoder_->encode(image.pixels, image.grid, rows);
  }

  InputReader* inputs() override { return input_encoder_ ? this : nullptr; }
  const EncoderSpec& encoder() const override { return *model_->encoder(); }
  int32_t decoder_vocab_size() const override { return vocab_size(); }
  const Result<LogMelSpec>& audio_processor() const override { return model_->audio_processor(); }
  Result<EncoderMemory> read_input(const EncoderInput& input, KvDType dtype, int32_t block_size) override {
    const std::lock_guard lock(turn_);
    std::vector<float> rows;
    HEADRACE_RETURN_IF_ERROR(input_encoder_->encode(input, rows));
    return input_encoder_->remember(rows, dtype, block_size);
  }

  Status check_generates() const override {
    const ModelSpec& spec = model_->spec();
    if (!attends_both_ways(spec) && spec.head.kind == HeadKind::kVocabulary) return Status();
    return unsupported("model", "{} models read whole texts, for embeddings and scores; they continue none",
                       spec.architecture);
  }

  Result<std::shared_ptr<const Adapter>> load_adapter(const std::string& folder) override {
    HEADRACE_RETURN_IF_ERROR(check_generates());
    if (input_encoder_) return unsupported("adapter", "of a model with an encoder in front of its decoder");
    HEADRACE_ASSIGN_OR_RETURN(AdapterParts parts, AdapterParts::read(*model_, folder));
    if (own_adapter_) parts = AdapterParts::sum(*own_adapter_, parts);
    const std::lock_guard lock(turn_);
    return Adapter::pack(model_, std::move(parts), *backend_);
  }

  Result<std::string> tune(const TuneRequest& request, const std::function<bool(double)>& progress) override {
    auto tuner = backend_->make_tuner(model_->weights().products, request);
    if (!tuner.ok()) return tuner.status();
    for (bool working = true; working;) {
      {
        const std::lock_guard lock(turn_);
        HEADRACE_ASSIGN_OR_RETURN(working, (*tuner)->step());
      }
      if (progress && !progress(working ? (*tuner)->fraction() : 1.0)) return cancelled("", "tuning was cancelled");
    }
    return (*tuner)->table();
  }

  Status reserve_workspace(int64_t rows, int64_t logits_rows) override {
    const std::lock_guard lock(memory_mutex_);
    rows = std::max(rows, workspace_rows_);
    logits_rows = std::max(logits_rows, logits_rows_);
    if (rows == workspace_rows_ && logits_rows == logits_rows_) return Status();
    const auto logits = static_cast<uint64_t>(logits_rows) * static_cast<uint64_t>(vocab_size()) * sizeof(float);
    HEADRACE_RETURN_IF_ERROR(
        memory_.resize(weight_bytes_ + ForwardPass::workspace_bytes(model_->spec(), rows) + logits));
    workspace_rows_ = rows;
    logits_rows_ = logits_rows;
    return Status();
  }
  void expect_more(bool more) override { turn_.expect_more(more); }

  void logit_stats(const LogitStatsParams& params) override {
    const std::lock_guard lock(turn_);
    backend_->logit_stats(params);
  }

 private:
  Status run_forward(const Batch& batch, KvCache& kv_cache, float* logits, float* hidden) {
    HEADRACE_RETURN_IF_ERROR(reserve_workspace(batch.num_tokens(), 0));
    // Sessions, schedulers and embedders of one model take turns, and so do models of one runtime: threads run one op at a
    // time.
    const std::lock_guard lock(turn_);
    ProfiledCall call{ProfiledOp::kForward};
    call.rows = batch.num_tokens();
    call.sequences = batch.num_seqs();
    const ProfiledSpan span(profile(), call);
    return forward_.run(batch, kv_cache, logits, hidden);
  }

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<Backend> backend_;
  const std::optional<AdapterParts> own_adapter_;
  Turn turn_;
  std::mutex memory_mutex_;
  MemoryShare memory_;
  const uint64_t weight_bytes_;
  int64_t workspace_rows_ = 0, logits_rows_ = 0;
  ForwardPass forward_;
  std::optional<VisionEncoder> image_encoder_;
  std::optional<InputEncoder> input_encoder_;
};

// The table that "engine.tuning" names, or null.
Result<std::shared_ptr<const TuningTable>> tuning_of(const EngineOptions& options, const TuningTarget& target) {
  if (options.tuning == "off") return std::shared_ptr<const TuningTable>();
  if (options.tuning == "auto") return shipped_tuning_table(target);
  const auto read = [&]() -> Result<TuningTable> {
    HEADRACE_ASSIGN_OR_RETURN(const std::shared_ptr<ByteSource> file, open_path(options.tuning));
    HEADRACE_ASSIGN_OR_RETURN(const std::string text, read_all(*file, kMostTuningBytes));
    HEADRACE_ASSIGN_OR_RETURN(TuningTable table, TuningTable::parse(text, options.tuning));
    HEADRACE_RETURN_IF_ERROR(table.check(target, options.tuning));
    return table;
  };
  auto table = read();
  if (!table.ok()) return table.status().within("engine.tuning");
  return std::shared_ptr<const TuningTable>(std::make_shared<TuningTable>(table.take()));
}

Result<std::unique_ptr<Backend>> make_device_backend(const EngineOptions& options) {
  if (options.self_check) {
    return unsupported("model.self_check", "ops of {} are compared with the reference in tests alone", options.device);
  }
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, open_device_backend(options.device));
  if (options.kv_dtype == KvDType::kQ8) HEADRACE_RETURN_IF_ERROR(backend->check_use({"paged_attention", "a q8 cache"}));
  return backend;
}

Result<std::unique_ptr<Backend>> make_processor_backend(const EngineOptions& options) {
  const auto isa = choose_isa(options.isa);
  if (!isa.ok()) return Status(isa.status().code(), isa.status().message(), "engine.isa");
  CpuBackendOptions cpu;
  cpu.isa = *isa;
  if (options.runtime != nullptr) {
    HEADRACE_RETURN_IF_ERROR(check_runtime_threads(options));
    cpu.shared_threads = options.runtime->threads;
    cpu.pack_turn = std::make_shared<Turn>(options.runtime->turns, options.priority);
  } else {
    HEADRACE_ASSIGN_OR_RETURN(cpu.num_threads, thread_count(options));
    cpu.processors = options.affinity;
  }
  HEADRACE_ASSIGN_OR_RETURN(cpu.tuning, tuning_of(options, tuning_target(isa_name(*isa))));
  return make_cpu_backend(cpu);
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const EngineOptions& options) {
  auto backend = options.device == "cpu" ? make_processor_backend(options) : make_device_backend(options);
  if (!backend.ok() || options.profile == ProfileMode::kOff) return backend;
  return make_profiling_backend(backend.take(), std::make_shared<OpProfile>(options.profile == ProfileMode::kTrace));
}

ModelLoadOptions load_options(const EngineOptions& options, LoadProgress progress) {
  ModelLoadOptions load;
  load.pack.activations = options.activations;
  load.pack.decode_to_float = options.exact;
  load.progress = std::move(progress);
  load.packed_cache = options.packed_cache;
  load.log = options.log;
  return load;
}

Result<std::shared_ptr<const Model>> load_model(ModelSource source, const EngineOptions& options, LoadProgress progress,
                                                Backend& backend) {
  source.use_mmap = options.use_mmap;
  const ModelLoadOptions load = load_options(options, std::move(progress));
  HEADRACE_ASSIGN_OR_RETURN(ModelHeader header, ModelHeader::read(source));
  if (options.runtime != nullptr) {
    MemoryShare expected(options.runtime->memory, kWeightsPlace);
    HEADRACE_RETURN_IF_ERROR(expected.resize(header.weight_bytes(load.pack)));
  }
  return Model::load(std::move(header), load, backend);
}

Result<std::shared_ptr<const EngineModel>> load_engine_model(ModelSource source, const EngineOptions& options,
                                                             LoadProgress progress) {
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend, make_backend(options));
  HEADRACE_ASSIGN_OR_RETURN(auto model, load_model(std::move(source), options, std::move(progress), *backend));
  return make_engine_model(std::move(model), std::move(backend), options);
}

Result<std::shared_ptr<const EngineModel>> make_engine_model(std::shared_ptr<const Model> model,
                                                             std::shared_ptr<Backend> backend,
                                                             const EngineOptions& options) {
  const std::shared_ptr<TurnQueue> turns =
      options.runtime != nullptr ? options.runtime->turns : std::make_shared<TurnQueue>();
  MemoryShare memory(options.runtime != nullptr ? options.runtime->memory : nullptr, kWeightsPlace);
  HEADRACE_RETURN_IF_ERROR(memory.resize(model->weight_bytes()));
  if (options.self_check) {
    Turn turn(turns, options.priority);
    const std::lock_guard lock(turn);
    const auto checked = self_check(*model, load_options(options).pack, options.kv_dtype, *backend);
    if (!checked.ok()) return checked.status().within("model.self_check");
  }
  auto engine = std::make_shared<EngineModel>();
  std::optional<AdapterParts> own_adapter;
  for (const std::string& folder : model->adapter_folders()) {
    HEADRACE_ASSIGN_OR_RETURN(AdapterParts parts, AdapterParts::read(*model, folder));
    own_adapter = own_adapter ? AdapterParts::sum(std::move(*own_adapter), parts) : std::move(parts);
  }
  if (own_adapter) {
    HEADRACE_ASSIGN_OR_RETURN(engine->own_adapter, Adapter::pack(model, *own_adapter, *backend));
  }
  engine->tokenizer = model->tokenizer();
  auto chat_template = model->chat_template();
  if (chat_template.ok()) {
    engine->chat_template = chat_template.take();
  } else {
    engine->no_chat_template = chat_template.status();
  }
  engine->end_of_generation_ids = model->end_of_generation_ids();
  engine->model = model;
  engine->backend = backend;
  engine->turns = turns;
  if (options.runtime != nullptr) engine->memory = options.runtime->memory;
  engine->executor = std::make_shared<ModelExecutor>(std::move(model), std::move(backend), std::move(own_adapter),
                                                     turns, options.priority, std::move(memory));
  return std::shared_ptr<const EngineModel>(std::move(engine));
}

}  // namespace headrace::engine
