#include "formats/dcp/nanotron_weights.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "containers/safetensors_header.hpp"
#include "formats/dcp/safetensors_pieces.hpp"
#include "formats/dcp/view_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace unishard::converters::dcp::nanotron {
namespace {

struct TensorFile {
  Path path;
  std::optional<Ranks> ranks;
};
/// The files of each tensor, by its name.
using TensorFiles = std::map<std::string, std::vector<TensorFile>>;

class Search {
 public:
  Search(Storage& storage, StateDictBuilder& builder) : storage_(storage), builder_(builder) {}

  void in(const Path& folder, const std::string& module, std::size_t depth) {
    constexpr std::size_t kDeepest = 64, kMostFolders = std::size_t{1} << 20;
    if (depth > kDeepest || ++folders_ > kMostFolders)
      raise(ErrorCode::Corrupt, fmt::format("{}: folders too deeply nested", folder.string()));
    for (const Entry& entry : storage_.list(folder)) {
      const Path path = folder / entry.name;
      if (storage_.kind(path) == EntryKind::Directory) {  // also behind a link
        in(path, fmt::format("{}{}.", module, entry.name), depth + 1);
      } else if (auto file = parse_tensor_file(entry.name)) {
        files[module + file->tensor].push_back({path, std::move(file->ranks)});
      } else {
        builder_.out.losses.push_back(
            {entry.name.ends_with(".safetensors") ? Role::Weight : Role::SideFile, path.string(),
             "its name is none that nanotron gives"});
      }
    }
  }

  TensorFiles files;

 private:
  Storage& storage_;
  StateDictBuilder& builder_;
  std::size_t folders_ = 0;
};

/// What a file of one tensor holds.
struct Part {
  torch::TensorView view;
  safetensors::Metadata metadata;
};

Part read_part(const Path& path, StateDictBuilder& builder) {
  const std::shared_ptr<const File> file = builder.open(path);
  safetensors::Header header = safetensors::read_header(*file);
  constexpr std::string_view kTensor = "data";
  if (header.entries.size() != 1 || header.entries[0].name != kTensor || header.entries[0].sub_byte)
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it does not hold the one tensor \"data\" that nanotron writes",
                      path.string()));
  return {view_of(file, header.data_offset, header.entries[0]), std::move(header.metadata)};
}

const std::string* find(const safetensors::Metadata& metadata, std::string_view key) {
  const auto found = std::ranges::find(metadata, key, [](const auto& item) { return item.first; });
  return found == metadata.end() ? nullptr : &found->second;
}

/// Returns the rank's boxes, and sets the shape of the whole.
Cut cut_of(const Part& part, bool is_alone, Shape& whole) {
  const std::string* const pairs = find(part.metadata, "local_global_slices_pairs");
  const std::string* const shape = find(part.metadata, "unsharded_shape");
  const Shape& local = part.view.shape;
  if (pairs != nullptr && shape != nullptr) {
    whole = parse_shape(*shape);
    return {part.view, parse_slices(*pairs, local, whole)};
  }
  if (!is_alone)
    raise(ErrorCode::Unsupported,
          "the part of a rank, and its metadata do not say where it lies in the whole",
          "nanotron before 1.2 of its checkpoints wrote no more: load and save it with nanotron");
  whole = local;
  const Box all{Shape(local.size(), 0), local};
  return {part.view, {{all, all}}};
}

/// Checks that the ranks have files, each one, and lie in the whole in their order.
void require_all_ranks(const std::string& name, const std::vector<TensorFile>& files,
                       const Parameter& parameter) {
  const RankOf tensor = rank_in(*files[0].ranks, "tp"), expert = rank_in(*files[0].ranks, "exp");
  const Shape* before = nullptr;
  for (std::uint64_t e = 0; e < expert.ranks; ++e) {
    for (std::uint64_t t = 0; t < tensor.ranks; ++t) {
      const auto cut = parameter.cuts.find({t, e});
      if (cut == parameter.cuts.end())
        raise(ErrorCode::Corrupt,
              fmt::format("{}: of the tensor-parallel ranks of {} the file of rank {}{} is missing",
                          files[0].path.parent_path().string(), unishard::quote(name), t,
                          expert.ranks > 1 ? fmt::format(", expert rank {},", e) : ""),
              "put the files of all ranks into one folder");
      if (cut->second.boxes.empty()) continue;
      const Shape& begin = cut->second.boxes.front().whole.offsets;
      if (before != nullptr && begin < *before)
        raise(ErrorCode::Corrupt,
              fmt::format("{}: the files of {} lie in the whole in another order than their ranks: "
                          "one is in another's place",
                          files[0].path.parent_path().string(), unishard::quote(name)));
      before = &begin;
    }
  }
}

