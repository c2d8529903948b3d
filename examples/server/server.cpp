#include "server.h"

#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "context.h"
#include "listener.h"
#include "pages.h"
#include "sessions.h"

namespace server {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds kDrainPoll{20};

// Ends the I/O thread's work: no new connections, then the running requests' end, or theirs by force.
class Shutdown {
 public:
  Shutdown(asio::io_context& io, Listener& listener, Router& router, const ServedModels& models, const Limits& limits)
      : io_(io),
        signals_(io, SIGTERM, SIGINT),
        poll_(io),
        listener_(listener),
        router_(router),
        models_(models),
        limits_(limits) {
    wait_for_signal();
  }

 private:
  void wait_for_signal() {
    signals_.async_wait([this](boost::system::error_code error, int) {
      if (error) return;
      if (is_draining_) return io_.stop();
      is_draining_ = true;
      router_.drain();
      listener_.drain();
      deadline_ = std::chrono::steady_clock::now() + limits_.drain_timeout;
      wait_for_signal();
      watch();
    });
  }

  void watch() {
    const auto now = std::chrono::steady_clock::now();
    if (listener_.num_connections() == 0 && router_.num_pending() == 0) return io_.stop();
    if (now > deadline_) {
      if (is_cancelled_) return io_.stop();
      // Clients of what is cancelled are told so.
      is_cancelled_ = true;
      deadline_ = now + std::chrono::seconds(2);
      for (const auto& served : models_.all()) {
        if (served->engine() != nullptr) served->engine()->cancel_all();
      }
    }
    poll_.expires_after(kDrainPoll);
    poll_.async_wait([this](boost::system::error_code error) {
      if (!error) watch();
    });
  }

  asio::io_context& io_;
  asio::signal_set signals_;
  asio::steady_timer poll_;
  Listener& listener_;
  Router& router_;
  const ServedModels& models_;
  const Limits& limits_;
  std::chrono::steady_clock::time_point deadline_;
  bool is_draining_ = false, is_cancelled_ = false;
};

// The models' engines, from their start to their end.
class Engines {
 public:
  Engines(ServedModels& models, const ApiKeys& keys, const EngineThread::Post& post) : models_(models) {
    for (const auto& served : models_.all()) {
      if (!served->generates()) continue;
      for (const auto& [tenant, limits] : keys.tenants()) served->scheduler().set_tenant(tenant, limits);
      served->start(post);
    }
  }
  ~Engines() {
    for (const auto& served : models_.all()) served->stop();
  }
  Engines(const Engines&) = delete;
  Engines& operator=(const Engines&) = delete;

 private:
  ServedModels& models_;
};

}  // namespace

void Context::generate(const Call& call, const ServedModel& served, const std::vector<headrace::Request>& requests,
                       size_t num_samples, std::unique_ptr<AnswerFormat> format) {
  Generation::start(*served.engine(), post, num_vanished, call.exchange, requests, num_samples, std::move(format));
}

std::string new_id(const std::string& prefix) {
  constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  thread_local std::random_device device;
  std::uniform_int_distribution<size_t> letter(0, sizeof kLetters - 2);
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kLetters[letter(device)];
  return id;
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ApiKeys check(const Settings& settings) {
  ApiKeys keys = settings.api_key_file.empty() ? ApiKeys() : ApiKeys::read(settings.api_key_file);
  if (!keys.are_needed() && !is_loopback(settings.host)) {
    throw std::runtime_error("without --api-key-file the server listens at loopback addresses only, not at " +
                             settings.host);
  }
  return keys;
}

void serve(const std::function<std::vector<LoadedModel>()>& load, const ApiKeys& keys, const Settings& settings,
           const Announcements& announce) {
  const SchemaCheck schemas(Json::parse(kOpenApiJson));
  ServedModels models;
  Sessions sessions(settings.limits.max_sessions);
  asio::io_context io(1);
  const EngineThread::Post post = [&io](std::function<void()> task) { asio::post(io, std::move(task)); };
  Context context{settings, models, sessions, 0, post};
  Router router(settings.limits, schemas, keys, Origins(settings.origins, !keys.are_needed()));
  add_chat(router, context);
  add_completions(router, context);
  add_responses(router, context);
  add_messages(router, context);
  add_embeddings(router, context);
  add_rerank(router, context);
  add_models(router, context);
  add_tokenize(router, context);
  add_sessions(router, context);
  add_operation(router, context);

  Listener listener(io, settings.host, settings.port, router, settings.limits);
  listener.start();
  announce.listening(listener.port());

  // What loads touches the models alone, and the I/O thread touches them only once the router is open.
  std::optional<Engines> engines;
  std::optional<Shutdown> shutdown;
  std::exception_ptr failure;
  std::jthread loader([&] {
    try {
      for (LoadedModel& model : load()) models.add(std::move(model));
      for (const auto& [name, folder] : settings.adapters) models.load_adapter(*models.all().front(), name, folder);
      engines.emplace(models, keys, post);
      post([&] {
        shutdown.emplace(io, listener, router, models, settings.limits);
        router.open();
        announce.ready();
      });
    } catch (...) {
      failure = std::current_exception();
      io.stop();
    }
  });
  io.run();
  loader.join();
  listener.close_all();
  router.join();
  io.restart();
  io.poll();  // what the last connections and handlers left behind
  if (failure) std::rethrow_exception(failure);
  for (const auto& served : models.all()) {
    if (served->generates()) served->kv_cache().flush();
  }
}

}  // namespace server
