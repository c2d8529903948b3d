#include "text/decoder.h"

#include <algorithm>
#include <utility>

#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/piece_model.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

// English clean-up of WordPiece decoders, in the reference's order.
std::string clean_up(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kRules) {
    if (text.find(from) != std::string::npos) text = replace_all(text, from, to);
  }
  return text;
}

size_t leading(std::string_view text, std::string_view unit, size_t limit) {
  size_t n = 0;
  while (n < limit && text.substr(n * unit.size()).starts_with(unit)) ++n;
  return n;
}

size_t trailing(std::string_view text, std::string_view unit, size_t limit) {
  size_t n = 0;
  while (n < limit && text.substr(0, text.size() - n * unit.size()).ends_with(unit)) ++n;
  return n;
}

// Length of the longest end of `text` that begins `literal` without being all of it.
size_t partial_match(std::string_view text, std::string_view literal) {
  for (size_t n = std::min(text.size(), literal.size() - 1); n > 0; --n) {
    if (text.ends_with(literal.substr(0, n))) return n;
  }
  return 0;
}

// Takes what is certain from `tail` + `bytes`; an incomplete character stays in `tail`.
void append_repaired(std::string& tail, std::string_view bytes, std::string& out) {
  tail.append(bytes);
  std::string_view rest = tail;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    if (step.kind == Utf8Step::Kind::kChar) {
      out.append(rest.substr(0, step.size));
    } else {
      out.append("\xEF\xBF\xBD");
    }
    rest.remove_prefix(step.size);
  }
  tail.erase(0, tail.size() - rest.size());
}

}  // namespace

std::string Decoder::run_token_steps(std::string_view spelling, bool first) const {
  std::string text(spelling);
  for (const TokenStep& step : token_steps) {
    switch (step.kind) {
      case TokenStep::Kind::kByteLevel: {
        std::string bytes;
        append_byte_level_decoded(bytes, text);
        return bytes;  // bytes are not characters: nothing may follow but steps on the whole text
      }
      case TokenStep::Kind::kMetaspace: text = replace_all(text, step.from, first && step.flag ? "" : " "); break;
      case TokenStep::Kind::kWordPiece:
        if (!first) {
          if (text.starts_with(step.from)) {
            text.erase(0, step.from.size());
          } else {
            text.insert(0, " ");
          }
        }
        if (step.flag) text = clean_up(std::move(text));
        break;
      case TokenStep::Kind::kReplace:
        if (text.find(step.from) != std::string::npos) text = replace_all(text, step.from, step.to);
        break;
      case TokenStep::Kind::kRegexReplace: {
        std::vector<Stretch> stretches;
        RegexScratch scratch;
        if (!step.pattern->split(text, 0, stretches, scratch).ok()) break;
        std::string out;
        for (const Stretch& s : stretches) out += s.is_match ? step.to : text.substr(s.begin, s.end - s.begin);
        text = std::move(out);
        break;
      }
      case TokenStep::Kind::kByteFallback:
        if (const auto byte = parse_byte_token(text)) return std::string(1, static_cast<char>(*byte));
        break;
      case TokenStep::Kind::kStrip: {
        const size_t left = leading(text, step.strip_char, step.strip_left) * step.strip_char.size();
        text.erase(0, left);
        text.resize(text.size() - trailing(text, step.strip_char, step.strip_right) * step.strip_char.size());
        break;
      }
    }
  }
  return text;
}

Decoder::State Decoder::start() const {
  State state;
  for (const TextStep& step : text_steps) state.steps.push_back({step.strip_left, {}});
  return state;
}

void Decoder::run_text_steps(State& state, std::string text, bool last, std::string& out) const {
  for (size_t i = 0; i < text_steps.size(); ++i) {
    const TextStep& step = text_steps[i];
    State::TextState& own = state.steps[i];
    text.insert(0, own.pending);
    own.pending.clear();
    if (step.kind == TextStep::Kind::kReplace) {
      std::string replaced;
      size_t from = 0;
      for (size_t at; (at = text.find(step.from, from)) != std::string::npos; from = at + step.from.size()) {
        replaced.append(text, from, at - from).append(step.to);
      }
      const size_t keep = last ? 0 : partial_match(std::string_view(text).substr(from), step.from);
      replaced.append(text, from, text.size() - from - keep);
      own.pending = text.substr(text.size() - keep);
      text = std::move(replaced);
      continue;
    }
    if (own.left > 0 && !text.empty()) {
      const size_t n = leading(text, step.strip_char, own.left);
      text.erase(0, n * step.strip_char.size());
      own.left -= n;
      if (!text.empty()) own.left = 0;  // something else came: the start is over
    }
    if (step.strip_right > 0) {
      const size_t n = trailing(text, step.strip_char, step.strip_right) * step.strip_char.size();
      if (!last) own.pending = text.substr(text.size() - n);
      text.resize(text.size() - n);
    }
  }
  append_repaired(state.tail, text, out);
}

void Decoder::push(State& state, std::string_view spelling, std::string& out) const {
  std::string text;
  if (end_of_word_suffix) {
    if (state.has_held) text = replace_all(state.held, *end_of_word_suffix, " ");
    state.held.assign(spelling);
    if (!std::exchange(state.has_held, true)) return;
  } else {
    text = run_token_steps(spelling, state.index == 0);
    if (join_with_spaces && state.index > 0) text.insert(0, " ");
  }
  ++state.index;
  run_text_steps(state, std::move(text), false, out);
}

void Decoder::finish(State& state, std::string& out) const {
  std::string text;
  if (state.has_held) text = replace_all(state.held, *end_of_word_suffix, "");
  run_text_steps(state, std::move(text), true, out);
  if (!state.tail.empty()) out.append("\xEF\xBF\xBD");
  state = start();
}

std::string Decoder::bytes(std::string_view spelling) const {
  if (end_of_word_suffix) return replace_all(spelling, *end_of_word_suffix, " ");
  return run_token_steps(spelling, false);
}

}  // namespace headrace::text
