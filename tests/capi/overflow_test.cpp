// Conversations that are edited, and that outgrow their context: what goes, what stays, and that nothing is silent.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using headrace::KVCache;
using headrace::Request;
using headrace::Scheduler;
using headrace::Session;

constexpr size_t kContext = 128;
constexpr size_t kOutput = 4;

headrace::Options limited() {
  headrace::Options options;
  options.set("kv.max_tokens", std::to_string(kContext));
  return options;
}

struct World {
  headrace::Options options = limited();
  KVCache cache{text_model(), options};
  Scheduler scheduler{text_model(), cache, options};

  Session session() const { return Session(text_model(), cache, options); }
  Request on(const Session& session) const {
    Request request(text_model());
    request.set_session(session).set_length(0, kOutput).set_ignore_eos(true);
    return request;
  }
  // The turn's prompt, whose output is that of the same tokens alone.
  std::vector<int32_t> run(const Session& session, Output* output = nullptr) {
    const Output got = generate(scheduler, on(session));
    std::vector<int32_t> prompt = session.tokens();
    REQUIRE(prompt.size() >= got.tokens.size());
    REQUIRE(prompt.size() <= kContext);
    prompt.resize(prompt.size() - got.tokens.size());
    Request alone(text_model());
    alone.add_tokens(prompt).set_length(0, kOutput).set_ignore_eos(true).set_zero_retention(true);
    CHECK(generate(scheduler, alone).tokens == got.tokens);
    if (output != nullptr) *output = got;
    return prompt;
  }
};

std::string line(char letter) { return std::string(30, letter); }

size_t count(const std::vector<int32_t>& tokens, char which) {
  return static_cast<size_t>(std::count(tokens.begin(), tokens.end(), letter(which)));
}

}  // namespace

TEST_CASE("a conversation that outgrows its context is refused with the counts, unless it says otherwise") {
  World world;
  Session session = world.session();
  for (const char which : {'a', 'b', 'c', 'd', 'e'}) session.append_message("user", line(which));
  const Failure refused = failure_of([&] { world.scheduler.submit(world.on(session)); });
  CHECK(refused.code == HEADRACE_RESOURCE_EXHAUSTED);
  CHECK(refused.place == "prompt");
  CHECK(session.dropped().times == 0);
  session.drop_overflow(0);
  world.run(session);
  CHECK(session.dropped().times == 1);
  session.refuse_overflow();
  for (const char which : {'f', 'g', 'h'}) session.append_message("user", line(which));
  CHECK(failure_of([&] { world.scheduler.submit(world.on(session)); }).place == "prompt");
}

TEST_CASE("the oldest messages go, whole, behind those that are kept, and the newest stays") {
  World world;
  Session session = world.session();
  session.drop_overflow(1, 40);
  session.append_message("system", "zzzz");
  int64_t dropped = 0;
  for (int turn = 0; turn < 12; ++turn) {
    const char which = static_cast<char>('a' + turn);
    session.append_message("user", line(which));
    Output output;
    const std::vector<int32_t> prompt = world.run(session, &output);
    INFO("turn " << turn);
    CHECK(prompt.size() + kOutput <= kContext);
    CHECK(count(prompt, 'z') >= 4);
    CHECK(count(prompt, which) >= 30);
    if (session.dropped().messages > dropped) {
      CHECK(prompt.size() <= kContext - 40);
      CHECK((session.dropped().messages - dropped) % 2 == 0);  // a user's and its answer
      dropped = session.dropped().messages;
    } else if (turn > 0) {
      CHECK(output.usage.cached_tokens > 32);  // what stands is found again
    }
  }
  CHECK(session.dropped().times >= 3);
  CHECK(session.dropped().tokens == 0);
  // Nothing goes where it would not help.
  session.append_message("user", std::string(200, 'q'));
  CHECK(failure_of([&] { world.scheduler.submit(world.on(session)); }).code == HEADRACE_RESOURCE_EXHAUSTED);
  CHECK(session.dropped().messages == dropped);
}

