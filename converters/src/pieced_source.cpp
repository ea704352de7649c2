#include "pieced_source.hpp"

#include "unishard/converters/convert.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

namespace unishard::converters {
namespace {

[[noreturn]] void raise_range(const std::string& where, const TensorInfo& tensor,
                              ElementRange range, std::string_view problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: {}: elements {} to {} {}", where, tensor.label(),
                                        range.begin, range.end, problem));
}

void check_pieces(const std::string& where, const TensorInfo& tensor,
                  const std::vector<ViewPiece>& pieces) {
  std::uint64_t next = 0;
  for (const ViewPiece& piece : pieces) {
    if (piece.range.begin > next)
      raise_range(where, tensor, {next, piece.range.begin}, "are in no file");
    if (piece.range.begin < next)
      raise_range(where, tensor, {piece.range.begin, next}, "are in two files");
    const std::uint64_t available = piece.view.elements();
    if (piece.first > available || piece.range.size() > available - piece.first)
      raise_range(where, tensor, piece.range, "are not all in their file");
    if (piece.view.dtype != tensor.dtype)
      raise_range(where, tensor, piece.range,
                  fmt::format("are {} in one file and {} in another", name_of(piece.view.dtype),
                              name_of(tensor.dtype)));
    next = piece.range.end;
  }
  if (next != tensor.elements())
    raise_range(where, tensor, {next, tensor.elements()}, "are in no file");
}

class PiecedSource final : public Source {
 public:
  PiecedSource(PiecedCatalog parts, const std::string& where) : parts_(std::move(parts)) {
    const auto& tensors = parts_.catalog.tensors;
    validate(parts_.catalog, where);
    std::unordered_map<std::string_view, std::size_t> fp32;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].state == state::kFp32) fp32.emplace(tensors[i].fqn, i);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].derived) {
        const auto master = fp32.find(tensors[i].fqn);
        if (master == fp32.end())
          raise(ErrorCode::Internal, fmt::format("{}: derived from nothing", tensors[i].label()));
        masters_.push_back(master->second);
        continue;
      }
      masters_.push_back(i);
      auto& pieces = parts_.pieces.at(i);
      std::erase_if(pieces, [](const ViewPiece& piece) { return piece.range.empty(); });
      std::ranges::sort(pieces, {}, [](const ViewPiece& piece) { return piece.range; });
      check_pieces(where, tensors[i], pieces);
    }
  }

  std::string format() const override { return parts_.format; }
  const Catalog& catalog() const override { return parts_.catalog; }
  std::vector<std::string> notes() const override { return parts_.notes; }

  void read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const TensorInfo& info = parts_.catalog.tensors.at(tensor);
    const std::size_t master = masters_[tensor];
    if (master == tensor) return read_pieces(tensor, range, out);
    std::vector<std::byte> wide(range.size() * size_of(DType::Float32));
    read_pieces(master, range, wide);
    convert_elements(DType::Float32, wide, info.dtype, out);
  }

  std::uint64_t check(const TransferOptions& options) const override {
    std::set<const torch::StorageBytes*> distinct;
    for (const auto& pieces : parts_.pieces) {
      for (const ViewPiece& piece : pieces) {
        if (piece.view.storage && piece.view.storage->crc32)
          distinct.insert(piece.view.storage.get());
      }
    }
    const std::vector<const torch::StorageBytes*> storages(distinct.begin(), distinct.end());
    run_bounded(storages.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
      return torch::check_crc32(*storages[index], buffer);
    });
    return storages.size();
  }

 private:
  void read_pieces(std::size_t tensor, ElementRange range, std::span<std::byte> out) const {
    const auto& pieces = parts_.pieces[tensor];
    const std::uint64_t width = size_of(parts_.catalog.tensors[tensor].dtype);
    auto piece = std::ranges::upper_bound(pieces, range.begin, {},
                                          [](const ViewPiece& p) { return p.range.end; });
    for (; piece != pieces.end() && piece->range.begin < range.end; ++piece) {
      const ElementRange part = intersect(piece->range, range);
      const std::uint64_t first = piece->first + (part.begin - piece->range.begin);
      piece->view.read({first, first + part.size()},
                       out.subspan((part.begin - range.begin) * width, part.size() * width));
    }
  }

  PiecedCatalog parts_;
  std::vector<std::size_t> masters_;  ///< per tensor: itself, or the fp32 tensor it is rounded from
};

}  // namespace

std::unique_ptr<Source> make_pieced_source(PiecedCatalog parts, const std::string& where) {
  return std::make_unique<PiecedSource>(std::move(parts), where);
}

}  // namespace unishard::converters
