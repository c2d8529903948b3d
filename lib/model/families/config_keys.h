// The keys of config.json that a decoder may have.
#pragma once

#include <span>
#include <string_view>

#include "base/status.h"
#include "model/config_reader.h"

namespace headrace {

// Refuses keys that neither every decoder nor `own` knows, by name: an unknown one may change what the model computes.
// Those that say nothing about the computation are let pass; config_keys.cpp lists them with the reason.
Status check_config_keys(const ConfigReader& config, std::span<const std::string_view> own);

}  // namespace headrace
