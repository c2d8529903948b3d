// The pool of threads: tasks run once each, loops end with their tasks whatever their workers do, an idle pool uses no CPU, and
// threads stay on the processors they are bound to.
#include <catch2/catch.hpp>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/processor_list.h"
#include "base/thread_pool.h"

namespace {

using namespace headrace;

// Binds a scope's thread and those it starts to the first processors that it may use.
class FewProcessors {
 public:
  explicit FewProcessors(int most) {
    REQUIRE(sched_getaffinity(0, sizeof before_, &before_) == 0);
    cpu_set_t few;
    CPU_ZERO(&few);
    for (int processor = 0; processor < CPU_SETSIZE && CPU_COUNT(&few) < most; ++processor) {
      if (CPU_ISSET(processor, &before_)) CPU_SET(processor, &few);
    }
    REQUIRE(sched_setaffinity(0, sizeof few, &few) == 0);
  }
  ~FewProcessors() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

std::vector<int> own_processors() {
  cpu_set_t set;
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  return processors;
}

// Calls visit(thread) on each thread of the pool: no task ends before all have begun.
template <class Visit>
void on_every_thread(ThreadPool& pool, const Visit& visit) {
  std::atomic<int> begun{0};
  pool.run(pool.num_threads(), [&](int64_t, int thread) {
    visit(thread);
    ++begun;
    while (begun.load() < pool.num_threads()) std::this_thread::yield();
  });
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Threads that a signal holds in its handler, as if the system gave them no processor. One of this object at a time.
class HeldThreads {
 public:
  HeldThreads() {
    REQUIRE(pipe(held_) == 0);
    REQUIRE(pipe(go_on_) == 0);
    struct sigaction action = {};
    action.sa_handler = [](int) {
      char byte = 1;
      if (write(held_[1], &byte, 1) == 1 && read(go_on_[0], &byte, 1) < 0) _exit(1);
    };
    REQUIRE(sigaction(SIGUSR1, &action, &before_) == 0);
  }
  // `id` is the system's of `thread`, which must be about to sleep in the pool.
  void hold(pthread_t thread, pid_t id) {
    char state = 'R';
    while (state != 'S') {  // no lock is held by who sleeps
      std::this_thread::yield();
      std::ifstream stat("/proc/self/task/" + std::to_string(id) + "/stat");
      std::string text;
      std::getline(stat, text);
      const size_t name_end = text.rfind(')');
      if (name_end != std::string::npos && name_end + 2 < text.size()) state = text[name_end + 2];
    }
    REQUIRE(pthread_kill(thread, SIGUSR1) == 0);
    char byte = 0;
    REQUIRE(read(held_[0], &byte, 1) == 1);
    ++count_;
  }
  ~HeldThreads() {
    const std::string bytes(static_cast<size_t>(count_), 'x');
    CHECK(write(go_on_[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    sigaction(SIGUSR1, &before_, nullptr);
  }

 private:
  static inline int held_[2], go_on_[2];
  struct sigaction before_ = {};
  int count_ = 0;
};

}  // namespace

TEST_CASE("each task of each loop runs once, and before run returns") {
  const FewProcessors processors(2);
  for (const int num_threads : {1, 2, 3, 16}) {
    ThreadPool pool(num_threads);
    REQUIRE(pool.num_threads() == num_threads);
    std::vector<int> runs(100);  // no atomics: what tasks write is seen when run returns
    int64_t wrong = 0;
    for (int loop = 0; loop < 3000; ++loop) {
      const int64_t num_tasks = loop * 7 % 41;
      std::fill(runs.begin(), runs.end(), 0);
      pool.run(num_tasks, [&](int64_t index, int thread) {
        if (thread < 0 || thread >= num_threads) return;
        if ((index + loop) % 997 == 0) std::this_thread::yield();  // some tasks are long
        ++runs[static_cast<size_t>(index)];
      });
      for (size_t i = 0; i < runs.size(); ++i) wrong += runs[i] != (static_cast<int64_t>(i) < num_tasks ? 1 : 0);
    }
    INFO(num_threads << " threads");
    CHECK(wrong == 0);
  }
}

TEST_CASE("a thread runs one task at a time, and loops see what the loops before them wrote") {
  const FewProcessors processors(2);
  ThreadPool pool(16);
  std::vector<int64_t> of_thread(16), values(64);
  for (int loop = 0; loop < 2000; ++loop) {
    pool.run(64, [&](int64_t index, int thread) {
      ++of_thread[static_cast<size_t>(thread)];
      values[static_cast<size_t>(index)] += index;
    });
  }
  int64_t sum = 0;
  for (const int64_t count : of_thread) sum += count;
  CHECK(sum == 2000 * 64);
  for (int64_t index = 0; index < 64; ++index) CHECK(values[static_cast<size_t>(index)] == 2000 * index);
}

TEST_CASE("loops end without workers that get no processor") {
  ThreadPool pool(4);
  std::vector<pthread_t> threads(4);
  std::vector<pid_t> ids(4);
  on_every_thread(pool, [&](int thread) {
    threads[static_cast<size_t>(thread)] = pthread_self();
    ids[static_cast<size_t>(thread)] = gettid();
  });
  std::vector<int> runs(64);
  const auto run_loops = [&] {
    for (int loop = 0; loop < 1000; ++loop)
      pool.run(64, [&](int64_t index, int) { ++runs[static_cast<size_t>(index)]; });
  };
  {
    HeldThreads held;
    for (size_t worker = 1; worker < 4; ++worker) held.hold(threads[worker], ids[worker]);
    run_loops();
    CHECK(runs == std::vector<int>(64, 1000));
  }
  run_loops();  // while those that are late wake up
  CHECK(runs == std::vector<int>(64, 2000));
  int visits = 0;
  std::mutex mutex;
  on_every_thread(pool, [&](int) {
    const std::lock_guard lock(mutex);
    ++visits;
  });
  CHECK(visits == 4);
}

TEST_CASE("an idle pool uses no CPU") {
  ThreadPool pool(16);
  on_every_thread(pool, [](int) {});
  // Workers sleep soon after a loop; when the system lets them is not the pool's to say.
  double used = 1;
  for (int attempt = 0; attempt < 50 && used > 1e-3; ++attempt) {
    const double before = cpu_seconds();
    usleep(200000);
    used = cpu_seconds() - before;
  }
  CHECK(used <= 1e-3);
}

TEST_CASE("pools come and go, idle or just after a loop") {
  const FewProcessors processors(2);
  for (int round = 0; round < 100; ++round) {
    ThreadPool pool(8);
    std::atomic<int> runs{0};
    for (int loop = 0; loop < round % 3; ++loop) pool.run(8, [&](int64_t, int) { ++runs; });
    CHECK(runs == 8 * (round % 3));
  }
}

TEST_CASE("workers are bound to the processors in their order, the calling thread is not") {
  const std::vector<int> own = own_processors();
  REQUIRE_FALSE(own.empty());
  const std::vector<int> list = {own.back(), own.front()};
  ThreadPool pool(5, list);
  std::vector<std::vector<int>> seen(5);
  on_every_thread(pool, [&](int thread) { seen[static_cast<size_t>(thread)] = own_processors(); });
  CHECK(seen[0] == own);
  for (size_t thread = 1; thread < 5; ++thread) CHECK(seen[thread] == std::vector<int>{list[thread % 2]});
}

TEST_CASE("processors that are not there are named") {
  const std::vector<int> own = own_processors();
  CHECK(check_processors({}).ok());
  CHECK(check_processors(own).ok());
  std::vector<int> list = own;
  list.push_back(kMaxProcessor);
  const Status status = check_processors(list);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(status.message() == "there is no processor 8191 for this process");
  CHECK(own_processors() == own);
  CHECK_THROWS_AS(ThreadPool(3, list), std::system_error);
}

TEST_CASE("lists of processors") {
  const auto parse = [](std::string_view text) {
    auto list = parse_processor_list(text);
    REQUIRE(list.ok());
    return list.take();
  };
  CHECK(parse("").empty());
  CHECK(parse("0") == std::vector<int>{0});
  CHECK(parse("0-3,8") == std::vector<int>{0, 1, 2, 3, 8});
  CHECK(parse("8,2-2,5-6,0") == std::vector<int>{8, 2, 5, 6, 0});
  CHECK(parse("8191") == std::vector<int>{8191});
  CHECK(parse("0-1023").size() == 1024);
  for (const char* text : {" ",
                           ",",
                           "1,",
                           ",1",
                           "1,,2",
                           "-1",
                           "1-",
                           "1--2",
                           "1-2-3",
                           "3-1",
                           "8192",
                           "1-8192",
                           "x",
                           "1x",
                           "1 ",
                           " 1",
                           "+1",
                           "0x1",
                           "1,1",
                           "0-3,2",
                           "0-1024",
                           "99999999999999999999",
                           "1-99999999999999999999"}) {
    INFO("\"" << text << "\"");
    const Status status = parse_processor_list(text).status();
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_FALSE(status.message().empty());
  }
}
