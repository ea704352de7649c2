// The file is created complete except for its payload. All sizes are known, so several threads may
// write tensors in any order.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "core/embedded_catalog.hpp"
#include "core/idle_sink.hpp"
#include "core/one_file_sink.hpp"
#include "formats/hdf5/link_names.hpp"
#include "formats/hdf5/new_file.hpp"

#include <fmt/format.h>

#include <unordered_map>

namespace unishard::converters {
namespace {

using hdf5::NewFile;

constexpr std::size_t kDimensions = 32;  // HDF5's limit

/// What the file will hold, and what is left out.
struct Draft {
  NewFile file;
  std::string text;
  std::vector<std::string> notes;
};

void check_dimensions(const Catalog& catalog) {
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.shape.size() > kDimensions) {
      raise(ErrorCode::Unsupported,
            fmt::format("{} has {} dimensions, and HDF5 holds up to {}",
                        unishard::quote(tensor.label()), tensor.shape.size(), kDimensions));
    }
  }
}

std::unordered_map<std::string_view, std::size_t> index_names(
    const std::vector<std::string>& names) {
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!index.emplace(names[i], i).second) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("an HDF5 file holds one data set of a name, and two tensors would be {}",
                        unishard::quote(names[i])));
    }
  }
  return index;
}

/// Places tensors under their flat paths. The second names of tied tensors are links to the same
/// data set.
Draft make_draft(const Catalog& catalog) {
  check_dimensions(catalog);
  Draft draft;
  const std::vector<std::string> names = flat_paths(catalog, "");
  if (needs_text(catalog)) draft.text = catalog_text(catalog, names);
  draft.file.text_bytes = draft.text.size();
  const auto index = index_names(names);
  std::vector<std::string_view> all(names.begin(), names.end());
  std::vector<std::size_t> targets;
  for (const Alias& alias : catalog.aliases) {
    const auto target = index.find(alias.target);
    if (target == index.end() || index.contains(alias.fqn)) {
      if (draft.text.empty()) {
        draft.notes.push_back(
            fmt::format("{}: a second name of {}, which is not written", alias.fqn, alias.target));
      }
      continue;
    }
    all.push_back(alias.fqn);
    targets.push_back(target->second);
  }
  const std::vector<std::string> paths = hdf5::link_paths(all);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    draft.file.data_sets.push_back(
        {paths[i], tensor.dtype, tensor.shape, paths[i] == names[i] ? "" : names[i]});
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    draft.file.links.emplace_back(paths[names.size() + i], targets[i]);
    draft.file.data_sets[targets[i]].main_name = names[targets[i]];
  }
  return draft;
}

}  // namespace

std::unique_ptr<Sink> make_hdf5_sink(Storage& storage, Path output, Catalog catalog,
                                     const WorkSplit& share) {
  if (share.rank != 0) return std::make_unique<IdleSink>();
  const Draft draft = make_draft(catalog);
  const auto begin = [&draft](File& file) {
    hdf5::NewFileOffsets offsets = hdf5::fill_new_file(file, draft.file);
    file.reserve(file.size());
    if (!draft.text.empty()) file.write_at(offsets.text, std::as_bytes(std::span(draft.text)));
    return std::move(offsets.data_sets);
  };
  return std::make_unique<OneFileSink>(storage, output, std::move(catalog), begin, draft.notes);
}

}  // namespace unishard::converters
