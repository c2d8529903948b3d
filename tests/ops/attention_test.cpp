// Paged attention against the reference, and its independence of neighbours, threads and unused slots.
#include "op_cases.h"

#include <algorithm>
#include <numeric>

#include "cpu/attention_tiles.h"

namespace headrace::test {
namespace {

struct Sequence {
  int32_t first_position;  // of its first row in the batch; earlier positions are cached already
  int32_t num_rows;
  int32_t like = -1;  // an earlier sequence of the batch whose first `shared_blocks` blocks are this one's too
  int32_t shared_blocks = 0;
};

struct Case {
  KvDType dtype = KvDType::kF32;
  int32_t head_dim = 64, kv_heads = 2, group = 1, block_size = 16;
  std::vector<Sequence> sequences;
  int32_t window = 0;
  float softcap = 0.0f;
  bool sinks = false;
  int32_t chunk = 0;
  bool both_ways = false;
  int32_t span =
      0;  // rows of every second run of so many positions (with span_alone of every run) have it as their span
  bool span_alone = false;
  int32_t selected = 0;  // positions that each row sees, chosen at random; 0: a range
  int32_t run = 0;       // a second part has a row for so many tokens each; 0: there is none
  int32_t selected_runs = 0;
  int32_t bias_reach = -1;  // of biases by distance; -1: none
  bool own_caches = false;  // every sequence has a copy of the blocks, all of another's but its own NaN
  bool is_listed() const { return selected > 0 || run > 0; }
};

// A batch whose cache holds random keys and values where positions are cached and NaN everywhere else.
struct Batch {
  explicit Batch(const Case& c_) : c(c_) {
    layout = {c.dtype, c.kv_heads, c.head_dim, c.block_size,
              c.is_listed() ? KvContent::kRows : KvContent::kKeysAndValues};
    runs = layout;
    runs.tokens_per_row = std::max(c.run, 1);
    num_heads = c.kv_heads * c.group;
    int32_t blocks = 0, rows = 0;
    for (const Sequence& s : c.sequences) {
      blocks += (s.first_position + s.num_rows + c.block_size - 1) / c.block_size;
      query_start.push_back(rows);
      rows += s.num_rows;
    }
    query_start.push_back(rows);
    num_blocks = blocks + 2;
    std::vector<int32_t> ids(static_cast<size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(7));
    cache.assign(static_cast<size_t>(num_blocks) * layout.block_bytes(), std::byte{0xff});  // NaN in every type
    run_cache.assign(static_cast<size_t>(num_blocks) * runs.block_bytes(), std::byte{0xff});
    const auto reference = make_reference_backend();
    size_t next_id = 0;
    std::vector<std::vector<int32_t>> whole;
    for (const Sequence& s : c.sequences) {
      const int32_t length = s.first_position + s.num_rows;
      std::vector<int32_t> table;
      if (s.like >= 0) {
        table = whole[static_cast<size_t>(s.like)];
        table.resize(static_cast<size_t>(s.shared_blocks));
      }
      while (static_cast<int32_t>(table.size()) * c.block_size < length) table.push_back(ids[next_id++]);
      whole.push_back(table);
      store(*reference, layout, cache, table, length);  // shared blocks get the same again: equal seeds
      if (c.run > 0) store(*reference, runs, run_cache, table, length);
      // Blocks that no row of the batch sees any more have left the table.
      if (c.window > 0 && c.run == 0) {  // reading through this entry leaves the address space
        const int32_t seen = std::max(0, s.first_position - std::max(c.window, c.span_alone ? c.span : 0) + 1);
        for (int32_t block = 0; (block + 1) * c.block_size <= seen; ++block)
          table[static_cast<size_t>(block)] = -100000000;
      }
      tables.push_back(table);
      for (int32_t i = 0; i < s.num_rows; ++i) {
        positions.push_back(s.first_position + i);
        if (c.span == 0) continue;
        const int32_t run = positions.back() / c.span;
        const bool has_one = c.span_alone || run % 2 == 0;
        spans.push_back(has_one ? run * c.span : 0);
        spans.push_back(has_one ? std::min((run + 1) * c.span, length) : 0);
      }
    }
    if (c.selected > 0) select(c.selected, layout, selected, counts);
    if (c.selected_runs > 0) select(c.selected_runs, runs, selected_runs, run_counts);
    q = random_floats(static_cast<size_t>(rows * num_heads * c.head_dim), 11);
    sinks = random_floats(static_cast<size_t>(num_heads), 12);
    if (c.bias_reach >= 0) {
      bias = random_floats(static_cast<size_t>(num_heads) * static_cast<size_t>(2 * c.bias_reach + 1), 13);
    }
    for (const auto& table : tables) {
      if (!c.own_caches) break;
      own_caches.emplace_back(cache.size(), std::byte{0xff});
      for (const int32_t id : table) {
        const auto at = static_cast<int64_t>(static_cast<size_t>(id) * layout.block_bytes());
        std::copy_n(cache.begin() + at, layout.block_bytes(), own_caches.back().begin() + at);
      }
    }
  }

