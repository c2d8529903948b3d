// Files that commands write: whole or not at all, and never over what the command reads.
#pragma once

#include <fstream>
#include <string>
#include <vector>

namespace cli {

// Written beside `path` and put in its place by commit(); where that does not happen, what was there stays. Symbolic links
// are followed and a file that is there keeps its mode. Devices and pipes, and files in folders that take no new one, are
// written in place.
class OutputFile {
 public:
  // Throws std::runtime_error naming the file when it cannot be made.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::ofstream& stream() { return file_; }
  // Throws std::runtime_error naming the file when anything was not written.
  void commit();

 private:
  std::string path_, target_;
  std::string beside_;  // empty: written in place
  std::ofstream file_;
};

// Replaces a file's content. Throws std::runtime_error naming the file.
void write_file(const std::string& path, const std::string& content);

// Asked before long work whose result goes to `path`; nothing is made or changed. Throws std::runtime_error where it could
// not be written, and headrace::Error where it is one of the files of `model` (a model's path) or of `inputs`, by
// whatever name.
void require_output(const std::string& path, const std::string& model, const std::vector<std::string>& inputs = {});

}  // namespace cli
