#include "engine/session.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "engine/session_file.h"
#include "formats/json.h"
#include "text/utf8.h"

namespace headrace::engine {
namespace {

// Rows that both token lists begin with, of the first `limit` of a.
int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b, int64_t limit) {
  const size_t size = std::min({a.size(), b.size(), static_cast<size_t>(std::max<int64_t>(limit, 0))});
  return std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(size), b.begin()).first - a.begin();
}

int64_t now_unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Status check_utf8(std::string_view text, const char* field) {
  const size_t bad = text::utf8_invalid_offset(text);
  if (bad == std::string_view::npos) return Status();
  return invalid_argument(field, "is not UTF-8 at byte {}", bad);
}

size_t count_images(const nlohmann::ordered_json& parts) {
  size_t count = 0;
  for (const auto& part : parts) {
    const auto type = part.find("type");
    count += type != part.end() && *type == "image";
  }
  return count;
}

}  // namespace

Session::Session(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> kv_cache, int32_t prefill_chunk)
    : model_(std::move(model)),
      kv_cache_(std::move(kv_cache)),
      prefill_chunk_(std::max(prefill_chunk, 1)),
      created_unix_seconds_(now_unix_seconds()),
      adapter_(model_->own_adapter),
      kv_(kv_cache_->new_sequence(own_salt())) {}

Result<std::shared_ptr<Session>> Session::make(std::shared_ptr<const EngineModel> model,
                                               std::shared_ptr<KvCache> kv_cache, const EngineOptions& options) {
  if (model->executor->inputs() != nullptr) {
    return unsupported("session", "of a model whose requests have each an input of their own for its encoder");
  }
  if (kv_cache) {
    HEADRACE_RETURN_IF_ERROR(check_kv_cache(*model, *kv_cache));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(kv_cache, make_kv_cache(*model, options));
  }
  return std::shared_ptr<Session>(new Session(std::move(model), std::move(kv_cache), options.prefill_chunk));
}

Result<std::shared_ptr<Session>> Session::create(std::shared_ptr<const EngineModel> model,
                                                 std::shared_ptr<KvCache> kv_cache, const EngineOptions& options) {
  HEADRACE_ASSIGN_OR_RETURN(auto session, make(std::move(model), std::move(kv_cache), options));
  session->model_->register_session(session);
  return session;
}

Status Session::check_idle() const {
  if (busy_) return failed_precondition("session", "a request uses it");
  return Status();
}

Status Session::check_room(int64_t count) const {
  const int64_t limit = context_limit(*model_, *kv_cache_);
  const auto held = static_cast<int64_t>(tokens_.size());
  if (count > limit - held) {
    return resource_exhausted("session", "{} tokens and {} more exceed the context of {}", held, count, limit);
  }
  return Status();
}

void Session::touch() {
  last_used_.store(static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()),
                   std::memory_order_relaxed);
}

Status Session::append_checked(std::span<const int32_t> tokens) {
  HEADRACE_RETURN_IF_ERROR(check_idle());
  if (!conversation_.messages.empty()) return failed_precondition("session", "is a conversation of messages");
  const int32_t vocab_size = model_->executor->vocab_size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return invalid_argument(fmt::format("tokens[{}]", i), "{} is no token id; the vocabulary has {}", tokens[i],
                              vocab_size);
    }
  }
  // What is too much is dropped when a request runs.
  if (overflow_.kind == SessionOverflow::Kind::kRefuse) {
    HEADRACE_RETURN_IF_ERROR(check_room(static_cast<int64_t>(tokens.size())));
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  touch();
  return Status();
}

Status Session::append_tokens(std::span<const int32_t> tokens) {
  const std::lock_guard lock(mutex_);
  return append_checked(tokens);
}

Status Session::append_text(std::string_view text, text::EncodeOptions encode_options) {
  if (!model_->tokenizer) return not_found("tokenizer", "the model has none");
  HEADRACE_ASSIGN_OR_RETURN(const auto tokens, model_->tokenizer->encode(text, encode_options));
  const std::lock_guard lock(mutex_);
  return append_checked(tokens);
}

