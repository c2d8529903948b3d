// Every allocation that a call makes fails once: the call says so or succeeds, and the objects work afterwards.
#include <optional>
#include <string>

#include <catch2/catch.hpp>

#include "capi/failing_allocations.h"
#include "capi/tiny_model.h"

namespace {

using capi_test::aside;
using capi_test::fail_each;
using capi_test::fail_each_and_all;

const std::string kModelPath = capi_test::tiny_path();

}  // namespace

TEST_CASE("sessions and schedulers survive each allocation that fails") {
  headrace_model* model = nullptr;
  REQUIRE(headrace_model_load(kModelPath.data(), kModelPath.size(), nullptr, nullptr, nullptr, &model, nullptr) ==
          HEADRACE_OK);
  headrace_session* session = nullptr;
  REQUIRE(headrace_session_create(model, nullptr, nullptr, &session, nullptr) == HEADRACE_OK);
  const int32_t tokens[] = {3, 4, 5, 6};
  fail_each_and_all([&] {
    size_t after = 0;
    int32_t held[256];
    aside([&] { REQUIRE(headrace_session_rewind(session, 0, nullptr) == HEADRACE_OK); });
    headrace_error* error = nullptr;
    const headrace_status status = headrace_session_evaluate(session, tokens, 4, nullptr, 0, nullptr, &error);
    headrace_error_destroy(error);
    aside([&] {
      REQUIRE(headrace_session_get_tokens(session, held, 256, &after, nullptr) == HEADRACE_OK);
      REQUIRE(after == (status == HEADRACE_OK ? 4 : 0));
    });
    return status;
  });
  headrace_session_destroy(session);
  headrace_model_destroy(model);
}

TEST_CASE("embedders survive each allocation that fails") {
  headrace_model* model = nullptr;
  REQUIRE(headrace_model_load(kModelPath.data(), kModelPath.size(), nullptr, nullptr, nullptr, &model, nullptr) ==
          HEADRACE_OK);
  headrace::Options options;
  options.set("embedder.pooling", "mean");
  const int32_t tokens[] = {3, 4, 5, 6};
  const size_t starts[] = {0, 1, 4};
  std::vector<float> expected(1024), rows(1024);
  size_t needed = 0;
  const auto embed = [&](std::vector<float>& out) {
    headrace_embedder* embedder = nullptr;
    headrace_status status = headrace_embedder_create(model, options.get(), &embedder, nullptr);
    if (status == HEADRACE_OK) {
      status = headrace_embedder_embed_tokens(embedder, tokens, nullptr, starts, 2, out.data(), out.size(), &needed,
                                              nullptr);
    }
    headrace_embedder_destroy(embedder);
    return status;
  };
  REQUIRE(embed(expected) == HEADRACE_OK);
  fail_each_and_all([&] { return embed(rows); });
  CHECK(rows == expected);
  headrace_model_destroy(model);
}

TEST_CASE("tokenizing, detokenizing and rendering survive each allocation that fails") {
  const headrace::Tokenizer tokenizer = capi_test::text_model().tokenizer();
  const std::string text = "Hello caf\u00E9 <|end|> and some more";
  const std::vector<int32_t> expected = tokenizer.encode(text);
  std::vector<int32_t> tokens(256);
  std::vector<char> decoded(1024);
  size_t needed = 0;
  fail_each_and_all([&] {
    return headrace_tokenizer_encode(tokenizer.get(), text.data(), text.size(),
                                     HEADRACE_ADD_SPECIAL | HEADRACE_PARSE_SPECIAL, tokens.data(), tokens.size(),
                                     &needed, nullptr);
  });
  CHECK(std::vector<int32_t>(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(needed)) == expected);
  fail_each_and_all([&] {
    return headrace_tokenizer_decode(tokenizer.get(), expected.data(), expected.size(), HEADRACE_SKIP_SPECIAL,
                                     decoded.data(), decoded.size(), &needed, nullptr);
  });
  CHECK(std::string(decoded.data(), needed) == tokenizer.decode(expected, true));
  headrace_chat_template* handle = nullptr;
  REQUIRE(headrace_chat_template_open(capi_test::text_model().get(), &handle, nullptr) == HEADRACE_OK);
  const std::string messages = R"([{"role":"user","content":"hi, this is a longer message <|end|>"}])";
  fail_each_and_all([&] {
    headrace_prompt* prompt = nullptr;
    headrace_error* error = nullptr;
    const headrace_status status = headrace_chat_template_render(handle, messages.data(), messages.size(), nullptr, 0,
                                                                 nullptr, 0, 1, 0, &prompt, &error);
    headrace_prompt_destroy(prompt);
    headrace_error_destroy(error);
    return status;
  });
  headrace_chat_template_destroy(handle);
}

