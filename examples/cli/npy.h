// NumPy's .npy files (format 1.0), float32, C order, written row by row.
#pragma once

#include <cstdint>
#include <string>

#include "output_file.h"

namespace cli {

class NpyWriter {
 public:
  // The file is put in its place by close(). Throws std::runtime_error when it cannot be made.
  NpyWriter(const std::string& path, int64_t rows, int64_t cols);
  void write(const float* values, int64_t count);
  // Flushes; throws std::runtime_error when anything was not written.
  void close();

 private:
  OutputFile file_;
};

}  // namespace cli
