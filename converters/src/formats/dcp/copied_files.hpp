#pragma once
// Data files of a DCP folder that have the bytes of another one: a user copied one rank's file
// over another's. Their archives do not say which tensors they hold.
#include "formats/dcp/state_dict.hpp"

#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// Returns a line for each data file that equals an earlier one, although both hold other parts of
/// tensors. Files whose elements all have one value may be equal, as may files of one whole tensor.
/// Reads a few bytes of each file, and all of those that are equal there. A file that cannot be
/// read is not compared.
/// Pre: the items of `state` were read from a folder with metadata.
std::vector<std::string> doubts_about_copied_files(const StateDict& state);

}  // namespace unishard::converters::dcp
