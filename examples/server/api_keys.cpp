#include "api_keys.h"

#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace server {
namespace {

constexpr size_t kMinKeySize = 16;

// Walks the whole of `presented` whatever the key is: time tells nothing of the key but, at most, its length.
bool is_equal(std::string_view presented, std::string_view secret) {
  unsigned difference = presented.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < presented.size(); ++i) {
    difference |= static_cast<unsigned char>(presented[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return difference == 0;
}

// "weight=2" and the like; false for what is none, or out of range.
bool read_limit(const std::string& word, headrace::TenantLimits& limits) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return false;
  const std::string name = word.substr(0, equals);
  double value = 0;
  const char *begin = word.data() + equals + 1, *end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || !(value >= 0 && value <= 1e9)) return false;
  if (name == "weight") {
    limits.weight = value;
    return value >= 0.001 && value <= 1000;
  }
  if (name == "tokens_per_second") {
    limits.tokens_per_second = value;
    return true;
  }
  int64_t* count = name == "max_num_seqs" ? &limits.max_num_seqs : name == "max_queue" ? &limits.max_queue : nullptr;
  if (count == nullptr || value != std::trunc(value)) return false;
  *count = static_cast<int64_t>(value);
  return true;
}

}  // namespace

ApiKeys ApiKeys::read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  ApiKeys keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    Key key;
    if (!(words >> key.secret) || key.secret.front() == '#') continue;
    const auto fail = [&](const std::string& what) {
      throw std::runtime_error(path + ": line " + std::to_string(number) + ": " + what);
    };
    if (key.secret.size() < kMinKeySize) fail("the key has fewer than " + std::to_string(kMinKeySize) + " characters");
    if (!(words >> key.caller.tenant)) fail("no tenant follows the key");
    if (keys.find(key.secret)) fail("the key has come before");
    headrace::TenantLimits limits;
    bool has_limits = false;
    for (std::string word; words >> word;) {
      if (word == "admin") {
        key.caller.is_admin = true;
      } else if (read_limit(word, limits)) {
        has_limits = true;
      } else {
        fail("what follows the tenant is neither \"admin\" nor a limit: " + word.substr(0, word.find('=')));
      }
    }
    if (has_limits && !keys.tenants_.emplace(key.caller.tenant, limits).second)
      fail("the tenant has had limits before");
    keys.keys_.push_back(std::move(key));
  }
  if (keys.keys_.empty()) throw std::runtime_error(path + ": holds no key");
  return keys;
}

std::optional<Caller> ApiKeys::find(std::string_view presented) const {
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (is_equal(presented, key.secret)) found = &key;
  }
  if (found == nullptr || presented.empty()) return std::nullopt;
  return found->caller;
}

}  // namespace server