  void select(int32_t most, const KvLayout& part, std::vector<int32_t>& chosen,
              std::vector<int32_t>& num_chosen) const {
    std::mt19937 random(5);
    chosen.assign(positions.size() * static_cast<size_t>(most), -100000000);  // read beyond a row's count
    for (size_t row = 0; row < positions.size(); ++row) {
      std::vector<int32_t> all(static_cast<size_t>(part.rows_before(positions[row])));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      num_chosen.push_back(std::min(most, static_cast<int32_t>(all.size())));
      std::sort(all.begin(), all.begin() + num_chosen.back());
      std::copy_n(all.begin(), num_chosen.back(), chosen.begin() + static_cast<int64_t>(row) * most);
    }
  }

  // Random rows of all tokens or, of runs, of the last of each: a function of the block.
  void store(Backend& reference, const KvLayout& part, std::vector<std::byte>& blocks,
             const std::vector<int32_t>& table, int32_t length) {
    const auto count = static_cast<int32_t>(part.rows_before(length - 1));
    const auto width = static_cast<size_t>(c.kv_heads * c.head_dim), size = static_cast<size_t>(count) * width;
    std::vector<float> k, v;
    for (int32_t i = 0; i < count; i += part.rows_per_block()) {
      const auto block = static_cast<uint32_t>(table[static_cast<size_t>(part.last_token(i) / c.block_size)]);
      const size_t of_block = static_cast<size_t>(part.rows_per_block()) * width;
      const std::vector<float> keys =
          random_floats(of_block, 20 + block + 1000 * static_cast<uint32_t>(part.tokens_per_row));
      const std::vector<float> values = random_floats(of_block, 500000 + block);
      k.insert(k.end(), keys.begin(), keys.end());
      v.insert(v.end(), values.begin(), values.end());
    }
    k.resize(size);
    v.resize(size);
    for (float x : c.is_listed() ? k : v) largest_value = std::max(largest_value, std::fabs(static_cast<double>(x)));
    for (size_t at = 0; at < size; at += static_cast<size_t>(c.head_dim)) {
      double norm = 0.0;
      for (size_t d = 0; d < static_cast<size_t>(c.head_dim); ++d)
        norm += static_cast<double>(k[at + d]) * static_cast<double>(k[at + d]);
      longest_key = std::max(longest_key, std::sqrt(norm));
    }
    std::vector<int64_t> slots;
    for (int32_t i = 0; i < count; ++i) {
      const int64_t token = part.last_token(i);
      slots.push_back(int64_t{table[static_cast<size_t>(token / c.block_size)]} * c.block_size + token % c.block_size);
    }
    RopeStoreParams p;
    p.k = k.data();
    p.v = v.data();
    p.num_tokens = count;
    p.layout = part;
    p.cache = blocks.data();
    p.slots = slots.data();
    reference.rope_and_store_kv(p);
  }

