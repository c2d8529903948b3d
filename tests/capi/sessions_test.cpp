// Sessions through the C ABI: fork, rewind, save, restore, and conversations of messages.
#include <optional>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using headrace::KVCache;
using headrace::Request;
using headrace::Scheduler;
using headrace::Session;

constexpr size_t kVocabSize = 96;

std::vector<int32_t> tokens_from(int32_t first, size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(5 + (static_cast<size_t>(first) + 7 * i) % 90));
  return tokens;
}

std::vector<float> evaluate(Session& session, const std::vector<int32_t>& tokens) {
  std::vector<float> logits(tokens.size() * kVocabSize);
  session.evaluate(tokens.data(), tokens.size(), logits.data(), logits.size());
  return logits;
}

Output run(Scheduler& scheduler, const Session& session, int64_t max_tokens) {
  Request request(text_model());
  request.set_session(session).set_length(0, max_tokens).set_ignore_eos(true);
  return generate(scheduler, request);
}

}  // namespace

TEST_CASE("fork, rewind and restore continue with the same bits as one that went straight on") {
  const KVCache cache(text_model());
  const std::vector<int32_t> past = tokens_from(3, 37), next = tokens_from(50, 5);
  Session straight(text_model(), cache);
  evaluate(straight, past);
  Session forked = straight.fork();
  const std::vector<float> expected = evaluate(straight, next);

  CHECK(forked.tokens() == past);
  CHECK(evaluate(forked, tokens_from(1, 9)) != expected);
  forked.rewind(past.size());
  CHECK(evaluate(forked, next) == expected);
  CHECK(straight.tokens() == forked.tokens());
  straight.rewind(20);
  CHECK(straight.tokens() == std::vector<int32_t>(past.begin(), past.begin() + 20));
  evaluate(straight, std::vector<int32_t>(past.begin() + 20, past.end()));
  CHECK(evaluate(straight, next) == expected);
  CHECK(failure_of([&] { straight.rewind(1000); }).code == HEADRACE_INVALID_ARGUMENT);

  const TemporaryFolder folder;
  forked.rewind(past.size());
  forked.save(folder / "session");
  const KVCache elsewhere(text_model());
  Session restored = Session::restore(text_model(), elsewhere, folder / "session");
  CHECK(restored.tokens() == past);
  CHECK(evaluate(restored, next) == expected);
}

TEST_CASE("a file of another model, another KV type or damaged bytes is refused") {
  const TemporaryFolder folder;
  const KVCache cache(text_model());
  Session session(text_model(), cache);
  evaluate(session, tokens_from(3, 37));
  session.save(folder / "session");
  const headrace::Model other = headrace::Model::load(golden_path("qwen3"));
  CHECK(failure_of([&] { Session::restore(other, KVCache(other), folder / "session"); }).code ==
        HEADRACE_FAILED_PRECONDITION);
  headrace::Options options;
  options.set("kv.dtype", "q8");
  CHECK(failure_of([&] { Session::restore(text_model(), KVCache(text_model(), options), folder / "session"); }).code ==
        HEADRACE_FAILED_PRECONDITION);
  const std::string bytes = read_file(folder / "session");
  for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 40) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    write_file(folder / "damaged", damaged);
    INFO("byte " << at << " of " << bytes.size());
    CHECK(failure_of([&] { Session::restore(text_model(), cache, folder / "damaged"); }).code != HEADRACE_OK);
    write_file(folder / "damaged", bytes.substr(0, at));
    CHECK(failure_of([&] { Session::restore(text_model(), cache, folder / "damaged"); }).code == HEADRACE_MALFORMED);
  }
  CHECK(failure_of([&] { session.save(folder / "no/such/folder"); }).code != HEADRACE_OK);
  CHECK(failure_of([&] { session.append({96}); }).place == "tokens[0]");
  const headrace_kv_cache_stats stats = cache.stats();
  session.rewind(0);
  CHECK(cache.stats().free_blocks > stats.free_blocks);
}

