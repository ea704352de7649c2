#include "formats/dcp/flat_like.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "core/wrapped_names.hpp"
#include "formats/dcp/flat_parameters.hpp"
#include "formats/dcp/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kModel = "model.";

/// Returns "blocks.0.up" for "model.blocks.0.up" and for the same name with the parts of wrappers.
std::string name_in_model(std::string key) {
  if (key.starts_with(kModel)) key.erase(0, kModel.size());
  return without_wrappers(std::move(key));
}

struct LikeMember {
  const LikeTensor* tensor = nullptr;
  const PiecedParameter* pieced = nullptr;  ///< null without `use_orig_params`
};

struct LikeUnit {
  std::size_t flat = 0;    ///< the index of its flat parameter
  bool is_pieced = false;  ///< the files hold pieces of its parameters as well
  std::vector<LikeMember> members;
};

class LikeReader {
 public:
  LikeReader(StateDict& state, const std::string& where, const LikeModel& like,
             const RankFlatFiles& files)
      : state_(state), where_(where), like_(like), files_(files) {}

  std::vector<PlacedUnit> run() {
    find_units();
    leave_pieces_aside();
    assign();
    std::map<std::size_t, PlacedUnit> placed;  // by flat parameter
    for (const auto& [prefix, unit] : units_) placed.emplace(unit.flat, place(unit));
    std::vector<TensorEntry> tensors;
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      if (pieces_.contains(i)) continue;
      const auto found = placed.find(i);
      if (found == placed.end()) {
        tensors.push_back(std::move(state_.tensors[i]));
      } else {
        add_parts(state_.tensors[i], found->second, tensors);
      }
    }
    state_.tensors = std::move(tensors);
    set_order();
    add_ties(like_.aliases);
    add_ties(files_.ties());
    state_.notes.push_back(fmt::format(
        "{} flat parameters were taken apart by the names, shapes and order of {}, of which "
        "the files confirm the sizes alone",
        units_.size(), like_.where));
    std::vector<PlacedUnit> units;
    units.reserve(placed.size());
    for (auto& [flat, unit] : placed) units.push_back(std::move(unit));
    return units;
  }

 private:
  void find_units() {
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorEntry& tensor = state_.tensors[i];
      const std::string name = name_in_model(tensor.key);
      if (!tensor.key.starts_with(kModel) || tensor.shape.size() != 1 || !is_flat_name(name)) {
        stored_.insert(name);
        continue;
      }
      const auto [known, is_new] = units_.try_emplace(name.substr(0, name.rfind('.') + 1));
      if (!is_new)
        refuse_flat_parameter(tensor, where_,
                              "its module has another one, and nothing tells which "
                              "parameters are in which");
      known->second.flat = i;
      for (const Chunk& chunk : tensor.chunks)
        check_inside(tensor.shape, chunk.box,
                     fmt::format("{}: tensor {}", where_, unishard::quote(tensor.key)));
    }
    if (units_.empty())
      raise(ErrorCode::InvalidArgument,
            fmt::format("{} holds no flat parameter of FSDP1, for which --like gives the shapes",
                        where_),
            "leave --like out");
  }

  /// Returns the innermost unit that contains the parameter; null for one outside of all.
  LikeUnit* unit_of(std::string_view name) {
    for (std::size_t dot = name.rfind('.');; dot = name.rfind('.', dot - 1)) {
      const auto found = units_.find(std::string(name.substr(0, dot + 1)));  // npos + 1 is 0
      if (found != units_.end()) return &found->second;
      if (dot == name.npos || dot == 0) break;
    }
    const auto root = units_.find("");
    return root == units_.end() ? nullptr : &root->second;
  }

  /// Finds tensors that are pieces of one rank beside a flat parameter, which has all of them: with
  /// `use_orig_params`, LOCAL_STATE_DICT names both, and torch.distributed.checkpoint keeps one
  /// rank's piece of each name. A piece may be a whole parameter, or empty, so a unit with one of
  /// another shape than the model's has no parameter by itself.
  void leave_pieces_aside() {
    std::vector<std::pair<std::size_t, LikeUnit*>> candidates;
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorEntry& tensor = state_.tensors[i];
      const std::string name = name_in_model(tensor.key);
      const LikeTensor* const like = stored_.contains(name) ? like_.find(name) : nullptr;
      LikeUnit* const unit = like != nullptr && like->may_be_flat ? unit_of(name) : nullptr;
      if (unit == nullptr || tensor.shape.size() != 1 || is_buffer(state_, tensor, name)) continue;
      candidates.emplace_back(i, unit);
      if (tensor.shape != like->shape && tensor.shape[0] <= element_count(like->shape))
        unit->is_pieced = true;
    }
    for (const auto& [index, unit] : candidates) {
      if (!unit->is_pieced) continue;
      pieces_.insert(index);
      stored_.erase(name_in_model(state_.tensors[index].key));
    }
  }

  /// Gives each parameter that no file has by itself to its unit.
  void assign() {
    std::unordered_set<std::string_view> pieced;
    for (const PiecedParameter& parameter : files_.pieced()) {
      LikeUnit* const unit = unit_of(parameter.name);
      if (unit == nullptr)
        raise(ErrorCode::Mismatch,
              fmt::format("{}: the files of the ranks hold pieces of {}, and no flat parameter is "
                          "that of its module",
                          where_, unishard::quote(parameter.name)),
              "bring the files of one save together");
      unit->members.push_back({like_.find(parameter.name), &parameter});
      pieced.insert(parameter.name);
    }
    for (const LikeTensor& tensor : like_.tensors) {
      if (stored_.contains(tensor.name) || pieced.contains(tensor.name)) continue;
      LikeUnit* const unit = tensor.may_be_flat && pieced.empty() ? unit_of(tensor.name) : nullptr;
      if (unit != nullptr) {
        unit->members.push_back({&tensor, nullptr});
      } else if (!is_tied(tensor.name)) {
        state_.losses.push_back({.role = tensor.may_be_flat ? Role::Weight : Role::Buffer,
                                 .name = tensor.name,
                                 .why = fmt::format("{} has it, and no file here", like_.where),
                                 .is_broken = true});
      }
    }
  }

  bool is_tied(const std::string& name) const {
    return std::ranges::count(files_.ties(), name, &Alias::fqn) > 0;
  }

  FlatVector vector_of(const TensorEntry& flat) const {
    FlatVector vector{.elements = flat.shape[0],
                      .is_filled = files_.is_filled(flat.key.substr(kModel.size())),
                      .ranks = state_.world_size,
                      .parts = {}};
    for (const Chunk& chunk : flat.chunks) {
      const std::uint64_t begin = chunk.box.offsets[0];
      vector.parts[chunk.rank] = {begin, begin + chunk.box.sizes[0]};
    }
    return vector;
  }

  void require_order(const TensorEntry& flat, const LikeUnit& unit) const {
    const bool is_known = unit.members.size() < 2 || like_.why_unordered.empty() ||
                          unit.members.front().pieced != nullptr;
    if (is_known) return;
    raise(
        ErrorCode::InvalidArgument,
        fmt::format("{}: {} is a flat parameter of FSDP1 with {} parameters in the order of their "
                    "module, which {} (--like) does not tell: {}",
                    where_, flat.key, unit.members.size(), like_.where, like_.why_unordered),
        "give --like one file of torch.save(model.state_dict(), file), which keeps the order");
  }

  [[noreturn]] void refuse_sizes(const TensorEntry& flat, const LikeUnit& unit) const {
    std::uint64_t total = 0;
    for (const LikeMember& member : unit.members)
      total = checked_add(total, element_count(member.tensor->shape), flat.key);
    const std::string names = unit.members.empty()
                                  ? "no parameter"
                                  : fmt::format("{} parameters ({} to {})", unit.members.size(),
                                                unishard::quote(unit.members.front().tensor->name),
                                                unishard::quote(unit.members.back().tensor->name));
    raise(
        ErrorCode::Mismatch,
        fmt::format("{}: {} is a flat parameter of FSDP1 with {} elements, and {} (--like) has {} "
                    "for it, with {}",
                    where_, flat.key, flat.shape[0], like_.where, names, total),
        unit.members.empty() || unit.members.front().pieced == nullptr
            ? "name the model that was trained; tied parameters must be one tensor there"
            : "name the model that was trained; the pieces of the ranks are then cut as FSDP1 "
              "cuts it");
  }

  PlacedUnit place(const LikeUnit& unit) const {
    const TensorEntry& flat = state_.tensors[unit.flat];
    require_order(flat, unit);
    std::vector<FlatMember> members;
    members.reserve(unit.members.size());
    for (const auto& [tensor, pieced] : unit.members) {
      members.push_back({element_count(tensor->shape), pieced == nullptr
                                                           ? std::map<std::uint64_t, FlatPiece>()
                                                           : pieced->pieces});
    }
    PlacedUnit placed{vector_of(flat), {}};
    placed.vector.may_have_gaps = unit.is_pieced;
    const auto places = members.empty() ? std::nullopt : flat_places(members, placed.vector);
    if (!places) refuse_sizes(flat, unit);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const LikeTensor& tensor = *unit.members[i].tensor;
      placed.parameters.push_back({tensor.name, tensor.shape, (*places)[i]});
    }
    return placed;
  }

  void add_parts(const TensorEntry& flat, const PlacedUnit& unit,
                 std::vector<TensorEntry>& tensors) const {
    for (const auto& [name, shape, begin] : unit.parameters) {
      tensors.push_back(
          part_of_flat(flat, name, shape, {begin, begin + element_count(shape)}, *state_.items));
    }
  }

  /// Puts the tensors of the model into the order of their names in the files where these have all
  /// of them, else into that of the other model.
  void set_order() {
    std::unordered_map<std::string_view, std::size_t> places;
    const bool is_of_files = !files_.pieced().empty();
    if (!is_of_files && !like_.why_unordered.empty()) return;
    if (is_of_files) {
      for (const std::string& name : files_.names()) places.emplace(name, places.size());
    } else {
      for (const LikeTensor& tensor : like_.tensors) places.emplace(tensor.name, places.size());
    }
    std::ranges::stable_sort(state_.tensors, {}, [&](const TensorEntry& tensor) {
      const auto found = places.find(name_in_model(tensor.key));
      return found == places.end() ? places.size() : found->second;
    });
  }

  void add_ties(const std::vector<Alias>& ties) {
    for (const Alias& tie : ties) {
      const bool is_here = like_.find(tie.target) != nullptr && !stored_.contains(tie.target);
      if (!is_here || !named_.insert(tie.fqn).second || stored_.contains(tie.fqn)) continue;
      state_.second_keys.push_back({std::string(kModel) + tie.fqn,
                                    std::string(kModel) + tie.target,
                                    {{"model", false}, {tie.fqn, false}}});
    }
  }

  StateDict& state_;
  const std::string& where_;
  const LikeModel& like_;
  const RankFlatFiles& files_;
  std::map<std::string, LikeUnit> units_;   // by what precedes the names of their parameters
  std::unordered_set<std::string> stored_;  // names of tensors that are whole
  std::unordered_set<std::size_t> pieces_;  // indices of tensors that leave_pieces_aside() found
  std::unordered_set<std::string> named_;   // second names
};

}  // namespace

std::vector<PlacedUnit> take_apart_like(StateDict& state, const std::string& where,
                                        const LikeModel& like, const RankFlatFiles& files) {
  return LikeReader(state, where, like, files).run();
}

}  // namespace unishard::converters::dcp
