// Counter-based random numbers: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). A draw is a function of its key and counter, so it needs no state and no order.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

// Ten rounds over the counter under the key.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;  // the golden ratio and sqrt(3) - 1, so that the rounds have different keys
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// What a draw is for: draws of different purposes at one position are independent.
enum class DrawPurpose : uint32_t { kToken = 0, kAcceptance = 1, kResidual = 2, kDraft = 3 };

// Uniform in [0, 1), a multiple of 2^-53: key = seed, counter = (position, sample_index, purpose + 4 lane), low words
// first. Lanes below 2^30 tell draws of one purpose at one position apart.
constexpr double uniform_draw(uint64_t seed, uint32_t sample_index, uint64_t position,
                              DrawPurpose purpose = DrawPurpose::kToken, uint32_t lane = 0) {
  const auto words = philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), sample_index,
                                 static_cast<uint32_t>(purpose) + 4 * lane},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[1]} << 32 | words[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace headrace
