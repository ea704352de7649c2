#include "containers/joined_source.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/error.hpp"

#include "core/embedded_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

namespace unishard::converters {
namespace {

/// Upper bound on the bytes of a box that one step gathers.
constexpr std::uint64_t kGatherBytes = std::uint64_t{2} << 20;
/// Runs of a shard that are shorter are read together with what lies between them, unless that is
/// more than so many times their own bytes.
constexpr std::uint64_t kLongRunBytes = 64 << 10;
constexpr std::uint64_t kGapFactor = 16;

/// Ends the text of one shard in read_parts().
constexpr std::string_view kEndOfShard = "end\n";

template <class T>
void add_to(std::vector<std::byte>& sum, const std::vector<std::byte>& values) {
  for (std::size_t at = 0; at < sum.size(); at += sizeof(T)) {
    T total, value;
    std::memcpy(&total, sum.data() + at, sizeof total);
    std::memcpy(&value, values.data() + at, sizeof value);
    total += value;
    std::memcpy(sum.data() + at, &total, sizeof total);
  }
}

template <class T>
void divide(std::vector<std::byte>& sum, std::size_t count) {
  for (std::size_t at = 0; at < sum.size(); at += sizeof(T)) {
    T total;
    std::memcpy(&total, sum.data() + at, sizeof total);
    total /= static_cast<T>(count);
    std::memcpy(sum.data() + at, &total, sizeof total);
  }
}

class JoinedSource final : public Source {
 public:
  JoinedSource(JoinedCatalog joined, std::vector<std::unique_ptr<Source>> shards,
               const std::string& where)
      : joined_(std::move(joined)), shards_(std::move(shards)), where_(where) {
    validate(joined_.catalog, where);
    for (std::size_t i = 0; i < joined_.tensors.size(); ++i) {
      const TensorInfo& info = joined_.catalog.tensors[i];
      masters_.push_back(i);
      if (joined_.tensors[i].boxes) continue;
      if (info.derived) masters_[i] = joined_.catalog.find(info.fqn, state::kFp32).value_or(i);
      const DType dtype = joined_.catalog.tensors[masters_[i]].dtype;
      if (dtype != DType::Float32 && dtype != DType::Float64) {
        raise(ErrorCode::Unsupported, fmt::format("{}: {}: the mean of {} is not read", where,
                                                  info.label(), name_of(dtype)));
      }
    }
  }

  std::string format() const override { return joined_.format; }
  const Catalog& catalog() const override { return joined_.catalog; }
  Losses own_losses() const override { return joined_.losses; }
  std::vector<std::string> notes() const override { return joined_.notes; }
  Json cut_rules() const override { return joined_.cut_rules; }
  std::vector<std::string> own_remarks() const override { return joined_.remarks; }

  std::vector<StoredRange> stored_ranges(std::size_t tensor) const override {
    const auto& boxes = joined_.tensors.at(tensor).boxes;
    std::vector<StoredRange> ranges;
    for (std::uint32_t shard = 0; shard < shards_.size(); ++shard) {
      const std::size_t number = joined_.tensors[tensor].tensors[shard];
      const std::vector<StoredRange> stored = shards_[shard]->stored_ranges(number);
      if (stored.empty() && shards_[shard]->catalog().tensors[number].elements() > 0) return {};
      if (!boxes) {  // every shard has all of it
        add_ranges(stored, shard, {0, joined_.catalog.tensors[tensor].elements()}, 0, ranges);
        continue;
      }
      for (const SharedBox& box : *boxes) {
        for (const SharedBox::Copy& copy : box.copies) {
          if (copy.shard == shard) add_box(tensor, box, copy, stored, ranges);
        }
      }
    }
    if (ranges.size() > kStoredRanges) return {};
    std::ranges::sort(ranges, {}, [](const StoredRange& r) { return std::pair(r.range, r.rank); });
    return ranges;
  }

  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    returned_ += out.size();
    const std::size_t master = masters_[tensor];
    if (joined_.tensors[tensor].boxes) return read_boxes(tensor, range, out);
    if (master == tensor) return std::ranges::copy(mean_of(tensor, range), out.data()), void();
    convert_elements(joined_.catalog.tensors[master].dtype, mean_of(master, range),
                     joined_.catalog.tensors[tensor].dtype, out);
  }

