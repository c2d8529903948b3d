#include "serve_trace.h"

#include <cmath>
#include <random>
#include <sstream>

#include <headrace/headrace.hpp>
#include <nlohmann/json.hpp>

#include "arguments.h"

namespace cli {
namespace {

// Poisson arrivals and sizes spread by a factor of two, the same on every machine.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  double unit() { return (static_cast<double>(random_()) + 0.5) / 4294967296.0; }
  double wait(double rate) { return -std::log(unit()) / rate; }
  int size(int typical) { return std::max(1, static_cast<int>(typical * std::exp2(2 * unit() - 1))); }

 private:
  std::mt19937 random_;
};

struct Shape {
  const char* group;
  const char* shared;
  int shared_tokens, first_tokens, next_tokens, output_tokens, turns;
  double delay;
};

constexpr Shape kCodingAgent = {"coding-agent", "tools", 1500, 600, 300, 80, 8, 0.2};
constexpr Shape kChat = {"chat", "system", 200, 60, 40, 100, 4, 2.0};
constexpr Shape kDocuments = {"documents", "", 0, 3000, 30, 60, 2, 1.0};

void add_conversations(std::vector<TraceRequest>& trace, const Shape& shape, const std::string& tenant, int turns,
                       double rate, uint32_t seed) {
  Draw draw(seed);
  double arrival = 0;
  for (int conversation = 0; turns > 0; ++conversation) {
    for (int turn = 0; turn < shape.turns && turns > 0; ++turn, --turns) {
      TraceRequest request;
      request.arrival = arrival;
      request.delay = shape.delay * 2 * draw.unit();
      request.conversation = tenant + "/" + shape.group + "/" + std::to_string(conversation);
      request.group = shape.group;
      request.tenant = tenant;
      request.shared = shape.shared;
      request.shared_tokens = turn == 0 ? shape.shared_tokens : 0;
      request.prompt_tokens = draw.size(turn == 0 ? shape.first_tokens : shape.next_tokens);
      request.output_tokens = draw.size(shape.output_tokens);
      trace.push_back(request);
    }
    arrival += draw.wait(rate);
  }
}

[[noreturn]] void refuse(size_t line, const std::string& member, const std::string& message) {
  throw headrace::Error(HEADRACE_MALFORMED, message, "line " + std::to_string(line) + ", \"" + member + "\"");
}

// Takes a member out, so that what is left is unknown.
double take_number(nlohmann::json& object, size_t line, const char* member, double least, double otherwise) {
  const auto found = object.find(member);
  if (found == object.end()) return otherwise;
  if (!found->is_number() || !(found->get<double>() >= least) || !(found->get<double>() <= 1e9)) {
    refuse(line, member, "is no number from " + std::to_string(static_cast<int>(least)) + " on");
  }
  const double value = *found;
  object.erase(member);
  return value;
}

std::string take_text(nlohmann::json& object, size_t line, const char* member, const std::string& otherwise) {
  const auto found = object.find(member);
  if (found == object.end()) return otherwise;
  if (!found->is_string()) refuse(line, member, "is no text");
  const std::string value = *found;
  object.erase(member);
  return value;
}

}  // namespace

std::vector<TraceRequest> synthetic_trace(const std::string& name, int turns, double rate) {
  std::vector<TraceRequest> trace;
  if (name == "coding-agent") add_conversations(trace, kCodingAgent, "", turns, rate, 1);
  if (name == "chat") add_conversations(trace, kChat, "", turns, rate, 2);
  if (name == "documents") add_conversations(trace, kDocuments, "", turns, rate, 3);
  if (name == "tenants") {
    // The burst comes at once and is three quarters of all.
    add_conversations(trace, kChat, "steady", turns / 4, rate, 4);
    add_conversations(trace, kChat, "burst", turns - turns / 4, 1e6, 5);
  }
  return trace;
}

std::vector<TraceRequest> read_trace(const std::string& path) {
  std::istringstream lines(read_filled_file(path));
  std::vector<TraceRequest> trace;
  std::string text;
  for (size_t line = 1; std::getline(lines, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto object = nlohmann::json::parse(text, nullptr, false);
    if (!object.is_object()) refuse(line, "", "is no JSON object");
    TraceRequest request;
    request.arrival = take_number(object, line, "arrival", 0, 0);
    request.delay = take_number(object, line, "delay", 0, 0);
    request.conversation = take_text(object, line, "conversation", "line " + std::to_string(line));
    request.group = take_text(object, line, "class", "request");
    request.tenant = take_text(object, line, "tenant", "");
    request.shared = take_text(object, line, "shared", "");
    request.shared_tokens = static_cast<int>(take_number(object, line, "shared_tokens", 0, 0));
    request.prompt_tokens = static_cast<int>(take_number(object, line, "prompt_tokens", 1, 1));
    request.output_tokens = static_cast<int>(take_number(object, line, "output_tokens", 1, 1));
    if (!object.empty()) refuse(line, object.begin().key(), "is not known");
    trace.push_back(request);
  }
  return trace;
}

}  // namespace cli
