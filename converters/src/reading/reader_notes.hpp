#pragma once
// What a reader says about the files beside the catalog.
#include "unishard/converters/loss.hpp"

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {

/// The lines of Source::notes() and the entries of Source::losses(), each once.
/// Thread safety: not thread-safe.
class ReaderNotes {
 public:
  void add(std::string line) {
    if (seen_.insert(line).second) lines_.push_back(std::move(line));
  }
  void lose(Loss loss) {
    if (seen_.insert(text_of(loss)).second) losses_.push_back(std::move(loss));
  }
  const std::vector<std::string>& lines() const { return lines_; }
  const Losses& losses() const { return losses_; }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> lines_;
  Losses losses_;
};

}  // namespace unishard::converters
