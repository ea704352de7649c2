// Tied tensors (the same view of the same storage) become aliases. Everything that is not a tensor
// is kept as JSON in client_state["object"]; a plain state dict has nothing else.
#include "formats/torch/reader.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "containers/object_tree.hpp"
#include "containers/pickle_json.hpp"
#include "containers/pieced_source.hpp"
#include "containers/shared_views.hpp"
#include "containers/torch_file.hpp"
#include "core/embedded_catalog.hpp"
#include "core/file_records.hpp"
#include "core/model_tensors.hpp"
#include "core/training_files.hpp"
#include "formats/dcp/distributed_tensor.hpp"
#include "formats/dcp/state_dict_source.hpp"
#include "formats/torch/client_values.hpp"
#include "formats/torch/own_file.hpp"
#include "formats/torch/recorded_file.hpp"
#include "formats/torch/training_file.hpp"
#include "formats/torch/training_layout.hpp"
#include "formats/torch/weight_index.hpp"
#include "reading/completeness.hpp"
#include "reading/part_content.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace unishard::converters {
namespace {

using torch::TensorView;
using torch::TorchFile;

constexpr std::string_view kSingle = "pytorch_model.bin";
constexpr std::string_view kIndex = "pytorch_model.bin.index.json";
constexpr std::string_view kAdapter = "adapter_model.bin";  // of PEFT

/// Throws: Corrupt, naming a tensor that the index lists in the file and the file does not have.
void require_tensors(const std::set<std::string>& wanted, const torch::ObjectTree& tree,
                     const Path& path) {
  std::set<std::string> missing = wanted;
  for (const torch::NamedTensor& tensor : tree.tensors) missing.erase(tensor.name);
  if (missing.empty()) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: the index, {}, lists the tensor {} in this file, which does not have it "
                    "({} of {} are missing)",
                    path.string(), kIndex, unishard::quote(*missing.begin()), missing.size(),
                    wanted.size()),
        std::string(kOtherIndexHint));
}

