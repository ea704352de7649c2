#include "checkpoint/load.hpp"

#include "unishard/converters/save_folder.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/trainer/agree.hpp"

#include "checkpoint/compare.hpp"
#include "checkpoint/describe.hpp"
#include "checkpoint/foreign_view.hpp"
#include "checkpoint/in_parallel.hpp"
#include "checkpoint/node_folders.hpp"
#include "checkpoint/node_load.hpp"
#include "checkpoint/other_settings.hpp"
#include "checkpoint/read_tensor.hpp"

#include <algorithm>
#include <iterator>
#include <map>

namespace unishard::trainer::detail {
namespace {

using converters::Source;

constexpr unsigned kReaders = 4;                              ///< of one rank
constexpr std::uint64_t kPartBytes = std::uint64_t{4} << 20;  ///< that one of them reads at a time

template <class T>
std::optional<T> number_at(const Json& section, const char* key) {
  if (!section.is_object() || !section.contains(key) || !section[key].is_number_integer())
    return std::nullopt;
  return section[key].get<T>();
}

/// Returns the index of the saved tensor for each wanted one, with aliases resolved. Pre:
/// require_match() passed.
class Lookup {
 public:
  explicit Lookup(const Catalog& saved) {
    for (const Alias& alias : saved.aliases) aliases_[alias.fqn] = alias.target;
    for (std::size_t i = 0; i < saved.tensors.size(); ++i) {
      index_[{saved.tensors[i].fqn, saved.tensors[i].state}] = i;
    }
  }
  std::size_t operator()(const TensorInfo& tensor) const {
    const auto alias = aliases_.find(tensor.fqn);
    return index_.at({alias == aliases_.end() ? tensor.fqn : alias->second, tensor.state});
  }

