// headrace serve: the HTTP server of examples/server.
#include <cstdio>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "server.h"

namespace cli {
namespace {

struct ServeArguments {
  ModelArguments model;
  server::Settings settings;
  std::vector<std::string> adapters;  // "name=folder"
  int64_t port = 8080, max_connections = 0, max_body_mb = 0, request_timeout = 0, drain_timeout = 0;
};

void serve(const ServeArguments& arguments) {
  server::Settings settings = arguments.settings;
  settings.port = static_cast<uint16_t>(arguments.port);
  settings.model_path = arguments.model.path;
  settings.limits.max_connections = static_cast<size_t>(arguments.max_connections);
  settings.limits.max_body_bytes = static_cast<size_t>(arguments.max_body_mb) << 20;
  settings.limits.request_timeout = std::chrono::seconds(arguments.request_timeout);
  settings.limits.drain_timeout = std::chrono::seconds(arguments.drain_timeout);
  for (const std::string& adapter : arguments.adapters) {
    const size_t equals = adapter.find('=');
    if (equals == std::string::npos) throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is not name=folder", adapter);
    settings.adapters.emplace_back(adapter.substr(0, equals), adapter.substr(equals + 1));
  }
  server::check(settings);
  const headrace::Options options = arguments.model.options();
  const headrace::Model model = arguments.model.load(options);
  const std::string host = settings.host.find(':') == std::string::npos ? settings.host : "[" + settings.host + "]";
  server::serve(model, options, settings,
                [&](uint16_t port) { print_text("listening at http://" + host + ":" + std::to_string(port) + "\n"); });
}

}  // namespace

void add_serve(CLI::App& app) {
  auto arguments = std::make_shared<ServeArguments>();
  const server::Limits limits;
  arguments->max_connections = static_cast<int64_t>(limits.max_connections);
  arguments->max_body_mb = static_cast<int64_t>(limits.max_body_bytes >> 20);
  arguments->request_timeout = limits.request_timeout.count();
  arguments->drain_timeout = limits.drain_timeout.count();
  server::Settings& settings = arguments->settings;
  CLI::App* command = app.add_subcommand("serve", "answer over HTTP, as OpenAI's and Anthropic's clients ask");
  arguments->model.add_to(*command);
  arguments->model.add_drafter_to(*command);
  command->add_option("--host", settings.host, "address to listen at")->capture_default_str();
  command->add_option("--port", arguments->port, "port; 0 is one that is free")
      ->transform(within(0, 65535))
      ->capture_default_str();
  command->add_option("--api-key-file", settings.api_key_file, "file with a line \"KEY TENANT [admin]\" for each key");
  command->add_option("--name", settings.model_name, "the model's name for clients (default: of its file)");
  command->add_option("--cors-origin", settings.origins, "origin of pages that may ask (repeatable; default: none)")
      ->take_all();
  command->add_option("--adapter", arguments->adapters, "name=folder of a low-rank adapter (repeatable)")->take_all();
  command->add_option("--adapter-dir", settings.adapter_folder,
                      "folder whose folders may be loaded as adapters by request (default: none)");
  command->add_option("--max-connections", arguments->max_connections, "connections at a time")
      ->transform(within(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-body-mb", arguments->max_body_mb, "size of a request's body, in MiB")
      ->transform(within(1, 1 << 10))
      ->capture_default_str();
  command
      ->add_option("--request-timeout", arguments->request_timeout, "seconds for a request in the engine; 0: no limit")
      ->transform(within(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--drain-timeout", arguments->drain_timeout, "seconds that running requests have after SIGTERM")
      ->transform(within(0, 1 << 30))
      ->capture_default_str();
  command->callback([arguments] { serve(*arguments); });
}

}  // namespace cli
