// Conversations that the server keeps between requests, each of one tenant.
#pragma once

#include <headrace/headrace.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "context.h"
#include "image_data.h"

namespace server {

// Thread rule: any thread.
class Sessions {
 public:
  explicit Sessions(size_t max_sessions) : max_sessions_(max_sessions) {}

  // A request's hold on a session: it works on a fork, which takes the session's place when the request succeeds, and is
  // forgotten when it does not. Nobody else may hold the session meanwhile.
  class Lease {
   public:
    Lease(Sessions& sessions, std::string id, headrace::Session fork, uint64_t pixels_left)
        : sessions_(sessions), id_(std::move(id)), fork_(std::move(fork)), pixels_left_(pixels_left) {}
    ~Lease();
    headrace::Session& fork() { return fork_; }
    // Of the images that the conversation may still have; taken over with the fork.
    uint64_t pixels_left() const { return pixels_left_; }
    void set_pixels_left(uint64_t pixels) { pixels_left_ = pixels; }
    void commit();

   private:
    Sessions& sessions_;
    const std::string id_;
    headrace::Session fork_;
    uint64_t pixels_left_;
    bool is_over_ = false;
  };

  // Throw ApiError: 404 for an id that the tenant does not have, 409 for a session in use, 429 beyond the limit.
  std::string add(const std::string& tenant, const ServedModel& served, headrace::Session session);
  // 400 for a session of another model.
  std::shared_ptr<Lease> lease(const std::string& tenant, const ServedModel& served, const std::string& id);
  // Another session with the same past: its number and tokens.
  std::pair<std::string, size_t> fork(const std::string& tenant, const std::string& id);
  void remove(const std::string& tenant, const std::string& id);
  // Runs a function on the session while nobody else holds it.
  template <class Function>
  auto with(const std::string& tenant, const std::string& id, const Function& function) {
    const std::lock_guard lock(mutex_);
    return function(find(tenant, id).session);
  }
  size_t size() const;

 private:
  struct Entry {
    std::string tenant;
    const ServedModel* served;
    headrace::Session session;
    uint64_t pixels_left = kMaxPixels;
    bool is_busy = false;
  };
  Entry& find(const std::string& tenant, const std::string& id);
  std::string insert(Entry entry);
  void end(const std::string& id, Lease* replacement);

  const size_t max_sessions_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

// Commits the lease when the answer is done.
std::unique_ptr<AnswerFormat> commit_when_done(std::unique_ptr<AnswerFormat> format,
                                               std::shared_ptr<Sessions::Lease> lease);

}  // namespace server