Status Session::check_message(std::string_view role) const {
  if (!model_->tokenizer) return not_found("tokenizer", "the model has none");
  if (!model_->chat_template) {
    if (!model_->no_chat_template.ok()) return model_->no_chat_template;
    return not_found("chat_template", "the model has none");
  }
  if (role.empty()) return invalid_argument("role", "is empty");
  return check_utf8(role, "role");
}

Status Session::append_message(std::string_view role, std::string_view content) {
  HEADRACE_RETURN_IF_ERROR(check_message(role));
  HEADRACE_RETURN_IF_ERROR(check_utf8(content, "content"));
  const std::lock_guard lock(mutex_);
  return add_message({std::string(role), std::string(content)});
}

Status Session::append_parts(std::string_view role, std::string_view parts,
                             std::vector<std::shared_ptr<const RequestImage>> images) {
  HEADRACE_RETURN_IF_ERROR(check_message(role));
  HEADRACE_ASSIGN_OR_RETURN(const auto json, parse_ordered_json(parts, "parts"));
  if (!json.is_array()) return malformed("parts", "are no JSON array");
  for (const auto& part : json) {
    if (!part.is_object()) return malformed("parts", "hold what is no object");
  }
  Message message = {std::string(role), std::string(parts), true, count_images(json)};
  if (message.num_images != images.size()) {
    return invalid_argument("images", "there are {} for {} parts of the type \"image\"", images.size(),
                            message.num_images);
  }
  const std::lock_guard lock(mutex_);
  conversation_.images.reserve(conversation_.images.size() + images.size());
  HEADRACE_RETURN_IF_ERROR(add_message(std::move(message)));
  for (auto& image : images) conversation_.images.push_back(std::move(image));
  return Status();
}

// With the lock held.
Status Session::add_message(Message message) {
  HEADRACE_RETURN_IF_ERROR(check_idle());
  if (conversation_.messages.empty() && !tokens_.empty()) {
    return failed_precondition("session", "has {} tokens that no message made; rewind to 0 to start a conversation",
                               tokens_.size());
  }
  conversation_.messages.push_back(std::move(message));
  touch();
  return Status();
}

Status Session::set_message(size_t index, std::string_view content) {
  HEADRACE_RETURN_IF_ERROR(check_utf8(content, "content"));
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  auto& messages = conversation_.messages;
  if (index >= messages.size()) {
    return invalid_argument("index", "{} is not below the {} messages", index, messages.size());
  }
  Message changed = {messages[index].role, std::string(content)};
  conversation_.forget_images(index, index + 1);
  messages[index] = std::move(changed);
  touch();
  return Status();
}

Status Session::truncate_messages(size_t count) {
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  auto& messages = conversation_.messages;
  if (count > messages.size()) {
    return invalid_argument("num_messages", "{} is above the {} messages", count, messages.size());
  }
  const bool all = count == 0 && !messages.empty();
  conversation_.forget_images(count, messages.size());
  messages.resize(count);
  touch();
  if (!all) return Status();
  tokens_.clear();
  images_.clear();
  kv_cache_->release(kv_);
  parked_path_.clear();
  return Status();
}

// Before the messages themselves go.
void Session::Conversation::forget_images(size_t begin, size_t end) {
  const auto count = [&](size_t from, size_t to) {
    size_t sum = 0;
    for (size_t i = from; i < to; ++i) sum += messages[i].num_images;
    return static_cast<ptrdiff_t>(sum);
  };
  const auto first = images.begin() + count(0, begin);
  images.erase(first, first + count(begin, end));
}

std::vector<int32_t> Session::tokens() const {
  const std::lock_guard lock(mutex_);
  std::vector<int32_t> out = tokens_;
  for (int32_t& id : out) id = shown_token(model_->executor->images(), id);
  return out;
}

std::vector<Session::Message> Session::messages() const {
  const std::lock_guard lock(mutex_);
  return conversation_.messages;
}

bool Session::busy() const {
  const std::lock_guard lock(mutex_);
  return busy_;
}

bool Session::of_messages() const {
  const std::lock_guard lock(mutex_);
  return !conversation_.messages.empty();
}

