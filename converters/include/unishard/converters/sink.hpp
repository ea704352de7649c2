#pragma once
// A checkpoint of any format, being written. Nothing is visible under its final name before
// publish(); the destructor of a sink that has not published removes what it wrote.
#include "unishard/converters/source.hpp"
#include "unishard/converters/work_split.hpp"
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/compression.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters {

/// Several processes that share a file system can write one result. Each makes the sink with the
/// same arguments and its own WorkSplit: process 0 first, the others when that is done. Each writes
/// its fragments() and calls seal(); process 0 completes the result with what all seal() returned,
/// and publishes it. Where the result is given up, process 0 must be the last to destroy its sink.
class Sink {
 public:
  virtual ~Sink() = default;
  /// The pieces in which the sink wants its input, of this process's share. All shares together:
  /// every element of every tensor that the format keeps, some of them several times when they have
  /// several places. In the order of the files' bytes where there is one (writing is fastest so).
  /// Call after construction; valid for the sink's life. Indices refer to the catalog that the sink
  /// was made from.
  virtual const std::vector<Fragment>& fragments() const = 0;
  /// Elements `range`, a part of fragments()[fragment]. Thread-safe; each element of each fragment
  /// exactly once; any order.
  virtual void write(std::size_t fragment, ElementRange range,
                     std::span<const std::byte> bytes) = 0;
  /// Makes what this process wrote durable; returns what complete() must know of it. At most once,
  /// after everything was written.
  virtual std::string seal() = 0;
  /// Process 0, at most once, after every seal(): makes the result whole and durable under a name
  /// that nobody takes for a result, and returns that name. open_source_as() reads it there.
  /// `seals`: of all shares, by rank.
  virtual Path complete(std::span<const std::string> seals) = 0;
  /// Process 0, at most once, after complete(): gives the result its name. Throws AlreadyExists
  /// when something has got that name meanwhile; nothing is overwritten.
  virtual void publish() = 0;
  /// complete() and publish().
  void commit(std::span<const std::string> seals) {
    complete(seals);
    publish();
  }
  /// The same, and seal() before them, of a process that writes alone.
  void commit() {
    const std::string sealed = seal();
    commit(std::span(&sealed, 1));
  }
  /// What the catalog holds and the format cannot express, one line each. Known after construction.
  virtual std::vector<std::string> notes() const { return {}; }
};

/// Native checkpoint `<folder>/<tag>` with catalog.world_size shards at catalog.stage. Throws
/// AlreadyExists when the tag is there. A share is whole shards.
std::unique_ptr<Sink> make_native_sink(Storage& storage, const Path& folder, const std::string& tag,
                                       Catalog catalog, const Compression& compression = {},
                                       const WorkSplit& share = {});

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
/// non-empty folder. A share is a run of bytes of the files.
std::unique_ptr<Sink> make_safetensors_sink(Storage& storage, Path output, Catalog catalog,
                                            SafetensorsOptions options,
                                            const WorkSplit& share = {});

struct TorchOptions {
  std::uint64_t max_shard_bytes =
      0;  ///< 0: one file; else a folder with pytorch_model.bin and its index when needed
  SideFiles side_files = {};
};
/// A file for torch.load(weights_only=True, mmap=True). A folder, and a file of a catalog with one
/// state per fqn, hold a state dict; a file of a training state is described in
/// torch/training_layout.hpp. A share is whole files.
std::unique_ptr<Sink> make_torch_sink(Storage& storage, Path output, Catalog catalog,
                                      TorchOptions options, const WorkSplit& share = {});

/// DeepSpeed's ordinary checkpoint `<folder>/<tag>` for catalog.world_size ranks at catalog.stage,
/// and `latest`. Throws AlreadyExists when the tag is there. A share is whole files.
std::unique_ptr<Sink> make_deepspeed_sink(Storage& storage, Path folder, std::string tag,
                                          Catalog catalog, const WorkSplit& share = {});

/// DeepSpeed's universal checkpoint `<folder>/<tag>`, and `latest_universal`. A share is whole
/// files.
std::unique_ptr<Sink> make_deepspeed_universal_sink(Storage& storage, Path folder, std::string tag,
                                                    Catalog catalog, const WorkSplit& share = {});

/// A DCP folder (.metadata, __<rank>_0.distcp): catalog.world_size data files, tensors cut on their
/// first dimension as FSDP2 cuts them. Keys: "model.<fqn>", "optim.state.<fqn>.<state>",
/// "optim.param_groups.<i>.<key>". A share is whole files.
std::unique_ptr<Sink> make_dcp_sink(Storage& storage, Path folder, Catalog catalog,
                                    const WorkSplit& share = {});

/// One HDF5 file with a data set per tensor, under the names of the safetensors sink; "/" in a name
/// makes groups, tied names are hard links. Throws AlreadyExists for an existing file. Process 0
/// writes it alone.
std::unique_ptr<Sink> make_hdf5_sink(Storage& storage, Path output, Catalog catalog,
                                     const WorkSplit& share = {});

struct CopyPlan {
  const Source* source = nullptr;
  const Catalog* target = nullptr;      ///< the catalog that the sink was made from
  std::vector<std::size_t> tensor_map;  ///< target tensor -> source tensor
};
/// CRC-64 of the bytes of a part of a tensor.
struct PartDigest {
  Fragment part;
  std::uint64_t crc64 = 0;
  bool operator==(const PartDigest&) const = default;
};
/// Streams everything from `source` to `sink`: sink tensor i is source tensor tensor_map[i],
/// converted to the sink's dtype when it differs (float kinds only). Bounded by `options`. Neither
/// commits nor calls source->verify_reads(), which comes first. `digests`, where it is not null,
/// receives those of what the sink was given: one per fragment of the sink.
void copy(const CopyPlan& plan, Sink& sink, const TransferOptions& options,
          std::vector<PartDigest>* digests = nullptr);

/// CRC-64 of the bytes of each tensor; none where the parts do not hold all of its elements.
using Digests = std::vector<std::optional<std::uint64_t>>;
/// A tensor may have several chains of parts from its first to its last element: any of them will
/// do.
Digests whole_digests(const Catalog& catalog, std::vector<PartDigest> parts);

}  // namespace unishard::converters
