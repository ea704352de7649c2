#pragma once
// One torch.save archive while it is planned: the pickle, its storages, and which elements of which
// tensors they hold.
#include "containers/pickle_writer.hpp"
#include "containers/placed_sink.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed_sink {

/// Elements `range` of a catalog tensor, at element `at` of a flat vector.
struct FlatPiece {
  std::uint32_t tensor = 0;
  ElementRange range;
  std::uint64_t at = 0;
};

/// All archives of one output.
struct OutputDraft {
  torch::OutputPlan plan;
  std::vector<torch::ArchivePlan> archives;
};

/// Not thread-safe. Only one draft of an OutputDraft may be unfinished.
class ArchiveDraft {
 public:
  /// finish() adds the archive to `draft`.
  /// Lifetime: `draft` and `catalog` must outlive this object.
  ArchiveDraft(OutputDraft& draft, const Catalog& catalog);

  torch::PickleWriter pickle;

  /// Writes a whole tensor of the catalog. A second call for the same tensor writes a view of the
  /// same storage.
  void tensor(std::uint32_t index, DType dtype);
  /// Writes a vector of `length` elements. `pieces` are in order; elements outside all pieces are
  /// zero.
  void flat(DType dtype, std::uint64_t length, const std::vector<FlatPiece>& pieces);
  /// Does the same as flat(), with a shape of `length` elements.
  void shaped(DType dtype, const Shape& shape, const std::vector<FlatPiece>& pieces);
  /// Writes a tensor of shape (0,), by which stage 3 replaces a parameter.
  void placeholder(DType dtype);
  /// Writes a float32 tensor without dimensions.
  void scalar(float value);

  /// Completes the archive as `file`, a path in the output folder.
  void finish(std::string file);

 private:
  struct Storage {
    std::size_t number = 0;
    std::uint64_t elements = 0;
  };
  Storage add_storage(DType dtype, std::uint64_t elements);
  void view(const Storage& storage, DType dtype, const Shape& shape);
  void zeros(const Storage& storage, DType dtype, std::uint64_t begin, std::uint64_t end);

  OutputDraft& draft_;
  const Catalog& catalog_;
  const std::size_t archive_;
  std::vector<std::uint64_t> storage_bytes_;
  std::map<std::pair<std::uint32_t, DType>, Storage> whole_;  // tensors written by tensor()
  std::map<DType, Storage> empty_;
};

}  // namespace unishard::converters::deepspeed_sink
