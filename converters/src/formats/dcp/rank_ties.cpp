#include "formats/dcp/rank_ties.hpp"

#include "formats/dcp/state_dict.hpp"

#include <algorithm>
#include <map>

namespace unishard::converters::dcp {
namespace {

/// Whether the ranks hold the same boxes of both.
bool are_cut_alike(const TensorEntry& a, const TensorEntry& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::ranges::equal(a.chunks, b.chunks, [](const Chunk& left, const Chunk& right) {
           return left.rank == right.rank && left.box == right.box;
         });
}

}  // namespace

RankTies::Number RankTies::number_of(const std::string& key) {
  return numbers_.emplace(key, static_cast<Number>(numbers_.size())).first->second;
}

void RankTies::add(const std::string& key, std::uint64_t rank, const std::string& first) {
  firsts_[key].emplace_back(rank, number_of(first));
}

void RankTies::settle(StateDict& state) {
  std::map<Firsts, std::size_t> owners;  // positions in `kept`
  std::vector<TensorEntry> kept;
  for (TensorEntry& tensor : state.tensors) {
    if (const auto firsts = firsts_.find(tensor.key); firsts != firsts_.end()) {
      const auto [owner, is_new] = owners.try_emplace(std::move(firsts->second), kept.size());
      if (!is_new && are_cut_alike(kept[owner->second], tensor)) {
        state.second_keys.push_back(
            {tensor.key, kept[owner->second].key, std::move(tensor.path), std::move(tensor.place)});
        continue;
      }
    }
    kept.push_back(std::move(tensor));
  }
  state.tensors = std::move(kept);
  numbers_.clear();
  firsts_.clear();
}

}  // namespace unishard::converters::dcp
