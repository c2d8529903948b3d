// The server as a whole.
#pragma once

#include <headrace/headrace.hpp>

#include <functional>
#include <vector>

#include "api_keys.h"
#include "served_model.h"
#include "settings.h"

namespace server {

// Checks the settings before models are loaded, and reads the keys: throws std::runtime_error for a host other than loopback
// without keys, and for a key file that cannot be used.
ApiKeys check(const Settings& settings);

// Serves until SIGTERM or SIGINT, and then until what runs has ended or the drain timeout has passed; a second signal ends
// at once. on_ready is called with the port once connections are taken. Throws std::runtime_error where it cannot listen, and
// for models of one name.
void serve(std::vector<LoadedModel> models, ApiKeys keys, const Settings& settings,
           const std::function<void(uint16_t port)>& on_ready);

}  // namespace server
