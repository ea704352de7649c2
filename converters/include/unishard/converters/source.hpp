#pragma once
// A checkpoint of any format, open for reading. The tools use this interface only.
#include "unishard/converters/loss.hpp"
#include "unishard/converters/work_split.hpp"
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/catalog.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters {

/// Counts the bytes that read() has returned since a source was opened.
struct InputCheck {
  std::uint64_t covered_bytes = 0;  ///< bytes whose checksum in the input was compared and correct
  std::uint64_t uncovered_bytes = 0;  ///< bytes without a checksum in the input
  std::uint64_t extra_bytes = 0;      ///< bytes read only to compare checksums; not counted above

  InputCheck& operator+=(const InputCheck& other);
};

class WatchedStorage;

/// The processes of a job that read the same checkpoint.
struct ReadPeers {
  WorkSplit share = {};
  std::vector<std::string> parts = {};  ///< read_parts() of all processes, by rank
};

/// Elements of a tensor that the file of one rank holds.
struct StoredRange {
  std::uint32_t rank = 0;
  ElementRange range;
};

/// Upper bound on the ranges of one tensor that Source::stored_ranges() lists.
inline constexpr std::size_t kStoredRanges = 4096;

/// Thread safety: read() is thread-safe; ignore_checksums() and verify_reads() must not run beside
/// read().
class Source {
 public:
  virtual ~Source() = default;
  /// Returns a name of registry.hpp: "native", "safetensors", ...
  virtual std::string format() const = 0;
  /// Returns everything except the bytes. `crc64` is set when the format stores digests.
  virtual const Catalog& catalog() const = 0;
  /// Reads elements `range` of catalog().tensors[tensor] into `out`, which has exactly their size.
  /// Takes bounded memory. Thread-safe.
  /// Throws: InvalidArgument when the tensor has no such elements or `out` has another size;
  /// Corrupt, naming file, tensor and byte, when a stored checksum does not match.
  void read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const;
  /// Reads the elements of a box, row-major, in the same way.
  void read_box(std::size_t tensor, BoxView box, std::span<std::byte> out) const;
  /// Returns the last element, at most `element` (which may be the tensor's end), at which a read
  /// can begin without reading the bytes before it. A caller that reads a tensor in parts splits it
  /// at such elements.
  virtual std::uint64_t read_boundary(std::size_t /*tensor*/, std::uint64_t element) const {
    return element;
  }
  /// Ends a series of reads. Compares the checksums that read() could not compare because it read
  /// only a part of the bytes that they cover; reads the rest of those bytes. Afterwards every byte
  /// is covered by a correct checksum or counted as uncovered. When several processes read one part
  /// each, all call this function with the read_parts() of all, and each missing range is read by
  /// one of them.
  /// Pre: called after the last read() and before a result is published.
  /// Throws: Corrupt, naming file, bytes and tensors; Busy, naming the file, when another program
  /// has written into a file of the checkpoint since it was opened (not for UniShard's own).
  InputCheck verify_reads(const TransferOptions& options, const ReadPeers& peers = {}) const;
  /// Returns what verify_reads() of the other processes must know about this one's reads.
  virtual std::string read_parts() const { return {}; }
  /// Stops comparing the checksums of tensor data, for salvage. Returns false when the format
  /// compares them all the same. Descriptions of the data (pickles, tables, counters) are always
  /// checked.
  /// Pre: called before the first read().
  virtual bool ignore_checksums() { return true; }
  /// Reads everything that has a checksum in this format and compares it. Returns the number of
  /// checksums.
  /// Throws: Corrupt, naming file and place, at the first mismatch.
  virtual std::uint64_t check(const TransferOptions&) const { return 0; }
  /// Returns false when check() covers all elements of the tensor and takes much less time than
  /// read() of all of them, because the file has them in another order.
  virtual bool is_in_order(std::size_t /*tensor*/) const { return true; }
  /// Returns what the files hold and catalog() does not, for example a sparse tensor.
  Losses losses() const;
  /// Adds what is beside the files of the checkpoint to losses().
  void add_losses(const Losses& beside);
  /// Returns one line for each thing that catalog() expresses in another way than the files, and
  /// for each doubt about them.
  virtual std::vector<std::string> notes() const { return {}; }
  /// Returns one line for each choice that the files leave to the reader, for example how optimizer
  /// states with numbers were named. Nothing is lost by them.
  std::vector<std::string> remarks() const;
  /// Returns those of remarks() that tell how optimizer states were named and what goes with them.
  /// They do not concern who takes the weights alone.
  virtual std::vector<std::string> remarks_on_states() const { return {}; }
  /// Adds doubts about what the catalog says to remarks().
  void add_remarks(std::vector<std::string> lines);
  /// Returns the lines of losses(), then notes() and remarks().
  std::vector<std::string> notes_and_remarks() const;
  /// Returns which rank's file holds which elements of a tensor, ascending; what several files hold
  /// is in several ranges. Empty when the files are not those of ranks, and when there are more
  /// than kStoredRanges.
  virtual std::vector<StoredRange> stored_ranges(std::size_t /*tensor*/) const { return {}; }
  /// Returns how the files arrange what catalog() holds, for a sink of the same format
  /// (Output::layout); null where the format has one arrangement only.
  virtual Json layout() const { return {}; }
  /// Returns the rules by which tensors were put together from what tensor-parallel ranks have, as
  /// OpenOptions::merge_rules has them, with the patterns that match a tensor; null where there are
  /// no such ranks, or what told it tells of them only.
  virtual Json cut_rules() const { return {}; }
  /// Returns the path of the checkpoint, where open_source() opened it: the folder or file, of
  /// UniShard's own the folder of the tag, of DeepSpeed's that folder or the one above. Else empty.
  const Path& path() const { return path_; }
  void set_path(Path path) { path_ = std::move(path); }
  /// Returns the folder within path() that holds the model, where path() itself does not: PEFT
  /// saves an adapter that is not called "default" there. Else empty.
  const Path& model_folder() const { return model_folder_; }
  void set_model_folder(Path folder) { model_folder_ = std::move(folder); }
  /// Returns what the opened file is a part of, in words: "part 2 of 3 files named like ...", where
  /// its name, the files beside it or what it holds say that the rest of the model is in others.
  /// nullopt for what is whole, as far as that is known. A verb decides whether a part will do.
  const std::optional<std::string>& part_of() const { return part_of_; }
  void set_part_of(std::string words) { part_of_ = std::move(words); }
  /// Keeps the storage that this source reads from, whose files verify_reads() looks at again.
  void own_storage(std::shared_ptr<const WatchedStorage> storage) { storage_ = std::move(storage); }

 private:
  /// Does the work of losses(), for the checkpoint's own files.
  virtual Losses own_losses() const { return {}; }
  /// Does the work of remarks(), for what the reader has decided.
  virtual std::vector<std::string> own_remarks() const { return {}; }
  /// Does the work of verify_reads(), except for looking whether files have changed.
  virtual InputCheck compare_checksums(const TransferOptions&, const ReadPeers&) const {
    return {};
  }
  /// Does the work of read(), which has checked the arguments.
  virtual void read_range(std::size_t tensor, ElementRange range,
                          std::span<std::byte> out) const = 0;
  /// Does the same for read_box(). By default it calls read_range() for rows of the box that are
  /// near each other.
  virtual void read_box_range(std::size_t tensor, BoxView box, std::span<std::byte> out) const;

  Path path_, model_folder_;
  Losses beside_;
  std::vector<std::string> added_remarks_;
  std::optional<std::string> part_of_;
  std::shared_ptr<const WatchedStorage> storage_;  // null where nothing is watched
};

/// The format of a path.
struct Probe {
  std::string format = {};                  ///< empty when the format is not recognised
  std::string problem = {};                 ///< why it is not recognised, and what was expected
  bool is_of_two = false;                   ///< two programs have saved there, UniShard and another
  ErrorCode code = ErrorCode::Unsupported;  ///< that of `problem`
};
/// Recognises the format of `path` by names and the first bytes of files.
Probe probe(Storage& storage, const Path& path);

/// Returns the checkpoint that is meant where `path` is the output folder of a Trainer or of
/// accelerate, which holds `checkpoint-500` and others, in any format: the one called `tag`, else
/// the one with the highest number. Returns nullopt for every other path.
std::optional<Path> find_numbered_checkpoint(Storage& storage, const Path& path,
                                             const std::optional<std::string>& tag);

/// Returns the checkpoint of UniShard within `path` where its plug-in for accelerate has saved one
/// model; nullopt for every other path.
/// Throws: InvalidArgument when it has saved several models there.
std::optional<Path> find_within_accelerate(Storage& storage, const Path& path);

/// What the user decides where the files leave a choice.
struct OpenOptions {
  std::optional<std::string> tag = {};  ///< see open_source()
  /// Rank whose copy counts where the ranks' files hold different copies of one tensor. Without it
  /// such tensors are refused.
  std::optional<std::uint32_t> from_rank = {};
  /// Gives the numbered states of an optimizer to the model's parameters in the model's order, also
  /// where another order fits their shapes as well.
  bool assume_model_order = false;
  /// How the tensors of a tensor-parallel run of DeepSpeed were cut, with the keys of its
  /// universal_checkpoint_info; it counts before what the files say. Null: none.
  Json merge_rules = {};
};

/// Opens a checkpoint of any known format. `tag` chooses one of several checkpoints in a folder;
/// in the output folder of a Trainer, find_numbered_checkpoint() does, and in a folder of
/// accelerate find_within_accelerate().
/// Lifetime: here and below, `storage` must outlive the source.
/// Throws: NotFound or Unsupported, with the explanation of probe(); Corrupt when the checkpoint is
/// damaged; InvalidArgument when a rank is given for what has no files of ranks.
std::unique_ptr<Source> open_source(Storage& storage, const Path& path, const OpenOptions& options);
std::unique_ptr<Source> open_source(Storage& storage, const Path& path,
                                    const std::optional<std::string>& tag = {});

/// Returns a source that reads from `reader`.
std::unique_ptr<Source> make_native_source(std::shared_ptr<const CheckpointReader> reader);

/// Opens one checkpoint's folder or file as `format`, a name of registry.hpp, whatever the name of
/// `path`. Opens what Sink::complete() returns.
std::unique_ptr<Source> open_source_as(Storage& storage, std::string_view format, const Path& path);

}  // namespace unishard::converters
