#pragma once
// A sink whose every fragment has a place in a storage of a TorchOutput. What the formats of torch
// and DeepSpeed have in common; they differ in the plan.
#include "unishard/converters/sink.hpp"

#include "containers/torch_output.hpp"
#include "core/partial_output.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Elements `range` of catalog tensor `tensor` go to byte `offset` of a storage, as `dtype`.
struct Placement {
  std::uint32_t tensor = 0;
  ElementRange range;
  std::size_t archive = 0, storage = 0;
  std::uint64_t offset = 0;
  DType dtype = DType::Float32;
};

/// Everything that a sink needs to know before the first byte.
struct OutputPlan {
  std::vector<Placement> placements;  ///< an element may be placed several times
  /// Bytes that are no tensor's: written by seal() before the headers.
  struct Constant {
    std::size_t archive = 0, storage = 0;
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
    std::uint64_t zeros = 0;  ///< that many zero bytes follow `bytes`
  };
  std::vector<Constant> constants;
  std::vector<std::string> notes;  ///< what the format cannot express
};

/// The file that names the newest checkpoint of a folder.
struct LatestFile {
  Storage* storage;
  Path path;
  std::string text;
};

/// How a PlacedSink's result becomes whole and visible.
struct Ending {
  std::shared_ptr<PartialOutput> partial;
  std::function<void()> complete = {};    ///< writes what lies beside the archives; may be empty
  std::optional<LatestFile> latest = {};  ///< is replaced once the result has its name
};

class PlacedSink final : public Sink {
 public:
  /// Destroyed without publish(), the sink drops `output` first, then `ending`, whose PartialOutput
  /// removes the files. Of several processes each writes whole files.
  PlacedSink(Catalog catalog, OutputPlan plan, Ending ending, std::unique_ptr<TorchOutput> output,
             const WorkSplit& share);

  const std::vector<Fragment>& fragments() const override { return fragments_; }
  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) override;
  std::string seal() override;
  Path complete(std::span<const std::string> seals) override;
  void publish() override;
  std::vector<std::string> notes() const override { return plan_.notes; }

 private:
  const Catalog catalog_;
  OutputPlan plan_;
  std::vector<Fragment> fragments_;
  Ending ending_;
  std::unique_ptr<TorchOutput> output_;  ///< of the files that are this process's
};

}  // namespace unishard::converters::torch
