// A conversation: its tokens are the truth, cached keys and values follow them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_source.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/image_reader.h"
#include "engine/session_overflow.h"

namespace headrace::engine {

// Built either from tokens and texts or from messages, never both. Thread rule: calls are serialised inside; while a
// request uses the session it is busy, and calls that change it or read its cache give kFailedPrecondition.
class Session : public std::enable_shared_from_this<Session> {
 public:
  using Message = SessionMessage;

  // kv_cache null: one of its own, made with the options.
  static Result<std::shared_ptr<Session>> create(std::shared_ptr<const EngineModel> model,
                                                 std::shared_ptr<KvCache> kv_cache, const EngineOptions& options);
  // kMalformed for a damaged file, kFailedPrecondition for one of another model or KV type.
  static Result<std::shared_ptr<Session>> restore(std::shared_ptr<const EngineModel> model,
                                                  std::shared_ptr<KvCache> kv_cache, const EngineOptions& options,
                                                  const std::shared_ptr<ByteSource>& source);

  const std::shared_ptr<const EngineModel>& model() const { return model_; }
  const std::shared_ptr<KvCache>& kv_cache() const { return kv_cache_; }

  // Ids outside the vocabulary are kInvalidArgument with "tokens[i]" as place; more than fit the context are
  // kResourceExhausted with the counts. Nothing is computed yet.
  Status append_tokens(std::span<const int32_t> tokens);
  Status append_text(std::string_view text, text::EncodeOptions encode_options);
  // Rendered with the model's template when a request runs. kNotFound where the model has no template.
  Status append_message(std::string_view role, std::string_view content);
  // The same of a content as templates read it, a JSON array of objects: those with "type": "image" are the images, in order.
  // kMalformed ("parts") for other JSON; kInvalidArgument ("images") for more or fewer of them.
  Status append_parts(std::string_view role, std::string_view parts,
                      std::vector<std::shared_ptr<const RequestImage>> images);

  // Another content of message `index`, a text; those behind stay. The next request computes from the first token that differs.
  Status set_message(size_t index, std::string_view content);
  // Forgets messages from `count` on; of all of them, tokens too.
  Status truncate_messages(size_t count);
  // What becomes of a request that would exceed the context: by default it is refused. With another policy append_tokens and
  // append_text take more than fits. kInvalidArgument with the field as place.
  Status set_overflow(SessionOverflow overflow);
  SessionDropped dropped() const;

  // Tokens computed or appended, of an image its token for each of its rows; of a session of messages, those of the last
  // request.
  std::vector<int32_t> tokens() const;
  std::vector<Message> messages() const;
  bool busy() const;
  bool of_messages() const;

  // Appends tokens and computes their logits [tokens.size(), vocab_size] float32, row t scoring the token after
  // tokens[t]; null `logits`: only the cache is filled. After a failure the session is as before.
  Status evaluate(std::span<const int32_t> tokens, float* logits);
  // Another session with the same past, sharing its cached blocks.
  Result<std::shared_ptr<Session>> fork() const;
  // Forgets all but the first num_tokens tokens, and every message. kInvalidArgument for a place inside an image.
  Status rewind(int64_t num_tokens);
  // The adapter of all that the session computes from here on; null: none. Values of another are forgotten, tokens stay.
  Status set_adapter(std::shared_ptr<const Adapter> adapter);
  // What the session's values are found under in the prefix index, as a request's are. Values of another are forgotten, tokens
  // stay. No part of what is saved.
  Status set_cache_salt(std::string salt);
  // kUnsupported with an adapter or images: a file does not hold them. kResourceExhausted with more tokens than the context:
  // restore would refuse them. kFailedPrecondition with kv.zero_retention. Writes beside `path` and renames, so that a failure leaves
  // what was there.
  Status save(const std::string& path);
  // save, whatever number of tokens, and gives the cached values up: where they are needed again they come from the file. One that is
  // not there any more, or not as it was, costs computing them.
  Status park(const std::string& path);

  // --- for the scheduler ---

