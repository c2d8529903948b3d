#include "sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "api_error.h"

namespace server {

const Json* find_field(const Json& body, const char* name) {
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

int64_t integer_field(const Json& body, const char* name, int64_t otherwise) {
  const Json* field = find_field(body, name);
  if (field == nullptr) return otherwise;
  // The schema takes 1.0 for an integer. What it does not bound must still fit.
  if (field->is_number_float() && std::abs(field->get<double>()) >= 9.2e18) {
    throw ApiError(400, "does not fit into 64 bits", name);
  }
  if (field->is_number_unsigned() && field->get<uint64_t>() > INT64_MAX) {
    throw ApiError(400, "does not fit into 64 bits", name);
  }
  return field->get<int64_t>();
}

double number_field(const Json& body, const char* name, double otherwise) {
  const Json* field = find_field(body, name);
  return field == nullptr ? otherwise : field->get<double>();
}

bool flag_field(const Json& body, const char* name, bool otherwise) {
  const Json* field = find_field(body, name);
  return field == nullptr ? otherwise : field->get<bool>();
}

std::string text_field(const Json& body, const char* name, const std::string& otherwise) {
  const Json* field = find_field(body, name);
  return field == nullptr ? otherwise : field->get<std::string>();
}

std::vector<std::string> strings_field(const Json& body, const char* name) {
  const Json* field = find_field(body, name);
  if (field == nullptr) return {};
  if (field->is_string()) return {field->get<std::string>()};
  return field->get<std::vector<std::string>>();
}

namespace {

int32_t token_id(const std::string& text, const std::string& place) {
  int32_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw ApiError(400, "is no token id", place);
  }
  return id;
}

}  // namespace

Draw read_draw(const Json& body, const ServedModel& served) {
  Draw draw;
  headrace::Sampling& sampling = draw.sampling = served.sampling();
  const auto number = [&](const char* name, float& value) {
    value = static_cast<float>(number_field(body, name, value));
  };
  number("temperature", sampling.temperature);
  number("top_p", sampling.top_p);
  number("min_p", sampling.min_p);
  number("typical_p", sampling.typical_p);
  number("repetition_penalty", sampling.repetition_penalty);
  number("frequency_penalty", sampling.frequency_penalty);
  number("presence_penalty", sampling.presence_penalty);
  sampling.top_k = static_cast<int32_t>(integer_field(body, "top_k", sampling.top_k));
  sampling.n = static_cast<uint32_t>(integer_field(body, "n", 1));
  if (find_field(body, "seed")) {
    sampling.has_seed = 1;
    sampling.seed = static_cast<uint64_t>(integer_field(body, "seed", 0));
  }
  draw.min_tokens = integer_field(body, "min_tokens", 0);
  draw.stop = strings_field(body, "stop");
  return draw;
}

std::string cache_salt_of(const Call& call) {
  const std::string salt = text_field(call.body, "cache_salt", "");
  // No name of a tenant has a zero byte.
  return salt.empty() ? call.caller.tenant : call.caller.tenant + '\0' + salt;
}

headrace::Request make_request(const Call& call, const Context& context, const ServedModels::Choice& choice,
                               const Draw& draw) {
  const Json& body = call.body;
  choice.served.scheduler();  // throws where the model generates nothing
  headrace::Request request(choice.served.model());
  request.set_sampling(draw.sampling).set_length(draw.min_tokens, draw.max_tokens);
  for (const std::string& text : draw.stop) request.add_stop(text);
  if (const Json* ids = find_field(body, "stop_token_ids")) {
    for (const Json& id : *ids) request.add_stop_token(id.get<int32_t>());
  }
  if (const Json* biases = find_field(body, "logit_bias")) {
    for (const auto& [id, bias] : biases->items()) {
      request.add_logit_bias(token_id(id, "logit_bias." + id), bias.get<float>());
    }
  }
  request.set_ignore_eos(flag_field(body, "ignore_eos", false));
  const auto priority = static_cast<int32_t>(integer_field(body, "priority", 0));
  if (priority > 0 && !call.caller.is_admin) throw ApiError(403, "above 0 is for administrators", "priority");
  request.set_priority(priority);
  request.set_drafter(text_field(body, "drafter", ""));
  int64_t deadline = std::chrono::milliseconds(context.settings.limits.request_timeout).count();
  if (const int64_t asked = integer_field(body, "deadline_ms", 0); asked > 0) {
    deadline = deadline > 0 ? std::min(deadline, asked) : asked;
  }
  request.set_deadline(deadline);
  request.set_tenant(call.caller.tenant);
  if (choice.adapter) {
    if (find_field(body, "session") != nullptr) {
      throw ApiError(400, "is an adapter, which sessions do not have", "model", "unsupported");
    }
    request.set_adapter(*choice.adapter);
  }
  if (find_field(body, "session") == nullptr) {
    request.set_cache_salt(cache_salt_of(call));
  } else if (find_field(body, "cache_salt") != nullptr) {
    throw ApiError(400, "is the session's", "cache_salt", "unsupported_parameter");
  }
  return request;
}

}  // namespace server
