#include "generation.h"

#include <utility>

namespace server {

void Generation::start(EngineThread& engine, const Post& post, std::atomic<uint64_t>& num_vanished,
                       std::shared_ptr<Exchange> exchange, const std::vector<headrace::Request>& requests,
                       size_t num_samples, std::unique_ptr<AnswerFormat> format) {
  const auto generation =
      std::make_shared<Generation>(engine, num_vanished, exchange, requests.size(), num_samples, std::move(format));
  engine.submit(requests, generation, [&](std::vector<uint64_t> ids) {
    post([generation, ids = std::move(ids), exchange]() mutable {
      generation->ids_ = std::move(ids);
      exchange->on_gone([generation] {
        ++generation->num_vanished_;
        generation->cancel();
      });
      if (!generation->is_over_) generation->format_->begin();
    });
  });
}

Generation::Generation(EngineThread& engine, std::atomic<uint64_t>& num_vanished, std::shared_ptr<Exchange> exchange,
                       size_t num_requests, size_t num_samples, std::unique_ptr<AnswerFormat> format)
    : engine_(engine),
      num_vanished_(num_vanished),
      exchange_(std::move(exchange)),
      num_samples_(num_samples),
      format_(std::move(format)),
      num_open_(num_requests) {}

void Generation::on_event(size_t slot, const headrace::Event* event) {
  if (is_over_) return;
  if (event == nullptr) return fail(ApiError(500, "the engine failed"));
  const size_t choice = slot * num_samples_ + event->index();
  switch (event->type()) {
    case headrace::EventType::kTokens:
    case headrace::EventType::kPrompt: format_->tokens(choice, *event); break;
    case headrace::EventType::kProgress: format_->progress(choice, event->progress()); break;
    case headrace::EventType::kFinished: on_finished(slot, *event); break;
    case headrace::EventType::kFailed: return fail(ApiError(event->error()));
    case headrace::EventType::kHidden: break;  // no request of the server asks for them
  }
  if (!is_over_ && event->is_last() && --num_open_ == 0) {
    is_over_ = true;
    format_->done(usage_);
  }
}

void Generation::on_finished(size_t slot, const headrace::Event& event) {
  const std::string reason = event.finish_reason();
  const headrace_usage usage = event.usage();
  if (reason == "cancelled") return fail(ApiError(503, "the request was cancelled, for the server is shutting down"));
  if (reason == "deadline") return fail(ApiError(504, "the deadline passed", "", "deadline_exceeded"));
  usage_.output_tokens += usage.output_tokens;
  if (event.is_last()) {
    usage_.prompt_tokens += usage.prompt_tokens;
    usage_.cached_tokens += usage.cached_tokens;
    if (usage_.reuse_miss.empty()) usage_.reuse_miss = event.reuse_miss();
  }
  format_->finish(slot * num_samples_ + event.index(), reason);
}

void Generation::fail(const ApiError& error) {
  is_over_ = true;
  cancel();
  if (!exchange_->is_gone()) format_->fail(error);
}

void Generation::cancel() {
  is_over_ = true;
  for (const uint64_t id : ids_) engine_.cancel(id);
}

}  // namespace server