 private:
  std::map<std::string, std::string> aliases_;
  std::map<std::pair<std::string, std::string>, std::size_t> index_;
};

/// Properties of a file that holds a model and no training state.
bool is_model_state(const TensorInfo& tensor) {
  return tensor.state == state::kWeights || tensor.state == state::kBuffer;
}

bool holds_weights_only(const Catalog& saved) {
  return std::ranges::all_of(saved.tensors, is_model_state);
}

/// Renames weights to the states that this engine uses: fp32 masters, or buffers. Indices do not
/// change.
Catalog as_training_state(Catalog saved, const Catalog& wanted) {
  for (TensorInfo& tensor : saved.tensors) {
    if (!is_model_state(tensor)) continue;
    if (wanted.find(tensor.fqn, tensor.state) && !wanted.find(tensor.fqn, state::kFp32)) continue;
    if (saved.find(tensor.fqn, state::kFp32)) continue;
    for (const std::string_view name : {state::kFp32, state::kBuffer}) {
      if (!wanted.find(tensor.fqn, name)) continue;
      tensor.state = name;
      break;
    }
  }
  return saved;
}

/// Returns the parts of `wanted` that a model file can have.
Catalog model_part(Catalog wanted) {
  std::erase_if(wanted.tensors, [](const TensorInfo& tensor) {
    return tensor.state != state::kFp32 && !is_model_state(tensor);
  });
  return wanted;
}

/// The input: the file under the engine's names, and the wanted states in it.
struct Contents {
  ForeignView view;
  Catalog saved;  ///< the view's, model files under training states
  bool weights_only = false;
};

/// UniShard's own files have the engine's names.
Contents view_contents(const Source& reader, const Catalog& wanted, const ForeignNames& names) {
  const bool is_own = reader.format() == "native";
  Contents contents;
  contents.view = view_foreign(reader.catalog(), wanted, is_own ? ForeignNames{} : names);
  contents.weights_only = holds_weights_only(contents.view.catalog);
  contents.saved = as_training_state(contents.view.catalog, wanted);
  return contents;
}

/// Calls visit(index in contents.saved, index in local.tensors()) for every tensor to be read.
template <class Visit>
void visit_wanted(const Contents& contents, const LocalState& local, const Visit& visit) {
  const Lookup saved_index(contents.saved);
  for (std::size_t t = 0; t < local.tensors().size(); ++t) {
    if (!local.is_loaded(t)) continue;
    const TensorInfo& tensor = local.tensors()[t];
    if (contents.weights_only && tensor.state != state::kFp32 && !is_model_state(tensor)) continue;
    visit(saved_index(tensor), t);
  }
}

void check_copies(const Source& reader, const Contents& contents, const LocalState& local) {
  visit_wanted(contents, local, [&](std::size_t saved, std::size_t t) {
    for (const ForeignView::Copy& copy : contents.view.copies) {
      if (copy.of == contents.view.places[saved].tensor)
        require_equal(reader, copy, local.local(t).held);
    }
  });
}

/// Splits at boundaries of the source, so that no two parts share a chunk.
void cut(const Source& reader, const WantedPart& whole, std::vector<WantedPart>& parts) {
  const Fragment held{static_cast<std::uint32_t>(whole.place->tensor), whole.to.held};
  const Boundary boundary = [&](std::uint32_t tensor, std::uint64_t element) {
    return reader.read_boundary(tensor, element);
  };
  for (const Fragment& part : cut_fragments(reader.catalog(), {&held, 1}, kPartBytes, boundary))
    parts.push_back({whole.place, whole.dtype, whole.to.part(part.range)});
}

std::vector<WantedPart> wanted_parts(const Source& reader, const Contents& contents,
                                     const LocalState& local) {
  std::vector<WantedPart> parts;
  visit_wanted(contents, local, [&](std::size_t saved, std::size_t t) {
    const WantedPart whole{&contents.view.places[saved], local.tensors()[t].dtype, local.local(t)};
    if (whole.place->transposed) {
      parts.push_back(whole);
    } else {
      cut(reader, whole, parts);
    }
  });
  return parts;
}

/// Reads in parallel: one part is checked, or copied to a device, while another is read from disk.
void read_parts(const Source& reader, const std::vector<WantedPart>& parts) {
  PinnedBuffers buffers(device_of(parts), kReaders);
  in_parallel(
      parts.size(),
      [&](std::size_t index) {
        const WantedPart& part = parts[index];
        read_tensor(reader, *part.place, part.dtype, part.to, buffers);
      },
      kReaders);
}

void read_counters(const Catalog& saved, TrainingState& state, std::vector<std::string>& notes) {
  state.step = saved.step;
  state.skipped_steps = std::max<std::int64_t>(
      0, number_at<std::int64_t>(saved.data_position, "skipped_steps").value_or(0));
  state.last_iteration =
      number_at<std::int64_t>(saved.scheduler, "last_batch_iteration").value_or(saved.step - 1);
  const auto trained = static_cast<std::uint64_t>(saved.step * state.batch.train);
  state.samples =
      number_at<std::uint64_t>(saved.data_position, "global_sample_index").value_or(trained);
  const auto shuffle =
      number_at<std::uint64_t>(saved.data_position, "shuffle_seed").value_or(state.shuffle_seed);
  const auto seed = number_at<std::uint64_t>(saved.rng, "seed").value_or(state.seed);
  if (seed != state.seed) notes.push_back("the seed is the checkpoint's, " + std::to_string(seed));
  if (shuffle != state.shuffle_seed) {
    notes.push_back("the data order's seed is the checkpoint's, " + std::to_string(shuffle));
  }
  state.seed = seed;
  state.shuffle_seed = shuffle;
}

/// Returns "b" for "a/b" and for "a/b/".
std::string name_of_folder(const Path& path) {
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// Accepts "x.pt/", a file that was typed like a folder.
Path without_slash_of_file(Storage& storage, const Path& path) {
  if (path.has_filename() || !path.has_parent_path()) return path;
  return storage.kind(path.parent_path()) == EntryKind::File ? path.parent_path() : path;
}

/// Returns rank 0's interpretation of `folder` and `tag`: a path, and a tag if the path holds
/// several.
std::pair<Path, std::optional<std::string>> find(Communicator& communicator, Storage& storage,
                                                 const Path& folder,
                                                 const std::optional<std::string>& tag) {
  std::string answer;
  agree(communicator, "finding the checkpoint", [&] {
    if (communicator.rank() != 0) return;
    const Path path = without_slash_of_file(storage, folder);
    const converters::Probe probe = converters::probe(storage, path);
    if (probe.format.empty() && storage.kind(path) != EntryKind::Directory)
      raise(ErrorCode::NotFound, probe.problem, "check the path");
    const bool is_native = probe.format.empty() || probe.format == "native";
    // A path may hold every byte but NUL.
    answer = is_native ? resolve_checkpoint(storage, path, tag).string() + '\0'
                       : path.string() + '\0' + tag.value_or("");
  });
  answer = gather_text(communicator, answer).front();
  const std::size_t end = answer.find('\0');
  const std::string chosen = answer.substr(end + 1);
  return {answer.substr(0, end), chosen.empty() ? std::nullopt : std::optional(chosen)};
}

/// Returns false where all ranks share one folder, or rank 0's is another program's checkpoint.
bool is_on_nodes(const TrainingState& state, Communicator& communicator, Storage& storage,
                 const Path& folder) {
  if (state.nodes.is_one()) return false;
  bool is_native = false;
  agree(communicator, "looking at the checkpoint", [&] {
    if (communicator.rank() != 0) return;
    const std::string format =
        converters::probe(storage, without_slash_of_file(storage, folder)).format;
    is_native = format.empty() || format == "native";
  });
  return agree_max(communicator, is_native ? 1 : 0) == 1;
}

/// A checkpoint that was found.
struct FoundCheckpoint {
  Path where;
  std::optional<std::string> tag;
  const NodeCheckpoint* on_nodes = nullptr;  ///< null: every rank sees all of it
};

LoadReport load_found(TrainingState& state, Communicator& communicator,
                      const EngineOptions& options, const FoundCheckpoint& found) {
  const auto& [where, which, on_nodes] = found;
  const LocalState local(state);
  std::unique_ptr<Source> reader;
  Contents contents;
  agree(communicator, "opening the checkpoint", [&] {
    reader = on_nodes ? converters::make_native_source(on_nodes->reader)
                      : converters::open_source(*options.storage, where, which);
    const Catalog wanted = describe_wanted(state, local);
    contents = view_contents(*reader, wanted, options.foreign_names);
    require_match(contents.saved, contents.weights_only ? model_part(wanted) : wanted,
                  where.string());
    check_copies(*reader, contents, local);
  });
  std::vector<WantedPart> elsewhere;
  agree(communicator, "reading the checkpoint", [&] {
    std::vector<WantedPart> parts = wanted_parts(*reader, contents, local);
    if (on_nodes) elsewhere = take_parts_elsewhere(*on_nodes, parts);
    read_parts(*reader, parts);
  });
  if (on_nodes) read_elsewhere(communicator, *on_nodes, *reader, elsewhere);
  const converters::ReadPeers peers{
      .share = {.rank = communicator.rank(), .size = communicator.size(), .id = {}},
      .parts = gather_text(communicator, reader->read_parts())};
  agree(communicator, "checking what was read",
        [&] { reader->verify_reads({.threads = kReaders, .buffer_bytes = kPartBytes}, peers); });
  const Catalog& saved = contents.saved;
  LoadReport report{.tag = which.value_or(name_of_folder(where)),
                    .step = contents.weights_only ? 0 : saved.step,
                    .saved_world_size = saved.world_size,
                    .saved_stage = saved.stage,
                    .client_state = saved.client_state,
                    .notes = reader->notes_and_remarks()};
  std::ranges::copy(contents.view.notes, std::back_inserter(report.notes));
  if (contents.weights_only) {
    report.notes.push_back(
        where.string() +
        " holds weights only: the optimizer, the schedule and the data start anew");
    return report;
  }
  for (std::string& note : compare_producer(saved.producer))
    report.notes.push_back(std::move(note));
  note_other_settings(state, saved, describe_wanted(state, local), report.notes);
  read_counters(saved, state, report.notes);
  if (state.scaler) state.scaler->restore(saved.loss_scaler, report.notes);
  return report;
}

}  // namespace

LoadReport load(TrainingState& state, Communicator& communicator, const EngineOptions& options,
                const Path& folder, const std::optional<std::string>& tag) {
  if (is_on_nodes(state, communicator, *options.storage, folder)) {
    finish_publishing(communicator, state.nodes, *options.storage, folder);
    const NodeCheckpoint found =
        open_on_nodes(communicator, state.nodes, *options.storage, folder, tag);
    return load_found(state, communicator, options, {found.where, std::nullopt, &found});
  }
  const auto [where, which] = find(communicator, *options.storage, folder, tag);
  try {
    return load_found(state, communicator, options, {where, which});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt) throw;
    const std::string others = converters::other_checkpoints(*options.storage, where);
    if (others.empty()) throw;
    raise(error.code(), error.what(), others);
  }
}

}  // namespace unishard::trainer::detail
