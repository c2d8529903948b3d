// A tiny model of Q8_0 weights, as the bytes of a GGUF file: what it says means nothing, but its products have choices.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace headrace_test {

class QuantizedModel {
 public:
  static std::string bytes() { return QuantizedModel().file(); }

 private:
  static constexpr uint32_t kWidth = 64, kInner = 128, kVocabulary = 96;
  static constexpr uint32_t kUint32 = 4, kFloat32 = 6, kText = 8;  // types of GGUF's values
  static constexpr uint32_t kF32 = 0, kQ8 = 8;                     // and of its tensors

  template <class T>
  void number(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string& to, std::string_view value) {
    number<uint64_t>(to, value.size());
    to += value;
  }
  template <class T>
  void key(std::string_view name, uint32_t type, T value) {
    text(keys_, name);
    number(keys_, type);
    number(keys_, value);
    ++num_keys_;
  }
  void pad(std::string& to) {
    while (to.size() % 32 != 0) to += '\0';
  }
  void tensor(std::string_view name, uint64_t cols, uint64_t rows) {
    text(infos_, name);
    number<uint32_t>(infos_, rows == 0 ? 1 : 2);
    number(infos_, cols);
    if (rows != 0) number(infos_, rows);
    number(infos_, rows == 0 ? kF32 : kQ8);
    number<uint64_t>(infos_, data_.size());
    ++num_tensors_;
    for (uint64_t i = 0; rows == 0 && i < cols; ++i) number(data_, 1.0f);
    for (uint64_t block = 0; block < rows * cols / 32; ++block) {
      number<uint16_t>(data_, 0x1400);  // 2^-10
      for (int i = 0; i < 32; ++i) {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        number(data_, static_cast<int8_t>(state_ >> 56));
      }
    }
    pad(data_);
  }
  std::string file() {
    text(keys_, "general.architecture");
    number(keys_, kText);
    text(keys_, "llama");
    ++num_keys_;
    key<uint32_t>("llama.block_count", kUint32, 1);
    key<uint32_t>("llama.context_length", kUint32, 256);
    key<uint32_t>("llama.embedding_length", kUint32, kWidth);
    key<uint32_t>("llama.feed_forward_length", kUint32, kInner);
    key<uint32_t>("llama.attention.head_count", kUint32, 4);
    key<uint32_t>("llama.attention.head_count_kv", kUint32, 2);
    key<float>("llama.attention.layer_norm_rms_epsilon", kFloat32, 1e-5f);
    tensor("token_embd.weight", kWidth, kVocabulary);
    tensor("output.weight", kWidth, kVocabulary);
    tensor("output_norm.weight", kWidth, 0);
    tensor("blk.0.attn_norm.weight", kWidth, 0);
    tensor("blk.0.ffn_norm.weight", kWidth, 0);
    tensor("blk.0.attn_q.weight", kWidth, kWidth);
    tensor("blk.0.attn_k.weight", kWidth, kWidth / 2);
    tensor("blk.0.attn_v.weight", kWidth, kWidth / 2);
    tensor("blk.0.attn_output.weight", kWidth, kWidth);
    tensor("blk.0.ffn_gate.weight", kWidth, kInner);
    tensor("blk.0.ffn_up.weight", kWidth, kInner);
    tensor("blk.0.ffn_down.weight", kInner, kWidth);
    std::string out = "GGUF";
    number<uint32_t>(out, 3);
    number(out, num_tensors_);
    number(out, num_keys_);
    out += keys_ + infos_;
    pad(out);
    return out + data_;
  }

  std::string keys_, infos_, data_;
  uint64_t num_keys_ = 0, num_tensors_ = 0, state_ = 1;
};

}  // namespace headrace_test
