#include "formats/deepspeed/swapped_states.hpp"

#include "unishard/format/catalog.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/format/text.hpp"

#include "containers/equal_elements.hpp"
#include "formats/deepspeed/pickle_fields.hpp"
#include "formats/deepspeed/shard_copies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

namespace unishard::converters::deepspeed {
namespace {

constexpr std::size_t kNamed = 4;

/// Returns the folder with those of the ranks.
std::string folder_of(const std::string& file) {
  return Path(file).parent_path().parent_path().string();
}

/// Returns the folder of a rank and the file in it.
std::string short_name(const std::string& file) {
  const Path path = file;
  return (path.parent_path().filename() / path.filename()).string();
}

/// Returns the number of elements of `range` before the zeros at its end.
std::uint64_t elements_before_zeros(const torch::TensorView& view, ElementRange range) {
  constexpr std::uint64_t kBlock = 16384;
  const std::uint64_t width = size_of(view.dtype);
  while (!range.empty()) {
    const std::uint64_t count = std::min(kBlock, range.size());
    const std::vector<std::byte> bytes = sampled_bytes(view, range.end - count, count);
    const auto last = std::find_if(bytes.rbegin(), bytes.rend(),
                                   [](std::byte byte) { return byte != std::byte{0}; });
    range.end -= static_cast<std::uint64_t>(last - bytes.rbegin()) / width;
    if (last != bytes.rend()) break;
  }
  return range.size();
}

/// A state, and where the zeros at the end of its parameters begin.
class Ending {
 public:
  explicit Ending(const SwappedState& state) : state_(&state) {
    for (std::size_t i = state.parameters.size(); i-- > 0;) {
      const ElementRange part = state.parameters[i];
      const std::uint64_t before = elements_before_zeros(state.view, part);
      if (before == 0) continue;
      zeros_ = part.begin + before;
      inside_ = zeros_ < part.end;
      constexpr std::uint64_t kNumber = 8;  // one may end with zeros
      goes_on_ = i + 1 < state.parameters.size() &&
                 (part.end - zeros_) * size_of(state.view.dtype) > kNumber;
      break;
    }
  }

  bool is_master() const { return state_->name == state::kFp32; }
  bool is_zero() const { return zeros_ == 0; }
  std::uint64_t zeros() const { return zeros_; }
  /// Whether the zeros begin where a write of pages stops, or go on through further parameters.
  bool is_cut() const {
    constexpr std::uint64_t kPage = 4096;
    return inside_ && (goes_on_ || zeros_ * size_of(state_->view.dtype) % kPage == 0);
  }
  bool goes_on() const { return inside_ && goes_on_; }
  const std::string& file() const { return state_->file; }
  const SwappedState& state() const { return *state_; }

 private:
  const SwappedState* state_;
  std::uint64_t zeros_ = 0;
  bool inside_ = false, goes_on_ = false;
};

/// The states of one sub-group of one rank.
struct SubGroup {
  std::optional<Ending> master;
  std::vector<Ending> moments;

  bool has_moment() const {
    return std::ranges::any_of(moments, [](const Ending& each) { return !each.is_zero(); });
  }
  bool is_of_several() const {
    return !moments.empty() && moments.front().state().parameters.size() > 1;
  }
  /// Returns whether another moment has numbers where `ending` has zeros.
  bool contradicts(const Ending& ending) const {
    return std::ranges::any_of(moments,
                               [&](const Ending& other) { return other.zeros() > ending.zeros(); });
  }
};

class Doubts {
 public:
  explicit Doubts(const std::vector<SwappedState>& states) {
    for (const SwappedState& state : states) {
      if (state.parameters.empty()) continue;
      const Ending ending(state);
      SubGroup& group = groups_[{state.group, state.rank}];
      if (ending.is_master()) {
        group.master = ending;
      } else {
        group.moments.push_back(ending);
      }
    }
  }

  std::vector<std::string> lines() {
    for (const auto& [place, group] : groups_) judge(place.first, group);
    std::vector<std::string> lines;
    add_line(zero_, "hold only zeros, unlike the states of parameters that were trained", lines);
    add_line(cut_, "end with zeros, which begin inside of a parameter", lines);
    return lines;
  }

 private:
  void judge(std::size_t number, const SubGroup& group) {
    const bool is_lost =
        group.moments.empty() ? false : !group.has_moment() && is_odd(number, group);
    for (const Ending& moment : group.moments) {
      if (moment.is_zero() ? is_lost || group.has_moment() : is_cut(group, moment))
        (moment.is_zero() ? zero_ : cut_).push_back(moment.file());
    }
    if (!group.master) return;
    if (group.master->is_zero()) zero_.push_back(group.master->file());
    if (!group.master->is_zero() && group.master->is_cut()) cut_.push_back(group.master->file());
  }

