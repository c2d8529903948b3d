// GET /v1/models, and adapters loaded and unloaded while requests run.
#include <ctime>
#include <filesystem>
#include <utility>

#include "context.h"
#include "sampling_fields.h"

namespace server {
namespace {

std::string iso_time(int64_t unix_time) {
  const std::time_t time = unix_time;
  std::tm parts = {};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// In the words of OpenAI's clients and, beside them, of Anthropic's.
OrderedJson describe(const ServedModel& served, const std::string& name) {
  OrderedJson model = {{"id", name},
                       {"object", "model"},
                       {"created", served.created()},
                       {"owned_by", "headrace"},
                       {"max_model_len", served.context()},
                       {"type", "model"},
                       {"display_name", name},
                       {"created_at", iso_time(served.created())}};
  if (name != served.name()) model["parent"] = served.name();
  return model;
}

void list(const Context& context, const Call& call) {
  OrderedJson data = OrderedJson::array();
  for (const auto& served : context.models.all()) data.push_back(describe(*served, served->name()));
  for (const auto& [name, adapter] : context.models.adapters()) data.push_back(describe(adapter.served, name));
  const std::string first = data.front()["id"], last = data.back()["id"];
  call.reply(
      {{"object", "list"}, {"data", std::move(data)}, {"has_more", false}, {"first_id", first}, {"last_id", last}});
}

void show(const Context& context, const Call& call) {
  call.reply(describe(context.models.find(call.parameter).served, call.parameter));
}

void load(Context& context, const Call& call) {
  const std::string& allowed = context.settings.adapter_folder;
  if (allowed.empty()) throw ApiError(403, "the server was started without a folder for adapters (--adapter-dir)");
  const std::string name = call.body.at("lora_name").get<std::string>(),
                    folder = call.body.at("lora_path").get<std::string>();
  const std::filesystem::path asked(folder);
  // A name in that folder, and no way out of it.
  const bool has_zero_byte = folder.find('\0') != std::string::npos;
  if (asked.has_root_path() || asked.filename() != asked || folder == "." || folder == ".." || has_zero_byte) {
    throw ApiError(400, "must be the name of a folder in the server's folder for adapters", "lora_path");
  }
  const std::filesystem::path path = std::filesystem::path(allowed) / asked;
  std::error_code error;
  // A link in that folder would be a way out too.
  if (std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::directory)
    throw ApiError(404, "there is no such folder", "lora_path");
  const ServedModels::Choice choice = context.models.choose(call.body);
  if (choice.adapter) throw ApiError(400, "is an adapter", "model");
  context.models.load_adapter(choice.served, name, path.string());
  call.reply({{"id", name}, {"object", "model"}});
}

void unload(Context& context, const Call& call) {
  const std::string name = call.body.at("lora_name").get<std::string>();
  context.models.unload_adapter(name);
  call.reply({{"id", name}, {"object", "model"}, {"deleted", true}});
}

}  // namespace

void add_models(Router& router, Context& context) {
  router.add({"GET", "/v1/models", Access::kKey, Place::kIo, "", [&context](Call call) { list(context, call); }});
  router.add({"GET", "/v1/models/*", Access::kKey, Place::kIo, "", [&context](Call call) { show(context, call); }});
  router.add({"POST", "/v1/load_lora_adapter", Access::kAdmin, Place::kCompute, "LoadAdapterRequest",
              [&context](Call call) { load(context, call); }});
  router.add({"POST", "/v1/unload_lora_adapter", Access::kAdmin, Place::kCompute, "UnloadAdapterRequest",
              [&context](Call call) { unload(context, call); }});
}

}  // namespace server
