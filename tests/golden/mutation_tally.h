// What became of damaged models: a count for each kind of damage, and what went wrong. Where HEADRACE_LISTINGS names a folder,
// a file there has a line for each: model, place, kind of damage and outcome, with tabs between them.
#pragma once

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace headrace::golden {

class Tally {
 public:
  explicit Tally(const std::string& listing) {
    if (const char* folder = std::getenv("HEADRACE_LISTINGS")) listing_.open(std::string(folder) + "/" + listing);
  }

  void refused(const std::string& model, const std::string& kind, const std::string& place, const std::string& status) {
    ++refused_[kind];
    line(model, kind, place, "refused: " + status);
  }
  void harmless(const std::string& model, const std::string& kind, const std::string& place,
                const std::string& reason) {
    ++num_harmless_;
    line(model, kind, place, "taken: " + reason);
  }
  void wrong(const std::string& model, const std::string& what) { wrong_[what].push_back(model); }

  // Prints the counts; at least `fewest` refusals, and nothing wrong.
  void check(const std::string& title, int64_t fewest) const {
    int64_t total = 0;
    for (const auto& [kind, count] : refused_) total += count;
    std::cout << title << ": " << total << " refused by name, " << num_harmless_ << " taken for a reason\n";
    for (const auto& [kind, count] : refused_) std::cout << "  " << kind << ": " << count << " refused\n";
    for (const auto& [what, models] : wrong_) {
      std::cout << "  WRONG [" << models.size() << ", first " << models[0] << "] " << what << "\n";
    }
    CHECK(wrong_.empty());
    CHECK(total >= fewest);
  }

 private:
  void line(const std::string& model, const std::string& kind, const std::string& place, const std::string& outcome) {
    listing_ << model << '\t' << place << '\t' << kind << '\t' << outcome << '\n';
  }

  std::ofstream listing_;
  std::map<std::string, int64_t> refused_;
  int64_t num_harmless_ = 0;
  std::map<std::string, std::vector<std::string>> wrong_;  // what went wrong -> models
};

}  // namespace headrace::golden