  static bool is_cut(const SubGroup& group, const Ending& moment) {
    return group.moments.size() > 1 ? moment.is_cut() && group.contradicts(moment)
                                    : moment.goes_on();
  }

  /// Whether moments that are all zeros are those of parameters with gradients: the master is zero
  /// as well, other ranks have moments of the same parameters, or no moments of the run are others.
  /// One parameter may have its gradients, rows of an embedding, on other ranks.
  bool is_odd(std::size_t number, const SubGroup& group) const {
    if (group.master && group.master->is_zero()) return true;
    bool has_any = false, has_same = false;
    for (const auto& [place, other] : groups_) {
      has_any = has_any || other.has_moment();
      has_same = has_same || (place.first == number && other.has_moment());
    }
    return !has_any || (has_same && group.is_of_several());
  }

  static void add_line(const std::vector<std::string>& files, std::string_view what,
                       std::vector<std::string>& lines) {
    if (files.empty()) return;
    std::vector<std::string> named;
    for (const std::string& file : std::span(files).first(std::min(files.size(), kNamed)))
      named.push_back(short_name(file));
    const std::size_t more = files.size() - named.size();
    lines.push_back(fmt::format(
        "{}: {} files of states on NVMe {}: so does a copy that was cut and kept its size: {}{}; "
        "copy the folder again from the nodes that wrote it",
        folder_of(files.front()), files.size(), what, fmt::join(named, ", "),
        more == 0 ? "" : fmt::format(" and {} more", more)));
  }

  std::map<std::pair<std::size_t, std::uint32_t>, SubGroup> groups_;
  std::vector<std::string> zero_, cut_;
};

/// Two states whose files have the same bytes.
using EqualPair = std::pair<const SwappedState*, const SwappedState*>;

std::vector<EqualPair> equal_pairs(const std::vector<SwappedState>& states) {
  ShardCopies known;
  std::map<std::string_view, const SwappedState*> by_file;
  std::vector<EqualPair> pairs;
  for (const SwappedState& state : states) {
    if (has_one_value(state.view)) continue;
    by_file.emplace(state.file, &state);
    if (const auto other = known.find_or_add(state.file, {state.whole_file}))
      pairs.emplace_back(&state, by_file.at(*other));
  }
  return pairs;
}

std::size_t moments_of(const std::vector<SwappedState>& states, const SwappedState& one) {
  return static_cast<std::size_t>(std::ranges::count_if(states, [&](const SwappedState& state) {
    return state.group == one.group && state.rank == one.rank && state.name != state::kFp32;
  }));
}

}  // namespace

std::optional<std::string> doubt_about_copies(const std::vector<SwappedState>& states) {
  const std::vector<EqualPair> pairs = equal_pairs(states);
  const auto are_of = [](const EqualPair& a, const EqualPair& b) {
    return a.first->name == a.second->name && a.first->group == b.first->group &&
           a.first->rank == b.first->rank && a.second->group == b.second->group &&
           a.second->rank == b.second->rank;
  };
  std::vector<std::string> named;
  for (const EqualPair& pair : pairs) {
    const auto alike = static_cast<std::size_t>(
        std::ranges::count_if(pairs, [&](const EqualPair& each) { return are_of(each, pair); }));
    if (alike < moments_of(states, *pair.first))
      named.push_back(
          fmt::format("{} of {}", short_name(pair.first->file), short_name(pair.second->file)));
  }
  if (named.empty()) return std::nullopt;
  return fmt::format(
      "{}: files of states on NVMe may be copies, since they have the bytes of another state: {}; "
      "copy the folder again from the nodes that wrote it",
      folder_of(states.front().file), first_names(named));
}

std::optional<std::string> doubt_about_squares(const std::vector<SwappedState>& states) {
  constexpr std::uint64_t kLooked = 256;  // elements of each parameter
  const auto has_negative = [&](const SwappedState& state) {
    return std::ranges::any_of(state.parameters, [&](const ElementRange& part) {
      const auto numbers = floats(state.view, part.begin, std::min(kLooked, part.size()));
      return std::ranges::any_of(numbers, [](double number) { return number < 0; });
    });
  };
  std::vector<std::string> named;
  for (const SwappedState& state : states) {
    if (state.name == state::kExpAvgSq && info(state.view.dtype).kind == Kind::Float &&
        has_negative(state))
      named.push_back(short_name(state.file));
  }
  if (named.empty()) return std::nullopt;
  return fmt::format(
      "{}: files of squares on NVMe hold negative numbers, and may be another state's: {}; copy "
      "the "
      "folder again from the nodes that wrote it",
      folder_of(states.front().file), first_names(named));
}

std::vector<std::string> doubts_about_zeros(const std::vector<SwappedState>& states) {
  return Doubts(states).lines();
}

}  // namespace unishard::converters::deepspeed
