#include "model/blocks.h"

namespace headrace {

namespace {

const float* transform(const StepContext& step, const ModelWeights& weights, const float* rows, float* out) {
  const TransformSpec& spec = *step.spec.head.transform;
  activated_linear(step, rows, *weights.transform, spec.activation, step.spec.hidden_size, out);
  if (spec.norm) apply_norm(step, out, weights.transform_norm, out);
  return out;
}

}  // namespace

void apply_head(const StepContext& step, const ModelWeights& weights, const float* rows, float* out) {
  const HeadSpec& spec = step.spec.head;
  if (spec.kind == HeadKind::kTransform) {
    transform(step, weights, rows, out);
    return;
  }
  if (spec.transform) rows = transform(step, weights, rows, step.work.branch.data());
  const LinearOutput outputs[] = {weights.head(out)};
  linear(step, rows, step.spec.hidden_size, outputs);
  const int64_t count = step.num_rows * head_width(step.spec);
  if (spec.logit_scale != 1.0f) step.backend.scale({out, count, spec.logit_scale});
  if (spec.logit_softcap > 0) {
    SoftcapParams softcap;
    softcap.x = out;
    softcap.num_elements = count;
    softcap.cap = spec.logit_softcap;
    step.backend.softcap(softcap);
  }
}

}  // namespace headrace
