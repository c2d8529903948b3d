// What /metrics says of the engines.
#pragma once

#include "metrics_text.h"
#include "served_models.h"

namespace server {

// Of each model that generates, under the label "model"; of tenants under "tenant" too.
void add_engine_metrics(MetricsText& text, const ServedModels& models);

}  // namespace server
