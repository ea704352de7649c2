#pragma once
// A checkpoint of any format, being written. Nothing is visible under its final name before
// commit(); the destructor of an uncommitted sink removes what it wrote.
#include "unishard/converters/source.hpp"
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
  /// The pieces in which the sink wants its input: together every element of every stored tensor
  /// once. Call after construction; valid for the sink's life. Indices refer to the catalog that
  /// the sink was made from.
  virtual const std::vector<Fragment>& fragments() const = 0;
  /// Elements `range`, a part of fragments()[fragment]. Thread-safe; each element exactly once; any
  /// order.
  virtual void write(std::size_t fragment, ElementRange range,
                     std::span<const std::byte> bytes) = 0;
  /// Makes the result visible and durable. At most once, after everything was written.
  virtual void commit() = 0;
};

/// Native checkpoint `<folder>/<tag>` with catalog.world_size shards at catalog.stage. Throws
/// AlreadyExists when the tag is there.
std::unique_ptr<Sink> make_native_sink(Storage& storage, Path folder, std::string tag,
                                       Catalog catalog);

struct SafetensorsOptions {
  std::uint64_t max_shard_bytes =
      0;  ///< 0: one file; else a folder with model.safetensors.index.json when needed
  std::vector<std::pair<std::string, std::string>> metadata;  ///< added to __metadata__
};
/// One `.safetensors` file (`output` ends so) or a Hugging Face folder. Tensors are named by their
/// fqn: the catalog must hold one state per fqn. Throws AlreadyExists for an existing file or a
/// non-empty folder.
std::unique_ptr<Sink> make_safetensors_sink(Storage& storage, Path output, Catalog catalog,
                                            SafetensorsOptions options);

/// Streams everything from `source` to `sink`: sink tensor i is source tensor tensor_map[i],
/// converted to the sink's dtype when it differs (float kinds only). Bounded by `options`. Does not
/// commit.
struct CopyPlan {
  const Source* source = nullptr;
  const Catalog* target = nullptr;      ///< the catalog that the sink was made from
  std::vector<std::size_t> tensor_map;  ///< target tensor -> source tensor
};
void copy(const CopyPlan& plan, Sink& sink, const TransferOptions& options);

}  // namespace unishard::converters
