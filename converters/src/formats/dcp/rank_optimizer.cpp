#include "formats/dcp/rank_optimizer.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "formats/dcp/distributed_tensor.hpp"
#include "formats/dcp/flat_units.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/view_parts.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <set>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kOptimizer = "optimizer", kModelRoot = "model.",
                           kGroupList = "param_groups";
/// Upper bound on the tensors of all ranks' files that are looked at together.
constexpr std::size_t kMostPieces = 1 << 20;

/// One plain tensor in the ranks' files, by rank.
struct PlainPiece {
  std::uint64_t rank = 0;
  torch::TensorView view;
};
using Pieces = std::vector<PlainPiece>;

/// The plain tensors of all files, by name ("state.0.exp_avg").
struct PlainTensors {
  std::map<std::string, Pieces> pieces;
  std::vector<std::string> order;
  std::size_t ranks = 0;
  bool are_counted = true;  ///< false: there were too many to look at
};

/// Files of ranks, and the member of their objects that is the optimizer.
struct OptimizerFiles {
  const RankFileGroup& group;
  const std::string& member;  ///< empty: it is the object itself

  /// Throws: Corrupt for a file without the member.
  torch::Value optimizer(const torch::TorchFile& file) const {
    return member.empty() ? file.root() : file.root().at(member);
  }
};

PlainTensors find_plain(const OptimizerFiles& files, StateDictBuilder& builder) {
  PlainTensors found;
  std::size_t count = 0;
  for (const auto& [rank, path] : files.group.files) {
    ++found.ranks;
    const torch::TorchFile file = open_rank_object(path, builder);
    for (const torch::NamedTensor& tensor :
         torch::describe(files.optimizer(file), file.pickle().bytes().size()).tensors) {
      if (is_distributed_tensor(tensor.value)) continue;
      if (++count > kMostPieces) {
        found.are_counted = false;
        return found;
      }
      try {
        torch::TensorView view = file.tensor(tensor.value);
        const auto [known, is_new] = found.pieces.try_emplace(tensor.name);
        if (is_new) found.order.push_back(tensor.name);
        known->second.push_back({rank, std::move(view)});
      } catch (const Error& error) {
        if (error.code() != ErrorCode::Unsupported) throw;  // who reads it says what it is
      }
    }
  }
  return found;
}

bool is_scalar(const Pieces& pieces) { return pieces.front().view.shape.empty(); }

bool are_copies(const Pieces& pieces, std::size_t ranks) {
  return pieces.size() == ranks &&
         std::ranges::all_of(pieces | std::views::drop(1), [&](const PlainPiece& piece) {
           return equal_elements(pieces.front().view, piece.view);
         });
}

/// The parameters of the model: names in the catalog's order.
struct ModelParameter {
  std::string name;
  Shape shape;
  std::uint64_t elements = 0;
};

std::vector<ModelParameter> parameters_of(const StateDict& state) {
  std::vector<ModelParameter> out;
  for (const TensorEntry& tensor : state.tensors) {
    const Kind kind = info(tensor.dtype).kind;
    if (!tensor.key.starts_with(kModelRoot) || (kind != Kind::Float && kind != Kind::Complex))
      continue;
    if (is_statistic(tensor.key)) continue;
    out.push_back(
        {tensor.key.substr(kModelRoot.size()), tensor.shape, element_count(tensor.shape)});
  }
  return out;
}

bool is_sharded(const StateDict& state) {
  return std::ranges::any_of(state.tensors, [](const TensorEntry& tensor) {
    return std::ranges::any_of(tensor.chunks,
                               [&](const Chunk& chunk) { return chunk.box.sizes != tensor.shape; });
  });
}

/// Returns whether the plain tensors are pieces of something. Moments of FSDP1 may be equal on all
/// ranks (zero): of a sharded model with matrices, vectors alone are pieces, too.
bool are_pieces(const PlainTensors& plain, const StateDict& state) {
  const bool are_vectors = std::ranges::all_of(
      plain.pieces, [](const auto& each) { return each.second.front().view.shape.size() < 2; });
  const bool has_vectors = std::ranges::any_of(
      plain.pieces, [](const auto& each) { return each.second.front().view.shape.size() == 1; });
  const bool has_matrices = std::ranges::any_of(
      state.tensors, [](const TensorEntry& tensor) { return tensor.shape.size() > 1; });
  if (are_vectors && has_vectors && has_matrices && is_sharded(state)) return true;
  return std::ranges::any_of(plain.pieces, [&](const auto& each) {
    return !is_scalar(each.second) && !are_copies(each.second, plain.ranks);
  });
}