TEST_CASE("a request's prompt and output are appended to its session, which is busy meanwhile") {
  const KVCache cache(text_model());
  Session session(text_model(), cache);
  session.append_text("once upon a time");
  const std::vector<int32_t> before = session.tokens();
  Scheduler scheduler(text_model(), cache);
  Request request(text_model());
  request.set_session(session).add_text(" there", 0).set_length(0, 5).set_ignore_eos(true);
  const uint64_t id = scheduler.submit(request);
  CHECK(failure_of([&] { session.append({9}); }).code == HEADRACE_FAILED_PRECONDITION);
  CHECK(failure_of([&] { session.rewind(0); }).code == HEADRACE_FAILED_PRECONDITION);
  CHECK(failure_of([&] { session.fork(); }).code == HEADRACE_FAILED_PRECONDITION);
  CHECK(failure_of([&] { scheduler.submit(request); }).code == HEADRACE_FAILED_PRECONDITION);
  const Output output = finish_all(scheduler).at({id, 0});
  std::vector<int32_t> expected = before;
  for (const int32_t token : text_model().tokenizer().encode(" there", true, false)) expected.push_back(token);
  expected.insert(expected.end(), output.tokens.begin(), output.tokens.end());
  CHECK(session.tokens() == expected);
  Scheduler with_another_cache(text_model());
  CHECK(failure_of([&] { with_another_cache.submit(request); }).code == HEADRACE_FAILED_PRECONDITION);
}

TEST_CASE("the second turn of a conversation finds the first in the cache") {
  const KVCache cache(text_model());
  Scheduler scheduler(text_model(), cache);
  Session session(text_model(), cache);
  session.append_message("user", "tell me a story");
  const Output first = run(scheduler, session, 6);
  CHECK(first.usage.cached_tokens == 0);
  CHECK(failure_of([&] { session.append({9}); }).code == HEADRACE_FAILED_PRECONDITION);
  const size_t held = session.tokens().size();
  CHECK(held == static_cast<size_t>(first.usage.prompt_tokens) + first.tokens.size());
  session.append_message("user", "go \"on\" \\ \n\t\x01 caf\u00E9 <|end|>");  // what a saved file must escape
  const Output second = run(scheduler, session, 4);
  // All of the first prompt is in the second. The reply is too where its text gives its tokens again.
  CHECK(second.usage.cached_tokens >= first.usage.prompt_tokens);
  CHECK(second.usage.prompt_tokens > second.usage.cached_tokens);

  // The whole conversation in one request says the same.
  std::vector<int32_t> prompt = session.tokens();
  prompt.resize(static_cast<size_t>(second.usage.prompt_tokens));
  Request request(text_model());
  request.add_tokens(prompt).set_length(0, 4).set_ignore_eos(true);
  Scheduler fresh(text_model());
  CHECK(generate(fresh, request).tokens == second.tokens);

  // A fork and a restored copy go on alike.
  const TemporaryFolder folder;
  session.save(folder / "talk");
  Session forked = session.fork();
  Session restored = Session::restore(text_model(), cache, folder / "talk");
  std::vector<Output> outputs;
  for (Session* each : {&session, &forked, &restored}) {
    each->append_message("user", "and then");
    outputs.push_back(run(scheduler, *each, 4));
  }
  CHECK(outputs[1].tokens == outputs[0].tokens);
  CHECK(outputs[2].tokens == outputs[0].tokens);
  CHECK(outputs[1].text == outputs[0].text);
}

TEST_CASE("messages and tokens are not mixed, and a role is needed") {
  Session session(text_model());
  CHECK(failure_of([&] { session.append_message("", "a"); }).place == "role");
  CHECK(failure_of([&] { session.append_message("user", "\xff"); }).place == "content");
  session.append({9});
  CHECK(failure_of([&] { session.append_message("user", "a"); }).code == HEADRACE_FAILED_PRECONDITION);
  session.rewind(0);
  session.append_message("user", "a");
  CHECK(failure_of([&] { session.append_text("a"); }).code == HEADRACE_FAILED_PRECONDITION);
}

