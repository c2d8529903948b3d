// Conversations as the APIs write them, made into what the model's template reads.
#pragma once

#include <headrace/headrace.hpp>

#include <string>
#include <vector>

#include "image_data.h"
#include "json.h"
#include "served_model.h"

namespace server {

struct Conversation {
  OrderedJson messages = OrderedJson::array();
  std::vector<RgbImage> images;  // in the order of their places in the messages

  // role: as the template knows it. content: a string, or an array of parts of the types "text", "input_text",
  // "output_text" (each with "text"), "image_url", "input_image" (OpenAI) and "image" (Anthropic). place: of the content in
  // the body. Texts of one message are joined by newlines where no image stands among them.
  void add(const std::string& role, const Json& content, const ServedModel& served, const std::string& place);

  // Renders with the model's template into the request. variables: of the template, or null. Throws ApiError (400) where
  // the model has none.
  void put_into(headrace::Request& request, const ServedModel& served, const Json* variables) const;
  // Throws ApiError (400) for messages with images or names.
  void append_to(headrace::Session& session) const;
};

// "messages" of a chat request. "developer" is OpenAI's newer word for "system".
Conversation read_messages(const Json& messages, const ServedModel& served);

}  // namespace server