class Collector {
 public:
  void add_file(Storage& storage, const Path& path, const std::set<std::string>* wanted) {
    files.push_back(path.filename().string());
    add_file(TorchFile(torch::whole_file(storage, path)), path, wanted);
  }
  void add_file(const TorchFile& file, const Path& path, const std::set<std::string>* wanted) {
    torch::ObjectTree tree = torch::describe(file.root(), file.pickle().bytes().size());
    find_optimizers(tree.content);
    if (torch::training_text(tree.content) != nullptr) scalars_ = torch::scalars_of(file, tree);
    const bool is_model = holds_weights && is_dict_of(tree.content, is_of_model);
    find_unread_data(tree.content, is_model);
    for (const torch::NamedTensor& tensor : tree.tensors) {
      if (wanted != nullptr && !wanted->contains(tensor.name)) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: tensor {} is in this file, where the index, {}, does not list it",
                          path.string(), unishard::quote(tensor.name), kIndex),
              std::string(kOtherIndexHint));
      }
      add_tensor(file, path, tensor);
    }
    if (wanted != nullptr) require_tensors(*wanted, tree, path);
    const bool is_flat = is_state_dict(tree.content);
    if (is_flat && wanted == nullptr && has_parameters(tree.content)) record_file(tree);
    if (is_flat && wanted == nullptr) keep_layout(tree);
    torch::find_emptied_weights(tree.content, {}, parts.losses);
    if (!is_flat) parts.catalog.client_state["object"] = std::move(tree.content);
    torch::note_oddities(file, parts.notes);
    for (const std::string& line : tree.opaque)
      parts.notes.push_back(fmt::format("kept as its parts, not as an object: {}", line));
    for (const auto& [at, why] : tree.left_out)
      parts.losses.push_back({is_model ? Role::Weight : Role::ClientValue, at, why});
    for (const std::string& line : tree.attributes)
      parts.losses.push_back({Role::ClientValue, line, torch::kTensorAttributes});
    for (const auto& [name, why] : tree.lost_weights)
      parts.losses.push_back({Role::Weight, name, why});
    for (const auto& [at, type] : tree.optimizers)
      parts.losses.push_back({Role::Optimizer, at.empty() ? type : fmt::format("{} ({})", at, type),
                              torch::kOptimizerObject});
    for (const std::string& line : tree.unregistered)
      parts.losses.push_back({Role::ClientValue, line, torch::kUnregistered});
    for (const std::string& line : tree.renamed)
      parts.notes.push_back(fmt::format("renamed: {}", line));
  }

  /// Adds a shard that no index describes: a state dict, which may repeat tensors of earlier
  /// shards.
  void add_shard(Storage& storage, const Path& path) {
    files.push_back(path.filename().string());
    const TorchFile file(torch::whole_file(storage, path));
    torch::ObjectTree tree = torch::describe(file.root(), file.pickle().bytes().size());
    if (!is_state_dict(tree.content)) {
      raise(ErrorCode::Unsupported,
            fmt::format("{} is a shard of a model by its name, and its object is no plain state "
                        "dict: no index says how the shards belong together",
                        path.string()));
    }
    torch::note_oddities(file, parts.notes);
    bool has_own = tree.tensors.empty();
    for (const torch::NamedTensor& tensor : tree.tensors) {
      if (is_copy(file, path, tensor)) continue;
      has_own = true;
      add_tensor(file, path, tensor);
    }
    if (!has_own) raise_copy_of_others(path);
  }

  /// Reverses the layout of UniShard's own sink: paths become fqn and state, steps become a number.
  void restore_training_state(const std::string& where) {
    Catalog& catalog = parts.catalog;
    if (!catalog.client_state.is_object()) return;
    const std::string* text = torch::training_text(catalog.client_state["object"]);
    if (text == nullptr) return;
    std::vector<std::string> paths;
    paths.reserve(catalog.tensors.size());
    for (const TensorInfo& tensor : catalog.tensors) paths.push_back(tensor.fqn);
    const std::vector<bool> known =
        restore_catalog(std::string(*text), catalog, where + ": unishard.catalog");
    parts.has_own_names = true;
    changes = take_later_changes(scalars_, catalog);
    note_added(paths, known);
    for (std::size_t i = known.size(); i-- > 0;) {
      if (known[i]) continue;
      catalog.tensors.erase(catalog.tensors.begin() + static_cast<std::ptrdiff_t>(i));
      parts.pieces.erase(parts.pieces.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void find_shared_parts() {
    if (auto note = torch::note_shared_parts(seen_)) parts.notes.push_back(*std::move(note));
  }

  PiecedCatalog parts;
  std::vector<std::string> changes;  ///< remarks on what another program has changed
  bool holds_rank_parts = false;     ///< of distributed tensors
  bool holds_weights = true;         ///< false: all tensors are states of an optimizer
  std::vector<std::string> files;    ///< names of those that were read

 private:
  static bool is_tensor(const Json& value) {
    return value.is_object() && value.contains("$tensor");
  }

  static bool is_state_dict(const Json& content) { return is_dict_of(content, is_tensor); }

  /// Returns whether a state dict has tensors that are an nn.Parameter or require gradients.
  static bool has_parameters(const Json& content) {
    const auto is_plain = [](const Json& value) { return value.size() == 1; };
    return !is_dict_of(content, is_plain);
  }

  /// Names the tensors that another program has added to a file with an embedded catalog. Step
  /// counters are tensors of the file, and numbers of the catalog.
  void note_added(const std::vector<std::string>& paths, const std::vector<bool>& known) {
    const auto top = [](std::string_view path) { return path.substr(0, path.find('.')); };
    std::map<std::string_view, Role> roles;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (!known[i]) continue;
      const bool is_weight =
          converters::is_of_model(parts.catalog.tensors[i]) && !paths[i].ends_with("fp32_master");
      if (is_weight || !roles.contains(top(paths[i])))
        roles[top(paths[i])] = is_weight ? Role::Weight : Role::State;
    }
    const torch::ClientValues values(parts.catalog);
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (known[i] || paths[i].ends_with(".step")) continue;
      if (const auto kept = values.constants().find(paths[i]); kept != values.constants().end()) {
        note_changed(kept->first, kept->second, i);
        continue;
      }
      const auto role = roles.find(top(paths[i]));
      parts.losses.push_back({role == roles.end() ? Role::ClientValue : role->second, paths[i],
                              "another program has added it to a file of UniShard's",
                              parts.catalog.tensors[i].shape});
    }
  }

  /// Says that another program has changed a tensor whose bytes the text has.
  void note_changed(const std::string& path, const torch::InlineTensor& kept, std::size_t tensor) {
    const TensorInfo& info = parts.catalog.tensors[tensor];
    const auto& pieces = parts.pieces[tensor];
    if (info.dtype == kept.dtype && info.shape == kept.shape &&
        (pieces.empty() || pieces.front().view.read_all(torch::kInlineBytes) == kept.bytes))
      return;
    parts.losses.push_back({Role::ClientValue, path,
                            "another program has changed it, and the value that UniShard wrote "
                            "beside it counts",
                            info.shape});
  }

  /// Keeps the class of the dict, and what else the tensors alone would not give again, for another
  /// file of this format. The source may give the tensors other names.
  void keep_layout(const torch::ObjectTree& tree) {
    std::vector<std::string> names;
    names.reserve(parts.catalog.tensors.size());
    for (const TensorInfo& tensor : parts.catalog.tensors) names.push_back(tensor.fqn);
    std::unordered_map<std::string_view, std::size_t> places;
    for (std::size_t i = 0; i < names.size(); ++i) places.emplace(names[i], i);
    std::vector<std::pair<std::string, std::size_t>> seconds;
    seconds.reserve(parts.catalog.aliases.size());
    for (const Alias& alias : parts.catalog.aliases)
      seconds.emplace_back(alias.fqn, places.at(alias.target));
    parts.layout = [content = tree.content, names = std::move(names),
                    seconds = std::move(seconds)](const Catalog& catalog) {
      Json rows = Json::array();
      const auto add = [&](const std::string& key, std::size_t index) {
        const TensorInfo& tensor = catalog.tensors.at(index);
        rows.push_back(Json::array({key, nullptr, tensor.fqn, tensor.state}));
      };
      for (std::size_t i = 0; i < names.size(); ++i) add(names[i], i);
      for (const auto& [name, index] : seconds) add(name, index);
      return Json{{"object", content}, {"tensors", std::move(rows)}, {"constants", Json::array()}};
    };
  }

  /// Records the object of a file, which the catalog's tensors alone would not give again.
  void record_file(const torch::ObjectTree& tree) {
    std::unordered_map<std::string_view, std::string_view> first_names;
    for (const Alias& alias : parts.catalog.aliases) first_names.emplace(alias.fqn, alias.target);
    Json rows = Json::array();
    for (const torch::NamedTensor& tensor : tree.tensors) {
      const auto first = first_names.find(tensor.name);
      const std::string_view fqn = first == first_names.end() ? tensor.name : first->second;
      rows.push_back(Json::array({tensor.name, nullptr, fqn, state::kWeights}));
    }
    const Json layout = {
        {"object", tree.content}, {"tensors", std::move(rows)}, {"constants", Json::array()}};
    std::string text = torch::text_of_file(layout, parts.catalog);
    if (text.empty()) return;
    Json& record = parts.catalog.producer[std::string(kTorchArrangement)];
    record = {{"model", Json::array()}, {std::string(kTorchObject), std::move(text)}};
  }

  /// Whether it is a dict, or an OrderedDict, with texts as keys and such values only.
  template <class Fits>
  static bool is_dict_of(const Json& content, const Fits& fits) {
    if (!content.is_object() || is_tensor(content)) return false;
    if (!content.contains("$type")) return std::ranges::all_of(content, fits);
    if (content["$type"] != "collections.OrderedDict") return false;
    return std::ranges::all_of(
        content["pairs"], [&](const Json& pair) { return pair[0].is_string() && fits(pair[1]); });
  }

  /// Returns whether an earlier shard has the tensor.
  /// Throws: Corrupt when it is another one.
  bool is_copy(const TorchFile& file, const Path& path, const torch::NamedTensor& tensor) {
    try {
      const TensorView view = file.tensor(tensor.value);
      const auto [earlier, is_new] = shards_.try_emplace(tensor.name, path, view);
      if (is_new) return false;
      if (equal_elements(earlier->second.second, view)) return true;
      raise(
          ErrorCode::Corrupt,
          fmt::format("tensor {} is in both {} and {}, and is not the same in both",
                      unishard::quote(tensor.name), earlier->second.first.string(), path.string()));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::Unsupported) return false;  // add_tensor() says why
      throw;
    }
  }

  /// Returns whether a member of a state dict holds nothing but tensors and other data.
  static bool is_of_model(const Json& value) {
    if (is_tensor(value) || torch::is_unread_data(value)) return true;
    const Json type = value.is_object() ? value.value("$type", Json()) : Json();
    if (value.is_array() || type == "tuple") {
      const Json& items = value.is_array() ? value : value["items"];
      return !items.empty() && std::ranges::all_of(items, is_of_model);
    }
    if (value.is_object() && type.is_null()) return is_emptied(value);
    if (type != "object") return false;
    Losses inside;  // of a call that is not known
    torch::find_unread_data(value, "", inside);
    return !inside.empty();
  }

  /// Whether nothing is left of a member because it was nested too deeply.
  static bool is_emptied(const Json& value) {
    return value.is_object() && std::ranges::all_of(value, is_emptied);
  }

  /// In a dict of nothing but tensors and arrays, an array is a weight, and no value beside them.
  void find_unread_data(const Json& content, bool is_model) {
    Losses found;
    torch::find_unread_data(content, "", found);
    for (Loss& data : found) {
      data.is_kept = data.is_kept && !is_model;
      parts.losses.push_back(std::move(data));
    }
  }

  /// Finds the tensors of what looks like the state dict of an optimizer, which are no weights.
  void find_optimizers(const Json& value) {
    if (!value.is_structured()) return;
    const Json* const groups = torch::member(value, "param_groups");
    // A model may have modules of these names; groups are a list.
    const bool is_list =
        groups != nullptr &&
        (groups->is_array() || (groups->is_object() && groups->value("$type", Json()) == "tuple"));
    if (is_list && torch::member(value, "state") != nullptr) {
      of_optimizers_.merge(torch::tensors_in(value));
      return;
    }
    for (const Json& child : value) find_optimizers(child);
  }

  bool is_of_optimizer(const std::string& tensor) const {
    return !holds_weights || of_optimizers_.contains(tensor);
  }

  Role role_of(const std::string& tensor) const {
    return is_of_optimizer(tensor) ? Role::State : Role::Weight;
  }

  void add_tensor(const TorchFile& file, const Path& path, const torch::NamedTensor& tensor) {
    TensorView view;
    try {
      view = dcp::is_distributed_tensor(tensor.value) ? dcp::read_whole_tensor(file, tensor.value)
                                                      : file.tensor(tensor.value);
    } catch (const Error& error) {
      holds_rank_parts |= error.what() == dcp::kRankPart;
      if (error.code() != ErrorCode::Unsupported)
        throw error.with_context(fmt::format("{}: {}: ", path.string(), tensor.name));
      parts.losses.push_back({role_of(tensor.name), tensor.name, error.what()});
      return;
    }
    if (!view.storage) {
      parts.losses.push_back({role_of(tensor.name), tensor.name,
                              "a tensor on the meta device has no data", view.shape});
      return;
    }
    if (!names_.insert(tensor.name).second) {
      raise(ErrorCode::Unsupported, fmt::format("{}: two tensors have the path {}", path.string(),
                                                unishard::quote(tensor.name)));
    }
    if (view.elements() > 0) {
      const auto [known, is_new] =
          seen_.emplace(std::pair(path.string(), torch::identity_of(view)), tensor.name);
      if (!is_new) {
        parts.catalog.aliases.push_back({tensor.name, known->second});
        return;
      }
    }
    TensorInfo info;
    info.fqn = tensor.name;
    info.state = std::string(is_of_optimizer(tensor.name) ? kExtraState : state::kWeights);
    info.dtype = view.dtype;
    info.shape = view.shape;
    parts.pieces.push_back({{{0, view.elements()}, std::move(view), 0}});
    parts.catalog.tensors.push_back(std::move(info));
  }

  FileScalars scalars_;
  std::set<std::string> names_, of_optimizers_;
  torch::ViewNames seen_;
  std::map<std::string, std::pair<Path, TensorView>> shards_;  ///< tensors of add_shard(), by name
};

}  // namespace

