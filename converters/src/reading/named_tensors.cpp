#include "reading/named_tensors.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::converters {

NamedTensors::NamedTensors(const Source& source, Predicate is_kept)
    : source_(source), is_kept_(std::move(is_kept)) {
  const Catalog& catalog = source.catalog();
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    if (tensor.state != state::kWeights && tensor.state != state::kBuffer) continue;
    const bool stays = is_kept_(tensor);
    if (!stays) candidates_.push_back(i);
    keeps_any_ = keeps_any_ || stays;
    by_name_.emplace(tensor.fqn, i);
  }
  for (const Alias& alias : catalog.aliases) {
    if (const auto target = by_name_.find(alias.target); target != by_name_.end())
      by_name_.emplace(alias.fqn, target->second);
  }
}

std::optional<std::size_t> NamedTensors::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

bool NamedTensors::serves_kept(std::string_view name) const {
  const auto is_kept = [&](std::string_view weight) {
    const auto found = find(weight);
    return found && is_kept_((*this)[*found]);
  };
  for (std::size_t end = name.find_first_of("._"); end != name.npos;
       end = name.find_first_of("._", end + 1)) {
    if (is_kept(name.substr(0, end))) return true;
  }
  return is_kept(fmt::format("{}weight", module_of(name)));
}

std::vector<std::byte> NamedTensors::bytes(std::size_t tensor, std::uint64_t most) const {
  const TensorInfo& info = (*this)[tensor];
  const std::uint64_t size = info.bytes();
  if (size > most) raise_tensor(info, fmt::format("{} bytes, and at most {} are read", size, most));
  std::vector<std::byte> bytes(size);
  source_.read(tensor, {0, info.elements()}, bytes);
  return bytes;
}

std::string_view module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot + 1);
}

std::string without_numbers(std::string_view name) {
  std::string text;
  for (const char letter : name) {
    const bool is_digit = letter >= '0' && letter <= '9';
    if (!is_digit) text += letter;
    if (is_digit && !text.ends_with('#')) text += '#';
  }
  return text;
}

void raise_tensor(const TensorInfo& tensor, std::string_view problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: {}", tensor.label(), problem));
}

void read_floats(const Source& source, std::size_t tensor, ElementRange range,
                 std::span<float> out) {
  const DType dtype = source.catalog().tensors[tensor].dtype;
  std::vector<std::byte> bytes(range.size() * size_of(dtype));
  source.read(tensor, range, bytes);
  convert_elements(dtype, bytes, DType::Float32, std::as_writable_bytes(out));
}

}  // namespace unishard::converters
