#pragma once
// How a catalog records the arrangement of the torch.save file that it was read from.
#include <string_view>

namespace unishard::converters {

/// Key in Catalog::producer: where the torch.save file that was read had its model and its
/// optimizer. Converters of other formats keep it, so that a file comes back as it was.
inline constexpr std::string_view kTorchArrangement = "torch_arrangement";

/// Key in the arrangement: the file's object around the tensors, as one JSON text.
inline constexpr std::string_view kTorchObject = "file";

}  // namespace unishard::converters
