#pragma once
// One torch.save archive while it is planned: the pickle, its storages, and which elements of which
// tensors they hold.
#include "containers/pickle_writer.hpp"
#include "containers/placed_sink.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Elements `range` of a catalog tensor, at element `at` of a flat vector.
struct FlatPiece {
  std::uint32_t tensor = 0;
  ElementRange range;
  std::uint64_t at = 0;
};

/// Not thread-safe.
class ArchiveDraft {
 public:
  /// Adds to `plan` what the storages hold. The archive becomes number `archive` of its output.
  /// Lifetime: `plan` and `catalog` must outlive this object.
  ArchiveDraft(OutputPlan& plan, const Catalog& catalog, std::size_t archive)
      : plan_(plan), catalog_(catalog), archive_(archive) {}

  PickleWriter pickle;

  /// Writes a whole tensor of the catalog. A second call for the same tensor writes a view of the
  /// same storage.
  void tensor(std::size_t index, DType dtype);
  /// Writes it with its own dtype.
  void tensor(std::size_t index) { tensor(index, catalog_.tensors[index].dtype); }
  /// Writes one number that all of these tensors have, which their bytes must show.
  void number(const std::vector<std::uint32_t>& tensors);
  /// Writes a vector of `length` elements. `pieces` are in order; elements outside all pieces are
  /// zero.
  void flat(DType dtype, std::uint64_t length, const std::vector<FlatPiece>& pieces);
  /// Does the same as flat(), with a shape of `length` elements.
  void shaped(DType dtype, const Shape& shape, const std::vector<FlatPiece>& pieces);
  /// Writes a tensor of shape (0,), by which stage 3 replaces a parameter.
  void placeholder(DType dtype);
  /// Writes a tensor that the catalog does not have.
  void constant(DType dtype, const Shape& shape, std::vector<std::byte> bytes);
  /// Writes a float32 tensor without dimensions.
  void scalar(float value);

  /// Returns the archive, to be added to the output as number `archive`. `file` is a path in the
  /// output's folder, or "". Call it at most once.
  ArchivePlan finish(std::string file, std::string root);
  /// Names the root folder by the file, as torch.save does.
  ArchivePlan finish(std::string file);

 private:
  struct Storage {
    std::size_t number = 0;
    std::uint64_t elements = 0;
  };
  Storage add_storage(DType dtype, std::uint64_t elements);
  void view(const Storage& storage, DType dtype, const Shape& shape);
  void zeros(const Storage& storage, DType dtype, std::uint64_t begin, std::uint64_t end);

  OutputPlan& plan_;
  const Catalog& catalog_;
  const std::size_t archive_;
  std::vector<std::uint64_t> storage_bytes_;
  std::map<std::pair<std::size_t, DType>, Storage> whole_;  // tensors written by tensor()
  std::map<DType, Storage> empty_;
};

}  // namespace unishard::converters::torch
