#pragma once
// A sink that has a placement in a storage of a TorchOutput for each of its fragments. The torch
// and DeepSpeed formats share it and differ only in the plan.
#include "unishard/converters/sink.hpp"
#include "unishard/format/box.hpp"

#include "containers/agreed_number.hpp"
#include "containers/torch_output.hpp"
#include "core/partial_output.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Elements `range` of catalog tensor `tensor` are written to byte `offset` of a storage, as
/// `dtype`.
struct Placement {
  std::uint32_t tensor = 0;
  ElementRange range;
  std::size_t archive = 0, storage = 0;
  std::uint64_t offset = 0;
  DType dtype = DType::Float32;
  /// Null: all of `range`. Else the own elements `own` of a box of the tensor, which lie in
  /// `range`; the elements between them are read and not written.
  std::shared_ptr<const ElementMap> box = nullptr;
  ElementRange own = {};
  /// What all tensors in this place have in common; null for a place of one tensor.
  std::shared_ptr<AgreedNumber> agreed = nullptr;
};

/// Everything that a sink decides before the first byte is written.
struct OutputPlan {
  std::vector<Placement> placements;  ///< an element may be placed several times
  /// Bytes that belong to no tensor. seal() writes them before the headers.
  struct Constant {
    std::size_t archive = 0, storage = 0;
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
    std::uint64_t zeros = 0;  ///< number of zero bytes that follow `bytes`
  };
  std::vector<Constant> constants;
  std::vector<std::string> notes;          ///< what the format cannot express
  std::vector<std::string> remarks = {};   ///< as Sink::remarks()
  std::vector<std::size_t> left_out = {};  ///< as Sink::left_out()
};

/// The file that names the newest checkpoint of a folder.
struct LatestFile {
  Storage* storage;
  Path path;
  std::string text;
};

/// How the result of a PlacedSink is completed and published. The files beside it are written once
/// it has its name, and before `latest` moves.
struct Ending {
  std::shared_ptr<PartialOutput> partial;
  std::function<void()> complete = {};    ///< writes the files beside the archives; may be empty
  std::function<void()> beside = {};      ///< writes files beside the result; may be empty
  std::optional<LatestFile> latest = {};  ///< replaced once the result has its name
};

class PlacedSink final : public Sink {
 public:
  /// Work is split by whole files. A sink that is destroyed without publish() destroys `output`
  /// first, then `ending`, whose PartialOutput removes the files.
  PlacedSink(Catalog catalog, OutputPlan plan, Ending ending, std::unique_ptr<TorchOutput> output,
             const WorkSplit& share);

  const std::vector<Fragment>& fragments() const override { return fragments_; }
  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) override;
  std::string seal() override;
  Path complete(std::span<const std::string> seals) override;
  void publish() override;
  std::vector<std::string> notes() const override { return plan_.notes; }
  std::vector<std::string> remarks() const override { return plan_.remarks; }
  std::vector<std::size_t> left_out() const override { return plan_.left_out; }

 private:
  void write_box(const Placement& place, ElementRange range, std::span<const std::byte> bytes);
  /// Writes consecutive elements of the tensor's type to byte `offset` of the storage.
  void store(const Placement& place, std::uint64_t offset, std::span<const std::byte> bytes);

  const Catalog catalog_;
  OutputPlan plan_;
  std::vector<Fragment> fragments_;
  Ending ending_;
  /// The files of this process.
  std::unique_ptr<TorchOutput> output_;
};

}  // namespace unishard::converters::torch
