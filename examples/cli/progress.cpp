#include "progress.h"

#include <unistd.h>

#include <cstdio>

namespace cli {

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), is_terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (shown_percent_ >= 0) std::fprintf(stderr, "\r\033[K");
}

void ProgressBar::show(double fraction) {
  const int percent = static_cast<int>(fraction * 100);
  if (!is_terminal_ || percent == shown_percent_) return;
  shown_percent_ = percent;
  std::fprintf(stderr, "\r%s: %d%%", label_.c_str(), percent);
}

}  // namespace cli
