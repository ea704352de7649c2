#pragma once
// A checkpoint of any format that is being written. Nothing has its final name before publish().
// The destructor of a sink that was not published removes what it wrote.
#include "unishard/converters/source.hpp"
#include "unishard/converters/work_split.hpp"
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/compression.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters {

/// Small files that are copied unchanged into the folder of a result, or beside the tag of a run:
/// name and content.
using SideFiles = std::vector<std::pair<std::string, std::string>>;

/// Several processes that share a file system can write one result together. Each constructs the
/// sink with the same arguments and its own WorkSplit: process 0 first, the others after it has
/// finished. Each writes its fragments() and calls seal(). Process 0 passes the results of all
/// seal() calls to complete(), and publishes. If the result is abandoned, process 0 must be the
/// last to destroy its sink.
/// Thread safety: write() is thread-safe, the other functions are not.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Returns the fragments that this process must write, in the order of the files' bytes where
  /// there is one, which is the fastest order. The fragments of all processes together cover every
  /// element of every tensor that the format keeps; an element occurs several times when the format
  /// stores it several times. Indices refer to the catalog that the sink was made from.
  /// Lifetime: valid until seal().
  virtual const std::vector<Fragment>& fragments() const = 0;
  /// Writes elements `range`, a part of fragments()[fragment]. Each element of each fragment must
  /// be written exactly once, in any order. Thread-safe.
  virtual void write(std::size_t fragment, ElementRange range,
                     std::span<const std::byte> bytes) = 0;
  /// Makes what this process wrote durable. Returns text for complete().
  /// Pre: everything was written; called at most once.
  virtual std::string seal() = 0;
  /// Completes the result durably under a staging name, and returns that name, which
  /// open_source_as() can open. `seals` are the results of all seal() calls, by rank.
  /// Pre: called by process 0, at most once, after every seal().
  virtual Path complete(std::span<const std::string> seals) = 0;
  /// Renames the result to its final name.
  /// Pre: called by process 0, at most once, after complete().
  /// Throws: AlreadyExists when the name exists by now; nothing is overwritten.
  virtual void publish() = 0;
  /// Calls complete() and publish().
  void commit(std::span<const std::string> seals) {
    complete(seals);
    publish();
  }
  /// Calls seal(), complete() and publish(), for a process that writes alone.
  void commit() {
    const std::string sealed = seal();
    commit(std::span(&sealed, 1));
  }
  /// Returns one line for each part of the catalog that the format cannot express. Known after
  /// construction.
  virtual std::vector<std::string> notes() const { return {}; }
  /// Returns what else a user should know of how the result is written, one line each. Known after
  /// construction.
  virtual std::vector<std::string> remarks() const { return {}; }
  /// Returns the tensors of the catalog that are not written and that notes() mentions, in
  /// ascending order. A reader of the result may still derive them from others. Known after
  /// construction.
  virtual std::vector<std::size_t> left_out() const { return {}; }

  /// Sets a function that seal() calls between two files; what it throws stops seal().
  void stop_by(std::function<void()> check) { check_ = std::move(check); }

 protected:
  void check_stop() const {
    if (check_) check_();
  }

 private:
  std::function<void()> check_;
};

/// Returns a sink for the native checkpoint `<folder>/<tag>` with catalog.world_size shards at
/// catalog.stage. `side_files` are written into the folder of the tag. `latest` then names the tag
/// if `moves_latest` is true. Work is split by whole shards.
/// Lifetime: here and below, `storage` must outlive the sink.
/// Throws: AlreadyExists when the tag exists.
std::unique_ptr<Sink> make_native_sink(Storage& storage, const Path& folder, const std::string& tag,
                                       Catalog catalog, const Compression& compression = {},
                                       const WorkSplit& share = {}, SideFiles side_files = {},
                                       bool moves_latest = true);

struct SafetensorsOptions {
  /// 0: one file; else a folder, with model.safetensors.index.json for several files.
  std::uint64_t max_shard_bytes = 0;
  std::vector<std::pair<std::string, std::string>> metadata;  ///< added to __metadata__
  SideFiles side_files = {};
  std::string stem = "model";  ///< of the files in a folder
};
/// Returns a sink for one `.safetensors` file (when `output` ends so) or a Hugging Face folder.
/// The tensors of a model are named by their fqn, those of a training state as MAPPING.md says.
/// Work is split by ranges of bytes of the files.
/// Throws: AlreadyExists for an existing file or a folder that is not empty.
std::unique_ptr<Sink> make_safetensors_sink(Storage& storage, const Path& output, Catalog catalog,
                                            SafetensorsOptions options,
                                            const WorkSplit& share = {});

struct TorchOptions {
  /// 0: one file; else a folder, with pytorch_model.bin.index.json for several files.
  std::uint64_t max_shard_bytes = 0;
  SideFiles side_files = {};
  Json layout = {};                    ///< see Output::layout
  std::string stem = "pytorch_model";  ///< of the files in a folder
};
/// Returns a sink for files that torch.load(weights_only=True, mmap=True) reads. A folder, and a
/// file of a model, hold a state dict; the file of a training state is {"model", "optimizer",
/// "unishard"}, where the optimizer has the form of torch.optim. Work is split by whole files.
/// Throws: AlreadyExists for an existing file or a folder that is not empty.
std::unique_ptr<Sink> make_torch_sink(Storage& storage, const Path& output, Catalog catalog,
                                      TorchOptions options, const WorkSplit& share = {});

/// Returns a sink for DeepSpeed's ordinary checkpoint `<folder>/<tag>` with catalog.world_size
/// ranks at catalog.stage, and for `latest` if `moves_latest` is true. `side_files` are written
/// into `folder` unless it has files of these names. Work is split by whole files.
/// Throws: AlreadyExists when the tag exists.
std::unique_ptr<Sink> make_deepspeed_sink(Storage& storage, const Path& folder,
                                          const std::string& tag, Catalog catalog,
                                          const WorkSplit& share = {}, SideFiles side_files = {},
                                          bool moves_latest = true);

