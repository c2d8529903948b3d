#include "chat_messages.h"

#include "api_error.h"
#include "sampling_fields.h"

namespace server {
namespace {

// A data: URL, or base64 with its type beside it.
RgbImage read_image(const Json& part, const std::string& place, uint64_t max_pixels) {
  if (part.contains("source")) {
    const Json& source = part.at("source");
    return decode_image(source.at("data").get_ref<const std::string&>(), place + ".source.data", max_pixels);
  }
  const Json& url = part.at("image_url");
  if (url.is_string()) return decode_image_url(url.get_ref<const std::string&>(), place + ".image_url", max_pixels);
  return decode_image_url(url.at("url").get_ref<const std::string&>(), place + ".image_url.url", max_pixels);
}

void require_template(const ServedModel& served) {
  if (served.model().has_chat_template()) return;
  throw ApiError(400, "the model has no chat template; /v1/completions takes a prompt as it is", "model",
                 "unsupported");
}

}  // namespace

void Conversation::add(const std::string& role, const Json& content, const ServedModel& served,
                       const std::string& place) {
  OrderedJson parts = OrderedJson::array();
  std::string text;
  bool has_images = false;
  if (content.is_string()) {
    text = content.get<std::string>();
  } else if (content.is_array()) {
    for (size_t i = 0; i < content.size(); ++i) {
      const Json& part = content[i];
      if (part.contains("text")) {
        const std::string& more = part.at("text").get_ref<const std::string&>();
        text += (i > 0 && !text.empty() ? "\n" : "") + more;
        parts.push_back({{"type", "text"}, {"text", more}});
        continue;
      }
      const std::string part_place = place + "[" + std::to_string(i) + "]";
      if (!served.reads_images()) throw ApiError(400, "the model reads no images", part_place, "unsupported");
      images.push_back(read_image(part, part_place, pixels_left));
      pixels_left -= uint64_t{images.back().width} * images.back().height;
      parts.push_back({{"type", "image"}});
      has_images = true;
    }
  }
  OrderedJson message = {{"role", role}};
  if (has_images) {
    message["content"] = std::move(parts);
  } else {
    message["content"] = std::move(text);
  }
  messages.push_back(std::move(message));
}

std::vector<int32_t> Conversation::tokens(const ServedModel& served, const Json* variables,
                                          bool add_generation_prompt) const {
  require_template(served);
  headrace::RenderArguments arguments;
  arguments.messages = dump(messages);
  arguments.add_generation_prompt = add_generation_prompt;
  if (variables != nullptr) arguments.variables = variables->dump();
  return served.tokenizer().encode(headrace::ChatTemplate(served.model()).render(arguments));
}

void Conversation::put_into(headrace::Request& request, const ServedModel& served, const Json* variables) const {
  require_template(served);
  request.add_messages(dump(messages), {}, variables == nullptr ? std::string() : variables->dump());
  for (const RgbImage& image : images) request.add_image(image.rgb.data(), image.rgb.size(), image.height, image.width);
}

void Conversation::append_to(headrace::Session& session) const {
  size_t next_image = 0;
  for (const OrderedJson& message : messages) {
    if (message.contains("name")) {
      throw ApiError(400, "names are not supported in a session", "messages", "unsupported");
    }
    const std::string role = message.at("role").get<std::string>();
    const OrderedJson& content = message.at("content");
    if (content.is_string()) {
      session.append_message(role, content.get<std::string>());
      continue;
    }
    for (const OrderedJson& part : content) {
      if (part.at("type") != "image") continue;
      const RgbImage& image = images[next_image++];
      session.add_image(image.rgb.data(), image.rgb.size(), image.height, image.width);
    }
    session.append_parts(role, dump(content));
  }
}

Conversation read_messages(const Json& messages, const ServedModel& served, uint64_t max_pixels) {
  Conversation conversation;
  conversation.pixels_left = max_pixels;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    std::string role = message.at("role").get<std::string>();
    if (role == "developer") role = "system";
    const Json* content = find_field(message, "content");
    conversation.add(role, content == nullptr ? Json("") : *content, served,
                     "messages[" + std::to_string(i) + "].content");
    if (const Json* name = find_field(message, "name")) conversation.messages.back()["name"] = *name;
  }
  return conversation;
}

}  // namespace server
