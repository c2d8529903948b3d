// headrace serve, where the program was built without Boost.
#include <stdexcept>

#include "commands.h"

namespace cli {

void add_serve(CLI::App& app) {
  CLI::App* command = app.add_subcommand("serve", "answer over HTTP (not in this build, which found no Boost 1.81)");
  command->allow_extras();
  command->callback([] {
    throw std::runtime_error("serve: this program was built without Boost 1.81 or later (Debian: libboost1.81-dev)");
  });
}

}  // namespace cli
