#pragma once
// The content of a checkpoint of any PyTorch trainer: a flattened state dict. Tensors consist of
// boxes that lie in items; everything else is JSON.
#include "unishard/converters/loss.hpp"
#include "unishard/converters/replica_names.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"

#include "containers/boxes.hpp"
#include "containers/object_tree.hpp"
#include "containers/shared_views.hpp"
#include "formats/dcp/flat_places.hpp"
#include "formats/dcp/metadata.hpp"
#include "formats/dcp/rank_ties.hpp"
#include "formats/dcp/stored_items.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace unishard::converters::dcp {

struct Chunk {
  Box box;
  std::uint32_t item = 0;
  std::uint32_t rank = 0;  ///< that wrote it, where files of ranks hold copies
};

struct TensorEntry {
  std::string key;  ///< parts of the path joined with "."
  KeyPath path;     ///< empty when the files do not record it
  DType dtype = DType::Float32;
  Shape shape;
  std::vector<Chunk> chunks;  ///< sorted by first element
  /// For each chunk, the end of the elements that it and those before it hold.
  std::vector<std::uint64_t> reach;
  /// Its place in the object of a torch.save file, of which `path` has the levels that matter to a
  /// state dict; empty where it is `path`.
  KeyPath place = {};
  bool is_distributed = false;  ///< a DTensor in files of ranks
};

struct ObjectEntry {
  std::string key;
  KeyPath path;
  Json value;
};

/// A tensor or an object of the files that is not read.
struct LostKey {
  std::string key;
  KeyPath path;  ///< empty when the files do not record it
  std::string why;
  std::optional<Shape> shape = {};  ///< of a tensor, where it is known
};

/// Returns the loss of a parameter that an optimizer trains and that no file of the model holds.
Loss unsaved_weight(std::string fqn);

struct Arrangement;
struct LikeModel;
struct NamedShape;
struct NumberedParameters;

/// How a reader names the numbered states of an optimizer where it knows the program that numbered
/// them.
struct NumberNames {
  /// Returns nullopt when no names or several fit.
  std::function<std::optional<std::vector<std::string>>(const NumberedParameters&,
                                                        const std::vector<NamedShape>&)>
      fit = {};
  std::string decided;  ///< by what names were found, for a remark
  /// Returns what the user may do where no names or several fit, for a remark.
  std::function<std::string(const NumberedParameters&, const std::vector<NamedShape>&)> undecided =
      {};
};

/// A tensor that is stored once and has two keys.
struct SecondKey {
  std::string key, of;
  KeyPath path;        ///< of `key`
  KeyPath place = {};  ///< as TensorEntry::place
};

/// A count of steps beside the optimizer's file.
struct LikelySteps {
  double value = 0;
  std::string teller;  ///< what counts them, for a note: "scheduler.bin"
};

struct StateDict {
  std::vector<TensorEntry> tensors;
  std::vector<ObjectEntry> objects;
  /// Objects that hold nothing but tensors: the keys of `tensors` describe them.
  std::vector<ObjectEntry> tensor_objects;
  std::vector<SecondKey> second_keys;
  std::unique_ptr<Items> items;
  std::uint32_t world_size = 1;  ///< of the run that saved, as far as file names reveal it
  Json scheduler;                ///< content of a separate scheduler file, if any
  /// First parts of keys. What is below them is kept as values, whatever it looks like.
  std::set<std::string> values = {};
  /// The optimizer's steps, where no state of a parameter counts them.
  std::optional<double> step = {};
  /// What tells the steps where nothing else does, the best first.
  std::vector<LikelySteps> likely_steps = {};
  Json producer;
  std::vector<std::string> notes, remarks = {};
  /// The key of an object, and "path: class" of an object in it of which only the parts are kept.
  std::vector<std::pair<std::string, std::string>> opaque = {};
  std::optional<std::string> part_of = {};  ///< as Source::part_of()
  /// What is missing here of which the role is known.
  Losses losses;
  /// What is missing here and has a key, which tells its role.
  std::vector<LostKey> lost_keys;
  /// Programs that save DCP folders remove a replica's part of the names.
  ModulePart module_part = ModulePart::Model;
  bool assumes_model_order = false;  ///< OpenOptions::assume_model_order
  /// Optimizers that are values train parameters too: without states, none is frozen.
  bool has_other_optimizers = false;
  /// The optimizer may train modules of which the model's files have nothing.
  bool may_train_others = false;
  bool has_masters = false;  ///< states called "fp32" are the masters of the parameters
  /// Returns Source::layout(); may be empty.
  std::function<Json(const StateDict&, const Arrangement&)> layout = {};
  NumberNames number_names = {};
  /// FSDP2 makes a DTensor of each parameter, so that what is none is a buffer.
  bool are_parameters_distributed = false;
  /// Completes the result of arrange(); may be empty.
  std::function<void(const StateDict&, Arrangement&)> complete = {};
  /// Tells whether two of `tensors` have the same elements, where they cannot be read; may be
  /// empty.
  std::function<bool(std::size_t, std::size_t)> is_equal = {};
};