Status Session::render(const Conversation& conversation, Lease& lease) const {
  auto messages = nlohmann::ordered_json::array();
  const JsonReleaser release_messages(messages);
  for (const Message& message : conversation.messages) {
    // Not from a list in braces: its destructor wants memory too.
    messages.emplace_back(nlohmann::ordered_json::object());
    messages.back()["role"] = message.role;
    if (message.has_parts) {
      HEADRACE_ASSIGN_OR_RETURN(auto parts, parse_ordered_json(message.content, "parts"));
      messages.back()["content"].swap(static_cast<nlohmann::ordered_json&>(parts));
    } else {
      messages.back()["content"] = message.content;
    }
  }
  text::RenderOptions options;
  options.now_unix_seconds = created_unix_seconds_;
  HEADRACE_ASSIGN_OR_RETURN(const auto prompt, model_->chat_template->render(messages, nullptr, nullptr, options));
  std::vector<text::Tokenizer::Span> spans;
  for (const text::RenderedSpan& span : prompt.spans) {
    spans.push_back({std::string_view(prompt.text).substr(span.begin, span.end - span.begin), !span.is_content});
  }
  HEADRACE_ASSIGN_OR_RETURN(lease.prompt, model_->tokenizer->encode_spans(spans, false));
  if (conversation.images.empty()) return Status();
  return place_request_images(*model_->executor->images(), *kv_cache_, conversation.images, 0, lease.prompt,
                              lease.images);
}

Status Session::reserve(int64_t num_tokens) {
  for (;;) {
    Status status = kv_cache_->reserve(kv_, num_tokens);
    if (status.code() != StatusCode::kResourceExhausted) return status;
    // This session's lock is held, so shed() passes over it.
    if (!model_->shed_idle_session(*kv_cache_)) return status;
  }
}

Result<std::vector<PromptImage>> Session::encode_images(int64_t begin, std::vector<std::vector<float>>& rows) const {
  std::vector<PromptImage> out;
  rows.resize(images_.size());
  for (size_t i = 0; i < images_.size(); ++i) {
    out.push_back({images_[i].begin, images_[i].image->grid, nullptr});
    if (images_[i].end() <= begin) continue;
    HEADRACE_RETURN_IF_ERROR(model_->executor->images()->encode(*images_[i].image, rows[i]));
    out.back().rows = rows[i].data();
  }
  return out;
}

Status Session::compute(const std::vector<int32_t>& tokens, int64_t num_logits, float* logits) {
  const auto size = static_cast<int64_t>(tokens.size());
  const int64_t first_logits = size - num_logits;
  const auto vocab_size = static_cast<int64_t>(model_->executor->vocab_size());
  const int64_t rotation = model_->executor->rope_length(size);
  if (kv_.rope_length() != rotation) {
    KvSequence empty = kv_cache_->new_sequence(own_salt(), rotation);
    kv_ = std::move(empty);
  }
  // Values of rows whose logits are wanted must be computed, not found.
  if (kv_.num_tokens() == 0) kv_cache_->match_and_fetch(kv_, tokens, first_logits);
  std::vector<std::vector<float>> image_rows;
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<PromptImage> images, encode_images(kv_.num_tokens(), image_rows));
  const ImageReader* const reader = images.empty() ? nullptr : model_->executor->images();
  while (kv_.num_tokens() < size) {
    const int64_t start = kv_.num_tokens();
    int64_t end = std::min<int64_t>(size, start + prefill_chunk_);
    for (const PromptImage& image : images) {  // rows that see each other come together
      if (has_spans(reader->decoder()) && image.begin < end && end < image.end()) end = image.end();
    }
    HEADRACE_RETURN_IF_ERROR(reserve(end));
    Batch batch;
    const int64_t first_row = std::max(start, first_logits);
    batch.add_sequence(*kv_cache_, kv_, tokens, end, first_row, adapter_.get());
    if (reader != nullptr) add_image_rows(batch, reader->decoder(), reader->vision(), images, start, end);
    float* out = batch.logits_rows.empty() ? nullptr : logits + (first_row - first_logits) * vocab_size;
    HEADRACE_RETURN_IF_ERROR(model_->executor->run(batch, *kv_cache_, out));
    HEADRACE_RETURN_IF_ERROR(kv_cache_->commit(kv_, tokens, end));
  }
  return Status();
}

