// What families that read images have in common: readers of their encoders' configs, names of the encoders' tensors, and the
// text config inside theirs.
#pragma once

#include "formats/json.h"
#include "model/families/family.h"

namespace headrace {

// CLIP and SigLIP: whole images of one size, learned positions, layer norms, feed-forwards without a gate. Heads and names
// of the checkpoint's other parts are left to the caller. `config` is vision_config.
struct PlaneEncoderDefaults {
  int64_t image_size, patch_size;
  const char* activation;
  double norm_eps;
};
Result<VisionSpec> read_plane_encoder(const ConfigReader& config, const PlaneEncoderDefaults& defaults,
                                      std::span<const std::string_view> own_keys);
// Where their layers are: the makers' files and those of newer transformers differ in prefixes.
std::string_view plane_layer_prefix(const TensorFile& weights);
// Prefixes of all that is theirs, the projector's too.
inline constexpr std::string_view kPlaneTowers[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                                    "model.multi_modal_projector."};
inline constexpr NamePair kPlaneEncoderLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.out_proj"},
    {"up_proj", "mlp.fc1"},
    {"down_proj", "mlp.fc2"},
    {"attention_norm", "layer_norm1"},
    {"feed_forward_norm", "layer_norm2"},
};

// What a text model's own config.json would have where the one inside another leaves a key out.
struct KeyDefault {
  const char* key;
  double value;  // written as an integer where it is one
};
// A copy of a config's object, to be changed, with keys filled in.
Result<HeldJson<nlohmann::json>> copy_config(const nlohmann::json& object, std::span<const KeyDefault> defaults = {});
// The member text_config, copied.
Result<HeldJson<nlohmann::json>> text_config(const ConfigReader& config, std::span<const KeyDefault> defaults = {});
// An id of the vocabulary, from the first of these keys that the config has.
Result<int32_t> read_token_id(const ConfigReader& config, std::initializer_list<const char*> keys,
                              const ModelSpec& decoder, int64_t fallback);

}  // namespace headrace
