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

// What a server tells its host while it starts; called on the thread of serve.
struct Announcements {
  std::function<void(uint16_t port)> listening;  // connections are taken
  std::function<void()> ready;                   // and models are there to answer
};

// Takes connections at once, and answers 503 until `load`, which runs on a thread of its own, has given the models. Serves
// until SIGTERM or SIGINT, and then until what runs has ended or the drain timeout has passed; a second signal ends at once,
// as the first does while models load. Throws std::runtime_error where it cannot listen and for models of one name, and what
// `load` throws.
void serve(const std::function<std::vector<LoadedModel>()>& load, const ApiKeys& keys, const Settings& settings,
           const Announcements& announce);

}  // namespace server