TEST_CASE("a summary takes the place of what goes, and a summarizer that fails fails the request alone") {
  World world;
  Session session = world.session();
  std::vector<std::string> given;
  std::string answer = R"([{"role": "user", "content": "yyyyy"}])";
  session.summarize_overflow(
      [&](std::string_view dropped) {
        given.emplace_back(dropped);
        if (answer.empty()) throw std::runtime_error("no summary");
        return answer;
      },
      1, 40);
  session.append_message("system", "zzzz");
  for (const char which : {'a', 'b', 'c', 'd'}) session.append_message("user", line(which));
  answer = "";
  Failure failure = failure_of([&] { world.scheduler.submit(world.on(session)); });
  CHECK(failure.code == HEADRACE_INTERNAL);
  CHECK(failure.place == "summarize");
  for (const char* const bad : {"", "{}", "[1]", "[{\"role\": \"user\"}]", "[{\"role\": 1, \"content\": \"\"}]",
                                "[{\"role\": \"\", \"content\": \"\"}]"}) {
    answer = bad;
    CHECK(failure_of([&] { world.scheduler.submit(world.on(session)); }).place == "summarize");
  }
  answer = R"([{"role": "user", "content": ")" + std::string(200, 'y') + "\"}]";
  failure = failure_of([&] { world.scheduler.submit(world.on(session)); });
  CHECK(failure.code == HEADRACE_RESOURCE_EXHAUSTED);
  CHECK(failure.place == "summarize");
  CHECK(session.dropped().times == 0);

  given.clear();
  answer = R"([{"role": "user", "content": "yyyyy"}])";
  const std::vector<int32_t> prompt = world.run(session);
  REQUIRE(given.size() == 1);
  CHECK(given[0].find("{\"role\":\"user\",\"content\":\"" + line('a') + "\"}") == 1);
  CHECK(given[0].find("zzzz") == std::string::npos);
  CHECK(count(prompt, 'z') == 4);
  CHECK(count(prompt, 'y') == 5);
  CHECK(count(prompt, 'a') == 0);
  CHECK(count(prompt, 'd') == 30);
  CHECK(session.dropped().times == 1);
}

TEST_CASE("a session of tokens drops them behind the kept ones, or has a summary in their place") {
  World world;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 300; ++i) tokens.push_back(5 + i % 90);
  for (const bool summarizes : {false, true}) {
    Session session = world.session();
    std::string given;
    if (summarizes) {
      session.summarize_overflow(
          [&](std::string_view dropped) {
            given = dropped;
            return std::string("[40, 41, 42]");
          },
          8, 32);
    } else {
      session.drop_overflow(8, 32);
    }
    session.append({tokens.begin(), tokens.begin() + 60});
    world.run(session);
    session.append({tokens.begin() + 60, tokens.begin() + 250});
    const std::vector<int32_t> prompt = world.run(session);
    const size_t summary = summarizes ? 3 : 0;
    CHECK(prompt.size() == kContext - 32 + summary);
    CHECK(std::equal(prompt.begin(), prompt.begin() + 8, tokens.begin()));
    CHECK(std::equal(prompt.rbegin(), prompt.rbegin() + 80, tokens.rbegin() + 50));
    CHECK(session.dropped().tokens == static_cast<int64_t>(60 + kOutput + 190 - (kContext - 32)));
    if (!summarizes) continue;
    CHECK(std::vector<int32_t>(prompt.begin() + 8, prompt.begin() + 11) == std::vector<int32_t>{40, 41, 42});
    CHECK(given.substr(0, 7) == "[13,14,");
  }
}

