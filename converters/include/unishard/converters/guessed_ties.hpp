#pragma once
// Names that DCP's reader has taken for second names of a tied parameter, because their bytes are
// equal and the optimizer knows one of them alone.

namespace unishard::converters {

/// Key of Catalog::producer: a list of such aliases. A frozen copy of a parameter looks the same,
/// so that a model that is made of the checkpoint has them as tensors.
inline constexpr const char* kGuessedTies = "guessed_ties";

}  // namespace unishard::converters
