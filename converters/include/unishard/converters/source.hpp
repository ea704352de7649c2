#pragma once
// A checkpoint of any format, for reading. Tools are written against this interface only.
#include "unishard/format/catalog.hpp"
#include "unishard/format/checkpoint.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/format/transfer.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters {

/// Thread-safe: read() may be called from several threads at once.
class Source {
 public:
  virtual ~Source() = default;
  /// "native", "safetensors", ...: a name of registry.hpp.
  virtual std::string format() const = 0;
  /// Tensors, their order and everything else but the bytes. crc64 is set where the format stores
  /// digests.
  virtual const Catalog& catalog() const = 0;
  /// Elements `range` of catalog().tensors[tensor] into `out`, which has exactly their bytes.
  /// Bounded memory. Throws Corrupt naming file, tensor and byte when a stored checksum does not
  /// match.
  virtual void read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const = 0;
  /// The last element up to `element` (which may be the tensor's end) where a read can begin
  /// without the bytes before it, for who cuts a tensor into several reads.
  virtual std::uint64_t read_boundary(std::size_t /*tensor*/, std::uint64_t element) const {
    return element;
  }
  /// Reads everything that the format keeps checksums of and compares; returns how many checksums
  /// there are. Throws Corrupt naming file and place at the first that is wrong.
  virtual std::uint64_t check(const TransferOptions&) const { return 0; }
  /// What the files hold and catalog() cannot say, one line each: "x: a sparse tensor".
  virtual std::vector<std::string> notes() const { return {}; }
};

/// What a path is.
struct Probe {
  std::string format;   ///< empty when nothing known was recognised
  std::string problem;  ///< then: why, and what was expected
};
Probe probe(Storage& storage, const Path& path);

/// Opens any known format. `tag` chooses one checkpoint of a folder of many. Throws NotFound or
/// Unsupported with probe()'s explanation.
std::unique_ptr<Source> open_source(Storage& storage, const Path& path,
                                    const std::optional<std::string>& tag = {});

/// A checkpoint that is open already.
std::unique_ptr<Source> make_native_source(std::shared_ptr<const CheckpointReader> reader);

/// Opens `path` as a checkpoint of `format`, a name of registry.hpp, whatever its name looks like:
/// one checkpoint's folder or file, as Sink::complete() returns it.
std::unique_ptr<Source> open_source_as(Storage& storage, std::string_view format, const Path& path);

}  // namespace unishard::converters