void add_cut_tensor(const std::string& name, const std::vector<TensorFile>& files,
                    Parameter& parameter, StateDictBuilder& builder) {
  const RankOf tensor = rank_in(*files[0].ranks, "tp"), expert = rank_in(*files[0].ranks, "exp");
  for (const TensorFile& file : files) {
    if (!file.ranks || rank_in(*file.ranks, "tp").ranks != tensor.ranks ||
        rank_in(*file.ranks, "exp").ranks != expert.ranks)
      raise(ErrorCode::Corrupt, fmt::format("{} and {} are of runs on different numbers of ranks",
                                            files[0].path.string(), file.path.filename().string()));
    const Part part = read_part(file.path, builder);
    try {
      Shape whole;
      Cut cut = cut_of(part, tensor.ranks * expert.ranks == 1, whole);
      if (parameter.cuts.empty()) parameter.shape = whole;
      for (const CutBox& box : cut.boxes)
        builder.add_piece("model." + name, {{"model", false}, {name, false}}, whole, box.whole,
                          box_of(part.view, box.local));
      const std::pair ranks(rank_in(*file.ranks, "tp").rank, rank_in(*file.ranks, "exp").rank);
      if (!parameter.cuts.emplace(ranks, std::move(cut)).second)
        raise(ErrorCode::Corrupt, "another stage of the pipeline has this rank's part as well");
    } catch (const Error& error) {
      throw error.with_context(file.path.string() + ": ");
    }
  }
  require_all_ranks(name, files, parameter);
}

void add_tensor(const std::string& name, const std::vector<TensorFile>& files, Parameter& parameter,
                StateDictBuilder& builder) {
  if (files[0].ranks) return add_cut_tensor(name, files, parameter, builder);
  if (files.size() > 1)
    raise(ErrorCode::Corrupt,
          fmt::format("{} holds the whole tensor, and {} a part of it", files[0].path.string(),
                      files[1].path.filename().string()));
  Part part = read_part(files[0].path, builder);
  parameter.shape = part.view.shape;
  parameter.whole = part.view;
  builder.add_piece("model." + name, {{"model", false}, {name, false}}, parameter.shape,
                    {Shape(parameter.shape.size(), 0), parameter.shape}, std::move(part.view));
}

}  // namespace

Cut Parameter::cut_of(std::uint64_t tensor_rank, std::uint64_t expert_rank) const {
  if (cuts.empty()) {
    const Box all{Shape(shape.size(), 0), shape};
    return {whole, {{all, all}}};
  }
  const bool has_experts = cuts.rbegin()->first.second > 0;
  const auto found = cuts.find({tensor_rank, has_experts ? expert_rank : 0});
  if (found == cuts.end())
    raise(ErrorCode::Corrupt,
          fmt::format("the model has no part of tensor-parallel rank {}", tensor_rank));
  return found->second;
}

Parameters read_weights(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  Search search(storage, builder);
  search.in(folder, "", 0);
  Parameters parameters;
  std::uint64_t ranks = 1;
  for (auto& [name, files] : search.files) {
    std::ranges::sort(files, {}, &TensorFile::path);
    add_tensor(name, files, parameters[name], builder);
    if (!files[0].ranks) continue;
    std::uint64_t product = 1;
    for (const auto& [kind, rank] : *files[0].ranks)
      product = std::min<std::uint64_t>(product * rank.ranks, limits::kWorldSize);
    ranks = std::max(ranks, product);
  }
  builder.out.world_size = static_cast<std::uint32_t>(ranks);
  return parameters;
}

}  // namespace unishard::converters::dcp::nanotron
