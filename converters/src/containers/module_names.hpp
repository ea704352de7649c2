#pragma once
// The names of modules that torch saves beside the tensors of a state dict (`_metadata`).
#include "containers/pickle.hpp"

#include <optional>
#include <string>

namespace unishard::converters::torch {

/// Returns a line about the tensors in `root`, a state dict or a dict with some in it, whose name
/// begins with no module of the list, where the list has one that differs in one character: one of
/// the two is damaged. A file without checksums does not tell which. nullopt for all others.
std::optional<std::string> doubt_about_names(Value root);

}  // namespace unishard::converters::torch
