#pragma once
// A checkpoint of any format, being written. Nothing is visible under its final name before
// commit(); the destructor of an uncommitted sink removes what it wrote.
#include "unishard/converters/source.hpp"
#include "unishard/format/compression.hpp"
#include "unishard/format/transfer.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters {

class Sink {
 public:
  virtual ~Sink() = default;
  /// The pieces in which the sink wants its input: together every element of every tensor that the
  /// format keeps, some of them several times when they have several places, in the order of the
  /// files' bytes where there is one (writing is fastest so). Call after
  /// construction; valid for the sink's life. Indices refer to the catalog that the sink was made
  /// from.
  virtual const std::vector<Fragment>& fragments() const = 0;
  /// Elements `range`, a part of fragments()[fragment]. Thread-safe; each element of each fragment
  /// exactly once; any order.
  virtual void write(std::size_t fragment, ElementRange range,
                     std::span<const std::byte> bytes) = 0;
  /// Makes the result visible and durable. At most once, after everything was written.
  virtual void commit() = 0;
  /// What the catalog holds and the format cannot express, one line each. Known after construction.
  virtual std::vector<std::string> notes() const { return {}; }
};

/// Native checkpoint `<folder>/<tag>` with catalog.world_size shards at catalog.stage. Throws
/// AlreadyExists when the tag is there.
std::unique_ptr<Sink> make_native_sink(Storage& storage, Path folder, std::string tag,
                                       Catalog catalog, const Compression& compression = {});

/// Small files that go into a model folder as they are: name, content.
using SideFiles = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsOptions {
  std::uint64_t max_shard_bytes =
      0;  ///< 0: one file; else a folder with model.safetensors.index.json when needed
  std::vector<std::pair<std::string, std::string>> metadata;  ///< added to __metadata__
  SideFiles side_files = {};
};
/// One `.safetensors` file (`output` ends so) or a Hugging Face folder. Tensors are named by their
/// fqn: the catalog must hold one state per fqn. Throws AlreadyExists for an existing file or a
/// non-empty folder.
std::unique_ptr<Sink> make_safetensors_sink(Storage& storage, Path output, Catalog catalog,
                                            SafetensorsOptions options);

struct TorchOptions {
  std::uint64_t max_shard_bytes =
      0;  ///< 0: one file; else a folder with pytorch_model.bin and its index when needed
  SideFiles side_files = {};
};
/// A file for torch.load(weights_only=True, mmap=True). A folder, and a file of a catalog with one
/// state per fqn, hold a state dict; a file of a training state is described in
/// torch/training_layout.hpp.
std::unique_ptr<Sink> make_torch_sink(Storage& storage, Path output, Catalog catalog,
                                      TorchOptions options);

/// DeepSpeed's ordinary checkpoint `<folder>/<tag>` for catalog.world_size ranks at catalog.stage,
/// and `latest`. Throws AlreadyExists when the tag is there.
std::unique_ptr<Sink> make_deepspeed_sink(Storage& storage, Path folder, std::string tag,
                                          Catalog catalog);

/// DeepSpeed's universal checkpoint `<folder>/<tag>`, and `latest_universal`.
std::unique_ptr<Sink> make_deepspeed_universal_sink(Storage& storage, Path folder, std::string tag,
                                                    Catalog catalog);

/// A DCP folder (.metadata, __<rank>_0.distcp): catalog.world_size data files, tensors cut on their
/// first dimension as FSDP2 cuts them. Keys: "model.<fqn>", "optim.state.<fqn>.<state>",
/// "optim.param_groups.<i>.<key>".
std::unique_ptr<Sink> make_dcp_sink(Storage& storage, Path folder, Catalog catalog);

/// One HDF5 file with a data set per tensor, under the names of the safetensors sink; "/" in a name
/// makes groups, tied names are hard links. Throws AlreadyExists for an existing file.
std::unique_ptr<Sink> make_hdf5_sink(Storage& storage, Path output, Catalog catalog);

struct CopyPlan {
  const Source* source = nullptr;
  const Catalog* target = nullptr;      ///< the catalog that the sink was made from
  std::vector<std::size_t> tensor_map;  ///< target tensor -> source tensor
};
/// CRC-64 of the bytes of each target tensor; none where the sink did not want all of its elements.
using Digests = std::vector<std::optional<std::uint64_t>>;
/// Streams everything from `source` to `sink`: sink tensor i is source tensor tensor_map[i],
/// converted to the sink's dtype when it differs (float kinds only). Bounded by `options`. Does not
/// commit. `digests`, where it is not null, receives those of what the sink was given.
void copy(const CopyPlan& plan, Sink& sink, const TransferOptions& options,
          Digests* digests = nullptr);

}  // namespace unishard::converters
