// Typed reading of a config.json: every error names the key, nothing is guessed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "model/rope_frequencies.h"

namespace headrace {

// A view of one JSON object; `place` is its JSON pointer. null counts as absent.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string place) : object_(object), place_(std::move(place)) {}

  const nlohmann::json& json() const { return object_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const nlohmann::json* find(std::string_view key) const;
  // Written as null: some keys mean "none" by it, and a default when they are left out.
  bool contains_null(std::string_view key) const;
  std::string place_of(std::string_view key) const { return place_ + "/" + std::string(key); }

  // kMalformed when absent (without fallback, or where the fallback is above high), of another type, or outside [low, high].
  Result<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  Result<int64_t> integer_or(std::string_view key, int64_t low, int64_t high, int64_t fallback) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  // kMalformed for a number that is not above zero as a float, too.
  Result<double> positive_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text_or(std::string_view key, std::string fallback) const;
  // Empty when absent.
  Result<std::vector<std::string>> texts(std::string_view key) const;
  // Empty when absent.
  Result<std::vector<double>> numbers(std::string_view key) const;
  // One integer or a list of them (eos_token_id); empty when absent.
  Result<std::vector<int64_t>> integers(std::string_view key) const;
  // A member object; a reader of an empty object when absent.
  Result<ConfigReader> object(std::string_view key) const;

  // kUnsupported when the key is there with another value: it would change the computation in a way that is
  // not built.
  Status only(std::string_view key, const nlohmann::json& allowed) const;
  // The same for constants, so that importers compile without the JSON library.
  Status only(std::string_view key, std::nullptr_t) const;
  Status only(std::string_view key, const char* allowed) const;
  template <class Number>
  requires std::is_arithmetic_v<Number> Status only(std::string_view key, Number allowed)
  const {
    if constexpr (std::is_same_v<Number, bool>) return only_boolean(key, allowed);
    if constexpr (std::is_integral_v<Number>) return only_integer(key, allowed);
    return only_number(key, static_cast<double>(allowed));
  }
  // kUnsupported for a key with a value other than null that no list names: it may change the computation.
  Status check_known(std::span<const std::string_view> keys, std::span<const std::string_view> more = {}) const;

 private:
  Status only_boolean(std::string_view key, bool allowed) const;
  Status only_integer(std::string_view key, int64_t allowed) const;
  Status only_number(std::string_view key, double allowed) const;

  const nlohmann::json& object_;
  std::string place_;
};

// Rotary parameters of one object, either style: {rope_type | type, factor, ...}. `theta` is used when it has
// none.
struct RopeConfig {
  double theta = 0;
  double partial = 1.0;  // share of a head's dims that rotate
  RopeScaling scaling;
};
// partial_default: the share without partial_rotary_factor, which is refused where the family has none.
Result<RopeConfig> read_rope_parameters(const ConfigReader& rope, double default_theta, int64_t max_position_embeddings,
                                        std::optional<double> partial_default = {});

// rope_parameters of the newer style, or rope_theta with rope_scaling of the older one.
Result<RopeConfig> read_rope(const ConfigReader& config, double default_theta, int64_t max_position_embeddings,
                             std::optional<double> partial_default = {});

// "silu", "gelu_pytorch_tanh", ...
Result<Activation> read_activation(const ConfigReader& config, std::string_view key, std::string fallback);

}  // namespace headrace