/// Returns a sink for DeepSpeed's universal checkpoint `<folder>/<tag>`, and for
/// `latest_universal`. `side_files` and `moves_latest` are as above. Work is split by whole files.
/// Throws: AlreadyExists when the tag exists.
std::unique_ptr<Sink> make_deepspeed_universal_sink(Storage& storage, const Path& folder,
                                                    const std::string& tag, Catalog catalog,
                                                    const WorkSplit& share = {},
                                                    SideFiles side_files = {},
                                                    bool moves_latest = true);

/// Returns a sink for a DCP folder (.metadata, __<rank>_0.distcp) of catalog.world_size data files.
/// Tensors are split on their first dimension as FSDP2 splits them. The keys are those of `layout`
/// (see Output::layout), or those of `key_layout`, one of dcp_key_layouts(); "": the first, with
/// "model.<fqn>", "optim.state.<fqn>.<state>", "optim.param_groups.<i>.<key>". `side_files` are
/// written beside them. Work is split by whole files.
/// Throws: AlreadyExists for a folder that is not empty; InvalidArgument for an unknown layout.
std::unique_ptr<Sink> make_dcp_sink(Storage& storage, const Path& folder, Catalog catalog,
                                    const WorkSplit& share = {}, const Json& layout = {},
                                    std::string_view key_layout = {}, SideFiles side_files = {});
/// Returns the names of the arrangements of keys: "model-optim", "app", "flat", "titan".
std::vector<std::string> dcp_key_layouts();

struct TrainerOptions {
  bool is_accelerate = false;         ///< file names of accelerate instead of the Trainer's
  std::uint64_t max_shard_bytes = 0;  ///< of the model's files; 0: 5 GB
  SideFiles side_files = {};
  std::string stem = "model";  ///< of the model's files
  Json layout = {};            ///< see Output::layout
};
/// Returns a sink for a folder from which the Trainer of Hugging Face, or accelerate, goes on: the
/// model as safetensors, optimizer.pt, scheduler.pt, trainer_state.json (accelerate: optimizer.bin,
/// scheduler.bin). Work is split by whole files.
/// Throws: AlreadyExists for a folder that is not empty; InvalidArgument for a catalog without
/// optimizer states.
std::unique_ptr<Sink> make_trainer_sink(Storage& storage, const Path& folder, Catalog catalog,
                                        const TrainerOptions& options, const WorkSplit& share = {});

/// Returns a sink for one HDF5 file with one data set per tensor, under the names that the
/// safetensors sink uses. "/" in a name makes groups; tied names are hard links. Process 0 writes
/// the whole file.
/// Throws: AlreadyExists for an existing file.
std::unique_ptr<Sink> make_hdf5_sink(Storage& storage, Path output, Catalog catalog,
                                     const WorkSplit& share = {});

/// Returns a sink for one .npz archive of numpy with one stored entry per tensor, under the names
/// that the safetensors sink uses. Process 0 writes the whole file.
/// Throws: AlreadyExists for an existing file; InvalidArgument when two tensors have one name.
std::unique_ptr<Sink> make_npz_sink(Storage& storage, const Path& output, Catalog catalog,
                                    const WorkSplit& share = {});

/// Returns a sink for one GGUF file. Its metadata are those of the GGUF file that the catalog comes
/// from, else only the architecture that `hf_config`, the text of a Hugging Face config.json,
/// tells. Names and element order are those of the catalog. Process 0 writes the whole file.
/// Throws: AlreadyExists for an existing file; Unsupported, naming the tensor, for a type or shape
/// that GGUF does not have.
std::unique_ptr<Sink> make_gguf_sink(Storage& storage, const Path& output, Catalog catalog,
                                     std::string_view hf_config = {}, const WorkSplit& share = {});

/// Describes a copy.
/// Lifetime: `source` and `target` must outlive the copy.
struct CopyPlan {
  const Source* source = nullptr;
  const Catalog* target = nullptr;      ///< the catalog that the sink was made from
  std::vector<std::size_t> tensor_map;  ///< index of the source tensor for each target tensor
};
/// CRC-64 of the bytes of a part of a tensor.
struct PartDigest {
  Fragment part;
  std::uint64_t crc64 = 0;
  bool operator==(const PartDigest&) const = default;
};
enum class WantDigests : std::uint8_t { No, Yes };
/// What copy() knows of the bytes that it passed on.
struct CopyResult {
  std::vector<PartDigest> digests = {};  ///< of each fragment that the sink was given, if wanted
  /// Target tensors with finite elements that became infinite, because they are beyond the range of
  /// the tensor's type. Ascending.
  std::vector<std::size_t> overflowed = {};
};
/// Copies everything from `source` to `sink`; converts elements whose dtype differs. `options`
/// bounds the memory. The caller then calls source->verify_reads() and only after that commits the
/// sink. Throws: Mismatch for different shapes or Unsupported for dtypes that are not
/// convertible(), before any byte is written; what the source and the sink throw.
CopyResult copy(const CopyPlan& plan, Sink& sink, const TransferOptions& options,
                WantDigests wants_digests = WantDigests::No);

/// CRC-64 of the bytes of each tensor; nullopt when the parts do not cover it.
using Digests = std::vector<std::optional<std::uint64_t>>;
/// Combines the digests of parts to those of whole tensors. Parts may overlap; any chain of parts
/// from a tensor's first to its last element suffices.
Digests whole_digests(const Catalog& catalog, std::vector<PartDigest> parts);

}  // namespace unishard::converters