  InputCheck compare_checksums(const TransferOptions& options,
                               const ReadPeers& peers) const override {
    std::vector<std::vector<std::string>> parts;  // of each process, by shard
    for (const std::string& text : peers.parts) parts.push_back(split_parts(text));
    InputCheck all;
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      ReadPeers of_shard{.share = peers.share};
      for (const auto& process : parts) of_shard.parts.push_back(process[s]);
      all += shards_[s]->verify_reads(options, of_shard);
    }
    // What the shards returned beyond this was read for comparisons, or between runs.
    const std::uint64_t read = all.covered_bytes + all.uncovered_bytes;
    const std::uint64_t returned = std::min<std::uint64_t>(returned_, read);
    all.extra_bytes += read - returned;
    all.uncovered_bytes = std::min(all.uncovered_bytes, returned);
    all.covered_bytes = returned - all.uncovered_bytes;
    return all;
  }

  std::string read_parts() const override {
    std::string text;
    for (const auto& shard : shards_) text.append(shard->read_parts()).append(kEndOfShard);
    return text;
  }

  bool ignore_checksums() override {
    is_checked_ = false;
    return std::ranges::all_of(shards_,
                               [](const auto& shard) { return shard->ignore_checksums(); });
  }

  std::uint64_t check(const TransferOptions& options) const override {
    std::uint64_t checksums = 0;
    for (const auto& shard : shards_) checksums += shard->check(options);
    compare_copies(options);
    return checksums;
  }

 private:
  /// Adds what is stored of a shard's elements from `first` on, which are the whole tensor's
  /// elements `whole`.
  void add_ranges(const std::vector<StoredRange>& stored, std::uint32_t shard, ElementRange whole,
                  std::uint64_t first, std::vector<StoredRange>& out) const {
    for (const StoredRange& range : stored) {
      const ElementRange part = intersect(range.range, {first, first + whole.size()});
      if (part.empty()) continue;
      out.push_back({joined_.rank_of(shard, range.rank, shards_.size()),
                     {whole.begin + (part.begin - first), whole.begin + (part.end - first)}});
    }
  }

  /// Stops where there are too many ranges anyway.
  void add_box(std::size_t tensor, const SharedBox& box, const SharedBox::Copy& copy,
               const std::vector<StoredRange>& stored, std::vector<StoredRange>& out) const {
    const Source& source = *shards_[copy.shard];
    const Shape& shape =
        source.catalog().tensors[joined_.tensors[tensor].tensors[copy.shard]].shape;
    const BoxRuns in_whole(joined_.catalog.tensors[tensor].shape, box.whole);
    const BoxRuns in_shard(shape, {copy.offsets, box.whole.sizes});
    const std::uint64_t all = box.whole.elements();
    const std::uint64_t step = std::min(in_whole.run_elements(), in_shard.run_elements());
    for (std::uint64_t at = 0; at < all && out.size() <= kStoredRanges;) {
      in_whole({at, std::min(at + step, all)}, [&](const Run& whole) {
        in_shard({at, at + whole.count}, [&](const Run& part) {
          const std::uint64_t begin = whole.tensor_first + (part.box_first - at);
          add_ranges(stored, copy.shard, {begin, begin + part.count}, part.tensor_first, out);
        });
        at += whole.count;
      });
    }
  }

