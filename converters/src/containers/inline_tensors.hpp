#pragma once
// Small tensors among other values, as JSON that holds their bytes:
// {"$type": "torch.Tensor", "dtype": "float32", "shape": [2], "hex": "..."}.
// Thread safety: pure functions.
#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/loss.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/object_tree.hpp"
#include "containers/torch_file.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Larger ones stay {"$tensor": name}, as do those beyond 1 MiB in all.
inline constexpr std::uint64_t kInlineBytes = std::uint64_t{64} << 10;

/// Replaces {"$tensor": name} in tree.content by the tensors' bytes. Returns the names of the
/// tensors that are too large or of a kind that UniShard does not read.
std::vector<std::string> inline_tensors(const TorchFile& file, ObjectTree& tree);

/// Returns the object of a file, with its small tensors as their bytes. Appends to `losses` each
/// setting below `path` that is left as {"$tensor": name}.
Json with_inline_tensors(const TorchFile& file, const std::string& path, Losses& losses);

/// Replaces each tensor of one float32 or float64 in `value` by its number.
void make_numbers(Json& value);

using InlineTensor = ClientTensor;
/// Returns the JSON form of a tensor.
Json inline_form(const InlineTensor& tensor);
inline std::optional<InlineTensor> inline_tensor_in(const Json& value) {
  return client_tensor_in(value);
}
/// Replaces the tensors in `value` by {"$tensor": name}, and returns them by name. One whose bytes
/// do not make such a tensor stays as it is.
std::map<std::string, InlineTensor> take_inline_tensors(Json& value);

}  // namespace unishard::converters::torch