TEST_CASE("a message is edited where it stands, and the prefix before it is found again") {
  World world;
  Session session = world.session();
  session.append_message("user", line('a'));
  Output first;
  const std::vector<int32_t> prompt = world.run(session, &first);
  session.append_message("user", line('b'));
  world.run(session);
  // Other words in the last turn: all before them is there.
  session.set_message(2, line('c'));
  session.truncate_messages(3);
  Output output;
  std::vector<int32_t> changed = world.run(session, &output);
  CHECK(count(changed, 'c') >= 30);
  CHECK(count(changed, 'b') < 30);
  CHECK(output.usage.cached_tokens >= 32);
  // In the first one: nothing is.
  session.set_message(0, line('d'));
  session.truncate_messages(3);
  changed = world.run(session, &output);
  CHECK(count(changed, 'd') >= 30);
  CHECK(output.usage.cached_tokens < 16);
  session.set_message(0, line('a'));
  session.truncate_messages(1);
  CHECK(world.run(session, &output) == prompt);
  CHECK(output.tokens == first.tokens);
  session.truncate_messages(0);
  CHECK(session.tokens().empty());
  session.append({1, 2, 3});  // it may be one of tokens now

  Session errors = world.session();
  CHECK(failure_of([&] { errors.set_message(0, "a"); }).place == "index");
  errors.append_message("user", "a");
  CHECK(failure_of([&] { errors.set_message(1, "a"); }).place == "index");
  CHECK(failure_of([&] { errors.set_message(0, "\xff"); }).place == "content");
  CHECK(failure_of([&] { errors.truncate_messages(2); }).place == "num_messages");
  headrace_overflow overflow;
  headrace_overflow_init(&overflow);
  overflow.kind = 3;
  headrace_error* error = nullptr;
  CHECK(headrace_session_set_overflow(errors.get(), &overflow, &error) == HEADRACE_INVALID_ARGUMENT);
  CHECK(std::string(headrace_error_get_place(error)) == "overflow.kind");
  headrace_error_destroy(error);
  CHECK(failure_of([&] { errors.drop_overflow(-1); }).place == "keep_first");
  CHECK(failure_of([&] { errors.drop_overflow(0, -1); }).place == "free_tokens");
}

TEST_CASE("what a policy held may call its session while another takes the policy's place") {
  World world;
  Session session = world.session();
  headrace_overflow overflow;
  headrace_overflow_init(&overflow);
  overflow.kind = HEADRACE_OVERFLOW_SUMMARIZE;
  overflow.user = &session;
  overflow.summarize = [](void*, headrace_summary*) -> headrace_status { return HEADRACE_INTERNAL; };
  overflow.release = [](void* user) { static_cast<Session*>(user)->append({1, 2, 3}); };
  REQUIRE(headrace_session_set_overflow(session.get(), &overflow, nullptr) == HEADRACE_OK);
  CHECK(session.tokens().empty());
  session.refuse_overflow();
  CHECK(session.tokens().size() == 3);
}

TEST_CASE("a session of more tokens than its context is not saved: it could not be restored") {
  World world;
  const TemporaryFolder folder;
  Session session = world.session();
  session.drop_overflow(0);
  session.append(std::vector<int32_t>(kContext + 1, 5));
  CHECK(failure_of([&] { session.save(folder / "session"); }).code == HEADRACE_RESOURCE_EXHAUSTED);
  session.park(folder / "session");
  world.run(session);
  session.save(folder / "session");
  CHECK(Session::restore(text_model(), world.cache, folder / "session", world.options).tokens() == session.tokens());
}

TEST_CASE("a fork keeps the policy, and what a policy held is released with its last session") {
  World world;
  const auto alive = std::make_shared<int>(0);
  {
    Session session = world.session();
    session.summarize_overflow([alive](std::string_view) { return std::string("[]"); }, 0);
    CHECK(alive.use_count() == 2);
    Session fork = session.fork();
    session.refuse_overflow();
    CHECK(alive.use_count() == 2);
    for (const char which : {'a', 'b', 'c', 'd', 'e'}) fork.append_message("user", line(which));
    world.run(fork);
    CHECK(fork.dropped().times == 1);
    CHECK(session.dropped().times == 0);
  }
  CHECK(alive.use_count() == 1);
}
