// Holds request bodies to the schemas of the server's own OpenAPI file.
#pragma once

#include <string>

#include "json.h"

namespace server {

// The part of JSON Schema (2020-12) that the file is written in: type, enum, const, minimum, maximum, exclusiveMinimum,
// minLength, maxLength, minItems, maxItems, properties, required, additionalProperties, items, anyOf and $ref within the
// file. "x-refused" says why a value other than those a property allows is not taken.
class SchemaCheck {
 public:
  // document: the OpenAPI file. Throws std::runtime_error for a schema with other keywords.
  explicit SchemaCheck(Json document);
  const Json& document() const { return document_; }
  // Throws ApiError (400) with the field's place, for the first that breaks the schema "#/components/schemas/<name>".
  void check(const Json& value, const std::string& name) const;

 private:
  Json document_;
};

}  // namespace server
