#pragma once
// A source whose tensors are assembled from pieces of torch storages, for DeepSpeed's flat
// partitions and plain torch.save files.
#include "unishard/converters/replica_names.hpp"
#include "unishard/converters/source.hpp"

#include "containers/tensor_view.hpp"

#include <functional>
#include <string>
#include <vector>

namespace unishard::converters {

/// Elements `range` of a tensor are the elements of `view` from number `first` on.
struct ViewPiece {
  ElementRange range;
  torch::TensorView view;
  std::uint64_t first = 0;
};

struct PiecedCatalog {
  std::string format;
  Catalog catalog;
  /// The pieces of each catalog tensor. A derived tensor has none: it is rounded from its fqn's
  /// fp32.
  std::vector<std::vector<ViewPiece>> pieces;
  std::vector<std::string> notes;         ///< as Source::notes()
  std::vector<std::string> remarks = {};  ///< as Source::remarks()
  Losses losses;
  /// The names are those of an embedded catalog, as unwrap_restored() takes them.
  bool has_own_names = false;
  ModulePart module_part = ModulePart::Replica;  ///< as unwrap_names() takes it
  /// Returns the rank that wrote a file; null when files are not those of ranks.
  std::function<std::uint32_t(const Path&)> rank_of_file = nullptr;
  /// Returns Source::layout(), of the source's catalog; null for none.
  std::function<Json(const Catalog&)> layout = nullptr;
};

/// Returns a thread-safe source. `where` is the checkpoint that messages name.
/// Throws: Corrupt, naming tensor and range, when an element is in no piece or in two, or when a
/// piece exceeds its view.
std::unique_ptr<Source> make_pieced_source(PiecedCatalog parts, const std::string& where);

}  // namespace unishard::converters
