#include "model/adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/format_full.h"
#include "formats/json_writer.h"
#include "model/adaptable_modules.h"
#include "model/adapter_file.h"
#include "tensor/dequantize.h"

namespace headrace {

namespace {

Result<std::vector<float>> read_floats(const TensorFile& file, const TensorEntry& tensor) {
  const auto count = num_elements(tensor.shape);
  if (!count || tensor.column_order != nullptr) return unsupported(tensor.name, "is no tensor of floats");
  std::vector<std::byte> bytes(tensor.bytes);
  HEADRACE_RETURN_IF_ERROR(file.read(tensor, 0, bytes));
  std::vector<float> out(*count);
  HEADRACE_RETURN_IF_ERROR(dequantize_row(tensor.dtype, bytes.data(), out.data(), static_cast<int64_t>(*count)));
  const auto odd = std::find_if(out.begin(), out.end(), [](float x) { return !std::isfinite(x); });
  if (odd != out.end()) return malformed(tensor.name, "element {} is not finite", odd - out.begin());
  return out;
}

Status check_shape(const TensorEntry& tensor, const AdaptableModule& module, uint64_t rows, uint64_t cols) {
  std::vector<uint64_t> wanted = {rows, cols};
  if (module.is_stack) wanted.insert(wanted.begin(), module.matrices);
  if (tensor.shape == wanted) return {};
  return malformed(tensor.name, "has the shape [{}], not [{}]", fmt::join(tensor.shape, ", "), fmt::join(wanted, ", "));
}

// Adds what the adapter has for one module, whose tensors of the base may hold several weights side by side or stacked.
Status read_module(const AdaptableModule& module, const AdapterFile& file, const AdapterFile::Pair& pair,
                   AdapterParts& out) {
  const auto rank = static_cast<uint64_t>(pair.rank);
  HEADRACE_RETURN_IF_ERROR(check_shape(*pair.down, module, rank, module.cols));
  HEADRACE_RETURN_IF_ERROR(check_shape(*pair.up, module, module.rows, rank));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> down, read_floats(*file.file, *pair.down));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> up, read_floats(*file.file, *pair.up));
  for (const AdaptableModule::Part& part : module.parts) {
    const float* const from = down.data() + part.matrix * rank * module.cols;
    AdapterParts::Part made{part.weight, pair.rank, std::vector<float>(from, from + rank * module.cols), {}};
    made.up.reserve(part.rows.size() * rank);
    for (const uint64_t row : part.rows) {
      const float* const up_row = up.data() + (part.matrix * module.rows + row) * rank;
      for (uint64_t i = 0; i < rank; ++i) {
        made.up.push_back(static_cast<float>(pair.scale * static_cast<double>(up_row[i])));
      }
    }
    out.parts.push_back(std::move(made));
  }
  ++out.num_modules;
  return {};
}

void append_bytes(std::string& text, const std::vector<float>& values) {
  const Hash128 hash = hash128(values.data(), values.size() * sizeof(float));
  text += fmt::format("{} {:016x}{:016x} ", values.size(), hash.high, hash.low);
}

}  // namespace

Result<AdapterParts> AdapterParts::read(const Model& model, const std::string& path) {
  HEADRACE_ASSIGN_OR_RETURN(const AdapterFile file, AdapterFile::open(model, path));
  AdapterParts out;
  const auto read = [&]() -> Status {
    std::unordered_set<std::string_view> wanted;
    for (const AdapterFile::Pair& pair : file.pairs) wanted.insert(pair.module);
    const auto modules = adaptable_modules(model, wanted);
    for (const AdapterFile::Pair& pair : file.pairs) {
      const auto found = modules.find(pair.module);
      if (found == modules.end()) return unsupported(pair.down->name, "the model has no module {}", pair.module);
      if (!found->second.why_not.empty()) return unsupported(pair.down->name, "{}", found->second.why_not);
      HEADRACE_RETURN_IF_ERROR(read_module(found->second, file, pair, out));
    }
    return {};
  };
  if (const Status status = read(); !status.ok()) return status.within(file.path);

  // Files list their tensors in any order; a model has its products in one.
  std::unordered_map<const PackedWeight*, size_t> numbers;
  for (const PackedWeight* weight : model.weights().products) numbers.emplace(weight, numbers.size());
  std::sort(out.parts.begin(), out.parts.end(),
            [&](const Part& a, const Part& b) { return numbers.at(a.weight) < numbers.at(b.weight); });
  std::string content = "headrace adapter 1 ";
  for (const Part& part : out.parts) {
    content += fmt::format("{} {} ", numbers.at(part.weight), part.rank);
    append_bytes(content, part.down);
    append_bytes(content, part.up);
  }
  out.identity = hash128(content.data(), content.size());
  return out;
}

