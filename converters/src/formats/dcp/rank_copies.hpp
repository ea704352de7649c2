#pragma once
// Copies of one tensor in the files of several ranks: compared, and one of them kept.
#include "formats/dcp/state_dict.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace unishard::converters::dcp {

/// Keeps the first of the chunks of a tensor that have the same box, after comparing their elements
/// (by the checksums of the archives where they have them). Where they differ, the chunk of
/// `from_rank` is kept, with a remark. Of states of random generators, which each rank has of its
/// own, the first is kept, with a note.
/// Pre: chunks with the same box are neighbours.
/// Throws: Unsupported, saying what the copies look like, where they differ and `from_rank` is not
/// given; InvalidArgument where that rank has no copy.
void settle_copies(StateDict& state, std::optional<std::uint32_t> from_rank,
                   const std::string& where);

}  // namespace unishard::converters::dcp