  // What a request on this session starts from.
  struct Lease {
    std::vector<int32_t> prompt;      // the session's (or the rendered conversation's) tokens, then the request's
    int64_t first_own = 0;            // where the request's own part begins in `prompt`; 0 for rendered conversations
    std::vector<PlacedImage> images;  // of the session
    KvSequence kv;                    // cached values of a prefix of `prompt`, at most all but its last token
    std::shared_ptr<const Adapter> adapter;
    std::string cache_salt;
  };
  // Makes the session busy. What its policy of overflow takes away stays away, whatever becomes of the request.
  Result<Lease> acquire(std::span<const int32_t> request_prompt, const SessionOutput& output);
  // The request ended: `tokens` are prompt and output so far, the last num_output of them output, `reply` their text; kv
  // holds values of a prefix of them, and `images` are all of theirs. Without output the session is as before acquire.
  void give_back(std::vector<int32_t> tokens, int64_t num_output, std::string reply, std::vector<PlacedImage> images,
                 KvSequence kv);

  // For EngineModel: gives the cached values up unless the session is busy or pinned; false when there was nothing to give.
  bool shed();
  // A pinned session keeps its cached values while it is idle. [any thread]
  void set_pinned(bool pinned) { pinned_.store(pinned, std::memory_order_relaxed); }
  // Adds the blocks of an idle pinned session.
  void list_pinned(std::vector<int32_t>& blocks) const;
  uint64_t last_used() const { return last_used_.load(std::memory_order_relaxed); }

 private:
  Session(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> kv_cache, int32_t prefill_chunk);
  static Result<std::shared_ptr<Session>> make(std::shared_ptr<const EngineModel> model,
                                               std::shared_ptr<KvCache> kv_cache, const EngineOptions& options);
  Status check_idle() const;
  Status check_message(std::string_view role) const;
  Status add_message(Message message);
  std::string own_salt() const;
  void forget_values_unless(const std::string& salt);
  Status write(const std::string& path) const;
  void unpark();
  // Other idle sessions give their room up for them.
  Result<KvCache::Restored> restore_values(ByteSource& values, int64_t rope_length) const;
  // Whether `count` more tokens fit the context.
  Status check_room(int64_t count) const;
  Status append_checked(std::span<const int32_t> tokens);
  struct Conversation {
    std::vector<Message> messages;
    std::vector<std::shared_ptr<const RequestImage>> images;  // in the order of their parts
    void forget_images(size_t begin, size_t end);             // those of messages [begin, end)
  };
  // Its prompt, and the images' places in it.
  Status render(const Conversation& conversation, Lease& lease) const;
  Status fill(Lease& lease, std::span<const int32_t> request_prompt) const;

  // session_overflow.cpp
  bool fits(int64_t prompt_size, const SessionOutput& output) const;
  int64_t freed(int64_t limit) const;
  Status shorten(std::unique_lock<std::mutex>& lock, int64_t request_tokens, const SessionOutput& output);
  Status shorten_messages(std::unique_lock<std::mutex>& lock, int64_t target, int64_t most);
  Status shorten_tokens(std::unique_lock<std::mutex>& lock, int64_t request_tokens, int64_t target, int64_t most);
  Result<SessionOverflow::Part> summary_of(std::unique_lock<std::mutex>& lock, const SessionOverflow::Part& dropped);
  // Stores the values of all of `tokens` and computes the logits of the last num_logits of them.
  Status compute(const std::vector<int32_t>& tokens, int64_t num_logits, float* logits);
  Status reserve(int64_t num_tokens);
  // The images' places, with rows of those that have positions in [begin, ...): `rows` holds them.
  Result<std::vector<PromptImage>> encode_images(int64_t begin, std::vector<std::vector<float>>& rows) const;
  void touch();

  std::shared_ptr<const EngineModel> model_;
  std::shared_ptr<KvCache> kv_cache_;
  int32_t prefill_chunk_;
  std::atomic<uint64_t> last_used_{0};
  std::atomic<bool> pinned_{false};

  mutable std::mutex mutex_;  // guards what follows; held while evaluate computes
  bool busy_ = false;
  std::vector<int32_t> tokens_;      // positions of an image hold a number below 0 (KvCache::content_id)
  std::vector<PlacedImage> images_;  // of tokens_, in order
  Conversation conversation_;
  int64_t created_unix_seconds_ = 0;  // the templates' clock: one conversation renders the same way each time
  std::shared_ptr<const Adapter> adapter_;
  std::string cache_salt_;
  KvSequence kv_;  // values of a prefix of tokens_
  SessionOverflow overflow_;
  SessionDropped dropped_;
  std::string parked_path_;  // of the file that has values which kv_ has not; "": none
};

}  // namespace headrace::engine
