#include "reading/empty_weights.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters {

void require_values(const Catalog& catalog, const Path& path) {
  const auto is_placeholder = [](const TensorInfo& tensor) {
    const bool is_parameter = tensor.fqn.ends_with("weight") || tensor.fqn.ends_with("bias");
    return is_parameter && tensor.shape == Shape{0} && info(tensor.dtype).kind == Kind::Float;
  };
  const auto empty = std::ranges::count_if(catalog.tensors, is_placeholder);
  if (2 * static_cast<std::size_t>(empty) <= catalog.tensors.size()) return;
  const auto first = std::ranges::find_if(catalog.tensors, is_placeholder);
  raise(ErrorCode::Unsupported,
        fmt::format("{}: {} of {} tensors are empty ({} first): a model that was saved under "
                    "ZeRO-3 without being gathered",
                    path.string(), empty, catalog.tensors.size(), unishard::quote(first->fqn)),
        "take the checkpoint of DeepSpeed beside it, which holds the weights");
}

}  // namespace unishard::converters