/// "state.<number>.<state>".
struct StateName {
  std::uint64_t number = 0;
  std::string state;
};

std::optional<StateName> parse_state_name(const std::string& name) {
  constexpr std::string_view kStart = "state.";
  if (!name.starts_with(kStart)) return std::nullopt;
  const std::size_t dot = name.find('.', kStart.size());
  if (dot == std::string::npos) return std::nullopt;
  const std::string number = name.substr(kStart.size(), dot - kStart.size());
  if (!is_number(number)) return std::nullopt;
  return StateName{std::stoull(number), name.substr(dot + 1)};
}

/// Returns the numbers of the parameters in the only group; nullopt for other groups.
std::optional<std::vector<std::uint64_t>> numbers_of(torch::Value root) {
  if (!root.is_dict()) return std::nullopt;
  const auto groups = root.find(kGroupList);
  if (!groups || !groups->is_sequence() || groups->size() != 1 || !(*groups)[0].is_dict())
    return std::nullopt;
  const auto listed = (*groups)[0].find("params");
  if (!listed || !listed->is_sequence()) return std::nullopt;
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i < listed->size(); ++i) {
    if (!(*listed)[i].is(torch::NodeKind::Int)) return std::nullopt;
    numbers.push_back((*listed)[i].unsigned_int());
  }
  if (!std::ranges::is_sorted(numbers)) return std::nullopt;
  return numbers;
}

/// The pieces of a numbered parameter that are not empty.
struct NumberedPieces {
  std::vector<RankPiece> pieces;
  std::uint64_t elements = 0;  ///< of all together
};
using PiecesOfNumbers = std::map<std::uint64_t, NumberedPieces>;

/// Returns the sizes of vectors; nullopt for other tensors.
std::optional<NumberedPieces> sizes_of(const Pieces& vectors) {
  NumberedPieces sizes;
  for (const auto& [rank, view] : vectors) {
    if (view.shape.size() != 1) return std::nullopt;
    if (view.shape[0] == 0) continue;
    sizes.pieces.push_back({rank, view.shape[0]});
    sizes.elements = checked_add(sizes.elements, view.shape[0], "elements of an optimizer's state");
  }
  return sizes;
}

/// Returns the pieces of each number; nullopt unless all states of a number have pieces of the same
/// sizes on the same ranks.
std::optional<PiecesOfNumbers> sizes_of(const PlainTensors& plain) {
  PiecesOfNumbers sizes;
  for (const auto& [name, pieces] : plain.pieces) {
    const auto state = parse_state_name(name);
    if (!state) return std::nullopt;
    if (is_scalar(pieces)) continue;
    const auto own = sizes_of(pieces);
    if (!own) return std::nullopt;
    const auto [known, is_new] = sizes.try_emplace(state->number, *own);
    if (!is_new && known->second.pieces != own->pieces) return std::nullopt;
  }
  return sizes;
}

/// Returns the first parameters, in order, that have these sizes; from the end where
/// `is_from_end`. nullopt when the model lacks them.
std::optional<std::vector<std::size_t>> fit(const std::vector<std::uint64_t>& sizes,
                                            const std::vector<ModelParameter>& parameters,
                                            bool is_from_end) {
  std::vector<std::size_t> places(sizes.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i, ++next) {
    const auto at = [&](std::size_t k, std::size_t count) {
      return is_from_end ? count - 1 - k : k;
    };
    const std::uint64_t wanted = sizes[at(i, sizes.size())];
    while (next < parameters.size() && parameters[at(next, parameters.size())].elements != wanted)
      ++next;
    if (next == parameters.size()) return std::nullopt;
    places[at(i, sizes.size())] = at(next, parameters.size());
  }
  return places;
}

/// Returns the place of the parameter that each number means; nullopt unless order and sizes allow
/// one choice only.
std::optional<std::vector<std::size_t>> places_of(const std::vector<std::uint64_t>& numbers,
                                                  const PiecesOfNumbers& sizes,
                                                  const std::vector<ModelParameter>& parameters) {
  std::vector<std::uint64_t> elements;
  for (const std::uint64_t number : numbers) {
    const auto found = sizes.find(number);
    if (found == sizes.end()) return std::nullopt;  // it was never updated: its size is unknown
    elements.push_back(found->second.elements);
  }
  if (sizes.size() != elements.size()) return std::nullopt;
  auto first = fit(elements, parameters, false);
  if (first != fit(elements, parameters, true)) return std::nullopt;
  return first;
}

/// Why the states are left out.
constexpr std::string_view kNoParameters =
    "the ranks' files hold pieces of flat parameters (FSDP1), and nothing tells which parameters "
    "these consist of";
