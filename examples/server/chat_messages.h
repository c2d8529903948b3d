// Conversations as the APIs write them, made into what the model's template reads.
#pragma once

#include <headrace/headrace.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "image_data.h"
#include "json.h"
#include "served_model.h"

namespace server {

struct Conversation {
  OrderedJson messages = OrderedJson::array();
  std::vector<RgbImage> images;       // in the order of their places in the messages
  uint64_t pixels_left = kMaxPixels;  // that further images may have

  // role: as the template knows it. content: a string, or an array of parts of the types "text", "input_text",
  // "output_text" (each with "text"), "image_url", "input_image" (OpenAI) and "image" (Anthropic). place: of the content in
  // the body. Texts of one message are joined by newlines where no image stands among them.
  void add(const std::string& role, const Json& content, const ServedModel& served, const std::string& place);

  // What the model's template makes of the messages, an image counting as one token. variables: of the template, or null.
  // Throws ApiError (400) where the model has none.
  std::vector<int32_t> tokens(const ServedModel& served, const Json* variables = nullptr,
                              bool add_generation_prompt = true) const;
  // The same into the request, with the images.
  void put_into(headrace::Request& request, const ServedModel& served, const Json* variables) const;
  // Throws ApiError (400) for messages with names.
  void append_to(headrace::Session& session) const;
};

// "messages" of a chat request. "developer" is OpenAI's newer word for "system".
// max_pixels: of all its images.
Conversation read_messages(const Json& messages, const ServedModel& served, uint64_t max_pixels = kMaxPixels);

}  // namespace server
