// Runs each kernel once in the emulator, on a shape of a model of some billion weights, and counts what it moves.
//
//   count_kernels PAGE [--write]    compares with the table of docs/cuda-kernels.md, or writes it
#include <cuda_runtime.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "emulator/access_counters.h"
#include "emulator/findings.h"
#include "emulator/options.h"
#include "emulator/roofline.h"
#include "kernels/linear_half.h"
#include "kernels/linear_q8_0.h"
#include "kernels/paged_attention.h"
#include "kernels/rope_store.h"
#include "kernels/row_kernels.h"

namespace headrace::emulator {
namespace {

// Device memory, written with zeros, until the end of the program.
template <class T>
T* zeros(size_t count) {
  T* out = nullptr;
  if (cudaMalloc(&out, count * sizeof(T)) != cudaSuccess) std::abort();
  static_cast<void>(cudaMemset(out, 0, count * sizeof(T)));
  return out;
}
template <class T>
T* copied(const std::vector<T>& values) {
  T* out = zeros<T>(values.size());
  static_cast<void>(cudaMemcpy(out, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return out;
}

std::string row(const std::string& name, const std::string& shape, double ideal_bytes,
                const std::function<cudaError_t()>& start) {
  if (start() != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess || has_findings()) {
    std::fprintf(stderr, "%s fails\n%s", name.c_str(), to_string(take_findings()).c_str());
    std::exit(1);
  }
  Counters sum;
  double h200 = 0.0, b200 = 0.0;
  for (const Counters& c : take_counters()) {  // launches follow each other
    sum.bytes_read += c.bytes_read;
    sum.bytes_written += c.bytes_written;
    sum.global_loads.sectors += c.global_loads.sectors + c.global_stores.sectors;
    sum.shared_loads.conflicts += c.conflicts();
    sum.shared_loads.wavefronts += c.shared_loads.wavefronts + c.shared_stores.wavefronts;
    sum.mma_f16_flops += c.mma_f16_flops;
    h200 += roofline(c, kH200).seconds;
    b200 += roofline(c, kB200).seconds;
  }
  const auto moved = static_cast<double>(sum.bytes_read + sum.bytes_written);
  char text[512];
  std::snprintf(
      text, sizeof text, "| %s | %s | %.3g MB | %.3f | %.3g MB | %llu of %llu | %.3g | %.2f | %.2f |\n", name.c_str(),
      shape.c_str(), moved / 1e6, moved / ideal_bytes, static_cast<double>(sum.global_loads.sectors) * 32 / 1e6,
      static_cast<unsigned long long>(sum.conflicts()), static_cast<unsigned long long>(sum.shared_loads.wavefronts),
      sum.mma_f16_flops / 1e6, h200 * 1e6, b200 * 1e6);
  return text;
}

std::string norm_and_elements() {
  constexpr int64_t kTokens = 16, kSize = 4096, kWidth = 14336, kVocab = 1000;
  auto* x = zeros<float>(kTokens * kWidth);
  auto* other = zeros<float>(kTokens * kWidth);
  auto* out = zeros<float>(kTokens * kWidth);
  auto* weight = zeros<float>(kSize);
  auto* table = zeros<uint16_t>(kVocab * kSize);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kTokens; ++i) ids.push_back(61 * i);
  const auto* device_ids = copied(ids);
  return row("rms_norm", "16 x 4096, with a residual", kTokens * kSize * 16.0 + kSize * 4,
             [&] {
               return cuda::rms_norm({x, other, weight, kTokens, kSize, 1e-5f, 0.0f, out}, nullptr);
             }) +
         row("embed", "16 x 4096", kTokens * kSize * 6.0,
             [&] {
               return cuda::embed({table, cuda::FloatType::kF16, device_ids, kTokens, kSize, 1.0f, x}, nullptr);
             }) +
         row("gated_activation", "16 x 14336, SiLU", kTokens * kWidth * 12.0, [&] {
           return cuda::gated_activation({x, other, kTokens * kWidth, Activation::kSilu, 0.0f, out}, nullptr);
         });
}

std::string linear(int64_t tokens) {
  constexpr int64_t kRows = 2048, kCols = 2048;
  cuda::LinearQ8Arguments a;
  a.weight = {zeros<uint8_t>(kRows * kCols), zeros<uint16_t>(kRows * kCols / 32), kRows, kCols};
  a.x = zeros<uint16_t>(static_cast<size_t>(tokens * kCols));
  a.num_tokens = tokens;
  a.workspace = zeros<float>(cuda::linear_workspace(kRows, kCols, tokens));
  a.to.y = zeros<float>(static_cast<size_t>(tokens * kRows));
  a.to.y_stride = kRows;
  const double ideal = kRows * kCols * 34.0 / 32 + static_cast<double>(tokens) * (kCols * 2 + kRows * 4);
  return row("linear_q8_0", std::to_string(tokens) + " x 2048 by 2048 x 2048", ideal,
             [&] { return cuda::linear_q8_0(a, nullptr); });
}

std::string linear_half(int64_t tokens) {
  constexpr int64_t kRows = 2048, kCols = 2048;
  cuda::LinearHalfArguments a;
  a.weight = zeros<uint16_t>(kRows * kCols);
  a.rows = kRows;
  a.cols = kCols;
  a.x = zeros<uint16_t>(static_cast<size_t>(tokens * kCols));
  a.num_tokens = tokens;
  a.workspace = zeros<float>(cuda::linear_workspace(kRows, kCols, tokens));
  a.to.y = zeros<float>(static_cast<size_t>(tokens * kRows));
  a.to.y_stride = kRows;
  const double ideal = kRows * kCols * 2.0 + static_cast<double>(tokens) * (kCols * 2 + kRows * 4);
  return row("linear_half", std::to_string(tokens) + " x 2048 by 2048 x 2048", ideal,
             [&] { return cuda::linear_half(a, nullptr); });
}

std::string narrow() {
  constexpr int64_t kTokens = 16, kSize = 4096;
  cuda::NarrowRowsArguments a{
      zeros<float>(kTokens * kSize), kTokens, kSize, cuda::FloatType::kBF16, zeros<uint16_t>(kTokens * kSize),
      zeros<float>(kTokens)};
  return row("narrow_rows", "16 x 4096, to bfloat16", kTokens * (kSize * 6.0 + 4),
             [&] { return cuda::narrow_rows(a, nullptr); });
}

std::string attention() {
  constexpr int32_t kSequences = 4, kLength = 1024, kHeads = 32, kKvHeads = 8, kDim = 128;
  const KvLayout layout{KvDType::kF16, kKvHeads, kDim, 32};
  const int32_t blocks = kLength / layout.block_size;
  std::vector<cuda::AttentionTile> tiles;
  std::vector<int32_t> tables;
  for (int32_t i = 0; i < kSequences; ++i) {
    tiles.push_back({i, i, 1});
    for (int32_t block = 0; block < blocks; ++block) tables.push_back(i * blocks + block);
  }
  cuda::PagedAttentionArguments a;
  a.q = zeros<float>(kSequences * kHeads * kDim);
  a.out = zeros<float>(kSequences * kHeads * kDim);
  a.num_tokens = a.num_tiles = kSequences;
  a.num_heads = kHeads;
  a.tiles = copied(tiles);
  a.positions = copied(std::vector<int32_t>(kSequences, kLength - 1));
  a.block_tables = copied(tables);
  a.max_blocks = blocks;
  a.max_position = kLength - 1;
  a.layout = layout;
  a.cache = zeros<std::byte>(static_cast<size_t>(kSequences * blocks) * layout.block_bytes());
  a.scale = 0.088f;
  a.workspace = zeros<float>(cuda::attention_workspace(a));
  const double ideal = 2.0 * kSequences * (2 * kLength * kKvHeads + 2 * 2 * kHeads) * kDim;
  return row("paged_attention", "4 rows of 1024 positions, 32 heads over 8 of 128", ideal,
             [&] { return cuda::paged_attention(a, nullptr); });
}

std::string rope() {
  constexpr int32_t kTokens = 16, kHeads = 32, kKvHeads = 8, kDim = 128;
  cuda::RopeStoreArguments a;
  a.q = zeros<float>(kTokens * kHeads * kDim);
  a.k = zeros<float>(kTokens * kKvHeads * kDim);
  a.v = zeros<float>(kTokens * kKvHeads * kDim);
  a.num_tokens = kTokens;
  a.num_heads = kHeads;
  a.positions = zeros<int32_t>(kTokens);
  a.inv_freq = zeros<float>(kDim / 2);
  a.rotary_dim = kDim;
  a.layout = {KvDType::kF16, kKvHeads, kDim, 32};
  a.cache = zeros<std::byte>(a.layout.block_bytes());
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < kTokens; ++i) slots.push_back(i);
  a.slots = copied(slots);
  return row("rope_and_store_kv", "16 tokens, 32 and 8 heads of 128", kTokens * (kHeads * 8.0 + kKvHeads * 12.0) * kDim,
             [&] { return cuda::rope_and_store_kv(a, nullptr); });
}

std::string table() {
  options().detect_races = true;
  return "| kernel | shape | device memory | of the ideal | L2 | bank conflicts | MFLOP of mma | H200, us | B200, us "
         "|\n"
         "|---|---|---|---|---|---|---|---|---|\n" +
         norm_and_elements() + rope() + narrow() + linear_half(1) + linear_half(16) + linear(1) + linear(16) +
         attention();
}

}  // namespace
}  // namespace headrace::emulator

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string begin = "<!-- counted: written by build/release/bin/count_kernels -->\n", end = "<!-- end -->\n";
  std::ifstream in(argv[1]);
  std::stringstream page;
  page << in.rdbuf();
  std::string text = page.str();
  const size_t first = text.find(begin), last = first == std::string::npos ? first : text.find(end, first);
  if (last == std::string::npos) {
    std::fprintf(stderr, "%s has no place for the table\n", argv[1]);
    return 1;
  }
  const std::string table = headrace::emulator::table();
  if (argc > 2 && std::string(argv[2]) == "--write") {
    text.replace(first + begin.size(), last - first - begin.size(), table);
    std::ofstream(argv[1]) << text;
    return 0;
  }
  if (text.substr(first + begin.size(), last - first - begin.size()) == table) return 0;
  std::printf("The table should be\n%s", table.c_str());
  return 1;
}
