#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "dcp/arrange.hpp"
#include "dcp/dcp.hpp"
#include "dcp/folders.hpp"

#include <fmt/format.h>

#include <atomic>
#include <set>
#include <vector>

namespace unishard::converters {
namespace {

class DcpSource final : public Source {
 public:
  DcpSource(dcp::StateDict state, const std::string& where)
      : state_(std::move(state)), arrangement_(dcp::arrange(state_, where)) {
    validate(arrangement_.catalog, where);
  }

  std::string format() const override { return "dcp"; }
  const Catalog& catalog() const override { return arrangement_.catalog; }
  std::vector<std::string> notes() const override { return arrangement_.notes; }

  void read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    read_elements(state_.tensors[arrangement_.entries.at(tensor)], *state_.items, range, out);
  }

  std::uint64_t check(const TransferOptions& options) const override {
    const std::vector<StoredItem> items = stored_items();
    std::atomic<std::uint64_t> checksums = 0;
    run_bounded(items.size(), options,
                [&](std::size_t index, std::span<std::byte> buffer) -> std::uint64_t {
                  const auto view = state_.items->tensor(items[index].number, items[index].bytes);
                  if (!view->storage || !view->storage->crc32) return 0;
                  ++checksums;
                  return torch::check_crc32(*view->storage, buffer);
                });
    return checksums;
  }

 private:
  struct StoredItem {
    std::uint32_t number = 0;
    std::uint64_t bytes = 0;  ///< of its tensor
  };

  /// One for each storage: parts of a flat parameter lie in the same.
  std::vector<StoredItem> stored_items() const {
    std::vector<StoredItem> items;
    std::set<const torch::StorageBytes*> known;
    for (const dcp::TensorEntry& tensor : state_.tensors) {
      for (const dcp::Chunk& chunk : tensor.chunks) {
        const torch::TensorView* const view = state_.items->at_hand(chunk.item);
        if (view == nullptr || known.insert(view->storage.get()).second)
          items.push_back({chunk.item, chunk.box.elements() * size_of(tensor.dtype)});
      }
    }
    return items;
  }

  const dcp::StateDict state_;
  const dcp::Arrangement arrangement_;
};

}  // namespace

bool is_dcp(Storage& storage, const Path& path) {
  try {
    return dcp::find_layout(storage, path) != dcp::Layout::None;
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Source> open_dcp(Storage& storage, const Path& path) {
  return std::make_unique<DcpSource>(dcp::read_state_dict(storage, path), path.string());
}

}  // namespace unishard::converters