bool is_torch(Storage& storage, const Path& path) {
  const EntryKind kind = storage.kind(path);
  if (kind == EntryKind::File) return torch::is_torch_file(torch::whole_file(storage, path));
  if (kind != EntryKind::Directory) return false;
  return storage.kind(path / kSingle) == EntryKind::File ||
         storage.kind(path / kIndex) == EntryKind::File || torch::has_shards(storage, path) ||
         storage.kind(path / kAdapter) == EntryKind::File;
}

namespace {

std::unique_ptr<Source> finish(Collector collector, const Path& path,
                               std::optional<std::string> part_of) {
  collector.find_shared_parts();
  collector.restore_training_state(path.string());
  if (collector.holds_rank_parts) part_of = "the file of one of several ranks";
  auto source = make_pieced_source(std::move(collector.parts), path.string());
  source->add_remarks(std::move(collector.changes));
  if (part_of) source->set_part_of(std::move(*part_of));
  return source;
}

}  // namespace

std::unique_ptr<Source> open_torch_file(Storage& storage, const Path& path, const TorchFile& file,
                                        const OpenOptions& options) {
  Collector collector;
  collector.parts.format = "torch";
  std::optional<std::string> part_of = describe_part(file.root());
  const std::optional<RunPart> of_run = describe_run_part(storage, path, file.root());
  if (of_run) part_of = of_run->words;
  collector.holds_weights = !of_run || of_run->holds_weights;
  if (collector.holds_weights && torch::is_training_object(file.root())) {
    dcp::StateDict state = torch::read_training_file(storage, file);
    state.assumes_model_order = options.assume_model_order;
    auto source = dcp::make_state_dict_source("torch", std::move(state), path.string());
    if (part_of) source->set_part_of(std::move(*part_of));
    return source;
  }
  if (collector.holds_weights && torch::has_unread_optimizer(file.root())) {
    collector.parts.notes.emplace_back(
        "the file has the state of an optimizer, and its object is no dict with names as keys: "
        "the optimizer's tensors are kept as values");
  }
  collector.add_file(file, path, nullptr);
  return finish(std::move(collector), path, std::move(part_of));
}

