#include "model/weights.h"

#include <cmath>
#include <unordered_map>

#include "tensor/dequantize.h"

namespace headrace {

namespace {

// Loads one entry after the other and reports how far it is, in bytes of the file.
class Loader {
 public:
  Loader(const std::vector<WeightEntry>& entries, const TensorFile& file, const PackOptions& options,
         const LoadProgress& progress, Backend& backend, uint64_t& packed_bytes)
      : file_(file), options_(options), progress_(progress), backend_(backend), packed_bytes_(packed_bytes) {
    for (const WeightEntry& entry : entries) {
      entries_.emplace(entry.name, &entry);
      if (const TensorEntry* tensor = file.find(entry.file_name)) total_bytes_ += tensor->bytes;
    }
  }

  Status report() {
    if (!progress_) return {};
    const double share = total_bytes_ == 0 ? 1.0 : static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_);
    if (!progress_(share)) return cancelled("", "loading was cancelled");
    return {};
  }

  Status linear(const std::string& name, LinearWeight& out) {
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* tensor, find(name + ".weight"));
    if (tensor->shape.size() != 2) return malformed(tensor->name, "not a matrix");
    WeightSource source;
    source.name = tensor->name;
    source.dtype = tensor->dtype;
    source.rows = static_cast<int64_t>(tensor->shape[0]);
    source.cols = static_cast<int64_t>(tensor->shape[1]);
    source.read = [this, tensor](uint64_t offset, std::span<std::byte> destination) {
      return file_.read(*tensor, offset, destination);
    };
    HEADRACE_ASSIGN_OR_RETURN(out.weight, backend_.pack(source, options_));
    packed_bytes_ += out.weight->bytes();
    HEADRACE_RETURN_IF_ERROR(finish(*tensor));
    return has(name + ".bias") ? vector(name + ".bias", out.bias) : Status();
  }

  Status vector(const std::string& name, std::vector<float>& out) {
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* tensor, find(name));
    if (tensor->shape.size() != 1 || tensor->shape[0] > (uint64_t{1} << 32))
      return malformed(tensor->name, "not a vector");
    std::vector<std::byte> bytes(tensor->bytes);
    HEADRACE_RETURN_IF_ERROR(file_.read(*tensor, 0, bytes));
    out.resize(tensor->shape[0]);
    const Status decoded = dequantize_row(tensor->dtype, bytes.data(), out.data(), static_cast<int64_t>(out.size()));
    if (!decoded.ok()) return decoded.within(tensor->name);
    for (size_t i = 0; i < out.size(); ++i) {
      if (!std::isfinite(out[i])) return malformed(tensor->name, "element {} is not finite", i);
    }
    packed_bytes_ += out.size() * sizeof(float);
    return finish(*tensor);
  }

  bool has(const std::string& name) const { return entries_.contains(name); }
  // Leaves `out` empty when the spec has no such weight.
  Status optional_vector(const std::string& name, std::vector<float>& out) {
    return has(name) ? vector(name, out) : Status();
  }

 private:
  Result<const TensorEntry*> find(const std::string& name) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) return internal_error(name, "the spec has no such weight");
    const TensorEntry* tensor = file_.find(it->second->file_name);
    if (tensor == nullptr) return not_found(it->second->file_name, "the file has no such tensor");
    return tensor;
  }

  Status finish(const TensorEntry& tensor) {
    done_bytes_ += tensor.bytes;
    return report();
  }

  const TensorFile& file_;
  const PackOptions& options_;
  const LoadProgress& progress_;
  Backend& backend_;
  uint64_t& packed_bytes_;
  std::unordered_map<std::string_view, const WeightEntry*> entries_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
};

Status load_attention(Loader& loader, const std::string& prefix, GqaWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "q_proj", out.q));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "k_proj", out.k));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "v_proj", out.v));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "o_proj", out.o));
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(prefix + "q_norm.weight", out.q_norm));
  return loader.optional_vector(prefix + "k_norm.weight", out.k_norm);
}

Status load_feed_forward(Loader& loader, const std::string& prefix, DenseWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "gate_proj", out.gate));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "up_proj", out.up));
  return loader.linear(prefix + "down_proj", out.down);
}

Status load_layer(Loader& loader, const std::string& prefix, LayerWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "attention_norm.weight", out.attention_norm));
  HEADRACE_RETURN_IF_ERROR(
      std::visit([&](auto& attention) { return load_attention(loader, prefix, attention); }, out.attention));
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(prefix + "post_attention_norm.weight", out.post_attention_norm));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "feed_forward_norm.weight", out.feed_forward_norm));
  HEADRACE_RETURN_IF_ERROR(
      std::visit([&](auto& dense) { return load_feed_forward(loader, prefix, dense); }, out.feed_forward));
  return loader.optional_vector(prefix + "post_feed_forward_norm.weight", out.post_feed_forward_norm);
}

}  // namespace

Result<ModelWeights> ModelWeights::load(const ModelSpec& spec, const std::vector<WeightEntry>& entries,
                                        const TensorFile& file, const PackOptions& options,
                                        const LoadProgress& progress, Backend& backend) {
  ModelWeights out;
  try {
    Loader loader(entries, file, options, progress, backend, out.bytes);
    HEADRACE_RETURN_IF_ERROR(loader.report());
    HEADRACE_RETURN_IF_ERROR(loader.linear("embed", out.embedding));
    out.layers.resize(spec.layers.size());
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      HEADRACE_RETURN_IF_ERROR(load_layer(loader, fmt::format("layers.{}.", i), out.layers[i]));
    }
    HEADRACE_RETURN_IF_ERROR(loader.vector("final_norm.weight", out.final_norm));
    if (!spec.head.tied) HEADRACE_RETURN_IF_ERROR(loader.linear("lm_head", out.lm_head.emplace()));
  } catch (const std::bad_alloc&) {
    return out_of_memory("", "not enough memory for the model's weights");
  }
  return out;
}

}  // namespace headrace