  // Gives `use` the op's parameters for rows [begin, end) of sequence `seq`, or for the whole batch where seq < 0, and
  // returns what it wrote.
  template <class Use>
  std::vector<float> with_params(const Use& use, int seq = -1, int32_t begin = 0, int32_t end = 0) const {
    std::vector<int32_t> starts = query_start, ends;
    std::vector<const int32_t*> pointers;
    for (const Sequence& s : c.sequences) ends.push_back(s.first_position + s.num_rows);
    for (const auto& table : tables) pointers.push_back(table.data());
    int32_t first = 0;
    if (seq >= 0) {
      first = query_start[static_cast<size_t>(seq)] + begin;
      starts = {0, end - begin};
      pointers = {tables[static_cast<size_t>(seq)].data()};
      ends = {ends[static_cast<size_t>(seq)]};
    }
    std::vector<float> out(static_cast<size_t>(starts.back() * num_heads * c.head_dim), -7.0f);
    PagedAttentionParams p;
    p.q = q.data() + int64_t{first} * num_heads * c.head_dim;
    p.out = out.data();
    p.num_heads = num_heads;
    p.num_seqs = static_cast<int32_t>(pointers.size());
    p.query_start = starts.data();
    p.block_tables = pointers.data();
    p.positions = positions.data() + first;
    p.layout = layout;
    std::vector<const std::byte*> caches;
    for (const auto& own : own_caches) caches.push_back(own.data());
    if (seq >= 0 && c.own_caches) caches = {caches[static_cast<size_t>(seq)]};
    if (c.own_caches) {
      p.sequence_caches = caches.data();
    } else {
      p.cache = cache.data();
    }
    p.position_bias = c.bias_reach < 0 ? nullptr : bias.data();
    p.bias_reach = c.bias_reach;
    p.scale = scale();
    p.window = c.window;
    p.chunk = c.chunk;
    p.logit_softcap = c.softcap;
    p.sinks = c.sinks ? sinks.data() : nullptr;
    p.sequence_ends = c.both_ways ? ends.data() : nullptr;
    p.spans = c.span > 0 ? spans.data() + 2 * first : nullptr;
    p.span_alone = c.span_alone;
    if (c.selected > 0) p.selected = {selected.data() + int64_t{first} * c.selected, counts.data() + first, c.selected};
    if (c.run > 0) {
      p.runs.layout = runs;
      p.runs.cache = run_cache.data();
    }
    if (c.selected_runs > 0) {
      p.runs.selected = {selected_runs.data() + int64_t{first} * c.selected_runs, run_counts.data() + first,
                         c.selected_runs};
    }
    use(p);
    return out;
  }

  std::vector<float> run(Backend& backend, int seq = -1, int32_t begin = 0, int32_t end = 0) const {
    return with_params([&](const PagedAttentionParams& p) { backend.paged_attention(p); }, seq, begin, end);
  }
  AttentionPlan plan(int num_threads) const {
    AttentionPlan out;
    with_params([&](const PagedAttentionParams& p) { out = plan_attention(p, num_threads); });
    return out;
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c.head_dim)); }

  // Scores err by the rounding of a product of head_dim terms and by that of the exponent's argument; twice that
  // (numerator and denominator) is the relative error of a weight, to which the exponential, the sums over a chunk
  // and the merges add; an output is a weighted mean of values.
  std::vector<double> bound() const {
    std::vector<double> out;
    const size_t width = static_cast<size_t>(num_heads * c.head_dim);
    int32_t longest = 0;
    for (const Sequence& s : c.sequences) longest = std::max(longest, s.first_position + s.num_rows);
    for (size_t row = 0; row < positions.size(); ++row) {
      double longest_query = 0.0;
      for (int32_t h = 0; h < num_heads; ++h) {
        double norm = 0.0;
        for (int32_t d = 0; d < c.head_dim; ++d) {
          const double x = static_cast<double>(q[row * width + static_cast<size_t>(h * c.head_dim + d)]);
          norm += x * x;
        }
        longest_query = std::max(longest_query, std::sqrt(norm));
      }
      const double largest_score = longest_query * longest_key * static_cast<double>(scale());
      double largest_bias = 0.0;
      for (const float x : bias) largest_bias = std::max(largest_bias, std::fabs(static_cast<double>(x)));
      double score_error = (c.head_dim + 6) * kUnit * largest_score + kUnit * (largest_score + largest_bias);
      if (c.softcap > 0.0f) score_error += 5e-7 * static_cast<double>(c.softcap);
      const double chunks = (c.run > 0 ? 2 : 1) * ((c.both_ways || c.span > 0 ? longest : positions[row]) / 64 + 1);
      const double error = 2.0 * score_error + 6e-7 + (64 + 4 * chunks) * 2 * kUnit;
      out.insert(out.end(), width, error * largest_value * 1.02);  // 1.02: cached values are rounded
    }
    return out;
  }

