#pragma once
// Checkpoints whose files lack the names and shapes of their tensors.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

/// Opens a checkpoint of FSDP1's LOCAL_STATE_DICT, whose files hold the parameters of a unit as one
/// vector. `like` is a model in any known format whose tensors have the names and shapes of that
/// one's; its values are not used.
/// Lifetime: `storage` must outlive the source.
/// Throws: as open_source() does for both paths; InvalidArgument where `path` has no flat
/// parameters, or where nothing tells the order of the parameters in one of them; Mismatch, with
/// both sizes, where they do not fill it.
std::unique_ptr<Source> open_source_like(Storage& storage, const Path& path, const Path& like,
                                         const OpenOptions& options = {});

}  // namespace unishard::converters