TEST_CASE("a request ends once, with or without its output, whichever allocation fails") {
  const headrace::Model& model = capi_test::text_model();
  const headrace::KVCache cache(model);
  const int64_t free_blocks = cache.stats().free_blocks;
  std::vector<int32_t> expected;
  fail_each([&] {
    std::optional<headrace::Request> request;
    headrace_scheduler* scheduler = nullptr;
    aside([&] {
      request.emplace(model);
      request->add_tokens({0, 9, 17, 33}).set_length(0, 5).set_ignore_eos(true).add_stop("never");
      REQUIRE(headrace_scheduler_create(model.get(), cache.get(), nullptr, &scheduler, nullptr) == HEADRACE_OK);
    });
    uint64_t id = 0;
    const headrace_status submitted = headrace_scheduler_submit(scheduler, request->get(), &id, nullptr);
    headrace_status worst = submitted;
    int last_events = 0;
    std::vector<int32_t> tokens;
    int32_t has_work = submitted == HEADRACE_OK ? 1 : 0;
    for (int steps = 0; has_work != 0 && steps < 100; ++steps) {
      const headrace_status stepped = headrace_scheduler_step(scheduler, &has_work, nullptr);
      if (stepped != HEADRACE_OK) worst = stepped;
      for (;;) {
        headrace_event* event = nullptr;
        const headrace_status status = headrace_event_next(scheduler, &event, nullptr);
        if (status != HEADRACE_OK) {  // nothing was taken: the next call gives it
          worst = status;
          continue;
        }
        if (event == nullptr) break;
        aside([&] {
          last_events += headrace_event_get_is_last(event);
          if (headrace_event_get_status(event) != HEADRACE_OK) worst = headrace_event_get_status(event);
          size_t count = 0;
          const int32_t* given = headrace_event_get_tokens(event, &count);
          tokens.insert(tokens.end(), given, given + count);
        });
        headrace_event_destroy(event);
      }
    }
    aside([&] {
      CHECK(has_work == 0);
      CHECK(last_events == (submitted == HEADRACE_OK ? 1 : 0));
      if (worst == HEADRACE_OK) {
        if (expected.empty()) expected = tokens;
        CHECK(tokens == expected);
      }
      headrace_scheduler_destroy(scheduler);
      request.reset();
      CHECK(cache.stats().free_blocks == free_blocks);
    });
    return worst;
  });
  CHECK(expected.size() == 5);
}

TEST_CASE("saving keeps the old file and restoring gives all or nothing, whichever allocation fails") {
  const headrace::Model& model = capi_test::text_model();
  const headrace::KVCache cache(model);
  const capi_test::TemporaryFolder folder;
  const std::string path = folder / "session";
  headrace::Session session(model, cache);
  const std::vector<int32_t> tokens = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
  REQUIRE(headrace_session_evaluate(session.get(), tokens.data(), tokens.size(), nullptr, 0, nullptr, nullptr) ==
          HEADRACE_OK);
  fail_each_and_all([&] {
    aside([&] { capi_test::write_file(path, "what was there before"); });
    const headrace_status status = headrace_session_save(session.get(), path.data(), path.size(), nullptr);
    aside([&] {
      if (status != HEADRACE_OK) CHECK(capi_test::read_file(path) == "what was there before");
    });
    return status;
  });
  const headrace::Source source = headrace::Source::path(path);
  fail_each_and_all([&] {
    headrace_session* restored = nullptr;
    const headrace_status status =
        headrace_session_restore(model.get(), cache.get(), nullptr, source.get(), &restored, nullptr);
    aside([&] {
      CHECK((restored != nullptr) == (status == HEADRACE_OK));
      size_t needed = 0;
      std::vector<int32_t> held(64);
      if (restored != nullptr) {
        REQUIRE(headrace_session_get_tokens(restored, held.data(), held.size(), &needed, nullptr) == HEADRACE_OK);
        held.resize(needed);
        CHECK(held == tokens);
      }
      headrace_session_destroy(restored);
    });
    return status;
  });
}

TEST_CASE("a conversation's request survives each allocation that fails") {
  const headrace::Model& model = capi_test::text_model();
  const headrace::KVCache cache(model);
  const std::string role = "user", content = "hi, this is a longer message <|end|>";
  fail_each_and_all([&] {
    std::optional<headrace::Session> session;
    std::optional<headrace::Request> request;
    headrace_scheduler* scheduler = nullptr;
    aside([&] {
      session.emplace(model, cache);
      request.emplace(model);
      request->set_session(*session).set_length(0, 2).set_ignore_eos(true);
      REQUIRE(headrace_scheduler_create(model.get(), cache.get(), nullptr, &scheduler, nullptr) == HEADRACE_OK);
    });
    headrace_status status = headrace_session_append_message(session->get(), role.data(), role.size(), content.data(),
                                                             content.size(), nullptr);
    uint64_t id = 0;
    if (status == HEADRACE_OK) status = headrace_scheduler_submit(scheduler, request->get(), &id, nullptr);
    aside([&] {
      // The session is busy where the request was taken, and free where not.
      const headrace_status rewound = headrace_session_rewind(session->get(), 0, nullptr);
      CHECK(rewound == (status == HEADRACE_OK ? HEADRACE_FAILED_PRECONDITION : HEADRACE_OK));
      headrace_scheduler_destroy(scheduler);
      CHECK(headrace_session_rewind(session->get(), 0, nullptr) == HEADRACE_OK);
      session.reset();
      request.reset();
    });
    return status;
  });
}