  Case c;
  KvLayout layout, runs;
  int32_t num_heads = 0, num_blocks = 0;
  std::vector<int32_t> query_start, positions, spans, selected, counts, selected_runs, run_counts;
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::byte> cache, run_cache;
  std::vector<float> q, sinks, bias;
  std::vector<std::vector<std::byte>> own_caches;
  double largest_value = 0.0, longest_key = 0.0;
};

// Builds with assertions are sanitized and ten times slower: they take every seventh row by itself, and fewer shapes.
#ifdef NDEBUG
constexpr bool kThorough = true;
#else
constexpr bool kThorough = false;
#endif
constexpr int32_t kRowStep = kThorough ? 1 : 7;

void check(const Case& c, bool every_row_alone = true) {
  INFO(kv_dtype_name(c.dtype) << " head_dim " << c.head_dim << " kv_heads " << c.kv_heads << " group " << c.group
                              << " block " << c.block_size << " window " << c.window << " softcap " << c.softcap
                              << " sinks " << c.sinks << " both ways " << c.both_ways << " bias " << c.bias_reach
                              << " own caches " << c.own_caches);
  Batch batch(c);
  const auto reference = make_reference_backend();
  const std::vector<float> expected = batch.run(*reference);
  const std::vector<double> bound = batch.bound();
  const size_t width = static_cast<size_t>(batch.num_heads * c.head_dim);
  for (Isa isa : available_isas()) {
    INFO(isa_name(isa));
    const auto one = cpu_backend(isa, 1), two = cpu_backend(isa, 2), three = cpu_backend(isa, 3);
    const std::vector<float> out = batch.run(*one);
    CHECK(worst(out, expected, bound) <= 1.0);
    CHECK(same_bits(batch.run(*two), out));
    CHECK(same_bits(batch.run(*three), out));
    for (size_t seq = 0; seq < c.sequences.size(); ++seq) {
      const int32_t rows = c.sequences[seq].num_rows;
      const int32_t step = every_row_alone ? kRowStep : std::max(1, rows / 5);
      for (int32_t row = 0; row < rows; row += step) {
        const size_t at = static_cast<size_t>(batch.query_start[seq] + row) * width;
        const std::vector<float> whole(out.begin() + static_cast<int64_t>(at),
                                       out.begin() + static_cast<int64_t>(at + width));
        REQUIRE(same_bits(batch.run(row % 2 == 0 ? *one : *three, static_cast<int>(seq), row, row + 1), whole));
      }
    }
  }
}

}  // namespace

TEST_CASE("Attention agrees with the reference for every cache type, head size and group") {
  const std::vector<Sequence> sequences = {{0, 1}, {0, 37}, {100, 5}, {63, 2}, {200, 1}};
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (int32_t head_dim : {8, 16, 20, 32, 64, 80, 128, 256}) {
      check({dtype, head_dim, 1, head_dim % 3 + 1, 16, sequences});
    }
    for (int32_t group = 1; group <= 8; ++group) check({dtype, 32, 2, group, 32, {{5, 9}, {70, 1}}});
  }
  check({KvDType::kF16, 64, 1, 64, 16, {{40, 3}}});  // one KV head for many query heads
}

TEST_CASE("Attention keeps to its window, softcap and sinks") {
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kQ8}) {
    for (int32_t window : {1, 7, 16, 100, 128}) {
      check({dtype, 64, 2, 3, 16, {{0, 40}, {300, 20}, {127, 1}}, window});
      check({dtype, 64, 2, 3, 64, {{0, 70}, {300, 20}}, window, 0.0f, true});
    }
    check({dtype, 64, 2, 2, 16, {{90, 30}}, 0, 20.0f});
    check({dtype, 128, 1, 2, 16, {{600, 3}}, 0, 0.5f, true});
  }
}

TEST_CASE("Attention keeps to its chunk") {
  for (int32_t chunk : {1, 16, 50, 128, 1000}) {
    check({KvDType::kF32, 64, 2, 3, 16, {{0, 70}, {300, 40}, {127, 1}, {128, 1}}, 0, 0.0f, false, chunk});
    check({KvDType::kQ8, 32, 1, 2, 32, {{0, 70}, {490, 40}}, 20, 0.0f, true, chunk});
  }
}

