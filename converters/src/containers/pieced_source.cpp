#include "containers/pieced_source.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/error.hpp"

#include "containers/entry_verification.hpp"
#include "core/embedded_catalog.hpp"
#include "core/read_counts.hpp"
#include "core/wrapped_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

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
    drop_unreadable(parts_.catalog, parts_.losses);
    const std::string library = parts_.format.substr(0, parts_.format.find('-'));
    parts_.has_own_names ? unwrap_restored(parts_.catalog, library)
                         : unwrap_names(parts_.catalog, library, parts_.module_part);
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
    find_entries();
  }

  std::string format() const override { return parts_.format; }
  const Catalog& catalog() const override { return parts_.catalog; }
  Json layout() const override { return parts_.layout ? parts_.layout(parts_.catalog) : Json(); }
  Losses own_losses() const override { return parts_.losses; }
  std::vector<std::string> notes() const override { return parts_.notes; }
  std::vector<std::string> own_remarks() const override { return parts_.remarks; }

  std::vector<StoredRange> stored_ranges(std::size_t tensor) const override {
    const auto& pieces = parts_.pieces[masters_.at(tensor)];
    if (parts_.rank_of_file == nullptr || pieces.size() > kStoredRanges) return {};
    std::vector<StoredRange> ranges;
    for (const ViewPiece& piece : pieces) {
      if (piece.view.storage && piece.view.storage->window.file)
        ranges.push_back(
            {parts_.rank_of_file(piece.view.storage->window.file->path()), piece.range});
    }
    return ranges;
  }

  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const TensorInfo& info = parts_.catalog.tensors.at(tensor);
    const std::size_t master = masters_[tensor];
    if (master == tensor) return naming([&] { read_pieces(tensor, range, out); });
    std::vector<std::byte> wide(range.size() * size_of(DType::Float32));
    naming([&] { read_pieces(master, range, wide); });
    convert_elements(DType::Float32, wide, info.dtype, out);
  }

  InputCheck compare_checksums(const TransferOptions& options,
                               const ReadPeers& peers) const override {
    std::uint64_t extra = 0;
    naming([&] {
      extra =
          torch::verify_entries({.touched = touched(),
                                 .entries = entries_.size(),
                                 .peers = &peers,
                                 .open = [&](std::uint64_t number) { return entries_[number]; }},
                                options);
    });
    return counts_.result(extra);
  }
  std::string read_parts() const override { return torch::encode_parts(touched()); }

  bool ignore_checksums() override {
    is_checked_ = false;
    for (const auto& entry : entries_) entry->checksum->ignore();
    return true;
  }

  std::uint64_t check(const TransferOptions& options) const override {
    naming([&] {
      run_bounded(entries_.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
        torch::complete_checksum(*entries_[index], buffer);
        return entries_[index]->size();
      });
    });
    return entries_.size();
  }
  bool is_in_order(std::size_t tensor) const override {
    return std::ranges::none_of(parts_.pieces[masters_.at(tensor)], [](const ViewPiece& piece) {
      const auto& storage = piece.view.storage;
      return !piece.view.contiguous() && storage && storage->checksum && !storage->inflated;
    });
  }

 private:
  /// Collects the storages that have a checksum, in the order of the catalog's tensors.
  void find_entries() {
    std::unordered_set<const torch::StorageBytes*> known;
    for (const auto& pieces : parts_.pieces) {
      for (const ViewPiece& piece : pieces) {
        const auto& storage = piece.view.storage;
        if (storage && storage->checksum && known.insert(storage.get()).second)
          entries_.push_back(storage);
      }
    }
  }

  torch::TouchedEntries touched() const {
    torch::TouchedEntries touched;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i]->checksum->is_touched()) touched.emplace_back(i, entries_[i]->checksum.get());
    }
    return touched;
  }

  /// Returns, for example, "a (fp32), b (fp32) and 3 more".
  std::string tensors_in(const torch::EntryChecksum* entry) const {
    constexpr std::size_t kNamed = 3;
    std::vector<std::string> names;
    std::size_t count = 0;
    for (std::size_t i = 0; i < parts_.pieces.size(); ++i) {
      const bool is_in = std::ranges::any_of(parts_.pieces[i], [&](const ViewPiece& piece) {
        return piece.view.storage && piece.view.storage->checksum.get() == entry;
      });
      if (is_in && count++ < kNamed) names.push_back(parts_.catalog.tensors[i].label());
    }
    const std::string text = fmt::format("{}", fmt::join(names, ", "));
    return count > names.size() ? fmt::format("{} and {} more", text, count - names.size()) : text;
  }

  /// Runs `body`. Adds the names of the affected tensors to the error of a damaged entry.
  template <class Body>
  void naming(const Body& body) const {
    try {
      body();
    } catch (const torch::DamagedEntry& error) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}; they hold {}", error.what(), tensors_in(error.entry())), error.hint());
    }
  }

  void read_pieces(std::size_t tensor, ElementRange range, std::span<std::byte> out) const {
    const auto& pieces = parts_.pieces[tensor];
    const std::uint64_t width = size_of(parts_.catalog.tensors[tensor].dtype);
    auto piece = std::ranges::upper_bound(pieces, range.begin, {},
                                          [](const ViewPiece& p) { return p.range.end; });
    for (; piece != pieces.end() && piece->range.begin < range.end; ++piece) {
      const ElementRange part = intersect(piece->range, range);
      const std::uint64_t first = piece->first + (part.begin - piece->range.begin);
      if (is_checked_)
        counts_.add(piece->view.storage && piece->view.storage->checksum, part.size() * width);
      piece->view.read({first, first + part.size()},
                       out.subspan((part.begin - range.begin) * width, part.size() * width));
    }
  }

  PiecedCatalog parts_;
  std::vector<std::shared_ptr<const torch::StorageBytes>> entries_;
  bool is_checked_ = true;
  mutable ReadCounts counts_;
  std::vector<std::size_t> masters_;  ///< per tensor: itself, or the fp32 tensor it is rounded from
};

}  // namespace

std::unique_ptr<Source> make_pieced_source(PiecedCatalog parts, const std::string& where) {
  return std::make_unique<PiecedSource>(std::move(parts), where);
}

}  // namespace unishard::converters