Status Session::evaluate(std::span<const int32_t> tokens, float* logits) {
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  unpark();  // while the tokens are those that are computed: the file may know those that come, too
  HEADRACE_RETURN_IF_ERROR(check_room(static_cast<int64_t>(tokens.size())));
  const auto before = static_cast<int64_t>(tokens_.size());
  const int64_t cached_before = kv_.num_tokens();
  HEADRACE_RETURN_IF_ERROR(append_checked(tokens));
  const int64_t num_logits = logits != nullptr ? static_cast<int64_t>(tokens.size()) : 0;
  const auto roll_back = [&] {
    tokens_.resize(static_cast<size_t>(before));
    kv_cache_->rewind(kv_, std::min(cached_before, kv_.num_tokens()));
  };
  try {
    Status status = compute(tokens_, num_logits, logits);
    if (!status.ok()) roll_back();
    return status;
  } catch (const std::bad_alloc&) {
    roll_back();
    throw;  // shrinking allocated nothing; the caller turns it into a code
  }
}

Result<std::shared_ptr<Session>> Session::fork() const {
  std::shared_ptr<Session> copy;
  {
    const std::lock_guard lock(mutex_);
    HEADRACE_RETURN_IF_ERROR(check_idle());
    copy.reset(new Session(model_, kv_cache_, prefill_chunk_));
    copy->tokens_ = tokens_;
    copy->images_ = images_;
    copy->conversation_ = conversation_;
    copy->overflow_ = overflow_;
    copy->dropped_ = dropped_;
    copy->created_unix_seconds_ = created_unix_seconds_;
    copy->adapter_ = adapter_;
    copy->cache_salt_ = cache_salt_;
    copy->kv_ = kv_cache_->fork(kv_);
    copy->parked_path_ = parked_path_;
    copy->touch();
  }
  model_->register_session(copy);
  return copy;
}

Status Session::rewind(int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  if (num_tokens < 0 || num_tokens > static_cast<int64_t>(tokens_.size())) {
    return invalid_argument("num_tokens", "{} is not in [0, {}]", num_tokens, tokens_.size());
  }
  for (const PlacedImage& image : images_) {
    if (image.begin >= num_tokens || num_tokens >= image.end()) continue;
    return invalid_argument("num_tokens", "{} is inside an image, which has [{}, {})", num_tokens, image.begin,
                            image.end());
  }
  std::erase_if(images_, [&](const PlacedImage& image) { return image.begin >= num_tokens; });
  tokens_.resize(static_cast<size_t>(num_tokens));
  conversation_.messages.clear();
  conversation_.images.clear();
  if (kv_.num_tokens() > num_tokens) kv_cache_->rewind(kv_, num_tokens);
  touch();
  return Status();
}

Status Session::set_adapter(std::shared_ptr<const Adapter> adapter) {
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  if (adapter && adapter->model() != model_->model) return failed_precondition("adapter", "is of another model");
  if (!adapter) adapter = model_->own_adapter;
  forget_values_unless(adapted_salt(adapter.get(), cache_salt_));
  adapter_ = std::move(adapter);
  touch();
  return Status();
}

Status Session::set_cache_salt(std::string salt) {
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  forget_values_unless(adapted_salt(adapter_.get(), salt));
  cache_salt_ = std::move(salt);
  touch();
  return Status();
}

std::string Session::own_salt() const { return adapted_salt(adapter_.get(), cache_salt_); }

void Session::forget_values_unless(const std::string& salt) {
  if (salt == own_salt()) return;
  KvSequence empty = kv_cache_->new_sequence(salt);
  kv_cache_->release(kv_);
  kv_ = std::move(empty);
  parked_path_.clear();
}

Status Session::save(const std::string& path) {
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  HEADRACE_RETURN_IF_ERROR(check_room(0));  // restore would refuse the file
  unpark();
  return write(path);
}

