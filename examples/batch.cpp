// 32 conversations in one process: their requests share steps, and what their prompts have in common is computed once.
//   c++ -std=c++17 batch.cpp $(pkg-config --cflags --libs headrace) -o batch && ./batch model.gguf
#include <headrace/headrace.hpp>
#include <iostream>
#include <map>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " MODEL\n";
    return 2;
  }
  constexpr int kSessions = 32, kTurns = 2;
  const std::string common = "You are a careful assistant. Answer in one sentence, and say so when you do not know. ";
  try {
    const headrace::Model model = headrace::Model::load(argv[1]);
    headrace::Options options;
    options.set("kv.max_tokens", "16384");
    const headrace::KVCache cache(model, options);
    headrace::Scheduler scheduler(model, cache, options);

    // All sessions go on from one that holds the common front.
    headrace::Session first(model, cache);
    first.evaluate(model.tokenizer().encode(common));
    std::vector<headrace::Session> sessions;
    for (int i = 0; i < kSessions; ++i) sessions.push_back(first.fork());

    for (int turn = 0; turn < kTurns; ++turn) {
      std::map<uint64_t, size_t> session_of;  // by request
      std::vector<std::string> replies(sessions.size());
      for (size_t i = 0; i < sessions.size(); ++i) {
        headrace::Request request(model);
        request.add_text("\nQuestion " + std::to_string(turn * 100 + static_cast<int>(i)) + ": what comes next?\n", 0)
            .set_session(sessions[i])
            .set_tenant(i % 2 == 0 ? "even" : "odd")
            .set_length(0, 16);
        session_of[scheduler.submit(request)] = i;
      }
      for (bool working = true; working;) {
        working = scheduler.step();
        while (const auto event = scheduler.next_event()) {
          if (event->type() == headrace::EventType::kFailed) throw event->error();
          replies[session_of.at(event->request_id())] += event->text();
        }
      }
      for (size_t i = 0; i < sessions.size(); ++i) {
        std::cout << turn << "." << i << " (" << sessions[i].tokens().size() << " tokens): " << replies[i] << "\n";
      }
    }

    const headrace_scheduler_metrics metrics = scheduler.metrics();
    const headrace_latency gap = scheduler.latency(HEADRACE_LATENCY_INTER_TOKEN);
    std::cout << metrics.finished_requests << " requests in " << metrics.num_steps << " steps, "
              << static_cast<double>(metrics.step_sequences) / static_cast<double>(metrics.num_steps)
              << " sequences a step; " << metrics.cached_tokens << " of " << metrics.prompt_tokens
              << " prompt tokens were cached; p95 between tokens " << static_cast<double>(gap.p95_ns) / 1e6 << " ms\n";
    for (const std::string& tenant : scheduler.tenants()) {
      std::cout << tenant << ": " << scheduler.tenant_metrics(tenant).output_tokens << " tokens\n";
    }
  } catch (const headrace::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
