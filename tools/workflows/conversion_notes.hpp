#pragma once
#include "unishard/converters/loss.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace unishard::tools {

/// What does not arrive in the result, and what the reader chose; one line each.
struct ConversionNotes {
  converters::Losses lost;            ///< in reading, as far as the job names it
  std::size_t missing = 0;            ///< of `lost`, those that the result should have
  std::vector<std::string> not_read;  ///< Source::notes()
  std::vector<std::string> left_out;  ///< by the plan and the options
  std::size_t asked_for = 0;          ///< lines of left_out that the user's options ask for
  std::vector<std::string> cannot_be_written;  ///< in the result's format
  std::vector<std::string> remarks;            ///< as Source::remarks()
  std::vector<std::string> of_weights;         ///< those of the source that weights alone concern

  /// Returns what does not arrive, each line with its reason in front.
  std::vector<std::string> losses() const;
};

}  // namespace unishard::tools
