#include "formats/dcp/rank_flat_files.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "core/wrapped_names.hpp"
#include "formats/dcp/distributed_tensor.hpp"
#include "formats/dcp/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace unishard::converters::dcp {

bool is_flat_name(std::string_view name) {
  constexpr std::string_view kName = "flat_param", kNumbered = "flat_param_";
  name.remove_prefix(name.rfind('.') + 1);  // npos + 1 is 0
  if (name.starts_with('_')) name.remove_prefix(1);
  return name == kName || (name.starts_with(kNumbered) && is_number(name.substr(kNumbered.size())));
}

void RankFlatFiles::add_file(const torch::TorchFile& file, torch::Value model, std::uint64_t rank) {
  ++ranks_;
  for (const torch::NamedTensor& tensor :
       torch::describe(model, file.pickle().bytes().size()).tensors) {
    const bool is_flat = is_flat_name(tensor.name);
    const std::string name = without_wrappers(tensor.name);
    if (!is_flat && known_names_.insert(name).second) names_.push_back(name);
    if (is_distributed_tensor(tensor.value)) {
      if (!is_flat) continue;
      for (RankPart& part : read_distributed_tensor(file, tensor.value, rank).parts)
        parts_[rank].push_back(std::move(part.view));
      continue;
    }
    torch::TensorView view = file.tensor(tensor.value);
    if (view.shape.size() != 1) continue;
    if (is_flat) {
      parts_[rank].push_back(view);
      const auto [known, is_new] = vector_places_.try_emplace(tensor.name, vectors_.size());
      if (is_new) vectors_.push_back({tensor.name, {}});
      vectors_[known->second].of_ranks.push_back({std::move(view), rank});
    } else {
      Candidate& candidate = candidates_[name];
      candidate.file_name = tensor.name;
      candidate.views.emplace(rank, std::move(view));
    }
  }
}

FlatPiece RankFlatFiles::piece_of(const torch::TensorView& view, std::uint64_t rank) const {
  FlatPiece piece{view.elements(), std::nullopt};
  const auto parts = parts_.find(rank);
  if (parts == parts_.end() || piece.elements == 0) return piece;
  for (const torch::TensorView& part : parts->second) {
    const bool is_inside = part.storage_key == view.storage_key && view.offset >= part.offset &&
                           view.offset - part.offset < part.elements();
    if (is_inside) piece.begin = view.offset - part.offset;
  }
  return piece;
}

void RankFlatFiles::find_pieces(const std::string& key, StateDictBuilder& builder) {
  std::map<std::vector<std::pair<std::uint64_t, torch::ViewIdentity>>, std::string> first_names;
  for (const std::string& name : names_) {
    const auto found = candidates_.find(name);
    if (found == candidates_.end()) continue;
    const Candidate& candidate = found->second;
    const LikeTensor* const like = like_.find(name);
    const Shape& wanted = like != nullptr ? like->shape : candidate.views.begin()->second.shape;
    const bool is_whole = std::ranges::all_of(
        candidate.views, [&](const auto& each) { return each.second.shape == wanted; });
    if (is_whole) continue;
    std::vector<std::pair<std::uint64_t, torch::ViewIdentity>> identity;
    for (const auto& [rank, view] : candidate.views) {
      if (view.elements() > 0) identity.emplace_back(rank, torch::identity_of(view));
    }
    builder.taken_keys.insert(fmt::format("{}.{}", key, candidate.file_name));
    const auto [first, is_new] = first_names.try_emplace(std::move(identity), name);
    if (!is_new && !first->first.empty()) {
      ties_.push_back({name, first->second});
      continue;
    }
    if (like == nullptr)
      raise(ErrorCode::Mismatch,
            fmt::format("the files of the ranks hold pieces of {}, and {} (--like) has no such "
                        "tensor",
                        unishard::quote(name), like_.where),
            "name a model with the names and shapes of the one that was trained");
    PiecedParameter& pieced = pieced_.emplace_back(PiecedParameter{name, {}});
    for (const auto& [rank, view] : candidate.views)
      pieced.pieces.emplace(rank, piece_of(view, rank));
  }
}

void RankFlatFiles::take(const std::string& key, StateDictBuilder& builder) {
  for (const auto& [name, vectors] : vectors_) {
    const std::string full = fmt::format("{}.{}", key, name);
    const std::uint64_t part = vectors.front().view.shape[0];
    if (vectors.size() != ranks_)
      raise(ErrorCode::Unsupported,
            fmt::format("{} is in the files of {} of {} ranks", unishard::quote(full),
                        vectors.size(), ranks_),
            "FSDP1 gives all ranks a part: name the folder of one save");
    builder.taken_keys.insert(full);
    std::uint64_t begin = 0;
    for (const auto& [view, rank] : vectors) {
      if (view.shape[0] != part)
        raise(ErrorCode::Unsupported,
              fmt::format("{} has {} elements in the file of rank {} and {} in that of rank {}",
                          unishard::quote(full), part, vectors.front().rank, view.shape[0], rank),
              "FSDP1 gives all ranks parts of one size: name the folder of one save");
      builder.add_piece(full, {{key, false}, {name, false}},
                        {checked_mul(part, vectors.size(), full)}, {{begin}, {part}}, view, rank);
      begin += part;
    }
  }
  find_pieces(key, builder);
}

}  // namespace unishard::converters::dcp
