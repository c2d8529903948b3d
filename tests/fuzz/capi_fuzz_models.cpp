// Calls on models, sources, options, caches and saved sessions.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "capi_fuzz_world.h"

namespace capi_fuzz {
namespace {

// A folder of this process for what is read and written by path; in memory where the system has such a place.
class Folder {
 public:
  Folder() {
    std::error_code ignored;
    const bool in_memory = std::filesystem::is_directory("/dev/shm", ignored);
    std::string pattern =
        ((in_memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) / "capi_fuzz_XXXXXX")
            .string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
    std::ofstream(model(), std::ios::binary) << text_model_bytes();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string model() const { return path_ + "/model.gguf"; }
  std::string session() const { return path_ + "/session"; }

 private:
  std::string path_;
};
const Folder& folder() {
  static const Folder folder;
  return folder;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// Bytes that a source reads, with a few of them damaged. They live until the source releases them.
struct Bytes {
  std::string bytes;
  uint32_t reads_left = UINT32_MAX;

  static Bytes* damaged(Input& in, const std::string& good) {
    auto* made = new Bytes{good};
    for (int changes = in.byte() % 4; changes > 0 && !good.empty(); --changes) {
      // Most of a file's structure is at its beginning.
      const uint32_t place = in.word();
      const size_t size = (place & 1) != 0 ? good.size() : std::min<size_t>(good.size(), 4096);
      made->bytes[(place >> 1) % size] ^= static_cast<char>(in.byte());
    }
    if (in.byte() % 8 == 0 && !good.empty()) made->bytes.resize(in.word() % good.size());
    return made;
  }
  static int32_t read(void* user, uint64_t offset, void* destination, uint64_t size) {
    Bytes& self = *static_cast<Bytes*>(user);
    if (self.reads_left == 0 || offset > self.bytes.size() || size > self.bytes.size() - offset) return 1;
    --self.reads_left;
    std::memcpy(destination, self.bytes.data() + offset, size);
    return 0;
  }
  static void release(void* user) { delete static_cast<Bytes*>(user); }
};

// From memory, or read in pieces; may fail after a few.
headrace_source* open_damaged(Input& in, const std::string& good) {
  Bytes* bytes = Bytes::damaged(in, good);
  const uint8_t kind = in.byte();
  headrace_source* source = nullptr;
  headrace_status status;
  if (kind % 2 == 0) {
    status =
        headrace_source_open_memory(bytes->bytes.data(), bytes->bytes.size(), Bytes::release, bytes, &source, nullptr);
  } else {
    if (kind % 16 == 1) bytes->reads_left = in.byte() % 64;
    status = headrace_source_open_reader(bytes->bytes.size(), Bytes::read, Bytes::release, bytes, &source, nullptr);
  }
  if (status != HEADRACE_OK) delete bytes;  // a source that was not opened releases nothing
  return source;
}

void log_line(void* user, int32_t, const char* component, const char* line) {
  *static_cast<size_t*>(user) += std::strlen(component) + std::strlen(line);
}
size_t logged = 0;

// Asks for the size first, as callers do, or has a buffer of any size.
template <class Call>
void read_text(Input& in, const Call& call) {
  size_t needed = 0;
  Error size_error;
  call(nullptr, 0, &needed, size_error);
  std::string buffer(in.byte() % 2 == 0 ? needed : in.byte(), '\0');
  Error error;
  call(buffer.data(), buffer.size(), &needed, error);
}

}  // namespace

const std::string& model_bytes() {
  static const std::string bytes = [] {
    std::string all = read_file(HEADRACE_FUZZ_MODEL);
    if (all.empty()) std::abort();  // the fuzzer itself is broken
    return all;
  }();
  return bytes;
}

// The options of a tiny machine: one thread, and a cache that is soon full.
headrace_options* small_options(Input& in) {
  headrace_options* options = nullptr;
  headrace_options_create(&options, nullptr);
  const auto set = [&](const std::string& key, const std::string& value) {
    headrace_options_set(options, key.data(), key.size(), value.data(), value.size(), nullptr);
  };
  set("engine.threads", "1");
  set("kv.max_tokens", std::to_string(16 + in.byte() % 128));
  if (in.byte() % 2 != 0) set("kv.prefix_index", "false");
  if (in.byte() % 4 == 0) set("scheduler.max_num_batched_tokens", std::to_string(1 + in.byte() % 32));
  if (in.byte() % 4 == 0) set("scheduler.max_queue", "1");
  return options;
}

void load_text_model(Input& in, World& world) {
  Error error;
  headrace_source* source = open_damaged(in, text_model_bytes());
  headrace_options* options = small_options(in);
  headrace_model* model = nullptr;
  headrace_source* const sources[] = {source, source};
  headrace_model_load_sources(sources, in.byte() % 16 == 0 ? 2 : 1, options, nullptr, nullptr, &model, error);
  headrace_options_destroy(options);
  headrace_source_destroy(source);
  world.models.put(in, model);
}

void load_by_path(Input& in, World& world) {
  Error error;
  const std::string path = in.byte() % 4 == 0 ? in.text() : folder().model();
  switch (in.byte() % 6) {
    case 0: {
      headrace_options* options = small_options(in);
      headrace_model* model = nullptr;
      headrace_model_load(path.data(), path.size(), options, nullptr, nullptr, &model, error);
      headrace_options_destroy(options);
      return world.models.put(in, model);
    }
    case 1: {
      headrace_tokenizer* tokenizer = nullptr;
      headrace_tokenizer_load(path.data(), path.size(), &tokenizer, error);
      return world.tokenizers.put(in, tokenizer);
    }
    case 2: {
      headrace_chat_template* chat_template = nullptr;
      headrace_chat_template_load(path.data(), path.size(), &chat_template, error);
      return world.templates.put(in, chat_template);
    }
    case 3: {
      const uint64_t memory_bytes = static_cast<uint64_t>(in.word()) << (in.byte() % 33);
      return read_text(in, [&](char* buffer, size_t capacity, size_t* needed, headrace_error** out) {
        headrace_model_inspect(path.data(), path.size(), memory_bytes, buffer, capacity, needed, out);
      });
    }
    default: {
      // The descriptor stays open until the source lets it go.
      headrace_source* source = nullptr;
      if (in.byte() % 2 == 0) {
        headrace_source_open_path(path.data(), path.size(), &source, error);
      } else {
        auto descriptor = std::make_unique<int>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        const auto release = [](void* user) {
          ::close(*static_cast<int*>(user));
          delete static_cast<int*>(user);
        };
        if (headrace_source_open_descriptor(*descriptor, release, descriptor.get(), &source, error) == HEADRACE_OK) {
          descriptor.release();
        } else if (*descriptor >= 0) {
          ::close(*descriptor);
        }
      }
      headrace_options* options = small_options(in);
      headrace_model* model = nullptr;
      Error load_error;
      headrace_model_load_sources(&source, 1, options, nullptr, nullptr, &model, load_error);
      headrace_options_destroy(options);
      headrace_source_destroy(source);
      return world.models.put(in, model);
    }
  }
}

// A key there is, with a value of its kind that a small machine can serve, or with any text.
void set_known_option(Input& in, World& world) {
  static const std::pair<const char*, std::vector<std::string>> kOptions[] = {
      {"engine.threads", {"1", "2"}},
      {"engine.isa", {"auto", "baseline", "avx2", "avx512_vnni"}},
      {"engine.tuning", {"auto", "off"}},
      {"model.activations", {"int8", "int16", "float32"}},
      {"model.exact", {"true", "false"}},
      {"model.use_mmap", {"true", "false"}},
      {"kv.dtype", {"f32", "f16", "bf16", "q8"}},
      {"kv.max_tokens", {"0", "1", "16", "17", "100", "300"}},
      {"kv.block_size", {"16", "32", "48", "1024"}},
      {"kv.prefix_index", {"true", "false"}},
      {"scheduler.max_num_seqs", {"1", "2", "3"}},
      {"scheduler.max_num_batched_tokens", {"1", "5", "64"}},
      {"scheduler.max_queue", {"1", "2", "8"}},
      {"session.prefill_chunk", {"1", "3", "16", "512"}},
  };
  Error error;
  headrace_options* options = world.options.get(in);
  const auto& [key, values] = kOptions[in.byte() % std::size(kOptions)];
  const uint8_t choice = in.byte();
  // A number that the text spells is made none, so that no run takes all memory.
  const std::string given = choice == 255 ? in.text() + "?" : values[choice % values.size()];
  headrace_options_set(options, key, std::strlen(key), given.data(), given.size(), error);
  if (in.byte() % 8 == 0) headrace_options_set_log(options, in.byte() % 2 == 0 ? log_line : nullptr, &logged, nullptr);
}

void create_with_options(Input& in, World& world) {
  Error error;
  const headrace_model* model = world.models.get(in);
  const headrace_options* options = world.options.get(in);
  switch (in.byte() % 3) {
    case 0: {
      headrace_kv_cache* cache = nullptr;
      headrace_kv_cache_create(model, options, &cache, error);
      return world.caches.put(in, cache);
    }
    case 1: {
      headrace_session* session = nullptr;
      headrace_session_create(model, world.caches.get(in), options, &session, error);
      return world.sessions.put(in, session);
    }
    default: {
      headrace_scheduler* scheduler = nullptr;
      headrace_scheduler_create(model, world.caches.get(in), options, &scheduler, error);
      return world.schedulers.put(in, scheduler);
    }
  }
}

void describe_model(Input& in, World& world) {
  Error error;
  const headrace_model* model = world.models.get(in);
  headrace_model_info info;
  headrace_model_info_init(&info);
  if (in.byte() == 255) info.struct_size = in.word() % sizeof info;
  headrace_model_get_info(model, &info, error);
  headrace_sampling sampling;
  headrace_sampling_init(&sampling);
  Error sampling_error;
  headrace_model_get_sampling(model, &sampling, sampling_error);
  read_text(in, [&](char* buffer, size_t capacity, size_t* needed, headrace_error** out) {
    headrace_model_describe(model, buffer, capacity, needed, out);
  });
}

void describe_library(Input& in, World&) {
  headrace_abi_version();
  headrace_version();
  headrace_status_get_name(in.small());
  read_text(in, headrace_system_describe);
  const size_t index = in.byte() % (headrace_options_get_count() + 1);
  read_text(in, [&](char* buffer, size_t capacity, size_t* needed, headrace_error** out) {
    headrace_options_get_info(index, buffer, capacity, needed, out);
  });
}

void save_session(Input& in, World& world) {
  Error error;
  const std::string path = in.byte() % 16 == 0 ? folder().session() + "/none" : folder().session();
  if (headrace_session_save(world.sessions.get(in), path.data(), path.size(), error) == HEADRACE_OK) {
    world.saved = read_file(path);
  }
}

void restore_session(Input& in, World& world) {
  Error error;
  headrace_source* source = open_damaged(in, world.saved);
  headrace_session* session = nullptr;
  const headrace_model* model = world.models.get(in);
  headrace_kv_cache* cache = world.caches.get(in);
  headrace_options* options = small_options(in);
  headrace_session_restore(model, cache, options, source, &session, error);
  headrace_options_destroy(options);
  headrace_source_destroy(source);
  world.sessions.put(in, session);
}

void read_stats(Input& in, World& world) {
  Error error;
  headrace_kv_cache_stats cache;
  headrace_kv_cache_stats_init(&cache);
  headrace_scheduler_stats scheduler;
  headrace_scheduler_stats_init(&scheduler);
  if (in.byte() == 255) cache.struct_size = in.word() % sizeof cache;
  headrace_kv_cache_get_stats(world.caches.get(in), &cache, error);
  Error scheduler_error;
  headrace_scheduler_get_stats(world.schedulers.get(in), &scheduler, scheduler_error);
  headrace_scheduler_metrics metrics;
  headrace_scheduler_metrics_init(&metrics);
  Error metrics_error;
  headrace_scheduler_get_metrics(world.schedulers.get(in), &metrics, metrics_error);
  headrace_tenant_limits limits;
  headrace_tenant_limits_init(&limits);
  limits.weight = in.small();
  limits.max_num_seqs = in.small();
  limits.max_queue = in.small();
  const std::string tenant = in.text();
  Error limits_error;
  headrace_scheduler_set_tenant(world.schedulers.get(in), tenant.data(), tenant.size(), &limits, limits_error);
  headrace_latency latency;
  headrace_latency_init(&latency);
  Error latency_error;
  headrace_scheduler_get_latency(world.schedulers.get(in), in.byte() % 6, &latency, latency_error);
}

}  // namespace capi_fuzz
