#include "chat_messages.h"

#include "api_error.h"
#include "sampling_fields.h"

namespace server {
namespace {

// A data: URL, or base64 with its type beside it.
RgbImage read_image(const Json& part, const std::string& place) {
  if (part.contains("source")) {
    const Json& source = part.at("source");
    return decode_image(source.at("data").get_ref<const std::string&>(), place + ".source.data");
  }
  const Json& url = part.at("image_url");
  if (url.is_string()) return decode_image_url(url.get_ref<const std::string&>(), place + ".image_url");
  return decode_image_url(url.at("url").get_ref<const std::string&>(), place + ".image_url.url");
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
      images.push_back(read_image(part, part_place));
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

void Conversation::put_into(headrace::Request& request, const ServedModel& served, const Json* variables) const {
  if (!served.model().has_chat_template()) {
    throw ApiError(400, "the model has no chat template; /v1/completions takes a prompt as it is", "model",
                   "unsupported");
  }
  request.add_messages(dump(messages), {}, variables == nullptr ? std::string() : variables->dump());
  for (const RgbImage& image : images) request.add_image(image.rgb.data(), image.rgb.size(), image.height, image.width);
}

void Conversation::append_to(headrace::Session& session) const {
  for (const OrderedJson& message : messages) {
    if (message.size() > 2 || !message.at("content").is_string()) {
      throw ApiError(400, "images and names are not supported in a session", "messages", "unsupported");
    }
    session.append_message(message.at("role").get<std::string>(), message.at("content").get<std::string>());
  }
}

Conversation read_messages(const Json& messages, const ServedModel& served) {
  Conversation conversation;
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