AdapterParts AdapterParts::sum(AdapterParts a, const AdapterParts& b) {
  for (const Part& part : b.parts) {
    const auto same =
        std::find_if(a.parts.begin(), a.parts.end(), [&](const Part& p) { return p.weight == part.weight; });
    if (same == a.parts.end()) {
      a.parts.push_back(part);
      continue;
    }
    same->down.insert(same->down.end(), part.down.begin(), part.down.end());
    const auto rank = static_cast<size_t>(same->rank), more = static_cast<size_t>(part.rank);
    std::vector<float> up;
    up.reserve(same->up.size() + part.up.size());
    for (size_t row = 0; row * rank < same->up.size(); ++row) {
      up.insert(up.end(), same->up.data() + row * rank, same->up.data() + (row + 1) * rank);
      up.insert(up.end(), part.up.data() + row * more, part.up.data() + (row + 1) * more);
    }
    same->up = std::move(up);
    same->rank += part.rank;
  }
  a.num_modules += b.num_modules;
  const uint64_t both[] = {a.identity.high, a.identity.low, b.identity.high, b.identity.low};
  a.identity = hash128(both, sizeof both);
  return a;
}

Result<std::shared_ptr<const Adapter>> Adapter::pack(std::shared_ptr<const Model> model, AdapterParts parts,
                                                     Backend& backend) {
  const std::shared_ptr<Adapter> out(new Adapter());
  const auto pack_rows = [&](const std::vector<float>& values, int64_t rows, int64_t cols) {
    WeightSource source;
    source.name = "adapter";
    source.rows = rows;
    source.cols = cols;
    source.read = [&values](uint64_t offset, std::span<std::byte> destination) {
      std::memcpy(destination.data(), reinterpret_cast<const std::byte*>(values.data()) + offset, destination.size());
      return Status();
    };
    return backend.pack(source, PackOptions());
  };
  for (const AdapterParts::Part& part : parts.parts) {
    AdapterPair& pair = out->pairs_[part.weight];
    HEADRACE_ASSIGN_OR_RETURN(pair.down, pack_rows(part.down, part.rank, part.weight->cols()));
    HEADRACE_ASSIGN_OR_RETURN(pair.up, pack_rows(part.up, part.weight->rows(), part.rank));
    out->max_rank_ = std::max(out->max_rank_, part.rank);
    out->num_parameters_ += part.down.size() + part.up.size();
    out->bytes_ += pair.down->bytes() + pair.up->bytes();
  }
  for (const LayerWeights& layer : model->weights().layers) {
    const auto* moe = std::get_if<MoeWeights>(&layer.feed_forward);
    if (const auto* both = std::get_if<DenseBesideExpertsWeights>(&layer.feed_forward)) moe = &both->experts;
    if (moe == nullptr) continue;
    for (const ExpertWeights& expert : moe->table) {
      if (out->find(expert.gate) || out->find(expert.up) || out->find(expert.down)) out->adapted_experts_.insert(moe);
    }
  }
  out->model_ = std::move(model);
  out->num_modules_ = parts.num_modules;
  out->identity_ = parts.identity;
  return std::shared_ptr<const Adapter>(out);
}

std::string Adapter::identity_text() const { return fmt::format("{:016x}{:016x}", identity_.high, identity_.low); }

std::string Adapter::describe() const {
  JsonWriter out;
  out.begin_object();
  out.member("modules", num_modules_);
  out.member("max_rank", max_rank_);
  out.member("parameters", num_parameters_);
  out.member("bytes", bytes_);
  out.member("identity", identity_text());
  out.end_object();
  return std::string(out.text());
}

}  // namespace headrace