/// Reads elements `range` of a tensor. Returns how many of their bytes a checksum covers.
/// Thread-safe.
/// Throws: Corrupt when an item differs from what the entry describes.
std::uint64_t read_elements(const TensorEntry& tensor, const Items& items, ElementRange range,
                            std::span<std::byte> out,
                            torch::Reading reading = torch::Reading::Data);

/// Returns the rank that wrote a file of a DCP folder (`__<rank>_<number>.distcp`); nullopt for
/// other files.
std::optional<std::uint32_t> rank_of_file(const Path& file);

/// Builds a StateDict from the files of one or several folders. Not thread-safe.
class StateDictBuilder {
 public:
  /// Lifetime: `storage` must outlive the builder and the result.
  explicit StateDictBuilder(Storage& storage);

  /// Adds the tensors and objects of a `.metadata` whose items are in `folder`. When several ranks
  /// add the same object, the first counts.
  void add_folder(const Path& folder, const Metadata& metadata, std::uint64_t rank = 0);
  /// Adds a piece of a tensor as a view. `shape` is the shape of the whole tensor.
  void add_piece(const std::string& key, KeyPath path, const Shape& shape, Box box,
                 torch::TensorView view, std::uint64_t rank = 0);
  /// Adds the object of a torch.save file that `rank` wrote. Its tensors become entries below
  /// `path`.
  void add_object(const std::string& key, const KeyPath& path, const torch::TorchFile& file,
                  std::uint64_t rank = 0);
  /// Adds a part of the object, `value`.
  void add_part(const std::string& key, const KeyPath& path, const torch::TorchFile& file,
                torch::Value value, std::uint64_t rank = 0);
  /// Opens a data file.
  std::shared_ptr<const File> open(const Path& path) {
    return torch::open_window(pool_, path).file;
  }

  /// Makes second keys of the tensors that share their elements with another in the files of all
  /// ranks; finish() does so too.
  void settle_ties();

  /// Removes copies of boxes, and returns the state dict. `where` is the checkpoint that messages
  /// name.
  /// Throws: Corrupt unless the boxes of every tensor cover it exactly; Unsupported when copies
  /// differ and `from_rank` does not choose.
  StateDict finish(const std::string& where);

  StateDict out;
  bool ranks_repeat = false;  ///< several ranks may add the same box, with the same elements
  std::optional<std::uint32_t> from_rank = {};  ///< whose boxes count where the elements differ
  /// The same elements of one storage, of ranks in the files of all of them, become one tensor with
  /// several keys.
  bool finds_second_keys = false;
  /// A model with the names and shapes of the parameters in flat ones; null: none is given.
  const LikeModel* like = nullptr;
  /// The flat parameters that were taken apart by `like`, in the order of the files.
  std::vector<PlacedUnit> flat_units = {};
  std::unordered_set<std::string> taken_keys = {};  ///< of tensors in files that are not added
  /// The second of two parts or tensors with one key gets "#2", as object_tree.hpp names it; there
  /// is one rank then.
  bool numbers_repeated_keys = false;

 private:
  TensorEntry& entry(const std::string& key, KeyPath path, DType dtype, const Shape& shape,
                     const std::string& where);
  void add_named_tensor(const std::string& key, const KeyPath& path, const torch::TorchFile& file,
                        torch::Value value, std::uint64_t rank);
  /// Returns true, and has noted the key, where `view` is a tensor's of another key in this file.
  /// Returns false for files of ranks, of which settle_ties() decides. `view` is null for a rank
  /// without a part.
  bool is_second_key(const std::string& key, const KeyPath& path, const torch::TorchFile& file,
                     const torch::TensorView* view, std::uint64_t rank);
  /// Returns a key that no other tensor has, where repeated ones are numbered.
  std::string free_key(const std::string& key);
  /// Sets the place of the tensor or second key `key`, if it was added.
  void set_place(const std::string& key, KeyPath place);
  void add_described(std::string key, const KeyPath& path, torch::ObjectTree tree, bool is_tensor);
  void add_stored_object(const std::string& key, KeyPath path, std::uint32_t item);
  /// Says that a rank's optimizer differs from that of the first rank, which counts.
  void compare_with_first(const std::string& key, const Json& content);

  Storage& storage_;
  std::shared_ptr<FilePool> pool_;
  std::unordered_map<std::string, std::size_t> tensors_;  // by key
  std::unordered_set<std::string> objects_;               // keys
  std::unordered_set<std::string> differing_;             // see compare_with_first()
  std::unordered_set<std::string> used_keys_;             // where repeated ones are numbered
  std::unordered_map<std::string, std::size_t> order_;    // position of keys, if known
  std::unordered_set<std::string> second_keys_;           // those in `out`
  RankTies ties_;
  /// The first key of each view of a storage, by the name of its file.
  torch::ViewNames views_;
};

}  // namespace unishard::converters::dcp