TEST_CASE("Attention both ways sees the whole sequence, and a window on either side") {
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (int32_t head_dim : {16, 20, 64}) {
      for (int32_t window : {0, 1, 9, 64, 100}) {
        if (!kThorough && (head_dim == 64 || (window != 0 && window != 9))) continue;
        // Rows by themselves see as much as all together here, so that each of them costs as much.
        const bool every_row_alone = head_dim == 20 && window < 64;
        check({dtype, head_dim, 2, 2, 16, {{0, 1}, {0, 37}, {0, 150}, {0, 64}}, window, 0.0f, false, 0, true},
              every_row_alone);
      }
    }
  }
  check({KvDType::kF32, 32, 2, 1, 64, {{0, 70}, {0, 16}}, 12, 20.0f, true, 0, true});
  // The rows of a sequence's end alone, whose keys before them are cached already.
  check({KvDType::kF32, 32, 2, 1, 16, {{100, 30}, {60, 5}}, 12, 0.0f, false, 0, true});
  // Over several splits.
  const int32_t cached = kThorough ? 0 : 1000;
  check(
      {KvDType::kF32, 64, 2, 1, 16, {{cached / 2, 600 - cached / 2}, {cached, 1100 - cached}}, 0, 0.0f, false, 0, true},
      false);
  check({KvDType::kF32, 64, 1, 1, 16, {{cached, 1100 - cached}}, 65, 0.0f, false, 0, true}, false);
}

TEST_CASE("Rows of a span see on to its end, or nothing else") {
  const std::vector<Sequence> sequences = {{0, 1}, {0, 37}, {0, 150}, {96, 60}, {30, 3}};
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kQ8}) {
    for (int32_t span : {1, 7, 16, 50, 200}) {
      for (int32_t window : {0, 5, 40}) {
        if (!kThorough && (span == 7 || span == 200 || window == 40)) continue;
        check({dtype, 32, 2, 2, 16, sequences, window, 0.0f, false, 0, false, span, false}, window == 5);
        check({dtype, 20, 1, 2, 16, sequences, window, 0.0f, false, 0, window == 0, span, true}, window == 5);
      }
    }
  }
  check({KvDType::kF32, 32, 1, 1, 16, {{0, 1100}}, 0, 0.0f, false, 0, false, 600, false}, false);
  check({KvDType::kF32, 32, 1, 1, 16, {{0, 1100}}, 0, 0.0f, false, 0, true, 300, true}, false);
}

TEST_CASE("Attention over several splits does not depend on rows, threads or chunks") {
  check({KvDType::kF16, 64, 2, 2, 16, {{1000, 70}, {511, 2}, {512, 1}}}, false);
  check({KvDType::kQ8, 32, 1, 3, 32, {{2500, 12}}}, false);
  check({KvDType::kF32, 80, 1, 1, 16, {{0, 600}}}, false);
  check({KvDType::kBF16, 64, 1, 4, 16, {{1500, 6}}, 600, 0.0f, true}, false);
}

TEST_CASE("Attention to chosen positions reads no others, for every cache type") {
  const std::vector<Sequence> sequences = {{0, 1}, {0, 37}, {100, 5}, {63, 2}, {200, 1}};
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (int32_t head_dim : {8, 16, 20, 32, 80, 128}) {
      for (int32_t selected : {1, 16, 50, 64}) {
        check({dtype, head_dim, 1, head_dim % 3 + 1, 16, sequences, 0, 0.0f, false, 0, false, 0, false, selected});
      }
    }
    check({dtype, 36, 1, 64, 32, {{90, 3}, {0, 2}}, 0, 0.0f, true, 0, false, 0, false, 40});
  }
  // Over several splits, one long row among them.
  check({KvDType::kF16, 64, 1, 4, 16, {{3000, 3}, {700, 12}}, 0, 0.0f, false, 0, false, 0, false, 1500}, false);
  check({KvDType::kQ8, 40, 1, 20, 32, {{2500, 1}}, 0, 0.0f, true, 0, false, 0, false, 2048}, false);
}

