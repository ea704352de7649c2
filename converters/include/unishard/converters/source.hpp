#pragma once
// A checkpoint of any format, for reading. Tools are written against this interface only.
#include "unishard/converters/work_split.hpp"
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/catalog.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/storage.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters {

/// What is known of the bytes that read() gave since a source was opened.
struct InputCheck {
  std::uint64_t covered_bytes = 0;    ///< compared with a checksum of the input, which was right
  std::uint64_t uncovered_bytes = 0;  ///< the input keeps no checksum of them
  std::uint64_t extra_bytes = 0;      ///< read for the sake of checksums alone, not counted above

  InputCheck& operator+=(const InputCheck& other);
};

/// The other processes of a job that read the same checkpoint.
struct ReadPeers {
  WorkSplit share = {};
  std::vector<std::string> parts = {};  ///< read_parts() of all of them, by rank
};

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
  /// Returns the last element up to `element` (which may be the tensor's end) where a read can
  /// begin without the bytes before it. Callers that read a tensor in parts cut it there.
  virtual std::uint64_t read_boundary(std::size_t /*tensor*/, std::uint64_t element) const {
    return element;
  }
  /// Ends a series of reads: compares what read() gave with the input's checksums, as far as read()
  /// could not do it at once because it was given a part of what a checksum covers. Reads the rest
  /// of such entries. Call it after the last read() and before a result becomes visible; then every
  /// byte is covered by a right checksum or counted as uncovered. Processes that read a part each
  /// call it together, each with all read_parts(): then the rest is read by one of them. Throws
  /// Corrupt naming file, bytes and tensors.
  virtual InputCheck verify_reads(const TransferOptions&, const ReadPeers&) const { return {}; }
  InputCheck verify_reads(const TransferOptions& options) const {
    return verify_reads(options, ReadPeers{});
  }
  /// What the other processes of a job must know of this one's reads.
  virtual std::string read_parts() const { return {}; }
  /// For salvage, before the first read(): checksums of tensor data are not compared from now on.
  /// Returns false where they are all the same. What describes the data (pickles, tables, counters)
  /// is always compared.
  virtual bool ignore_checksums() { return true; }
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
