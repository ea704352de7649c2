#pragma once
// Builds a catalog from the keys of a state dict: decides which tensors belong to the model, to the
// optimizer, or to neither. MAPPING.md defines the meaning of a catalog.
#include "unishard/format/catalog.hpp"

#include "formats/dcp/state_dict.hpp"

#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::dcp {

struct Arrangement {
  Catalog catalog;
  std::vector<std::size_t> entries;  ///< for each catalog tensor, its index in StateDict::tensors
  /// Second names that were found by their bytes: the entry, and the entry that is read instead.
  std::vector<std::pair<std::size_t, std::size_t>> copies;
  Losses losses;                               ///< as Source::losses()
  std::vector<std::string> notes;              ///< as Source::notes()
  std::vector<std::string> remarks;            ///< as Source::remarks()
  std::vector<std::string> remarks_on_states;  ///< as Source::remarks_on_states()

  void remark_on_states(std::string line) {
    remarks.push_back(line);
    remarks_on_states.push_back(std::move(line));
  }
};

/// Builds the catalog. Reads step counters, and tensors that may be one tensor under two names.
/// Throws: Corrupt or Unsupported, naming `where`.
Arrangement arrange(const StateDict& state, const std::string& where);

}  // namespace unishard::converters::dcp
