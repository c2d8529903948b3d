// NumPy's .npy files (format 1.0), float32, C order, written row by row.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace cli {

class NpyWriter {
 public:
  // Throws std::runtime_error when the file cannot be made.
  NpyWriter(const std::string& path, int64_t rows, int64_t cols);
  void write(const float* values, int64_t count);
  // Flushes; throws std::runtime_error when anything was not written.
  void close();

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace cli