std::unique_ptr<Source> open_torch(Storage& storage, const Path& path, const OpenOptions& options) {
  if (path.extension() == ".distcp")
    raise(ErrorCode::Unsupported,
          fmt::format("{} is one of the files of a PyTorch distributed checkpoint", path.string()),
          fmt::format("name its folder, {}", path.parent_path().string()));
  if (storage.kind(path) == EntryKind::File)
    return open_torch_file(storage, path, TorchFile(torch::whole_file(storage, path)), options);
  Collector collector;
  collector.parts.format = "torch";
  if (storage.kind(path / kSingle) == EntryKind::File) {
    collector.add_file(storage, path / kSingle, nullptr);
  } else if (storage.kind(path / kIndex) == EntryKind::File) {
    for (const auto& [file, names] : torch::read_weight_index(storage, path / kIndex))
      collector.add_file(storage, path / file, &names);
  } else if (const auto shards = torch::find_shards(storage, path)) {
    for (const auto& [number, name] : shards->files) collector.add_shard(storage, path / name);
    if (std::string doubt = shards->doubt(); !doubt.empty())
      collector.parts.notes.push_back(std::move(doubt));
  } else {
    collector.add_file(storage, path / kAdapter, nullptr);
  }
  if (storage.kind(path) == EntryKind::Directory) {
    for (Loss& loss : unread_training_files(storage, path))
      collector.parts.losses.push_back(std::move(loss));
    for (Loss& loss : unread_models(storage, path, collector.files))
      collector.parts.losses.push_back(std::move(loss));
  }
  return finish(std::move(collector), path, std::nullopt);
}

}  // namespace unishard::converters
