#include "emulator/findings.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "emulator/threads.h"

namespace headrace::emulator {
namespace {

struct Collected {
  std::vector<Finding> findings;
  std::map<std::pair<FindingKind, const void*>, size_t> index;
};

Collected& collected() {
  static Collected value;
  return value;
}

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

// By addr2line, of binutils.
std::string look_up(const void* return_address) {
  // The call lies before the address it returns to.
  const char* call = static_cast<const char*>(return_address) - 1;
  Dl_info info;
  if (dladdr(call, &info) == 0) return "an unknown place";
  char command[512];
  std::snprintf(command, sizeof command, "addr2line -e '%s' 0x%zx 2>/dev/null", info.dli_fname,
                static_cast<size_t>(call - static_cast<const char*>(info.dli_fbase)));
  std::string line;
  if (FILE* pipe = popen(command, "r"); pipe != nullptr) {
    char buffer[1024];
    if (std::fgets(buffer, sizeof buffer, pipe) != nullptr) line = buffer;
    pclose(pipe);
  }
  if (!line.empty() && line.back() == '\n') line.pop_back();
  if (const size_t space = line.find(' '); space != std::string::npos) line.resize(space);  // "(discriminator 2)"
  return line.empty() ? "an unknown place" : base_name(line.c_str());
}

}  // namespace

std::string to_string(Place place) { return std::string(base_name(place.file)) + ":" + std::to_string(place.line); }

std::string place_of(const void* return_address) {
  static std::map<const void*, std::string> known;
  std::string& out = known[return_address];
  if (out.empty()) out = look_up(return_address);
  return out;
}

const char* name_of(FindingKind kind) {
  switch (kind) {
    case FindingKind::kRace: return "race";
    case FindingKind::kUninitialised: return "uninitialised read";
    case FindingKind::kOutOfBounds: return "out of bounds";
    case FindingKind::kDeadlock: return "deadlock";
    case FindingKind::kMisuse: break;
  }
  return "misuse";
}

std::vector<Finding> take_findings() {
  std::vector<Finding> out = std::exchange(collected().findings, {});
  collected().index.clear();
  return out;
}

bool has_findings() { return !collected().findings.empty(); }

std::string to_string(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) {
    out += std::string(name_of(finding.kind)) + ": " + finding.text;
    if (finding.times > 1) out += " (" + std::to_string(finding.times) + " times)";
    out += "\n";
  }
  return out;
}

bool is_known(FindingKind kind, const void* site) {
  const auto found = collected().index.find({kind, site});
  if (found == collected().index.end()) return false;
  ++collected().findings[found->second].times;
  return true;
}

void report(FindingKind kind, const void* site, const std::string& text) {
  if (is_known(kind, site)) return;
  collected().index[{kind, site}] = collected().findings.size();
  collected().findings.push_back({kind, where_am_i() + text});
}

void fail(FindingKind kind, const std::string& text) {
  collected().findings.push_back({kind, where_am_i() + text});
  throw LaunchAborted{};
}

}  // namespace headrace::emulator
