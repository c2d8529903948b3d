// A submitted request on its way: what was asked, the samples in the making, and what is still owed to the host.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/image_reader.h"
#include "engine/input_reader.h"
#include "engine/output_text.h"
#include "engine/request.h"
#include "kv/kv_cache.h"
#include "sampling/sampler.h"
#include "schedule/sequence.h"
#include "schedule/step_plan.h"
#include "schedule/tenant.h"
#include "speculation/speculator.h"
#include "text/stop_strings.h"

namespace headrace::engine {

using Clock = std::chrono::steady_clock;

struct LiveRequest;

// One of the n texts.
struct Sample {
  Sample(LiveRequest& owner, uint32_t sample_index, OutputText output)
      : request(owner), index(sample_index), text(std::move(output)) {}

  LiveRequest& request;
  const uint32_t index;
  schedule::Sequence sequence;
  TokenHistory history;
  OutputText text;
  std::unique_ptr<TokenMask> mask;  // behind its tokens so far, or null
  speculation::SequenceRecord speculation;
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;  // submit to the last token drawn
};

// `cancelled` and `num_unread` may be set from any thread; the rest belongs to submit and then to the stepping thread.
struct LiveRequest {
  LiveRequest(uint64_t request_id, RequestParams given, Sampler made) noexcept
      : id(request_id), token_mask(std::move(given.token_mask)), params(std::move(given)), sampler(std::move(made)) {}

  const uint64_t id;
  TokenMaskSource token_mask;  // goes with the last sample, while no lock is held: it is the host's
  const RequestParams params;  // its prompt has moved to `prompt`, its mask to `token_mask`
  const Sampler sampler;
  // A session's tokens first. Positions of an image hold not its token, but a number of its content below 0
  // (KvCache::content_id): that is what cached values are found by.
  std::vector<int32_t> prompt;
  std::string salt;   // of all its cached values
  std::string scope;  // of what drafters learn of it: its tenant and salt
  speculation::DrafterSet drafters = 0;
  int64_t first_own = 0;         // where the request's own part of the prompt begins
  KvSequence kv;                 // a session's values of a prefix of the prompt
  std::vector<int32_t> end_ids;  // ascending: tokens that end a sample
  std::optional<text::StopMatcher> stop_strings;
  std::shared_ptr<schedule::Tenant> tenant;
  Clock::time_point submitted;
  std::optional<Clock::time_point> deadline;

  std::atomic<bool> cancelled{false};
  std::atomic<int64_t> num_unread{0};  // events that the host has not taken yet

  std::vector<std::unique_ptr<Sample>> samples;  // the first alone until the prompt is computed, then n
  uint32_t num_open = 0;                         // samples that have not ended
  bool scheduled = false;
  bool waited_for_prefix = false;  // that another request was computing
  int64_t queue_ns = 0;
  int64_t cached_tokens = 0;
  ReuseMiss reuse_miss = ReuseMiss::kNotScheduled;
  std::vector<SampledToken> prompt_scores;  // of prompt[max(first_own, 1)...], as far as computed
  bool prompt_sent = false;
  int64_t progress_sent = 0;  // tokens of the prompt that were said to be computed

  std::vector<PlacedImage> placed_images;      // of a session first
  std::vector<PromptImage> images;             // the same; rows null until they are needed
  std::vector<std::vector<float>> image_rows;  // of each
  std::vector<schedule::RowSpan> uncut;        // positions of images whose rows see each other

  // What the decoder sees of params.encoder_input; made in the step that first needs it, and kept to the request's end.
  std::optional<EncoderMemory> memory;

  bool wants_prompt_scores() const { return params.num_prompt_logprobs >= 0; }
  // Of the positions whose hidden states are wanted.
  int64_t hidden_end() const {
    return params.hidden_states.end > INT64_MAX - first_own ? INT64_MAX : first_own + params.hidden_states.end;
  }
  int64_t since_submit_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - submitted).count();
  }
};

}  // namespace headrace::engine