Status Session::park(const std::string& path) {
  const std::lock_guard lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  // What an earlier file has is not to be lost, the more so where it is the same one.
  unpark();
  HEADRACE_RETURN_IF_ERROR(write(path));
  if (kv_.num_tokens() > 0) parked_path_ = path;
  kv_cache_->release(kv_);
  return Status();
}

// Values that the session was parked with come back, as far as its tokens are still those.
void Session::unpark() {
  const std::string path = std::exchange(parked_path_, {});
  if (path.empty() || !kv_.block_ids().empty()) return;
  auto source = open_path(path);
  if (!source.ok()) return;
  auto opened = open_session_file(*source);
  if (!opened.ok() || !opened->values || opened->record.identity != model_->executor->kv_identity()) return;
  auto restored = restore_values(*opened->values, opened->record.rope_length);
  if (!restored.ok()) return;
  kv_ = std::move(restored->sequence);
  kv_cache_->rewind(kv_, common_prefix(tokens_, restored->token_ids, kv_.num_tokens()));
}

Result<KvCache::Restored> Session::restore_values(ByteSource& values, int64_t rope_length) const {
  const std::string salt = own_salt();
  for (;;) {
    auto restored = kv_cache_->restore(values, salt, rope_length);
    if (restored.status().code() != StatusCode::kResourceExhausted) return restored;
    if (!model_->shed_idle_session(*kv_cache_)) return restored;
  }
}

Status Session::write(const std::string& path) const {
  if (kv_cache_->config().zero_retention) {
    return failed_precondition("kv.zero_retention", "nothing of the session may outlive it");
  }
  if (adapter_ != model_->own_adapter) return unsupported("adapter", "sessions with an adapter are not saved");
  const bool has_parts = std::any_of(conversation_.messages.begin(), conversation_.messages.end(),
                                     [](const Message& m) { return m.has_parts; });
  if (!images_.empty() || has_parts) return unsupported("images", "sessions with images are not saved");
  SessionRecord record;
  record.identity = model_->executor->kv_identity();
  record.created_unix_seconds = created_unix_seconds_;
  record.tokens = tokens_;
  for (const Message& message : conversation_.messages) record.messages.emplace_back(message.role, message.content);
  record.num_cached = kv_.num_tokens();
  record.rope_length = kv_.rope_length();
  return replace_file(path, [&](const WriteBytes& write) -> Status {
    HEADRACE_RETURN_IF_ERROR(write_session_record(record, write));
    if (record.num_cached == 0) return Status();
    return kv_cache_->save(kv_, tokens_, write);
  });
}

Result<std::shared_ptr<Session>> Session::restore(std::shared_ptr<const EngineModel> model,
                                                  std::shared_ptr<KvCache> kv_cache, const EngineOptions& options,
                                                  const std::shared_ptr<ByteSource>& source) {
  HEADRACE_ASSIGN_OR_RETURN(auto session, make(std::move(model), std::move(kv_cache), options));
  const std::string& name = source->name();
  HEADRACE_ASSIGN_OR_RETURN(OpenedSessionFile opened, open_session_file(source));
  SessionRecord& record = opened.record;
  if (record.identity != session->model_->executor->kv_identity()) {
    return failed_precondition(name, "the session is of another model");
  }
  const int32_t vocab_size = session->model_->executor->vocab_size();
  const auto stray =
      std::find_if(record.tokens.begin(), record.tokens.end(), [&](int32_t id) { return id < 0 || id >= vocab_size; });
  if (stray != record.tokens.end()) return malformed(name, "{} is no token id", *stray);
  HEADRACE_RETURN_IF_ERROR(session->check_room(static_cast<int64_t>(record.tokens.size())));
  if (session->model_->executor->rope_length(record.rope_length) != record.rope_length) {
    return malformed(name, "{} names no rotation of the model", record.rope_length);
  }
  for (auto& [role, content] : record.messages) {
    if (text::utf8_invalid_offset(role) != std::string::npos ||
        text::utf8_invalid_offset(content) != std::string::npos) {
      return malformed(name, "a message is not UTF-8");
    }
    session->conversation_.messages.push_back({std::move(role), std::move(content)});
  }
  if (opened.values) {
    HEADRACE_ASSIGN_OR_RETURN(auto restored, session->restore_values(*opened.values, record.rope_length));
    const auto cached = std::span<const int32_t>(record.tokens).first(static_cast<size_t>(record.num_cached));
    if (!std::equal(cached.begin(), cached.end(), restored.token_ids.begin(), restored.token_ids.end())) {
      return malformed(name, "the cached values are of other tokens");
    }
    session->kv_ = std::move(restored.sequence);
  }
  session->tokens_ = std::move(record.tokens);
  session->created_unix_seconds_ = record.created_unix_seconds;
  session->touch();
  session->model_->register_session(session);
  return session;
}