constexpr std::string_view kNoUnits =
    "the ranks' files hold pieces of parameters (FSDP1) of other sizes than FSDP1 cuts the model's "
    "parameters into: the optimizer has them in another order, or a file is another rank's";
constexpr std::string_view kUndecidedUnits =
    "the ranks' files hold pieces of parameters (FSDP1), and the search for the FSDP units that "
    "would prove their order was given up";

constexpr std::string_view kEqualUnits =
    "the ranks' files hold states of flat parameters (FSDP1) of which several have one size; if "
    "the optimizer was given the parameters in the model's order, --assume-model-order names them";

/// Either the shape of the parameter that each number means, or why that is not known.
struct NumberedShapes {
  std::map<std::uint64_t, Shape> shapes;
  std::string_view why_not;
};

NumberedShapes shapes_of(const std::vector<std::uint64_t>& numbers, const PiecesOfNumbers& sizes,
                         const std::vector<ModelParameter>& parameters, std::size_t ranks) {
  const auto places = places_of(numbers, sizes, parameters);
  if (!places) return {{}, kNoParameters};
  std::vector<UnitParameter> model;
  for (const ModelParameter& parameter : parameters)
    model.push_back({parameter.name, parameter.elements, {}});
  NumberedShapes found;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    model[(*places)[i]].pieces = sizes.at(numbers[i]).pieces;
    found.shapes[numbers[i]] = parameters[(*places)[i]].shape;
  }
  const FlatUnits units = find_flat_units(model, ranks);
  if (units == FlatUnits::Missing) return {{}, kNoUnits};
  if (units == FlatUnits::Undecided) return {{}, kUndecidedUnits};
  return found;
}

/// Adds the pieces, which lie one behind the other in the flattened parameter.
void add_joined(const std::string& name, const Pieces& pieces, const Shape& shape,
                StateDictBuilder& builder) {
  const std::string key = fmt::format("{}.{}", kOptimizer, name);
  const KeyPath path = {{std::string(kOptimizer), false}, {name, false}};
  std::uint64_t begin = 0;
  for (const auto& [rank, vector] : pieces) {
    std::uint64_t at = 0;
    for (Box& box : boxes_of(shape, {begin, begin + vector.shape[0]})) {
      const std::uint64_t count = box.elements();
      torch::TensorView view = slice_of(vector, at, box.sizes);
      builder.add_piece(key, path, shape, std::move(box), std::move(view));
      at += count;
    }
    begin += vector.shape[0];
  }
}

/// Every rank has as many: the last ranks' are filled up.
std::uint64_t elements_of_rank(const PlacedUnit& unit, std::size_t ranks) {
  return (unit.vector.elements + ranks - 1) / ranks;
}

/// Returns whether a size tells which of the flat parameters a vector belongs to.
bool have_own_sizes(const std::vector<PlacedUnit>& units, std::size_t ranks) {
  std::set<std::uint64_t> sizes;
  return std::ranges::all_of(units, [&](const PlacedUnit& unit) {
    return sizes.insert(elements_of_rank(unit, ranks)).second;
  });
}

/// Returns whether the numbers mean the flat parameters, and each rank's vectors have the size of
/// its parts of them.
bool are_of_units(const std::vector<std::uint64_t>& numbers, const PlainTensors& plain,
                  const std::vector<PlacedUnit>& units) {
  if (units.empty() || numbers.size() != units.size()) return false;
  return std::ranges::all_of(plain.pieces, [&](const auto& each) {
    const auto& [name, pieces] = each;
    const auto number = std::ranges::find(numbers, parse_state_name(name)->number);
    if (number == numbers.end() || pieces.size() != plain.ranks) return false;
    const PlacedUnit& unit = units[static_cast<std::size_t>(number - numbers.begin())];
    const std::uint64_t part = elements_of_rank(unit, plain.ranks);
    return is_scalar(pieces) || std::ranges::all_of(pieces, [&](const PlainPiece& piece) {
             return piece.view.shape[0] == part;
           });
  });
}

