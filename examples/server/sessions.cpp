#include "sessions.h"

#include "api_error.h"
#include "sampling_fields.h"

namespace server {
namespace {

class CommittingFormat : public AnswerFormat {
 public:
  CommittingFormat(std::unique_ptr<AnswerFormat> format, std::shared_ptr<Sessions::Lease> lease)
      : format_(std::move(format)), lease_(std::move(lease)) {}
  void begin() override { format_->begin(); }
  void tokens(size_t choice, const headrace::Event& event) override { format_->tokens(choice, event); }
  void progress(size_t choice, const headrace_prompt_progress& progress) override {
    format_->progress(choice, progress);
  }
  void finish(size_t choice, const std::string& reason) override { format_->finish(choice, reason); }
  void done(const TokenUsage& usage) override {
    lease_->commit();  // before the client knows: its next request finds the session free
    format_->done(usage);
  }
  void fail(const ApiError& error) override {
    lease_.reset();
    format_->fail(error);
  }

 private:
  const std::unique_ptr<AnswerFormat> format_;
  std::shared_ptr<Sessions::Lease> lease_;
};

OrderedJson describe(const std::string& id, const headrace::Session& session) {
  return {{"id", id}, {"object", "session"}, {"tokens", session.tokens().size()}};
}

void create(Context& context, const Call& call) {
  const ServedModels::Choice choice = context.models.choose(call.body);
  ServedModel& served = choice.served;
  headrace::Session session(served.model(), served.kv_cache(), served.options());
  if (choice.adapter) throw ApiError(400, "is an adapter, which sessions do not have", "model", "unsupported");
  session.set_cache_salt(cache_salt_of(call));
  const std::string id = context.sessions.add(call.caller.tenant, served, std::move(session));
  call.reply({{"id", id}, {"object", "session"}, {"tokens", 0}});
}

void show(Context& context, const Call& call) {
  call.reply(context.sessions.with(call.caller.tenant, call.parameter, [&](const headrace::Session& session) {
    return describe(call.parameter, session);
  }));
}

void fork(Context& context, const Call& call) {
  const auto [id, num_tokens] = context.sessions.fork(call.caller.tenant, call.parameter);
  call.reply({{"id", id}, {"object", "session"}, {"tokens", num_tokens}});
}

void rewind(Context& context, const Call& call) {
  const auto tokens = static_cast<size_t>(integer_field(call.body, "tokens", 0));
  call.reply(context.sessions.with(call.caller.tenant, call.parameter, [&](headrace::Session& session) {
    session.rewind(tokens);
    return describe(call.parameter, session);
  }));
}

void remove(Context& context, const Call& call) {
  context.sessions.remove(call.caller.tenant, call.parameter);
  call.reply({{"id", call.parameter}, {"object", "session"}, {"deleted", true}});
}

}  // namespace

Sessions::Lease::~Lease() {
  if (!is_over_) sessions_.end(id_, nullptr);
}

void Sessions::Lease::commit() {
  is_over_ = true;
  sessions_.end(id_, this);
}

std::string Sessions::add(const std::string& tenant, const ServedModel& served, headrace::Session session) {
  const std::lock_guard lock(mutex_);
  return insert({tenant, &served, std::move(session)});
}

std::pair<std::string, size_t> Sessions::fork(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const Entry& entry = find(tenant, id);
  const size_t num_tokens = entry.session.tokens().size();
  return {insert({tenant, entry.served, entry.session.fork(), entry.pixels_left}), num_tokens};
}

std::string Sessions::insert(Entry entry) {
  const std::string id = new_id("session-");
  size_t count = 0;
  for (const auto& [other, known] : entries_) count += known.tenant == entry.tenant;
  if (count >= max_sessions_)
    throw ApiError(429, "there are as many sessions as the server keeps of a tenant", "", "too_many_sessions");
  entries_.emplace(id, std::move(entry));
  return id;
}

std::shared_ptr<Sessions::Lease> Sessions::lease(const std::string& tenant, const ServedModel& served,
                                                 const std::string& id) {
  const std::lock_guard lock(mutex_);
  Entry& entry = find(tenant, id);
  if (entry.served != &served) throw ApiError(400, "is one of another model", "session");
  auto lease = std::make_shared<Lease>(*this, id, entry.session.fork(), entry.pixels_left);
  entry.is_busy = true;
  return lease;
}

void Sessions::remove(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  find(tenant, id);
  entries_.erase(id);
}

size_t Sessions::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

Sessions::Entry& Sessions::find(const std::string& tenant, const std::string& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.tenant != tenant) {
    throw ApiError(404, "there is no session \"" + id + "\"", "session", "session_not_found");
  }
  if (found->second.is_busy) throw ApiError(409, "a request of the session still runs", "session", "session_busy");
  return found->second;
}

void Sessions::end(const std::string& id, Lease* replacement) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.at(id);
  entry.is_busy = false;
  if (replacement == nullptr) return;
  entry.session = std::move(replacement->fork());
  entry.pixels_left = replacement->pixels_left();
}

std::unique_ptr<AnswerFormat> commit_when_done(std::unique_ptr<AnswerFormat> format,
                                               std::shared_ptr<Sessions::Lease> lease) {
  return std::make_unique<CommittingFormat>(std::move(format), std::move(lease));
}

void add_sessions(Router& router, Context& context) {
  const auto add = [&](const char* method, const char* path, const char* schema, void (*handler)(Context&, const Call&),
                       bool is_body_optional = false) {
    router.add({method,
                path,
                Access::kKey,
                Place::kPrepare,
                schema,
                [&context, handler](Call call) { handler(context, call); },
                ErrorShape::kOpenAi,
                is_body_optional,
                {{"num_tokens", "tokens"}}});
  };
  add("POST", "/v1/sessions", "SessionRequest", create, true);
  add("POST", "/v1/sessions/*/fork", "", fork);
  add("POST", "/v1/sessions/*/rewind", "RewindRequest", rewind);
  add("GET", "/v1/sessions/*", "", show);
  add("DELETE", "/v1/sessions/*", "", remove);
}

}  // namespace server
