#include "formats/shared_sizes.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>

namespace unishard::converters {
namespace {

/// Says what the tensor has in a dimension: "w1.weight" has 24 rows.
std::string size_in_words(const TensorInfo& tensor, std::size_t dimension) {
  const char* const unit = tensor.shape.size() == 1 ? "elements"
                           : dimension == 0         ? "rows"
                                                    : "columns";
  return fmt::format("{} has {} {}", quote(tensor.fqn), tensor.shape[dimension], unit);
}

}  // namespace

void SharedSizes::tell(const std::string& name, std::optional<std::uint64_t> size,
                       std::string_view key) {
  if (size) known_[name] = {*size, fmt::format("by {} they are {}", key, *size)};
}

std::optional<std::string> SharedSizes::compare(const TensorInfo& tensor,
                                                std::span<const std::string> names) {
  if (tensor.shape.size() != names.size())
    return fmt::format("{} has the shape ({}), and should have {} dimension{}", quote(tensor.fqn),
                       fmt::join(tensor.shape, ", "), names.size(), names.size() == 1 ? "" : "s");
  for (std::size_t d = 0; d < names.size(); ++d) {
    const std::string words = size_in_words(tensor, d);
    const auto [known, is_new] = known_.try_emplace(names[d], Known{tensor.shape[d], words});
    if (!is_new && known->second.size != tensor.shape[d])
      return fmt::format("{} in all, and {}", words, known->second.words);
  }
  return std::nullopt;
}

}  // namespace unishard::converters
