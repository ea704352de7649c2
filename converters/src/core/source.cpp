#include "unishard/converters/source.hpp"

#include "unishard/format/batched_read.hpp"
#include "unishard/format/error.hpp"

#include "core/watched_storage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace unishard::converters {

namespace {

const TensorInfo& tensor_of(const Source& source, std::size_t tensor) {
  const std::vector<TensorInfo>& tensors = source.catalog().tensors;
  if (tensor >= tensors.size())
    raise(ErrorCode::InvalidArgument,
          fmt::format("there is no tensor {} of {}", tensor, tensors.size()));
  return tensors[tensor];
}

void check_size(const TensorInfo& tensor, std::uint64_t elements, std::span<std::byte> out) {
  if (out.size() == elements * size_of(tensor.dtype)) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{}: {} elements of {} do not have {} bytes", tensor.label(), elements,
                    name_of(tensor.dtype), out.size()));
}

}  // namespace

InputCheck Source::verify_reads(const TransferOptions& options, const ReadPeers& peers) const {
  const InputCheck check = compare_checksums(options, peers);
  if (storage_) storage_->require_unchanged();
  return check;
}

void Source::read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const {
  const TensorInfo& info = tensor_of(*this, tensor);
  if (range.begin > range.end || range.end > info.elements())
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: elements {} to {} of {} do not exist", info.label(), range.begin,
                      range.end, info.elements()));
  check_size(info, range.size(), out);
  read_range(tensor, range, out);
}

void Source::read_box(std::size_t tensor, BoxView box, std::span<std::byte> out) const {
  const TensorInfo& info = tensor_of(*this, tensor);
  if (const auto problem = box_problem(info.shape, box))
    raise(ErrorCode::InvalidArgument, fmt::format("{}: {}", info.label(), *problem));
  check_size(info, ElementMap(info.shape, box).elements(), out);
  read_box_range(tensor, box, out);
}

void Source::read_box_range(std::size_t tensor, BoxView box, std::span<std::byte> out) const {
  constexpr std::uint64_t kGapBytes = std::uint64_t{64} << 10;
  const TensorInfo& info = catalog().tensors[tensor];
  const std::uint64_t width = size_of(info.dtype);
  BatchedRead batched(
      width, out,
      [&](std::uint64_t begin, std::span<std::byte> to) {
        read_range(tensor, {begin, begin + to.size() / width}, to);
      },
      [&](std::uint64_t end, std::uint64_t begin) { return (begin - end) * width <= kGapBytes; });
  const ElementMap map(info.shape, box);
  map.each_run({0, map.elements()}, [&](std::uint64_t own, ElementRange run) {
    batched.add({run.begin, own, run.size()});
  });
  batched.flush();
}

Losses Source::losses() const {
  Losses all = own_losses();
  std::erase_if(all, [&](const Loss& loss) {  // named again, with what is wrong
    return std::ranges::any_of(
        beside_, [&](const Loss& other) { return other.is_broken && other.name == loss.name; });
  });
  std::ranges::copy(beside_, std::back_inserter(all));
  return all;
}

void Source::add_losses(const Losses& beside) {
  std::ranges::copy(beside, std::back_inserter(beside_));
}

std::vector<std::string> Source::remarks() const {
  std::vector<std::string> all = own_remarks();
  std::ranges::copy(added_remarks_, std::back_inserter(all));
  return all;
}

void Source::add_remarks(std::vector<std::string> lines) {
  std::ranges::move(lines, std::back_inserter(added_remarks_));
}

std::vector<std::string> Source::notes_and_remarks() const {
  std::vector<std::string> out = lines_of(losses());
  for (std::string& note : notes()) out.push_back(std::move(note));
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
