#include "unishard/converters/source.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace unishard::converters {

void Source::read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const {
  const std::vector<TensorInfo>& tensors = catalog().tensors;
  if (tensor >= tensors.size())
    raise(ErrorCode::InvalidArgument,
          fmt::format("there is no tensor {} of {}", tensor, tensors.size()));
  const TensorInfo& info = tensors[tensor];
  if (range.begin > range.end || range.end > info.elements())
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: elements {} to {} of {} do not exist", info.label(), range.begin,
                      range.end, info.elements()));
  if (out.size() != range.size() * size_of(info.dtype))
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {} elements of {} do not have {} bytes", info.label(), range.size(),
                      name_of(info.dtype), out.size()));
  read_range(tensor, range, out);
}

std::vector<std::string> Source::notes_and_remarks() const {
  std::vector<std::string> out = notes();
  std::ranges::move(remarks(), std::back_inserter(out));
  return out;
}

InputCheck& InputCheck::operator+=(const InputCheck& other) {
  covered_bytes += other.covered_bytes;
  uncovered_bytes += other.uncovered_bytes;
  extra_bytes += other.extra_bytes;
  return *this;
}

}  // namespace unishard::converters
