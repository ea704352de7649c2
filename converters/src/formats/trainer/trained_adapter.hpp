#pragma once
// Which of the adapters in a Trainer's folder its optimizer has trained. Adapters of several ranks
// or modules differ in the shapes of their tensors, and the optimizer's states have those of one.
#include "unishard/format/storage.hpp"

#include <optional>
#include <vector>

namespace unishard::converters::trainer {

/// Returns those of `folders`, each with an adapter, whose tensors are as many as the parameters of
/// the optimizer and have the shapes of its states; nullopt for an optimizer without states, or
/// that cannot be read. An adapter that cannot be read may be the trained one, and is among them.
std::optional<std::vector<Path>> fitting_adapters(Storage& storage, const Path& optimizer,
                                                  const std::vector<Path>& folders);

}  // namespace unishard::converters::trainer