  void compare_copies(const TransferOptions& options) const {
    const auto& tensors = joined_.catalog.tensors;
    run_bounded(tensors.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
      const auto& boxes = joined_.tensors[index].boxes;
      const auto has_copies = [](const SharedBox& box) { return box.copies.size() > 1; };
      if (!boxes || std::ranges::none_of(*boxes, has_copies)) return std::uint64_t{0};
      const TensorInfo& tensor = tensors[index];
      const std::uint64_t width = size_of(tensor.dtype), step = buffer.size() / width;
      for (std::uint64_t at = 0; at < tensor.elements(); at += step) {
        const ElementRange range{at, at + std::min(step, tensor.elements() - at)};
        read_boxes(index, range, buffer.first(range.size() * width));
      }
      return tensor.bytes();
    });
  }

  std::vector<std::string> split_parts(std::string_view text) const {
    std::vector<std::string> parts;
    for (std::size_t end = 0; (end = text.find(kEndOfShard)) != text.npos;) {
      parts.emplace_back(text.substr(0, end));
      text.remove_prefix(end + kEndOfShard.size());
    }
    if (parts.size() != shards_.size())
      raise(ErrorCode::Corrupt, "another process read parts of other files");
    return parts;
  }

  void read_boxes(std::size_t tensor, ElementRange range, std::span<std::byte> out) const {
    const TensorInfo& info = joined_.catalog.tensors[tensor];
    const std::uint64_t width = size_of(info.dtype);
    std::vector<std::byte> values, others;
    for (const SharedBox& box : *joined_.tensors[tensor].boxes) {
      ElementRange part{count_before(info.shape, box.whole, range.begin),
                        count_before(info.shape, box.whole, range.end)};
      if (part.empty()) continue;
      const BoxRuns runs(info.shape, box.whole);
      while (!part.empty()) {
        const ElementRange step{part.begin, std::min(part.end, part.begin + kGatherBytes / width)};
        gather(tensor, box, 0, step, values);
        for (std::size_t copy = 1; is_checked_ && copy < box.copies.size(); ++copy) {
          gather(tensor, box, copy, step, others);
          if (others != values) raise_drift(info, box, copy);
        }
        runs(step, [&](const Run& run) {
          std::memcpy(out.data() + (run.tensor_first - range.begin) * width,
                      values.data() + (run.box_first - step.begin) * width, run.count * width);
        });
        part.begin = step.end;
      }
    }
  }

  [[noreturn]] void raise_drift(const TensorInfo& info, const SharedBox& box,
                                std::size_t copy) const {
    raise(
        ErrorCode::Corrupt,
        fmt::format("{}: {}: {} {} and {} have the same part of it with different values", where_,
                    info.label(), joined_.shards_are, box.copies[0].shard, box.copies[copy].shard),
        "the ranks of the run drifted apart, or their files are of two saves; --no-check-input "
        "takes the values of the first");
  }

  /// Returns elements `part` (numbered within the box) of one copy of the box in `values`.
  void gather(std::size_t tensor, const SharedBox& box, std::size_t copy, ElementRange part,
              std::vector<std::byte>& values) const {
    const auto& [shard, offsets] = box.copies[copy];
    const Source& source = *shards_[shard];
    const std::size_t number = joined_.tensors[tensor].tensors[shard];
    const TensorInfo& info = source.catalog().tensors[number];
    const std::uint64_t width = size_of(info.dtype);
    values.resize(part.size() * width);
    const BoxRuns runs(info.shape, {offsets, box.whole.sizes});
    std::vector<std::byte> between;
    ElementRange span;         // of the shard's tensor
    std::vector<Run> waiting;  // the runs in `span`
    std::uint64_t wanted = 0;  // their elements
    const auto flush = [&] {
      if (waiting.empty()) return;
      between.resize(span.size() * width);
      source.read(number, span, between);
      for (const Run& run : waiting) {
        std::memcpy(values.data() + (run.box_first - part.begin) * width,
                    between.data() + (run.tensor_first - span.begin) * width, run.count * width);
      }
      waiting.clear();
    };
    runs(part, [&](const Run& run) {
      const ElementRange here{run.tensor_first, run.tensor_first + run.count};
      if (run.count * width >= kLongRunBytes) {
        flush();
        return source.read(
            number, here,
            std::span(values).subspan((run.box_first - part.begin) * width, run.count * width));
      }
      const std::uint64_t longer = here.end - span.begin;
      if (waiting.empty() || longer * width > kGatherBytes ||
          longer > kGapFactor * (wanted + run.count)) {
        flush();
        span.begin = here.begin;
        wanted = 0;
      }
      span.end = here.end;
      wanted += run.count;
      waiting.push_back(run);
    });
    flush();
  }

  /// Sums in the shards' order and divides, as torch's sum(slices) / len(slices) does.
  std::vector<std::byte> mean_of(std::size_t tensor, ElementRange range) const {
    const DType dtype = joined_.catalog.tensors[tensor].dtype;
    const bool is_wide = dtype == DType::Float64;
    std::vector<std::byte> sum(range.size() * size_of(dtype)), values(sum.size());
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      shards_[s]->read(joined_.tensors[tensor].tensors[s], range, s == 0 ? sum : values);
      if (s > 0) is_wide ? add_to<double>(sum, values) : add_to<float>(sum, values);
    }
    is_wide ? divide<double>(sum, shards_.size()) : divide<float>(sum, shards_.size());
    return sum;
  }

  const JoinedCatalog joined_;
  const std::vector<std::unique_ptr<Source>> shards_;
  const std::string where_;
  std::vector<std::size_t> masters_;  ///< per tensor: itself, or the fp32 tensor it is rounded from
  bool is_checked_ = true;
  mutable std::atomic<std::uint64_t> returned_ = 0;
};

}  // namespace

std::unique_ptr<Source> make_joined_source(JoinedCatalog joined,
                                           std::vector<std::unique_ptr<Source>> shards,
                                           const std::string& where) {
  return std::make_unique<JoinedSource>(std::move(joined), std::move(shards), where);
}

}  // namespace unishard::converters
