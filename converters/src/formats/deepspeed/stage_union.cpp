#include "formats/deepspeed/stage_union.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

namespace unishard::converters::deepspeed {
namespace {

/// Elements of a tied tensor that are compared to tell whether a later stage's copy is stale.
constexpr std::uint64_t kComparedCopy = 4096;

/// Returns the first elements of a tensor.
std::vector<std::byte> leading_bytes(const std::vector<ViewPiece>& pieces) {
  std::vector<std::byte> bytes;
  for (const ViewPiece& piece : pieces) {
    if (piece.range.begin != 0 || piece.range.empty() || !piece.view.storage) continue;
    const std::uint64_t count = std::min(kComparedCopy, piece.range.size());
    bytes = sampled_bytes(piece.view, piece.first, count);
  }
  return bytes;
}

class StageUnion {
 public:
  explicit StageUnion(RankContent first) : out_(std::move(first)) {
    for (std::size_t i = 0; i < catalog().tensors.size(); ++i) remember(i);
    add_groups(std::exchange(catalog().groups, Json::array()));
  }

  void add(RankContent stage, std::size_t number) {
    check_one_save(out_, stage);
    Notes differing;
    note_differing_facts(out_, stage, differing);
    std::ranges::copy(differing.lines(), std::back_inserter(out_.parts.remarks));
    const std::vector<std::int32_t> groups = add_groups(stage.parts.catalog.groups);
    for (std::size_t i = 0; i < stage.parts.catalog.tensors.size(); ++i) {
      TensorInfo& tensor = stage.parts.catalog.tensors[i];
      const auto known = numbers_.find({tensor.fqn, tensor.state});
      if (known != numbers_.end()) {
        compare(known->second, tensor, stage.parts.pieces[i], stage, number);
        continue;
      }
      if (tensor.group >= 0) tensor.group = groups.at(static_cast<std::size_t>(tensor.group));
      take(std::move(tensor), std::move(stage.parts.pieces[i]));
    }
    for (Alias& alias : stage.parts.catalog.aliases) {
      const bool is_known =
          std::ranges::find(catalog().aliases, alias.fqn, &Alias::fqn) != catalog().aliases.end();
      if (!is_known) catalog().aliases.push_back(std::move(alias));
    }
  }

  RankContent finish(std::size_t stages) {
    if (settings_.empty()) catalog().groups = nullptr;
    const std::uint64_t ranks = out_.world_size * stages;  // both are limited
    catalog().world_size = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(ranks, std::numeric_limits<std::uint32_t>::max()));
    out_.world_size = ranks;
    return std::move(out_);
  }

 private:
  Catalog& catalog() { return out_.parts.catalog; }

  void remember(std::size_t i) {
    const TensorInfo& tensor = catalog().tensors[i];
    numbers_.emplace(std::pair(tensor.fqn, tensor.state), i);
  }

  void take(TensorInfo tensor, std::vector<ViewPiece> pieces) {
    catalog().tensors.push_back(std::move(tensor));
    out_.parts.pieces.push_back(std::move(pieces));
    remember(catalog().tensors.size() - 1);
  }

  /// Adds the parameters of a stage's groups to those with the same settings. Returns the new
  /// number of each group.
  std::vector<std::int32_t> add_groups(const Json& groups) {
    std::vector<std::int32_t> numbers;
    if (!groups.is_array()) return numbers;
    std::set<std::size_t> used;
    for (const Json& group : groups) {
      const std::size_t number = group_like(group, used);
      used.insert(number);
      numbers.push_back(static_cast<std::int32_t>(number));
      Json& params = catalog().groups[number]["params"];
      for (const Json& name : group["params"]) {
        if (listed_.insert(name.get<std::string>()).second) params.push_back(name);
      }
    }
    return numbers;
  }

  /// Returns the first unused group with the same settings, a new one if there is none.
  std::size_t group_like(const Json& group, const std::set<std::size_t>& used) {
    Json settings = group;
    settings.erase("params");
    for (std::size_t g = 0; g < settings_.size(); ++g) {
      if (!used.contains(g) && settings_[g] == settings) return g;
    }
    settings_.push_back(settings);
    settings["params"] = Json::array();
    catalog().groups.push_back(std::move(settings));
    return settings_.size() - 1;
  }

  /// Remarks that a tied tensor has another value on a later stage.
  void compare(std::size_t known, const TensorInfo& tensor, const std::vector<ViewPiece>& pieces,
               const RankContent& stage, std::size_t number) {
    const TensorInfo& first = catalog().tensors[known];
    if (first.shape != tensor.shape || first.dtype != tensor.dtype) {
      raise_two_saves(out_.model_name, stage.model_name,
                      fmt::format("{} is described differently", tensor.label()));
    }
    if (leading_bytes(out_.parts.pieces[known]) == leading_bytes(pieces)) return;
    out_.parts.remarks.push_back(fmt::format(
        "{}: stage {} has another value, which training did not keep equal; that of the "
        "first stage is taken",
        tensor.label(), number));
  }

  RankContent out_;
  std::vector<Json> settings_;              ///< of each group, without its parameters
  std::unordered_set<std::string> listed_;  ///< parameters of the groups
  std::map<std::pair<std::string, std::string>, std::size_t> numbers_;  ///< by fqn and state
};

}  // namespace

RankContent unite_stages(std::vector<RankContent> stages) {
  StageUnion result(std::move(stages.front()));
  for (std::size_t i = 1; i < stages.size(); ++i) result.add(std::move(stages[i]), i);
  return result.finish(stages.size());
}

}  // namespace unishard::converters::deepspeed
