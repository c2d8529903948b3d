#include "emulator/sync_points.h"

#include <map>
#include <utility>

#include "emulator/options.h"

namespace headrace::emulator {
namespace {

struct Registry {
  std::vector<SyncPoint> points;
  std::map<std::pair<std::string, unsigned>, size_t> numbers;  // by kind and file, line
  std::vector<bool> reached;
};

Registry& registry() {
  static Registry value;
  return value;
}

}  // namespace

bool sync_point_enabled(const char* kind, Place place) {
  Registry& r = registry();
  const auto [found, added] = r.numbers.try_emplace({std::string(kind) + place.file, place.line}, r.points.size());
  if (added) {
    r.points.push_back({kind, place});
    r.reached.push_back(false);
  }
  r.reached[found->second] = true;
  return r.points[found->second].enabled;
}

std::vector<Mutant> run_mutants(const std::function<bool()>& run) {
  Registry& r = registry();
  take_findings();
  r.reached.assign(r.points.size(), false);
  if (!run() || has_findings()) return {};
  const std::vector<bool> reached = r.reached;
  std::vector<Mutant> out;
  for (size_t number = 0; number < reached.size(); ++number) {
    if (!reached[number]) continue;
    r.points[number].enabled = false;
    const bool right = run();
    r.points[number].enabled = true;
    const std::vector<Finding> findings = take_findings();
    Mutant mutant{number, r.points[number], !right || !findings.empty(), ""};
    if (!findings.empty()) {
      mutant.how = std::string(name_of(findings[0].kind)) + ": " + findings[0].text;
    } else if (!right) {
      mutant.how = "wrong result";
    }
    out.push_back(std::move(mutant));
  }
  return out;
}

std::string to_string(const std::vector<Mutant>& mutants) {
  std::string out;
  for (const Mutant& mutant : mutants) {
    out += std::to_string(mutant.number) + " " + mutant.point.kind + " at " + to_string(mutant.point.place) + ": " +
           (mutant.caught ? mutant.how : "SURVIVES") + "\n";
  }
  return out;
}

}  // namespace headrace::emulator