TEST_CASE("evaluate: the logits' size is asked for, too small changes nothing") {
  Session session(text_model());
  const int32_t tokens[] = {7, 8};
  size_t needed = 0;
  CHECK(headrace_session_evaluate(session.get(), tokens, 2, nullptr, 0, &needed, nullptr) == HEADRACE_BUFFER_TOO_SMALL);
  CHECK(needed == 2 * kVocabSize);
  std::vector<float> logits(needed - 1);
  CHECK(headrace_session_evaluate(session.get(), tokens, 2, logits.data(), logits.size(), &needed, nullptr) ==
        HEADRACE_BUFFER_TOO_SMALL);
  CHECK(session.tokens().empty());
  CHECK(headrace_session_evaluate(session.get(), tokens, 2, nullptr, 0, nullptr, nullptr) == HEADRACE_OK);
  CHECK(session.tokens().size() == 2);
}

TEST_CASE("evaluate without logits computes what follows just the same") {
  const std::vector<int32_t> past = tokens_from(3, 37), next = tokens_from(5, 4);
  Session read(text_model()), skipped(text_model());
  evaluate(read, past);
  skipped.evaluate(past);
  CHECK(skipped.tokens() == past);
  CHECK(evaluate(skipped, next) == evaluate(read, next));
  CHECK(failure_of([&] { skipped.evaluate({5, 9999}); }).place == "tokens[1]");
  skipped.evaluate(std::vector<int32_t>());
  CHECK(skipped.tokens().size() == past.size() + next.size());
}

TEST_CASE("blocks go to a folder and come back from it in another cache, and parked sessions from their files") {
  const TemporaryFolder folder;
  headrace::Options options;
  options.set("kv.disk_path", folder / "blocks").set("kv.disk_bytes", "100000000");
  const std::vector<int32_t> past = tokens_from(3, 70);
  const auto ask = [&](Scheduler& scheduler) {
    Request request(text_model());
    request.add_tokens(past).set_length(0, 4).set_ignore_eos(true);
    return generate(scheduler, request);
  };
  std::vector<int32_t> expected;
  {
    KVCache cache(text_model(), options);
    Scheduler scheduler(text_model(), cache, options);
    expected = ask(scheduler).tokens;
    cache.flush();
    CHECK(scheduler.metrics().disk_files == 4);
  }
  KVCache cache(text_model(), options);
  Scheduler scheduler(text_model(), cache, options);
  CHECK(ask(scheduler).tokens == expected);
  CHECK(scheduler.metrics().disk_tokens == 64);
  CHECK(scheduler.metrics().disk_read_files == 4);

  Session session(text_model(), cache, options);
  const std::vector<float> before = evaluate(session, past);
  const int64_t held = cache.stats().free_blocks;
  session.park(folder / "session");
  CHECK(cache.stats().free_blocks > held);
  Session straight(text_model(), cache, options);
  evaluate(straight, past);
  const std::vector<int32_t> next = tokens_from(50, 5);
  CHECK(evaluate(session, next) == evaluate(straight, next));

  Request secret(text_model());
  secret.add_tokens(tokens_from(1, 40)).set_length(0, 2).set_zero_retention(true);
  generate(scheduler, secret);
  cache.flush();
  CHECK(generate(scheduler, secret).usage.cached_tokens == 0);
  options.set("kv.zero_retention", "true");
  Session unsaved(text_model(), options);
  CHECK(failure_of([&] { unsaved.save(folder / "unsaved"); }).place == "kv.zero_retention");
  options.set("kv.prefix_index", "false");
  CHECK(failure_of([&] { KVCache(text_model(), options); }).place == "kv.disk_path");
}
