// Rotary position embedding of one head, and the store of one token's key and value into its cache block.
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// The numbers of KvDType in tensor/kv_layout.h.
enum : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kQ8 = 3 };
constexpr int kQ8Group = 32;

HEADRACE_INLINE uint16_t bfloat16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Codes of up to 32 values and their float16 scale. A scale beyond float16 saturates, and so do its codes.
HEADRACE_INLINE uint16_t quantize_group(const float* x, int count, int8_t* codes) {
  float largest = 0.0f;
  bool finite = true;
  for (int i = 0; i < count; ++i) {
    const float magnitude = x[i] < 0.0f ? -x[i] : x[i];
    finite &= magnitude <= 3.4028235e38f;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (!finite) {  // NaN or infinity: the whole group reads back as NaN rather than as a plausible number
    for (int i = 0; i < count; ++i) codes[i] = 0;
    return 0x7e00;
  }
  float scale_value = largest / 127.0f;
  scale_value = scale_value > 65504.0f ? 65504.0f : scale_value;
  const uint16_t half = narrow_half(scale_value);
  const float rounded = widen_half(half);
  for (int i = 0; i < count; ++i) {
    float code = rounded == 0.0f ? 0.0f : x[i] / rounded;
    code = code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code;
    codes[i] = static_cast<int8_t>(nearest_int(code));
  }
  return half;
}

template <class Element, class Convert>
HEADRACE_INLINE void store_plain(const float* key, const float* value, int32_t head_dim, int32_t offset,
                                 uint8_t* key_bytes, uint8_t* value_bytes, Convert convert) {
  if (key_bytes != nullptr) {
    Element* keys = reinterpret_cast<Element*>(key_bytes) + static_cast<int64_t>(offset / kPanel) * head_dim * kPanel +
                    offset % kPanel;
    for (int32_t d = 0; d < head_dim; ++d) keys[d * kPanel] = convert(key[d]);
  }
  if (value_bytes != nullptr) {
    Element* values = reinterpret_cast<Element*>(value_bytes) + static_cast<int64_t>(offset) * head_dim;
    for (int32_t d = 0; d < head_dim; ++d) values[d] = convert(value[d]);
  }
}

}  // namespace

void rotate_head(float* head, const float* cosine, const float* sine, int32_t rotary_dim, bool interleaved) {
  const int32_t half = rotary_dim / 2;
  if (interleaved) {
    for (int32_t i = 0; i < half; ++i) {
      const float a = head[2 * i], b = head[2 * i + 1];
      head[2 * i] = a * cosine[i] - b * sine[i];
      head[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
    return;
  }
  float* second = head + half;
  int32_t i = 0;
  for (; i + kPanel <= half; i += kPanel) {
    const V16 a = load(head + i), b = load(second + i), c = load(cosine + i), s = load(sine + i);
    store(head + i, sub(mul(a, c), mul(b, s)));
    store(second + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = head[i], b = second[i];
    head[i] = a * cosine[i] - b * sine[i];
    second[i] = b * cosine[i] + a * sine[i];
  }
}

void store_kv(int32_t kv_dtype, const float* key, const float* value, int32_t head_dim, int32_t block_size,
              int32_t offset, uint8_t* key_bytes, uint8_t* value_bytes) {
  switch (kv_dtype) {
    case kF32:
      return store_plain<float>(key, value, head_dim, offset, key_bytes, value_bytes, [](float x) { return x; });
    case kF16:
      return store_plain<uint16_t>(key, value, head_dim, offset, key_bytes, value_bytes,
                                   [](float x) { return narrow_half(x); });
    case kBF16:
      return store_plain<uint16_t>(key, value, head_dim, offset, key_bytes, value_bytes,
                                   [](float x) { return bfloat16_of(x); });
    default: break;
  }
  const int32_t groups = (head_dim + kQ8Group - 1) / kQ8Group;
  const int64_t code_bytes = static_cast<int64_t>(block_size) * head_dim;
  const int32_t tile = offset / kPanel, lane = offset % kPanel;
  for (int32_t group = 0; group < groups; ++group) {
    const int32_t first = group * kQ8Group;
    const int count = head_dim - first < kQ8Group ? head_dim - first : kQ8Group;
    if (key_bytes != nullptr) {
      int8_t* key_codes = reinterpret_cast<int8_t*>(key_bytes) + static_cast<int64_t>(tile) * head_dim * kPanel + lane;
      uint8_t* key_scales = key_bytes + code_bytes + (static_cast<int64_t>(tile) * groups * kPanel + lane) * 2;
      int8_t codes[kQ8Group];
      const uint16_t key_scale = quantize_group(key + first, count, codes);
      for (int i = 0; i < count; ++i) key_codes[static_cast<int64_t>(first + i) * kPanel] = codes[i];
      memcpy(key_scales + static_cast<int64_t>(group) * kPanel * 2, &key_scale, 2);
    }
    if (value_bytes != nullptr) {
      int8_t* value_codes = reinterpret_cast<int8_t*>(value_bytes) + static_cast<int64_t>(offset) * head_dim;
      uint8_t* value_scales = value_bytes + code_bytes + static_cast<int64_t>(offset) * groups * 2;
      const uint16_t value_scale = quantize_group(value + first, count, value_codes + first);
      memcpy(value_scales + static_cast<int64_t>(group) * 2, &value_scale, 2);
    }
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
