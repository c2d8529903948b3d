// The server as a whole.
#pragma once

#include <headrace/headrace.hpp>

#include <functional>

#include "settings.h"

namespace server {

// Checks the settings before a model is loaded: throws std::runtime_error for a host other than loopback without keys, and
// for a key file that cannot be used.
void check(const Settings& settings);

// Serves until SIGTERM or SIGINT, and then until what runs has ended or the drain timeout has passed; a second signal ends
// at once. on_ready is called with the port once connections are taken. Throws std::runtime_error where it cannot listen.
void serve(headrace::Model model, const headrace::Options& options, const Settings& settings,
           const std::function<void(uint16_t port)>& on_ready);

}  // namespace server