TEST_CASE("Attention to a window and to rows of runs before it, all or chosen ones") {
  const std::vector<Sequence> sequences = {{0, 1}, {0, 37}, {100, 9}, {62, 2}, {200, 1}};
  const auto check_runs = [&](KvDType dtype, int32_t head_dim, int32_t group, int32_t block_size, int32_t window,
                              int32_t selected, int32_t run, int32_t selected_runs) {
    Case c{dtype, head_dim, 1, group, block_size, sequences, window, 0.0f, true};
    c.selected = selected;
    c.run = run;
    c.selected_runs = selected_runs;
    check(c);
  };
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (int32_t head_dim : {16, 36, 128}) {
      for (int32_t run : {1, 3, 4, 16, 64}) {
        check_runs(dtype, head_dim, 4, 16, 16, 0, run, 0);
        check_runs(dtype, head_dim, 3, 32, 70, 0, run, 5);
      }
    }
    check_runs(dtype, 32, 64, 16, 7, 0, 128, 0);
    check_runs(dtype, 32, 2, 16, 0, 20, 4, 9);  // chosen positions, and chosen runs
  }
  // Over several splits.
  Case long_rows{KvDType::kF16, 64, 1, 4, 16, {{3000, 3}, {700, 12}}, 128, 0.0f, true};
  long_rows.run = 4;
  check(long_rows, false);
  long_rows.selected_runs = 512;
  check(long_rows, false);
}

TEST_CASE("Attention adds biases by distance, those of its reach to all beyond") {
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (int32_t reach : {0, 1, 40, 1000}) {
      Case c{dtype, 32, 2, 2, 16, {{0, 1}, {0, 37}, {100, 5}, {63, 2}, {200, 1}}};
      c.bias_reach = reach;
      check(c);
      c.sequences = {{0, 1}, {0, 37}, {0, kThorough ? 150 : 70}, {0, 64}, {100, 30}};
      c.both_ways = true;
      check(c, false);
      c.window = 20;
      c.softcap = 10.0f;
      check(c, reach == 40);
    }
  }
  Case c{KvDType::kF32, 20, 1, 3, 16, {{0, 600}, {1000, 3}}};  // over several splits
  c.bias_reach = 128;
  check(c, false);
}

TEST_CASE("Sequences that begin in the same blocks walk whole splits of them together") {
  // Two splits of all four, then one more of the last three, then each its own.
  Case c{KvDType::kF16, 16, 1, 2, 64, {{1100, 1}, {1800, 1, 0, 16}, {1600, 2, 1, 24}, {1537, 1, 2, 24}, {1300, 1}}};
  for (int threads : {1, 2, 16}) {
    const AttentionPlan plan = Batch(c).plan(threads);
    REQUIRE(plan.stages.size() == 3);
    REQUIRE(plan.stages[0].size() == 2);  // the last sequence has a tile of its own
    const AttentionTile& all = plan.stages[0][0].num_tokens > 1 ? plan.stages[0][0] : plan.stages[0][1];
    CHECK((all.num_tokens == 5 && all.begin == 0 && all.end == 1024 && !all.resumes && all.goes_on));
    REQUIRE(plan.stages[1].size() == 2);
    for (const AttentionTile& tile : plan.stages[1]) {
      CHECK((tile.begin == 1024 && tile.resumes));
      CHECK((tile.goes_on ? tile.num_tokens == 4 && tile.end == 1536 : tile.num_tokens == 1 && tile.end == 1101));
    }
    CHECK(plan.stages[2].size() == 3);
    for (const AttentionTile& tile : plan.stages[2]) CHECK((tile.begin == 1536 && tile.resumes && !tile.goes_on));
  }
  // A window that begins in the third split leaves nothing that these share: their own begin there.
  c.window = 60;
  CHECK_FALSE(Batch(c).plan(2).has_stages());
  c.window = 1000;
  CHECK(Batch(c).plan(2).stages.size() == 2);
  c.window = 0;
  c.own_caches = true;
  CHECK_FALSE(Batch(c).plan(2).has_stages());
  c.own_caches = false;
  c.sequences = {{512, 1}, {512, 1, 0, 8}, {512, 1, 0, 8}};
  CHECK(Batch(c).plan(2).has_stages());
  c.sequences.pop_back();  // two are too few
  CHECK_FALSE(Batch(c).plan(2).has_stages());
  c.sequences = {{511, 1}, {511, 1, 0, 7}, {511, 1, 0, 7}};
  CHECK_FALSE(Batch(c).plan(2).has_stages());
}

