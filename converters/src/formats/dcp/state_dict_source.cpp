#include "formats/dcp/state_dict_source.hpp"

#include "unishard/format/error.hpp"

#include "containers/entry_verification.hpp"
#include "core/embedded_catalog.hpp"
#include "core/read_counts.hpp"
#include "formats/dcp/state_dict_to_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace unishard::converters::dcp {
namespace {

class StateDictSource final : public Source {
 public:
  StateDictSource(std::string format, StateDict state, const std::string& where)
      : format_(std::move(format)), state_(std::move(state)), arrangement_(arrange(state_, where)) {
    drop_unreadable(arrangement_.catalog, arrangement_.losses);
    validate(arrangement_.catalog, where);
    if (state_.part_of) set_part_of(*state_.part_of);
  }

  std::string format() const override { return format_; }
  const Catalog& catalog() const override { return arrangement_.catalog; }
  Losses own_losses() const override { return arrangement_.losses; }
  std::vector<std::string> notes() const override { return arrangement_.notes; }
  std::vector<std::string> own_remarks() const override { return arrangement_.remarks; }
  std::vector<std::string> remarks_on_states() const override {
    return arrangement_.remarks_on_states;
  }
  Json layout() const override {
    return state_.layout ? state_.layout(state_, arrangement_) : Json();
  }

  std::vector<StoredRange> stored_ranges(std::size_t tensor) const override {
    const TensorEntry& entry = state_.tensors[arrangement_.entries.at(tensor)];
    std::vector<StoredRange> ranges;
    for (const Chunk& chunk : entry.chunks) {
      const auto rank = rank_of_file(state_.items->file(chunk.item));
      if (!rank) return {};
      const BoxRuns runs(entry.shape, chunk.box);
      const std::uint64_t elements = chunk.box.elements();
      if (elements / runs.run_elements() > kStoredRanges - ranges.size()) return {};
      runs({0, elements}, [&](const Run& run) {
        ranges.push_back({*rank, {run.tensor_first, run.tensor_first + run.count}});
      });
    }
    std::ranges::sort(ranges, {}, [](const StoredRange& stored) { return stored.range; });
    return ranges;
  }

  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const std::uint64_t covered =
        read_elements(state_.tensors[arrangement_.entries.at(tensor)], *state_.items, range, out);
    counts_.add(true, covered);
    counts_.add(false, out.size() - covered);
  }

  InputCheck compare_checksums(const TransferOptions& options,
                               const ReadPeers& peers) const override {
    if (!is_checked_) return {};
    std::map<std::uint64_t, StoredItem> items;
    for (const StoredItem& item : stored_items()) items.emplace(item.number, item);
    const auto open = [&](std::uint64_t number) {
      // The item of a flat parameter, which no tensor names: its parts have items of their own.
      if (const auto* view = state_.items->at_hand(static_cast<std::uint32_t>(number)))
        return view->storage;
      const auto item = items.find(number);
      if (item == items.end())
        raise(ErrorCode::Corrupt, "another process read parts of other files");
      return open_storage(item->second);
    };
    std::uint64_t extra = 0;
    naming([&] {
      extra = torch::verify_entries({.touched = state_.items->touched(),
                                     .entries = state_.items->count(),
                                     .peers = &peers,
                                     .open = open},
                                    options);
    });
    return counts_.result(extra);
  }
  std::string read_parts() const override { return torch::encode_parts(state_.items->touched()); }

  bool ignore_checksums() override {
    is_checked_ = false;
    state_.items->ignore_checksums();
    return true;
  }

  std::uint64_t check(const TransferOptions& options) const override {
    const std::vector<StoredItem> items = stored_items();
    std::atomic<std::uint64_t> checksums = 0;
    run_bounded(items.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
      const auto storage = open_storage(items[index]);
      if (!storage || !storage->checksum) return std::uint64_t{0};
      ++checksums;
      naming([&] { torch::complete_checksum(*storage, buffer); });
      return storage->size();
    });
    return checksums;
  }

 private:
  struct StoredItem {
    std::uint32_t number = 0;
    std::uint64_t bytes = 0;  ///< of its tensor
    const TensorEntry* tensor = nullptr;
  };

  /// One entry for each storage: parts of a flat parameter lie in the same one.
  std::vector<StoredItem> stored_items() const {
    std::vector<StoredItem> items;
    std::set<const torch::StorageBytes*> known;
    for (const TensorEntry& tensor : state_.tensors) {
      for (const Chunk& chunk : tensor.chunks) {
        const torch::TensorView* const view = state_.items->at_hand(chunk.item);
        if (view == nullptr || known.insert(view->storage.get()).second)
          items.push_back({chunk.item, chunk.box.elements() * size_of(tensor.dtype), &tensor});
      }
    }
    return items;
  }

  /// Runs `body`. Adds the name of the tensor to the error of a damaged entry.
  template <class Body>
  void naming(const Body& body) const {
    try {
      body();
    } catch (const torch::DamagedEntry& error) {
      for (const StoredItem& item : stored_items()) {
        const auto storage = open_storage(item);
        if (storage && storage->checksum.get() == error.entry())
          throw error.with_context(fmt::format("tensor {}: ", unishard::quote(item.tensor->key)));
      }
      throw;
    }
  }

  std::shared_ptr<const torch::StorageBytes> open_storage(const StoredItem& item) const {
    return state_.items->tensor(item.number, item.bytes)->storage;
  }

  const std::string format_;
  const StateDict state_;
  Arrangement arrangement_;
  bool is_checked_ = true;
  mutable ReadCounts counts_;
};

}  // namespace

std::unique_ptr<Source> make_state_dict_source(std::string format, StateDict state,
                                               const std::string& where) {
  return std::make_unique<StateDictSource>(std::move(format), std::move(state), where);
}

}  // namespace unishard::converters::dcp