/// Adds the state `name` of a flat parameter as one of each parameter in it.
void add_cut(const std::string& name, const Pieces& pieces,
             const std::vector<std::uint64_t>& numbers, StateDictBuilder& builder) {
  const StateName state = *parse_state_name(name);
  const auto number = std::ranges::find(numbers, state.number) - numbers.begin();
  for (const auto& [fqn, shape, begin] :
       builder.flat_units[static_cast<std::size_t>(number)].parameters) {
    const std::string own = fmt::format("state.{}.{}", fqn, state.state);
    const std::string key = fmt::format("{}.{}", kOptimizer, own);
    const KeyPath path = {{std::string(kOptimizer), false}, {own, false}};
    if (is_scalar(pieces)) {
      builder.add_piece(key, path, {}, {}, pieces.front().view);
      continue;
    }
    const ElementRange place{begin, begin + element_count(shape)};
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const torch::TensorView& vector = pieces[i].view;
      const std::uint64_t first = i * vector.shape[0];
      const ElementRange common = intersect(place, {first, first + vector.shape[0]});
      if (common.empty()) continue;
      std::uint64_t at = common.begin - first;
      for (Box& box : boxes_of(shape, {common.begin - begin, common.end - begin})) {
        const std::uint64_t count = box.elements();
        torch::TensorView view = slice_of(vector, at, box.sizes);
        builder.add_piece(key, path, shape, std::move(box), std::move(view));
        at += count;
      }
    }
  }
}

void add_groups(const torch::TorchFile& file, torch::Value optimizer, StateDictBuilder& builder) {
  builder.add_part(fmt::format("{}.{}", kOptimizer, kGroupList),
                   {{std::string(kOptimizer), false}, {std::string(kGroupList), false}}, file,
                   optimizer.at(kGroupList));
}

/// Puts the names of the parameters into the only group, which was added last, for the numbers of
/// the flat ones.
void name_parameters(const std::vector<std::uint64_t>& numbers, StateDictBuilder& builder) {
  Json& groups = builder.out.objects.back().value;
  Json& group = groups.is_array() ? groups.at(0) : groups.at("items").at(0);  // a list or a tuple
  Json params = Json::array();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (const PlacedParameter& parameter : builder.flat_units[i].parameters)
      params.push_back(parameter.name);
  }
  group["params"] = std::move(params);
}

/// Joins the pieces. Where they cannot be joined, returns why, and has added nothing.
std::optional<std::string_view> join(const OptimizerFiles& files, const PlainTensors& plain,
                                     StateDictBuilder& builder) {
  const torch::TorchFile file = open_rank_object(files.group.files.begin()->second, builder);
  const torch::Value optimizer = files.optimizer(file);
  const auto numbers = numbers_of(optimizer);
  const auto sizes = sizes_of(plain);
  const bool are_scalars_equal = std::ranges::all_of(plain.pieces, [&](const auto& each) {
    return !is_scalar(each.second) || are_copies(each.second, each.second.size());
  });
  if (!numbers || !sizes || !are_scalars_equal) return kNoParameters;
  if (are_of_units(*numbers, plain, builder.flat_units)) {
    if (!builder.out.assumes_model_order && !have_own_sizes(builder.flat_units, plain.ranks))
      return kEqualUnits;
    for (const std::string& name : plain.order)
      add_cut(name, plain.pieces.at(name), *numbers, builder);
    add_groups(file, optimizer, builder);
    name_parameters(*numbers, builder);
    return std::nullopt;
  }
  const auto [shapes, why_not] =
      shapes_of(*numbers, *sizes, parameters_of(builder.out), plain.ranks);
  if (!why_not.empty()) return why_not;
  for (const std::string& name : plain.order) {
    const Pieces& pieces = plain.pieces.at(name);
    const Shape shape = is_scalar(pieces) ? Shape() : shapes.at(parse_state_name(name)->number);
    if (is_scalar(pieces)) {
      builder.add_piece(fmt::format("{}.{}", kOptimizer, name),
                        {{std::string(kOptimizer), false}, {name, false}}, {}, {},
                        pieces.front().view);
    } else {
      add_joined(name, pieces, shape, builder);
    }
  }
  add_groups(file, optimizer, builder);
  return std::nullopt;
}

}  // namespace

void read_rank_optimizer(const RankFileGroup& group, const std::string& start,
                         StateDictBuilder& builder, const std::string& member) {
  const OptimizerFiles files{group, member};
  const PlainTensors plain = find_plain(files, builder);
  if (plain.are_counted && !are_pieces(plain, builder.out)) {
    for (const auto& [rank, path] : group.files) {
      const torch::TorchFile file = open_rank_object(path, builder);
      builder.add_part(std::string(kOptimizer), {{std::string(kOptimizer), false}}, file,
                       files.optimizer(file), rank);
    }
    return;
  }
  const auto why_not = plain.are_counted ? join(files, plain, builder) : kNoParameters;
  if (!why_not) return;
  builder.out.losses.push_back({Role::Optimizer,
                                fmt::format("{}0 to {}", start, group.files.rbegin()->first),
                                std::string(*why_not)});
}

}  // namespace unishard::converters::dcp
