#include "state/file_copies.hpp"

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

constexpr std::uint64_t kCopyBytes = std::uint64_t{8} << 20;

/// Calls visit(piece of the tensor, its first byte). Pieces of a file's first bytes end where its
/// blocks do, so that these are read and written in place.
template <class Visit>
void visit_parts_of(const at::Tensor& tensor, std::uint64_t block_bytes, const Visit& visit) {
  const std::uint64_t piece = std::max(kCopyBytes / block_bytes, std::uint64_t{1}) * block_bytes;
  const auto most = static_cast<std::int64_t>(piece / tensor.itemsize());
  for (std::int64_t begin = 0; begin < tensor.numel(); begin += most)
    visit(tensor.narrow(0, begin, std::min(most, tensor.numel() - begin)),
          static_cast<std::uint64_t>(begin) * tensor.itemsize());
}

}  // namespace

void FileCopies::read(const FileArray& from, const at::Tensor& to) {
  const std::lock_guard lock(mutex_);
  visit_parts_of(to, from.file().block_bytes(), [&](const at::Tensor& piece, std::uint64_t begin) {
    from.read(begin, turns_.next(piece.nbytes()));
    turns_.send(piece);
  });
}

void FileCopies::write(FileArray& to, std::uint64_t offset, const at::Tensor& from) {
  const std::lock_guard lock(mutex_);
  visit_parts_of(from, to.file().block_bytes(), [&](const at::Tensor& piece, std::uint64_t begin) {
    turns_.next(piece.nbytes());
    to.write(offset + begin, turns_.bring(piece));
  });
}

}  // namespace unishard::trainer::detail
