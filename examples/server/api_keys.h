// Who may ask what: keys, their tenants, and which of them may administer.
#pragma once

#include <headrace/headrace.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace server {

// Whom a request is from. Without keys everybody is the tenant "" and an administrator.
struct Caller {
  std::string tenant;
  bool is_admin = false;
};

class ApiKeys {
 public:
  // None: every request is let in.
  ApiKeys() = default;
  // A line of the file is "KEY TENANT", and then any of "admin", "weight=W", "max_num_seqs=N", "max_queue=N" and
  // "tokens_per_second=R": the tenant's share and limits (see headrace_tenant_limits), which one line of several with the
  // same tenant may give. Empty lines and those that begin with # are passed over. Keys have 16 characters or more. Throws
  // std::runtime_error naming the line, never the key.
  static ApiKeys read(const std::string& path);

  bool are_needed() const { return !keys_.empty(); }
  // What lines said of tenants.
  const std::map<std::string, headrace::TenantLimits>& tenants() const { return tenants_; }
  // Takes as long for a wrong key as for a right one, whatever they have in common. nullopt: not let in.
  std::optional<Caller> find(std::string_view presented) const;

 private:
  struct Key {
    std::string secret;
    Caller caller;
  };
  std::vector<Key> keys_;
  std::map<std::string, headrace::TenantLimits> tenants_;
};

}  // namespace server
