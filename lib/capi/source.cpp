#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

// The host's release. It is armed once the source came to be: where the call fails, the host keeps what it gave.
struct Release {
  headrace_release_callback callback = nullptr;
  void* user = nullptr;
  bool armed = false;

  static std::shared_ptr<Release> make(headrace_release_callback callback, void* user) {
    return std::make_shared<Release>(Release{callback, user, false});
  }
  static std::function<void()> function(std::shared_ptr<Release> release) {
    return [release = std::move(release)] {
      if (release->armed && release->callback != nullptr) release->callback(release->user);
    };
  }
};

// A descriptor source that tells the host when the descriptor is free again.
class ReleasingSource final : public ByteSource {
 public:
  ReleasingSource(std::shared_ptr<ByteSource> inner, std::function<void()> release)
      : inner_(std::move(inner)), release_(std::move(release)) {}
  ~ReleasingSource() override {
    inner_.reset();
    release_();
  }
  uint64_t size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  Status read(uint64_t offset, std::span<std::byte> destination) override { return inner_->read(offset, destination); }
  const std::byte* mapped() const override { return inner_->mapped(); }
  int64_t modified_ns() const override { return inner_->modified_ns(); }

 private:
  std::shared_ptr<ByteSource> inner_;
  std::function<void()> release_;
};

}  // namespace

extern "C" {

headrace_status headrace_source_open_path(const char* path, size_t path_size, headrace_source** source,
                                          headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (source == nullptr) return null_argument("source");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, path_argument(path, path_size));
    HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<ByteSource> opened, open_path(std::string(text)));
    *source = new headrace_source{std::move(opened)};
    return Status();
  });
}

headrace_status headrace_source_open_descriptor(int32_t descriptor, headrace_release_callback release, void* user,
                                                headrace_source** source, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (source == nullptr) return null_argument("source");
    HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<ByteSource> opened,
                              open_descriptor(descriptor, fmt::format("descriptor {}", descriptor)));
    const auto held = Release::make(release, user);
    opened = std::make_shared<ReleasingSource>(std::move(opened), Release::function(held));
    *source = new headrace_source{std::move(opened)};
    held->armed = true;
    return Status();
  });
}

headrace_status headrace_source_open_memory(const void* data, size_t size, headrace_release_callback release,
                                            void* user, headrace_source** source, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (source == nullptr) return null_argument("source");
    if (data == nullptr && size != 0) return null_argument("data");
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(data), size);
    const auto held = Release::make(release, user);
    *source = new headrace_source{open_memory(bytes, "memory", Release::function(held))};
    held->armed = true;
    return Status();
  });
}

headrace_status headrace_source_open_reader(uint64_t size, headrace_read_callback read,
                                            headrace_release_callback release, void* user, headrace_source** source,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (source == nullptr) return null_argument("source");
    if (read == nullptr) return null_argument("read");
    ReadCallback callback = [read, user](uint64_t offset, std::byte* destination, uint64_t count) {
      return read(user, offset, destination, count) == 0;
    };
    const auto held = Release::make(release, user);
    *source = new headrace_source{open_reader(size, std::move(callback), "reader", Release::function(held))};
    held->armed = true;
    return Status();
  });
}

void headrace_source_destroy(headrace_source* source) { delete source; }

}  // extern "C"
