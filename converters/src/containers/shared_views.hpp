#pragma once
// Tensors of a torch.save file that share memory: torch.load() gives views of one storage, and a
// tensor that is a view of a part of another changes with it. Every result has tensors of their
// own. Thread safety: pure functions.
#include "containers/tensor_view.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace unishard::converters::torch {

/// The first name of each view, by the name of its file.
using ViewNames = std::map<std::pair<std::string, ViewIdentity>, std::string>;

/// Returns a note that names the views of which elements are in another one too; nullopt when all
/// of them certainly have none in common, as the parts of a flat buffer have.
std::optional<std::string> note_shared_parts(const ViewNames& views);

}  // namespace unishard::converters::torch