TEST_CASE("What sequences share of their blocks changes no bit") {
  std::mt19937 random(3);
  const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
  int staged = 0;
  for (int i = 0; i < 14; ++i) {
    Case c;
    c.dtype = static_cast<KvDType>(i % 4);
    c.head_dim = i % 3 == 0 ? 20 : 32;
    c.kv_heads = 1 + below(2);
    c.group = 1 + below(5);
    c.block_size = 16 << below(4);
    for (int32_t seq = 0, count = 3 + below(4); seq < count; ++seq) {
      Sequence s{550 + below(900), below(4) == 0 ? 1 + below(6) : 1};
      if (seq > 0 && below(5) > 0) {
        s.like = below(3) > 0 ? 0 : below(seq);
        const Sequence& other = c.sequences[static_cast<size_t>(s.like)];
        s.shared_blocks = std::min(other.first_position, s.first_position) / c.block_size;
        if (below(3) == 0) s.shared_blocks = below(s.shared_blocks + 1);
      }
      c.sequences.push_back(s);
    }
    if (i % 4 == 1) c.window = 1 + below(1500);
    if (i % 5 == 2) c.chunk = 100 + below(900);
    c.sinks = i % 6 == 3;
    if (i % 7 == 4) c.softcap = 20.0f;
    if (i % 8 == 5) c.bias_reach = 128;
    staged += Batch(c).plan(2).has_stages() ? 1 : 0;
    check(c);
  }
  CHECK(staged >= 6);
}

TEST_CASE("Sequences with caches of their own see those alone") {
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kQ8}) {
    for (bool both_ways : {false, true}) {
      Case c{dtype, 32, 2, 2, 16, {{0, 1}, {0, 37}, {100, 5}, {600, 3}}};
      c.both_ways = both_ways;
      c.own_caches = true;
      check(c);
    }
  }
}

// As the rows of a decoder see what an encoder made: their own positions, here beyond its end, count for nothing.
TEST_CASE("Both ways without a window, positions beyond the sequence's end change nothing") {
  Case c{KvDType::kF16, 32, 2, 2, 16, {{0, 40}, {0, 7}}};
  c.both_ways = true;
  const Batch batch(c);
  Batch later = batch;
  for (int32_t& position : later.positions) position += 1000;
  const auto reference = make_reference_backend();
  CHECK(same_bits(later.run(*reference), batch.run(*reference)));
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 2);
    CHECK(same_bits(later.run(*backend), batch.run(*backend)));
  }
}

TEST_CASE("A NaN stays with the rows that see it") {
  Batch batch({KvDType::kF32, 32, 1, 2, 16, {{0, 50}}});
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 2);
    const std::vector<float> clean = batch.run(*backend);
    Batch dirty = batch;
    // Position 30's value: rows before it must keep their bits, rows from it on must show it.
    std::byte* head = dirty.cache.data() + static_cast<size_t>(dirty.tables[0][1]) * dirty.layout.block_bytes();
    const float nan = NAN;
    for (size_t d = 0; d < 32; ++d) {
      std::memcpy(head + dirty.layout.half_bytes() + (14 * 32 + d) * 4, &nan, 4);
    }
    const std::vector<float> out = dirty.run(*backend);
    const size_t edge = 30 * 64;
    CHECK(std::memcmp(out.data(), clean.data(), edge * sizeof(float)) == 0);
    CHECK(std::all_of(out.begin() + edge, out.end(), [](float x) { return std::isnan(x); }));
  }
}

TEST_CASE("The query heads of one KV head are shared out where there is little else to share") {
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kQ8}) {
    for (int32_t group : {8, 9, 16, 40, 128}) check({dtype, 48, 1, group, 16, {{300, 1}}, 0, 0.0f, true});
    check({dtype, 32, 1, 16, 16, {{700, 2}}});
  }
}

TEST_CASE("Attention of an empty batch does nothing") {
  const auto backend = cpu_backend(kWeakestIsa, 2);
  PagedAttentionParams p;
  const int32_t start[] = {0};
  p.query_start = start;
  p.num_heads = 2;
  p.layout = {KvDType::kF16, 1, 64, 16};
  backend->paged_attention(p);
}

}  // namespace headrace::test
