// Sessions: their tokens are the truth, whatever happens to the cached values.
#include <catch2/catch.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include <sys/stat.h>
#include <unistd.h>

#include "engine/session_file.h"
#include "engine/toy_engine.h"
#include "unit/logit_stats.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

namespace {

std::vector<float> logits_of(const std::vector<int32_t>& context, size_t rows) {
  std::vector<float> out(rows * kVocabSize);
  for (size_t i = 0; i < rows; ++i) {
    const size_t size = context.size() - rows + 1 + i;
    endless_logits({context.data(), size}, {out.data() + i * kVocabSize, static_cast<size_t>(kVocabSize)});
  }
  return out;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Removed at the end of the test.
struct TemporaryFile {
  std::string path =
      (std::filesystem::temp_directory_path() / ("headrace_session_test_" + std::to_string(::getpid()))).string();
  ~TemporaryFile() { std::remove(path.c_str()); }
};

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::shared_ptr<ByteSource> memory(const std::string& bytes) {
  return open_memory(std::as_bytes(std::span<const char>(bytes)), "saved", {});
}

RequestParams on(const std::shared_ptr<Session>& session, std::vector<int32_t> prompt, int64_t max_tokens) {
  RequestParams params = request(std::move(prompt), max_tokens);
  params.session = session;
  return params;
}

}  // namespace

TEST_CASE("evaluate gives the logits of the definition, in chunks of any size") {
  for (const int32_t chunk : {1, 7, 16, 512}) {
    Toy toy;
    toy.options.prefill_chunk = chunk;
    auto session = toy.session();
    const auto first = prompt_of(50, 1), second = prompt_of(3, 2), third = prompt_of(30, 3);
    std::vector<float> logits(50 * kVocabSize);
    REQUIRE(session->evaluate(first, logits.data()).ok());
    CHECK(logits == logits_of(first, 50));
    REQUIRE(session->append_tokens(second).ok());
    REQUIRE(session->evaluate({}, nullptr).ok());
    logits.resize(30 * kVocabSize);
    REQUIRE(session->evaluate(third, logits.data()).ok());
    CHECK(session->tokens() == joined(joined(first, second), third));
    CHECK(logits == logits_of(session->tokens(), 30));
  }
}

TEST_CASE("a request goes on from the session's tokens and leaves its own there") {
  Toy toy;
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  auto session = toy.session(cache);
  const auto first = prompt_of(40, 1), second = prompt_of(5, 2);
  REQUIRE(session->append_tokens(first).ok());
  Output out = run_one(*scheduler, on(session, {}, 10)).only();
  auto expected = joined(first, greedy(endless_logits, first, 10));
  CHECK(session->tokens() == expected);
  CHECK(out.usage.cached_tokens == 0);

  out = run_one(*scheduler, on(session, second, 10)).only();
  CHECK(out.usage.prompt_tokens == 55);
  CHECK(out.usage.cached_tokens == 49);  // the last token drawn was never run
  expected = joined(expected, second);
  CHECK(out.tokens == greedy(endless_logits, expected, 10));
  CHECK(session->tokens() == joined(expected, out.tokens));
  CHECK_FALSE(session->busy());
}

TEST_CASE("a busy session refuses what would change it, and an ended request sets it free") {
  Toy toy;
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  auto session = toy.session(cache);
  const auto prompt = prompt_of(20, 1);
  const uint64_t id = submit(*scheduler, on(session, prompt, 0));
  const auto busy = [](const Status& status) { return status.code() == StatusCode::kFailedPrecondition; };
  for (int i = 0; i < 2; ++i) {
    CHECK(session->busy());
    CHECK(busy(session->append_tokens(prompt)));
    CHECK(busy(session->evaluate(prompt, nullptr)));
    CHECK(busy(session->rewind(0)));
    CHECK(busy(session->fork().status()));
    CHECK(busy(session->save("/nonexistent/x")));
    CHECK(busy(scheduler->submit(on(session, prompt, 1)).status()));
    step(*scheduler);
  }
  REQUIRE(scheduler->cancel(id).ok());
  auto results = run_all(*scheduler);
  CHECK_FALSE(session->busy());
  // What was drawn until then is part of the conversation.
  CHECK(session->tokens() == joined(prompt, results[id].only().tokens));
  CHECK(results[id].only().tokens.size() >= 2);
}

TEST_CASE("a request that leaves no output leaves the session as it was") {
  Toy toy;
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  auto session = toy.session(cache);
  const auto past = prompt_of(30, 1);
  REQUIRE(session->evaluate(past, nullptr).ok());
  const auto check_same = [&] {
    CHECK_FALSE(session->busy());
    CHECK(session->tokens() == past);
    std::vector<float> logits(kVocabSize);
    auto fork = session->fork();
    REQUIRE(fork.ok());
    REQUIRE((*fork)->evaluate(std::vector<int32_t>{9}, logits.data()).ok());
    CHECK(logits == logits_of((*fork)->tokens(), 1));
  };
  const uint64_t queued = submit(*scheduler, on(session, prompt_of(7, 2), 5));
  REQUIRE(scheduler->cancel(queued).ok());
  run_all(*scheduler);
  check_same();
  // Refused at submit.
  CHECK_FALSE(scheduler->submit(on(session, prompt_of(5000, 2), 5)).ok());
  check_same();
  RequestParams two = on(session, {1}, 5);
  two.n = 2;
  CHECK(scheduler->submit(two).status().place() == "n");
  check_same();
  // Failed in the middle.
  submit(*scheduler, on(session, prompt_of(7, 2), 50));
  for (int i = 0; i < 10; ++i) step(*scheduler);
  toy.executor->fail_runs = 1;
  run_all(*scheduler);
  check_same();
}

TEST_CASE("destroying the scheduler frees the session") {
  Toy toy;
  auto cache = toy.cache();
  auto session = toy.session(cache);
  {
    auto scheduler = toy.scheduler(cache);
    submit(*scheduler, on(session, prompt_of(7, 2), 0));
    const bool stepped = GENERATE(false, true);
    if (stepped) step(*scheduler);
  }
  CHECK_FALSE(session->busy());
  session.reset();
  CHECK(cache->stats().free_blocks == cache->stats().num_blocks);
}

TEST_CASE("a session destroyed by its owner lives as long as its request") {
  Toy toy;
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  auto session = toy.session(cache);
  const uint64_t id = submit(*scheduler, on(session, prompt_of(7, 2), 5));
  session.reset();
  CHECK(run_all(*scheduler)[id].only().tokens == greedy(endless_logits, prompt_of(7, 2), 5));
  CHECK(cache->stats().free_blocks == cache->stats().num_blocks);
}

TEST_CASE("forks and rewinds go on as their tokens say") {
  Toy toy;
  std::mt19937 random(5);
  auto cache = toy.cache();
  std::vector<std::shared_ptr<Session>> sessions = {toy.session(cache)};
  std::vector<std::vector<int32_t>> truth(1);
  for (int move = 0; move < 600; ++move) {
    const size_t at = random() % sessions.size();
    const uint32_t what = random() % 6;
    if (what == 0 && sessions.size() < 8) {
      auto fork = sessions[at]->fork();
      REQUIRE(fork.ok());
      sessions.push_back(*fork);
      truth.push_back(truth[at]);
    } else if (what == 1) {
      const size_t keep = truth[at].empty() ? 0 : random() % (truth[at].size() + 1);
      REQUIRE(sessions[at]->rewind(static_cast<int64_t>(keep)).ok());
      truth[at].resize(keep);
    } else if (what == 2 && sessions.size() > 1) {
      sessions.erase(sessions.begin() + static_cast<ptrdiff_t>(at));
      truth.erase(truth.begin() + static_cast<ptrdiff_t>(at));
    } else if (truth[at].size() < 300) {
      const auto more = prompt_of(1 + random() % 20, random() % 3);
      truth[at] = joined(truth[at], more);
      std::vector<float> logits(more.size() * kVocabSize);
      REQUIRE(sessions[at]->evaluate(more, logits.data()).ok());
      REQUIRE(logits == logits_of(truth[at], more.size()));
    }
    REQUIRE(cache->check_invariants().ok());
  }
  CHECK(sessions[0]->rewind(-1).code() == StatusCode::kInvalidArgument);
  CHECK(sessions[0]->rewind(static_cast<int64_t>(truth[0].size()) + 1).code() == StatusCode::kInvalidArgument);
  sessions.clear();
  CHECK(cache->stats().free_blocks == cache->stats().num_blocks);
}

TEST_CASE("what is saved is restored, here and in another cache, and damage is seen") {
  Toy toy;
  auto cache = toy.cache();
  auto session = toy.session(cache);
  const auto past = prompt_of(45, 1);
  REQUIRE(session->evaluate(past, nullptr).ok());
  REQUIRE(session->append_tokens(std::vector<int32_t>{3, 4}).ok());  // not computed yet
  TemporaryFile file;
  REQUIRE(session->save(file.path).ok());
  const std::string bytes = read_bytes(file.path);

  const auto check_same = [&](const std::shared_ptr<Session>& restored) {
    CHECK(restored->tokens() == session->tokens());
    const int64_t runs = toy.executor->num_runs;
    std::vector<float> logits(kVocabSize);
    REQUIRE(restored->evaluate(std::vector<int32_t>{9}, logits.data()).ok());
    CHECK(logits == logits_of(restored->tokens(), 1));
    CHECK(toy.executor->num_runs == runs + 1);
    CHECK(toy.executor->rows_of_runs.back() == 3);  // the rest came from the file
  };
  for (const auto& target : {cache, toy.cache(), std::shared_ptr<KvCache>()}) {
    auto restored = Session::restore(toy.model, target, toy.options, memory(bytes));
    INFO(restored.status().to_string());
    REQUIRE(restored.ok());
    check_same(*restored);
  }
  // A session without tokens, and one without values.
  for (const std::vector<int32_t>& tokens : {std::vector<int32_t>{}, std::vector<int32_t>{5, 6}}) {
    auto small = toy.session(cache);
    REQUIRE(small->append_tokens(tokens).ok());
    REQUIRE(small->save(file.path).ok());
    auto source = open_path(file.path);
    REQUIRE(source.ok());
    auto restored = Session::restore(toy.model, cache, toy.options, *source);
    REQUIRE(restored.ok());
    CHECK((*restored)->tokens() == tokens);
  }

  Toy other;
  other.executor->identity = 2;
  CHECK(Session::restore(other.model, nullptr, toy.options, memory(bytes)).status().code() ==
        StatusCode::kFailedPrecondition);
  const int64_t free_blocks = cache->stats().free_blocks;
  std::mt19937 random(2);
  for (int round = 0; round < 400; ++round) {
    std::string damaged = bytes;
    if (round % 2 == 0) {
      damaged.resize(random() % damaged.size());
    } else {
      damaged[random() % damaged.size()] ^= static_cast<char>(1 << (random() % 8));
    }
    const auto refused = Session::restore(toy.model, cache, toy.options, memory(damaged));
    REQUIRE_FALSE(refused.ok());
    const StatusCode code = refused.status().code();
    REQUIRE((code == StatusCode::kMalformed || code == StatusCode::kFailedPrecondition));
  }
  CHECK(cache->stats().free_blocks == free_blocks);
}

TEST_CASE("a save that fails leaves the file that was there, and nothing beside it") {
  Toy toy;
  auto session = toy.session();
  REQUIRE(session->append_tokens(std::vector<int32_t>{5}).ok());
  CHECK(session->save("/nonexistent/folder/file").code() == StatusCode::kIo);
  CHECK(session->save("").code() == StatusCode::kInvalidArgument);
  const auto folder = std::filesystem::temp_directory_path() / ("headrace_save_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "taken");  // a folder in the file's place
  CHECK(session->save((folder / "taken").string()).code() == StatusCode::kIo);
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a save keeps what its path is: a link, a mode, and nothing but a regular file") {
  namespace fs = std::filesystem;
  Toy toy;
  auto session = toy.session();
  REQUIRE(session->append_tokens(std::vector<int32_t>{5}).ok());
  const fs::path folder = fs::temp_directory_path() / ("headrace_save_kinds_" + std::to_string(::getpid()));
  fs::create_directories(folder / "real");
  const auto mode_of = [](const fs::path& path) { return fs::status(path).permissions(); };

  const fs::path fresh = folder / "fresh";
  REQUIRE(session->save(fresh.string()).ok());
  CHECK(mode_of(fresh) == (fs::perms::owner_read | fs::perms::owner_write));
  const auto shared = static_cast<fs::perms>(0644);
  fs::permissions(fresh, shared);
  REQUIRE(session->save(fresh.string()).ok());
  CHECK(mode_of(fresh) == shared);

  const fs::path target = folder / "real" / "target", link = folder / "link";
  std::ofstream(target) << "old";
  fs::create_symlink("real/target", link);
  REQUIRE(session->save(link.string()).ok());
  CHECK(fs::is_symlink(link));
  CHECK(read_bytes(target.string()) == read_bytes(fresh.string()));

  const fs::path pipe = folder / "pipe", to_device = folder / "to_device", dangling = folder / "dangling";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink("/dev/null", to_device);
  fs::create_symlink("absent", dangling);
  for (const std::string& path : {pipe.string(), to_device.string(), dangling.string(), std::string("/dev/null")}) {
    const Status status = session->save(path);
    INFO(path);
    CHECK(status.code() == StatusCode::kIo);
    CHECK(status.place() == path);
  }
  CHECK(session->save(pipe.string()).message() == "is not a regular file");
  CHECK(fs::is_fifo(pipe));
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(std::distance(fs::directory_iterator(folder), {}) == 6);
  CHECK(std::distance(fs::directory_iterator(folder / "real"), {}) == 1);
  fs::remove_all(folder);
}

TEST_CASE("a record's numbers are read as they are written, or refused") {
  const std::string start = R"({"created_unix_seconds":0,"identity":[1,2],"messages":[],"num_cached":)";
  const auto opened = [&](const std::string& rest) {
    const std::string text = start + rest + "}";
    std::string bytes("HDRSESS", 8);
    const auto put = [&](uint64_t value, int count) {
      for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
    };
    const Hash128 checksum = hash128(text.data(), text.size());
    put(kSessionFileVersion, 4);
    put(0, 4);
    put(text.size(), 8);
    put(checksum.low, 8);
    put(checksum.high, 8);
    bytes += text;
    return open_session_file(memory(bytes)).status();
  };
  CHECK(opened(R"(0,"tokens":[1,2])").ok());
  for (const char* tokens : {"1099511627779", "1.5", "true", "-1", "18446744073709551615", "null", "\"3\""}) {
    INFO(tokens);
    CHECK(opened(std::string(R"(0,"tokens":[)") + tokens + "]").code() == StatusCode::kMalformed);
  }
  CHECK(opened(R"(0.5,"tokens":[1,2])").code() == StatusCode::kMalformed);
  CHECK(opened(R"(0,"tokens":3)").code() == StatusCode::kMalformed);
  const Status damaged = opened(R"(0,"tokens":[)");
  CHECK(damaged.code() == StatusCode::kMalformed);
  CHECK(damaged.message().find("json.exception") == std::string::npos);
  const Status missing = opened("0");
  CHECK(missing.message().find("json.exception") == std::string::npos);
}

TEST_CASE("idle sessions give their values up to who needs the room, and compute them again") {
  Toy toy;
  toy.options.kv_max_tokens = 160;
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  std::vector<std::shared_ptr<Session>> sessions;
  for (uint64_t i = 0; i < 6; ++i) {
    sessions.push_back(toy.session(cache));
    std::vector<float> logits(60 * kVocabSize);
    REQUIRE(sessions.back()->evaluate(prompt_of(60, i), logits.data()).ok());
    CHECK(logits == logits_of(prompt_of(60, i), 60));
  }
  CHECK(run_one(*scheduler, request(prompt_of(100, 50), 40)).only().tokens ==
        greedy(endless_logits, prompt_of(100, 50), 40));
  for (uint64_t i = 0; i < 6; ++i) {
    CHECK(run_one(*scheduler, on(sessions[i], {7}, 20)).only().tokens ==
          greedy(endless_logits, joined(prompt_of(60, i), {7}), 20));
  }
  // Many at once: those that wait hold values of their sessions.
  std::vector<uint64_t> ids;
  std::vector<std::vector<int32_t>> expected;
  for (auto& session : sessions) {
    expected.push_back(greedy(endless_logits, joined(session->tokens(), {8}), 20));
    ids.push_back(submit(*scheduler, on(session, {8}, 20)));
  }
  auto results = run_all(*scheduler);
  for (size_t i = 0; i < ids.size(); ++i) CHECK(results[ids[i]].only().tokens == expected[i]);
}

TEST_CASE("a session may fill the cache to its last slot, be rewound and go on") {
  Toy toy;
  toy.options.kv_max_tokens = 64;
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  auto session = toy.session(cache);
  REQUIRE(session->evaluate(prompt_of(64, 1), nullptr).ok());
  CHECK(session->append_tokens(std::vector<int32_t>{1}).code() == StatusCode::kResourceExhausted);
  CHECK(session->evaluate(std::vector<int32_t>{1}, nullptr).code() == StatusCode::kResourceExhausted);
  CHECK(session->tokens().size() == 64);
  // The last block is published and full: going on inside it needs a copy for which there is no room.
  REQUIRE(session->rewind(56).ok());
  auto expected = prompt_of(64, 1);
  expected.resize(56);
  const auto output = greedy(endless_logits, expected, 8);
  CHECK(run_one(*scheduler, on(session, {}, 8)).only().tokens == output);
  REQUIRE(session->rewind(50).ok());
  std::vector<float> logits(5 * kVocabSize);
  REQUIRE(session->evaluate(prompt_of(5, 3), logits.data()).ok());
  CHECK(logits == logits_of(session->tokens(), 5));
}

TEST_CASE("prompt logprobs on a session score the request's own part") {
  Toy toy;
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  auto session = toy.session(cache);
  const auto past = prompt_of(40, 1), own = prompt_of(9, 2);
  REQUIRE(session->evaluate(past, nullptr).ok());
  RequestParams params = on(session, own, 3);
  params.num_prompt_logprobs = 0;
  const Outcome result = run_one(*scheduler, params);
  REQUIRE(result.prompts.size() == 1);
  CHECK(result.prompts[0].tokens == own);
  REQUIRE(result.prompts[0].logprobs.size() == own.size());
  std::vector<float> row(kVocabSize);
  const auto whole = joined(past, own);
  for (size_t i = 0; i < own.size(); ++i) {
    endless_logits({whole.data(), past.size() + i}, row);
    CHECK(result.prompts[0].logprobs[i] == score_token(row, test::logit_stats(row), own[i], 0)->logprob);
  }
  CHECK(result.only().usage.cached_tokens == 39);  // the row that scores the first own token is computed again
}

TEST_CASE("bad tokens and bad text change nothing") {
  Toy toy(endless_logits, 1 << 20, true);
  auto session = toy.session();
  CHECK(session->append_tokens(std::vector<int32_t>{1, kVocabSize}).place() == "tokens[1]");
  CHECK_FALSE(session->append_text("a\xff", {}).ok());
  CHECK(session->tokens().empty());
  CHECK(session->append_message("user", "a").code() == StatusCode::kNotFound);
  REQUIRE(session->append_text("ab<eos>", {true, true}).ok());
  CHECK(session->tokens() == std::vector<int32_t>{id_of("a"), id_of("b"), kEos});
}

namespace {

// <user>hi<bot>reply<eos><user>... and the past turns' contents reversed where `edits` is set, so that a new turn
// changes the rendering of the old ones.
std::shared_ptr<const EngineModel> chat_model(const Toy& toy, const std::string& source) {
  auto parsed = text::ChatTemplate::parse(source, {{"eos_token", "<eos>"}});
  INFO(parsed.status().to_string());
  REQUIRE(parsed.ok());
  auto made = std::make_shared<EngineModel>();
  made->executor = toy.executor;
  made->tokenizer = make_tokenizer();
  made->chat_template = *parsed;
  made->end_of_generation_ids = {kEos};
  return made;
}

constexpr const char* kTurns =
    "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% else %}<bot>{{ m.content }}<eos>{% endif "
    "%}"
    "{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}";

std::vector<int32_t> turn_ids(const std::string& text) {
  auto ids = make_tokenizer()->encode(text, {false, true});
  REQUIRE(ids.ok());
  return ids.take();
}

}  // namespace

TEST_CASE("messages are rendered, the reply becomes a message, and the next turn reuses what is equal") {
  Toy toy(hashed_logits);
  const auto model = chat_model(toy, kTurns);
  EngineOptions options;
  auto scheduler = Scheduler::create(model, nullptr, options).take();
  auto session = Session::create(model, scheduler->kv_cache(), options).take();
  REQUIRE(session->append_message("user", "abcdefghij").ok());
  CHECK(session->append_tokens(std::vector<int32_t>{1}).code() == StatusCode::kFailedPrecondition);
  const Output first = run_one(*scheduler, on(session, {}, 12)).only();
  CHECK(first.usage.prompt_tokens == 12);
  CHECK(first.tokens == greedy(hashed_logits, turn_ids("<user>abcdefghij<bot>"), first.tokens.size()));
  REQUIRE(session->messages().size() == 2);
  CHECK(session->messages()[1].role == "assistant");
  CHECK(session->messages()[1].content == first.text);

  REQUIRE(session->append_message("user", "xyz").ok());
  const Output second = run_one(*scheduler, on(session, {}, 5)).only();
  const auto prompt = turn_ids("<user>abcdefghij<bot>" + first.text + "<eos><user>xyz<bot>");
  CHECK(second.tokens == greedy(hashed_logits, prompt, second.tokens.size()));
  CHECK(second.usage.cached_tokens >= 12);
  CHECK(session->messages().size() == 4);

  RequestParams with_prompt = on(session, {5}, 5);
  CHECK(scheduler->submit(with_prompt).status().place() == "prompt");

  // Saved and restored, the conversation goes on the same way.
  TemporaryFile file;
  REQUIRE(session->save(file.path).ok());
  auto source = open_path(file.path);
  auto restored = Session::restore(model, scheduler->kv_cache(), options, *source);
  REQUIRE(restored.ok());
  REQUIRE((*restored)->messages().size() == 4);
  REQUIRE(session->append_message("user", "q").ok());
  REQUIRE((*restored)->append_message("user", "q").ok());
  CHECK(run_one(*scheduler, on(session, {}, 5)).only().tokens ==
        run_one(*scheduler, on(*restored, {}, 5)).only().tokens);

  REQUIRE(session->rewind(3).ok());
  CHECK(session->messages().empty());
  CHECK(session->tokens().size() == 3);
  CHECK(session->append_message("user", "a").code() == StatusCode::kFailedPrecondition);
  REQUIRE(session->rewind(0).ok());
  CHECK(session->append_message("user", "a").ok());
}

TEST_CASE("markers written in a message are text") {
  Toy toy;
  const auto model = chat_model(toy, "{% for m in messages %}<user>{{ m.content }}{% endfor %}<bot>");
  EngineOptions options;
  auto scheduler = Scheduler::create(model, nullptr, options).take();
  auto session = Session::create(model, scheduler->kv_cache(), options).take();
  REQUIRE(session->append_message("user", "a<eos>b").ok());
  run_one(*scheduler, on(session, {}, 1));
  const auto tokens = session->tokens();
  CHECK(tokens[0] == id_of("<user>"));
  CHECK(std::count(tokens.begin(), tokens.end(), kEos) == 0);
}

TEST_CASE("a template that fails refuses the request and leaves the session idle") {
  Toy toy;
  const auto model = chat_model(toy, "{{ raise_exception('no system here') }}");
  EngineOptions options;
  auto scheduler = Scheduler::create(model, nullptr, options).take();
  auto session = Session::create(model, scheduler->kv_cache(), options).take();
  REQUIRE(session->append_message("system", "a").ok());
  const auto refused = scheduler->submit(on(session, {}, 1));
  CHECK(refused.status().message().find("no system here") != std::string::npos);
  CHECK_FALSE(session->busy());
  CHECK(session->messages().size() == 1);
}

TEST_CASE("a session of another cache is refused") {
  Toy toy;
  auto scheduler = toy.scheduler();
  auto session = toy.session();
  const auto refused = scheduler->submit(on(session, {1}, 1));
  CHECK(refused.status().code() == StatusCode::kFailedPrecondition);
  CHECK(refused.status().place() == "session");
}

TEST_CASE("a session's salt sets its values apart, and is its requests' and its forks'") {
  Toy toy;
  const auto scheduler = toy.scheduler();
  const std::vector<int32_t> prompt = prompt_of(60, 1);
  const auto session_of = [&](const char* salt) {
    auto session = toy.session(scheduler->kv_cache());
    REQUIRE(session->set_cache_salt(salt).ok());
    return session;
  };
  const auto cached = [&](RequestParams params) {
    return run_one(*scheduler, std::move(params)).only().usage.cached_tokens;
  };
  const auto first = session_of("a");
  const Outcome said = run_one(*scheduler, on(first, prompt, 4));
  CHECK(said.only().usage.cached_tokens == 0);
  CHECK(said.only().tokens == greedy(endless_logits, prompt, 4));
  // Neither another salt nor none finds what the session left; its own does, of a session or of a request.
  RequestParams plain = request(prompt, 1);
  CHECK(cached(plain) == 0);
  CHECK(cached(on(session_of("b"), prompt, 1)) == 0);
  CHECK(cached(on(session_of("a"), prompt, 1)) == 48);
  plain.cache_salt = "a";
  CHECK(cached(plain) == 48);
  const auto fork = first->fork();
  REQUIRE(fork.ok());
  REQUIRE((*fork)->shed());
  CHECK(cached(on(*fork, prompt_of(3, 2), 1)) >= 48);
  // Values of another salt are forgotten, tokens are not.
  REQUIRE(first->set_cache_salt("c").ok());
  CHECK(first->tokens() == joined(prompt, said.only().tokens));
  const Outcome again = run_one(*scheduler, on(first, prompt_of(3, 2), 4));
  CHECK(again.only().usage.cached_tokens == 0);
  CHECK(again.only().tokens == greedy(endless_logits, joined(joined(prompt, said.only().tokens), prompt_of(3, 2)), 4));
  RequestParams salted = on(first, prompt_of(3, 3), 1);
  salted.cache_salt = "c";
  const auto refused = scheduler->submit(salted);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().place() == "cache_salt");
}