Status Session::fill(Lease& lease, std::span<const int32_t> request_prompt) const {
  if (!conversation_.messages.empty()) {
    if (request_prompt.empty()) return render(conversation_, lease);
    return invalid_argument("prompt", "the session's messages are the prompt; append a message instead");
  }
  lease.prompt = tokens_;
  lease.first_own = static_cast<int64_t>(tokens_.size());
  lease.prompt.insert(lease.prompt.end(), request_prompt.begin(), request_prompt.end());
  lease.images = images_;
  return Status();
}

Result<Session::Lease> Session::acquire(std::span<const int32_t> request_prompt, const SessionOutput& output) {
  std::unique_lock lock(mutex_);
  HEADRACE_RETURN_IF_ERROR(check_idle());
  Lease lease;
  HEADRACE_RETURN_IF_ERROR(fill(lease, request_prompt));
  if (overflow_.kind != SessionOverflow::Kind::kRefuse && !fits(static_cast<int64_t>(lease.prompt.size()), output)) {
    HEADRACE_RETURN_IF_ERROR(shorten(lock, static_cast<int64_t>(request_prompt.size()), output));
    lease = Lease();
    HEADRACE_RETURN_IF_ERROR(fill(lease, request_prompt));
  }
  unpark();
  // Drawing needs the logits of the last prompt token, so its values are always computed.
  const int64_t useful =
      std::min(common_prefix(tokens_, lease.prompt, kv_.num_tokens()), static_cast<int64_t>(lease.prompt.size()) - 1);
  // Memory first: give_back has no way to fail.
  conversation_.messages.reserve(conversation_.messages.size() + 1);
  KvSequence empty = kv_cache_->new_sequence(own_salt());
  lease.adapter = adapter_;
  lease.cache_salt = cache_salt_;
  lease.kv = std::move(kv_);
  kv_ = std::move(empty);
  kv_cache_->rewind(lease.kv, std::max<int64_t>(useful, 0));
  busy_ = true;
  touch();
  return lease;
}

void Session::give_back(std::vector<int32_t> tokens, int64_t num_output, std::string reply,
                        std::vector<PlacedImage> images, KvSequence kv) {
  const std::lock_guard lock(mutex_);
  if (num_output > 0) {
    tokens_ = std::move(tokens);
    images_ = std::move(images);
    if (!conversation_.messages.empty()) conversation_.messages.push_back({"assistant", std::move(reply)});
  } else {
    kv_cache_->rewind(kv, common_prefix(tokens_, tokens, kv.num_tokens()));
  }
  // Room reserved beyond the stored positions goes back too.
  kv_cache_->rewind(kv, kv.num_tokens());
  // The sequence that acquire left here is empty as well, and surely of this cache.
  if (!kv.block_ids().empty()) kv_ = std::move(kv);
  busy_ = false;
  touch();
}

bool Session::shed() {
  // A session that computes or is being changed is in use.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || busy_ || pinned_.load(std::memory_order_relaxed) || kv_.block_ids().empty()) return false;
  kv_cache_->release(kv_);
  return true;
}

void Session::list_pinned(std::vector<int32_t>& blocks) const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || busy_ || !pinned_.load(std::memory_order_relaxed)) return;
  blocks.insert(blocks.end(), kv_.block_ids().begin(), kv_.block_ids().end());
}

}  // namespace headrace::engine
