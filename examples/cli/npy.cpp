#include "npy.h"

namespace cli {

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: the header is padded so that data starts at a
// multiple of 64 bytes.
NpyWriter::NpyWriter(const std::string& path, int64_t rows, int64_t cols) : file_(path) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
                       std::to_string(cols) + "), }";
  constexpr size_t kPreamble = 10;
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header += '\n';
  const char preamble[kPreamble] = {'\x93',
                                    'N',
                                    'U',
                                    'M',
                                    'P',
                                    'Y',
                                    1,
                                    0,
                                    static_cast<char>(header.size() & 0xff),
                                    static_cast<char>(header.size() >> 8)};
  file_.stream().write(preamble, kPreamble).write(header.data(), static_cast<std::streamsize>(header.size()));
}

void NpyWriter::write(const float* values, int64_t count) {
  file_.stream().write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * 4));
}

void NpyWriter::close() { file_.commit(); }

}  // namespace cli
