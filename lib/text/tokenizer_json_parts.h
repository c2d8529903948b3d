// Components of a tokenizer.json, each from its own object. An unknown component is kUnsupported at its
// "type".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/decoder.h"
#include "text/json_node.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace headrace::text {

Result<NormalizerPtr> read_normalizer(const JsonNode& node, int depth = 0);
Result<PreTokenizerPtr> read_pre_tokenizer(const JsonNode& node, int depth = 0);
// Adds what the post-processor puts before and behind a single text.
Status read_post_processor(const JsonNode& node, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix,
                           int depth = 0);
Result<Decoder> read_decoder(const JsonNode& node);
// Bytes that a file has in base64; `place`: of the text, for errors.
Result<std::string> decode_base64(std::string_view text, const std::string& place);

}  // namespace headrace::text
