// headrace serve: the HTTP server of examples/server.
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "server.h"

namespace cli {
namespace {

struct ServeArguments {
  SettingArguments set;
  server::Settings settings;
  std::vector<std::string> models, names;  // a name for each model from the first on
  std::vector<int> priorities;             // likewise
  std::vector<std::string> adapters;       // "name=folder"
  int64_t port = 8080, max_connections = 0, max_body_mb = 0, request_timeout = 0, drain_timeout = 0;
};

// Every model belongs to one runtime: they share threads and memory.
std::vector<server::LoadedModel> load_models(const ServeArguments& arguments, const headrace::Runtime& runtime) {
  std::vector<server::LoadedModel> loaded;
  for (size_t i = 0; i < arguments.models.size(); ++i) {
    headrace::Options options = arguments.set.options();
    options.set_runtime(runtime);
    if (i < arguments.priorities.size()) options.set("engine.priority", std::to_string(arguments.priorities[i]));
    ModelArguments model{arguments.set, arguments.models[i]};
    headrace::Model read = model.load(options);
    loaded.push_back({std::move(read), std::move(options), model.path,
                      i < arguments.names.size() ? arguments.names[i] : std::string()});
  }
  return loaded;
}

void serve(const ServeArguments& arguments) {
  server::Settings settings = arguments.settings;
  settings.port = static_cast<uint16_t>(arguments.port);
  settings.limits.max_connections = static_cast<size_t>(arguments.max_connections);
  settings.limits.max_body_bytes = static_cast<size_t>(arguments.max_body_mb) << 20;
  settings.limits.request_timeout = std::chrono::seconds(arguments.request_timeout);
  settings.limits.drain_timeout = std::chrono::seconds(arguments.drain_timeout);
  for (const std::string& adapter : arguments.adapters) {
    const size_t equals = adapter.find('=');
    if (equals == std::string::npos) throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is not name=folder", adapter);
    if (arguments.models.size() > 1) {
      throw headrace::Error(HEADRACE_INVALID_ARGUMENT,
                            "does not say of which model; with several, adapters are loaded by request", adapter);
    }
    settings.adapters.emplace_back(adapter.substr(0, equals), adapter.substr(equals + 1));
  }
  if (arguments.names.size() > arguments.models.size() || arguments.priorities.size() > arguments.models.size()) {
    throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "there are more names or priorities than models", "-m");
  }
  const headrace::Runtime runtime(arguments.set.options());
  const server::ApiKeys keys = server::check(settings);
  const std::string host = settings.host.find(':') == std::string::npos ? settings.host : "[" + settings.host + "]";
  const server::Announcements announce = {
      [&](uint16_t port) { print_text("listening at http://" + host + ":" + std::to_string(port) + "\n"); },
      [] { print_text("ready\n"); }};
  server::serve([&] { return load_models(arguments, runtime); }, keys, settings, announce);
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
  command
      ->add_option("-m,--model", arguments->models,
                   "GGUF file, safetensors file, Hugging Face folder or graft (repeatable: the server has them all)")
      ->required()
      ->take_all();
  arguments->set.add_to(*command);
  arguments->set.add_drafter_to(*command);
  command->add_option("--host", settings.host, "address to listen at")->capture_default_str();
  command->add_option("--port", arguments->port, "port; 0 is one that is free")
      ->transform(within(0, 65535))
      ->capture_default_str();
  command->add_option("--api-key-file", settings.api_key_file, "file with a line \"KEY TENANT [admin]\" for each key");
  command
      ->add_option("--alias,--name", arguments->names,
                   "the model's name for clients (default: of its file; repeatable, in the order of -m)")
      ->take_all();
  command
      ->add_option("--priority", arguments->priorities,
                   "of the model among those of the server; higher goes first (repeatable, in the order of -m)")
      ->take_all();
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
