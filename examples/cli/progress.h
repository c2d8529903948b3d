// A progress line on standard error where that is a terminal; nothing elsewhere.
#pragma once

#include <string>

namespace cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // erases the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(double fraction);

 private:
  std::string label_;
  bool is_terminal_;
  int shown_percent_ = -1;
};

}  // namespace cli
