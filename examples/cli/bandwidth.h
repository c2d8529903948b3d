// Read bandwidth of main memory, measured here and now.
#pragma once

namespace cli {

// Bytes per second that num_threads threads together read from a buffer far larger than the caches; best of a few
// passes.
double measure_read_bandwidth(int num_threads);

}  // namespace cli
