#include "formats/deepspeed/flat_groups.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "formats/deepspeed/layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

namespace unishard::converters::deepspeed {
namespace {

std::size_t index_of(const ParameterTable& table, const std::string& fqn) {
  return table.find(fqn).value();
}

std::uint64_t share(std::uint64_t elements, std::uint64_t world_size) {
  return stage3_range(elements, 0, world_size).size();
}

void check_group_count(const OptimizerFile& file, std::size_t expected) {
  if (file.groups.size() == expected) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {} flat groups; param_shapes and the other ranks have {}", file.name,
                    file.groups.size(), expected));
}

/// DeepSpeed writes a state in blocks of 1024 bytes for each of its threads, of which there are
/// few.
void check_swap_size(const torch::Window& window, std::uint64_t bytes) {
  constexpr std::uint64_t kBlock = 1024, kMostPadding = 64 * kBlock;
  const bool is_padded = window.size % kBlock == 0 && window.size - bytes < kMostPadding;
  if (window.size < bytes || window.size == bytes || is_padded)
    return;  // short: raw_view() says it
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {} bytes, but its sub-group has {}, and DeepSpeed pads it to whole "
                    "blocks of 1024",
                    window.name(), window.size, bytes),
        "copy the folder offloaded_tensors of the node that wrote it");
}

void add_scalars(const FlatGroup& group, const FlatVector& vector, ParameterTable& table,
                 const std::string& file) {
  for (const FlatState& scalar : group.scalars) {
    for (const FlatSpan& span : vector.spans)
      table.add_scalar(span.parameter, scalar.name, scalar.view, file);
  }
}

bool is_moment(const FlatState& state) {
  return state.name == state::kExpAvg || state.name == state::kExpAvgSq;
}

/// Both moments are as long as the master, or both as long as it is with padding.
void require_equal_moments(const FlatGroup& group, std::size_t number, const std::string& file) {
  const FlatState* first = nullptr;
  for (const FlatState& state : group.states) {
    if (!is_moment(state)) continue;
    if (first == nullptr) first = &state;
    if (state.view.elements() == first->view.elements()) continue;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: group {}: {} has {} elements, and {} has {}", file, number, first->name,
                      first->view.elements(), state.name, state.view.elements()));
  }
}

}  // namespace

ConcatenatedGroups::ConcatenatedGroups(const ShapeGroups& shapes,
                                       const std::vector<std::vector<std::uint64_t>>& gaps,
                                       ParameterTable& table)
    : table_(table), filled_(shapes.size(), 0), whole_momenta_(shapes.size()) {
  for (std::size_t g = 0; g < shapes.size(); ++g) {
    FlatVector vector;
    for (std::size_t i = 0; i < shapes[g].size(); ++i) {
      const std::size_t parameter = index_of(table, shapes[g][i].fqn);
      vector.spans.push_back({parameter, vector.elements});
      const std::uint64_t gap = g < gaps.size() && i < gaps[g].size() ? gaps[g][i] : 0;
      vector.elements =
          checked_add(vector.elements, table.all()[parameter].elements, "elements of a group");
      vector.elements = checked_add(vector.elements, gap, "elements of a group");
    }
    vectors_.push_back(std::move(vector));
  }
}

std::pair<ConcatenatedGroups::Spans, ConcatenatedGroups::Spans> ConcatenatedGroups::spans_in(
    std::size_t group, std::uint64_t visible) const {
  const std::vector<FlatSpan>& spans = vectors_[group].spans;
  const std::uint64_t begin = filled_[group];
  auto first = std::ranges::lower_bound(spans, begin, {}, &FlatSpan::begin);
  if (first != spans.begin()) --first;  // it may reach into them
  return {first, std::ranges::upper_bound(spans, begin + visible, {}, &FlatSpan::begin)};
}

/// DeepSpeed's Muon keeps all of each matrix that reaches into a rank's partition, unless the
/// optimizer is offloaded. The lengths tell: where a matrix is cut behind a partition, that rank
/// has no padding, and holds more with whole matrices than without.
bool ConcatenatedGroups::has_whole_parameters(std::size_t group, const FlatState& state,
                                              std::uint64_t visible, const std::string& file) {
  if (state.name != "momentum_buffer") return false;
  const ElementRange here{filled_[group], filled_[group] + visible};
  std::uint64_t whole = 0;
  auto [span, end] = spans_in(group, visible);
  for (; span != end; ++span) {
    const std::uint64_t elements = table_.all()[span->parameter].elements;
    if (!intersect(here, {span->begin, span->begin + elements}).empty()) whole += elements;
  }
  if (whole <= visible) return false;  // both are the same
  std::optional<bool>& is_whole = whole_momenta_[group];
  if (!is_whole) is_whole = state.view.elements() == whole;
  if (*is_whole && state.view.elements() != whole) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} of group {} has {} elements; the matrices of the partition have {}",
                      file, state.name, group, state.view.elements(), whole));
  }
  return *is_whole;
}

void ConcatenatedGroups::add_whole_parameters(std::size_t group, const FlatState& state,
                                              std::uint64_t visible) {
  const ElementRange here{filled_[group], filled_[group] + visible};
  std::uint64_t at = 0;  // of the parameter in the state
  auto [span, end] = spans_in(group, visible);
  for (; span != end; ++span) {
    const std::uint64_t elements = table_.all()[span->parameter].elements;
    const ElementRange part = intersect(here, {span->begin, span->begin + elements});
    if (part.empty()) continue;
    const ElementRange range{part.begin - span->begin, part.end - span->begin};
    table_.add_piece(span->parameter, state.name, {range, state.view, at + range.begin});
    at += elements;
  }
}

void ConcatenatedGroups::add_state(std::size_t group, const FlatState& state, std::uint64_t visible,
                                   const std::string& file) {
  if (state.view.elements() < visible) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {} of group {} has {} elements, fp32 has {}", file,
                                          state.name, group, state.view.elements(), visible));
  }
  const ElementRange here{filled_[group], filled_[group] + visible};
  auto [span, end] = spans_in(group, visible);
  for (; span != end; ++span) {
    const std::uint64_t elements = table_.all()[span->parameter].elements;
    const ElementRange part = intersect(here, {span->begin, span->begin + elements});
    if (!part.empty()) {
      table_.add_piece(span->parameter, state.name,
                       {{part.begin - span->begin, part.end - span->begin},
                        state.view,
                        part.begin - here.begin});
    } else if (elements == 0) {  // the parameter still needs an entry for the state
      table_.add_piece(span->parameter, state.name, {{0, 0}, state.view, 0});
    }
  }
}

void ConcatenatedGroups::add_rank(const OptimizerFile& file) {
  check_group_count(file, vectors_.size());
  for (std::size_t g = 0; g < vectors_.size(); ++g) {
    const FlatGroup& group = file.groups[g];
    // The moments may be padded where the master copy ends with the group. The master's length
    // counts.
    const std::uint64_t visible = group.master.view.elements();
    checked_add(filled_[g], visible, "elements of a group");
    require_equal_moments(group, g, file.name);
    add_state(g, group.master, visible, file.name);
    for (const FlatState& state : group.states) {
      if (has_whole_parameters(g, state, visible, file.name)) {
        add_whole_parameters(g, state, visible);
      } else {
        add_state(g, state, visible, file.name);
        remember_surplus(state, visible, file.name);
      }
    }
    add_scalars(group, vectors_[g], table_, file.name);
    filled_[g] += visible;
  }
}

/// States of other optimizers may have any length.
void ConcatenatedGroups::remember_surplus(const FlatState& state, std::uint64_t visible,
                                          const std::string& file) {
  if (!is_moment(state)) return;
  const std::uint64_t elements = state.view.elements() - visible;  // add_state() has compared them
  if (elements <= surplus_.elements) return;
  surplus_ = {elements, fmt::format("{}: {} has {} elements, fp32 has {}", file, state.name,
                                    state.view.elements(), visible)};
}

void ConcatenatedGroups::check_ends(std::uint64_t world_size, const std::string& where) const {
  // The padding of a whole group is the most that a moment has and its master lacks.
  if (surplus_.elements >= 2 * world_size)
    raise(ErrorCode::Corrupt,
          fmt::format("{}, which padding does not explain: it is of another partition or save",
                      surplus_.what),
          "use another checkpoint");
  for (std::size_t g = 0; g < vectors_.size(); ++g) {
    const std::uint64_t padding =
        filled_[g] - vectors_[g].elements;  // wraps when there are too few
    if (filled_[g] >= vectors_[g].elements && padding < 2 * world_size) continue;
    raise(ErrorCode::Corrupt,
          fmt::format(
              "{}: the partitions of group {} hold {} elements, its parameters in param_shapes "
              "have {}: the files are not of one save",
              where, g, filled_[g], vectors_[g].elements));
  }
}

SlicedGroups::SlicedGroups(const ShapeGroups& shapes, std::uint64_t world_size,
                           ParameterTable& table, Storage& storage, std::shared_ptr<FilePool> pool,
                           Path folder)
    : table_(table),
      world_size_(world_size),
      storage_(storage),
      pool_(std::move(pool)),
      folder_(std::move(folder)) {
  for (const auto& group : shapes) {
    FlatVector vector;
    for (const NamedShape& named : group) {
      const std::size_t parameter = index_of(table, named.fqn);
      vector.spans.push_back({parameter, vector.elements});
      vector.elements =
          checked_add(vector.elements, share(table.all()[parameter].elements, world_size),
                      "elements of a group");
    }
    vectors_.push_back(std::move(vector));
  }
}

Path SlicedGroups::swap_folder(std::uint32_t rank) const {
  return folder_ / "offloaded_tensors" / fmt::format("rank{:02}", rank);
}

/// Returns the ids of the swapped sub-groups in order, from file names alone, for files of torch
/// versions that drop the attribute ds_id. Ids increase with the sub-groups as long as there is one
/// group.
std::vector<std::string> SlicedGroups::swap_ids(const OptimizerFile& file,
                                                std::uint32_t rank) const {
  const Path folder = swap_folder(rank);
  if (storage_.kind(folder) != EntryKind::Directory) return {};
  std::vector<std::pair<std::vector<std::uint32_t>, std::string>> found;
  for (const Entry& entry : storage_.list(folder)) {
    constexpr std::string_view kSuffix = ".tensor.swp";
    if (!entry.name.ends_with(kSuffix)) continue;
    std::string id = entry.name.substr(0, entry.name.size() - kSuffix.size());
    if (auto numbers = match_numbers("#_#", id))
      found.emplace_back(std::move(*numbers), std::move(id));
  }
  std::ranges::sort(found);
  const auto is_swapped = [&](std::size_t g) {
    return vectors_[g].elements > 0 && file.groups[g].master.view.elements() == 0;
  };
  std::size_t swapped = 0;
  for (std::size_t g = 0; g < vectors_.size(); ++g) {
    if (is_swapped(g)) ++swapped;
  }
  if (file.settings.size() != 1 || found.size() != swapped) {
    raise(
        ErrorCode::Unsupported,
        fmt::format("{}: {} sub-groups are swapped out, and nothing tells which of the {} files of "
                    "{} are theirs",
                    file.name, swapped, found.size(), folder.string()));
  }
  std::vector<std::string> ids;
  std::size_t next = 0;
  for (std::size_t g = 0; g < vectors_.size(); ++g) {
    ids.push_back(is_swapped(g) ? found[next++].second : std::string());
  }
  return ids;
}

TensorView SlicedGroups::swapped(const FlatState& state, const std::string& id, std::uint32_t rank,
                                 std::size_t group) {
  const Path file = swap_folder(rank) / (id + ".tensor.swp");
  if (!is_plain_name(id) || storage_.kind(file) != EntryKind::File) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} of rank {} was swapped out to NVMe, and {} is missing",
                      folder_.string(), state.name, rank, file.string()),
          "copy the folder offloaded_tensors of the node that wrote it");
  }
  const std::uint64_t elements = vectors_[group].elements;
  const torch::Window window = open_window(pool_, file);
  const DType dtype = state.view.dtype;
  check_swap_size(window, size_of(dtype) * elements);
  TensorView view = raw_view(window, dtype, elements);
  swapped_.push_back({file.string(), state.name, group, rank, view,
                      raw_view(window, dtype, window.size / size_of(dtype)),
                      parts_of(group, rank)});
  return view;
}

/// Returns where the vector of a rank has parts of parameters: the others are on other ranks.
std::vector<ElementRange> SlicedGroups::parts_of(std::size_t group, std::uint32_t rank) const {
  std::vector<ElementRange> parts;
  for (const FlatSpan& span : vectors_[group].spans) {
    const std::uint64_t size =
        stage3_range(table_.all()[span.parameter].elements, rank, world_size_).size();
    if (size > 0) parts.push_back({span.begin, span.begin + size});
  }
  return parts;
}

void SlicedGroups::add_state(std::size_t group, const std::string& state, const TensorView& view,
                             std::uint32_t rank) {
  for (const FlatSpan& span : vectors_[group].spans) {
    const ElementRange range =
        stage3_range(table_.all()[span.parameter].elements, rank, world_size_);
    // Rank 0 always adds its piece, even of a parameter without elements.
    if (!range.empty() || rank == 0)
      table_.add_piece(span.parameter, state, {range, view, span.begin});
  }
}

void SlicedGroups::add_rank(const OptimizerFile& file, std::uint32_t rank) {
  check_group_count(file, vectors_.size());
  std::vector<std::string>
      ids;  // by sub-group; asked for when a swapped state does not tell its own
  for (std::size_t g = 0; g < vectors_.size(); ++g) {
    const FlatGroup& group = file.groups[g];
    const std::uint64_t elements = vectors_[g].elements;
    const auto add = [&](const FlatState& state, bool is_master) {
      const std::uint64_t held = state.view.elements();
      if (held == elements) return add_state(g, state.name, state.view, rank);
      if (held != 0) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: {} of sub-group {} has {} elements; its parameters need {}",
                          file.name, state.name, g, held, elements));
      }
      if (state.swap_id.empty() && ids.empty()) ids = swap_ids(file, rank);
      std::string id = state.swap_id;
      if (id.empty() && g < ids.size())
        id = is_master ? ids[g] : fmt::format("{}-{}", state.name, ids[g]);
      add_state(g, state.name, swapped(state, id, rank, g), rank);
    };
    add(group.master, true);
    for (const FlatState& state : group.states) add(state, false);
    add_scalars(group, vectors_[g], table_, file.name);
  }
}

void StatedPartitions::add_rank(const OptimizerFile& file,
                                std::vector<std::optional<std::uint64_t>> places) {
  elements.resize(std::max(elements.size(), file.groups.size()), 0);
  // The last partitions of a group may be shorter: they lack the padding.
  for (std::size_t g = 0; g < file.groups.size(); ++g)
    elements[g] = std::max(elements[g], file.groups[g].master.view.elements());
  const bool tells_all = file.slices.size() == file.groups.size();
  ranks.push_back({file.name, tells_all ? file.slices : std::vector<std::vector<FlatSlice>>(),
                   std::move(places)});
}

namespace {

/// Where the flat vector of each group has its parameters.
using FlatOrder = std::vector<std::unordered_map<std::string, ElementRange>>;

FlatOrder flat_order_of(const ShapeGroups& shapes,
                        const std::vector<std::vector<std::uint64_t>>& gaps) {
  FlatOrder order(shapes.size());
  for (std::size_t g = 0; g < shapes.size(); ++g) {
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < shapes[g].size(); ++i) {
      const std::uint64_t end =
          checked_add(at, element_count(shapes[g][i].shape), "elements of a group");
      order[g].emplace(shapes[g][i].fqn, ElementRange{at, end});
      const std::uint64_t gap = g < gaps.size() && i < gaps[g].size() ? gaps[g][i] : 0;
      at = checked_add(end, gap, "elements of a group");
    }
  }
  return order;
}

/// Finds out whose partition a file holds.
class PartitionFinder {
 public:
  PartitionFinder(const StatedPartitions& stated, std::vector<FlatOrder> orders)
      : stated_(stated), orders_(std::move(orders)) {}

  /// Returns whether the slices are those of `rank` in one of the orders.
  bool is_of(const StatedPartitions::OfRank& file, std::uint64_t rank) const {
    return std::ranges::any_of(orders_, [&](const FlatOrder& order) {
      for (std::size_t g = 0; g < order.size(); ++g) {
        const std::uint64_t size = stated_.elements[g];
        const auto& places = stated_.ranks[rank].places;
        const std::optional<std::uint64_t> place = places.empty() ? rank : places[g];
        if (!place && !file.slices[g].empty()) return false;
        if (!place) continue;
        const std::uint64_t begin = checked_mul(*place, size, "elements of a group");
        const ElementRange partition{begin, checked_add(begin, size, "elements of a group")};
        if (!is_content(order[g], partition, file.slices[g])) return false;
      }
      return true;
    });
  }
  std::optional<std::uint64_t> rank_of(const StatedPartitions::OfRank& file) const {
    for (std::uint64_t rank = 0; rank < stated_.ranks.size(); ++rank) {
      if (is_of(file, rank)) return rank;
    }
    return std::nullopt;
  }

 private:
  static bool is_content(const FlatOrder::value_type& group, ElementRange partition,
                         const std::vector<FlatSlice>& slices) {
    std::uint64_t told = 0, held = 0;
    for (const FlatSlice& slice : slices) {
      if (slice.elements == 0) continue;
      const auto found = group.find(slice.fqn);
      if (found == group.end()) return false;
      const ElementRange part = intersect(partition, found->second);
      if (part.size() != slice.elements || part.begin - partition.begin != slice.begin)
        return false;
      told += part.size();
    }
    for (const auto& [fqn, range] : group) {
      const ElementRange part = intersect(partition, range);
      if (!part.empty()) held += part.size();
    }
    return told == held;
  }

  const StatedPartitions& stated_;
  std::vector<FlatOrder> orders_;
};

}  // namespace

void check_partitions(const StatedPartitions& stated, const ShapeGroups& shapes,
                      const std::vector<std::vector<std::uint64_t>>& gaps, bool round_robin,
                      const std::string& where) {
  constexpr std::size_t kNamed = 4;
  std::vector<FlatOrder> orders = {flat_order_of(shapes, gaps)};
  if (round_robin) {  // DeepSpeed may write the mapping of the order before the reordering
    ShapeGroups plain;
    for (const auto& group : shapes) plain.push_back(undo_round_robin(group, stated.ranks.size()));
    orders.push_back(flat_order_of(plain, {}));
  }
  const PartitionFinder finder(stated, std::move(orders));
  std::vector<std::string> wrong;
  for (std::uint64_t rank = 0; rank < stated.ranks.size() && wrong.size() < kNamed; ++rank) {
    const StatedPartitions::OfRank& file = stated.ranks[rank];
    if (file.slices.empty() || finder.is_of(file, rank)) continue;
    const std::string name = Path(file.file).filename().string();
    if (const auto own = finder.rank_of(file)) {
      wrong.push_back(fmt::format("{} is that of rank {}", name, *own));
    } else if (!round_robin) {
      wrong.push_back(fmt::format("{} is that of no rank", name));
    }
  }
  if (wrong.empty()) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: the optimizer files are swapped, copied or of another save: by its "
                    "param_slice_mappings, {}",
                    where, fmt::join(wrong, ", ")),
        "give each file the name of its rank, or copy it again from the node that wrote it");
}

std::vector<NamedShape> undo_round_robin(const std::vector<NamedShape>& reordered,
                                         std::uint64_t world_size) {
  std::vector<NamedShape> original(reordered.size());
  std::size_t next = 0;
  for (std::uint64_t first = 0; first < std::min<std::uint64_t>(world_size, reordered.size());
       ++first) {
    for (std::uint64_t i = first; i < original.size(); i += world_size)
      original[i] = reordered[next++];
  }
  return original;
}

ShapeGroups regroup(const ShapeGroups& shapes, const std::vector<FlatGroup>& groups,
                    std::uint64_t world_size, const std::string& where) {
  ShapeGroups regrouped(groups.size());
  std::vector<NamedShape> all;
  for (const auto& group : shapes) all.insert(all.end(), group.begin(), group.end());
  auto next = all.begin();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::uint64_t left = groups[g].master.view.elements();
    while (next != all.end()) {
      const std::uint64_t part = share(element_count(next->shape), world_size);
      if (part > left || left == 0) break;
      left -= part;
      regrouped[g].push_back(*next++);
    }
    if (left == 0) continue;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: no run of the parameters in param_shapes fills sub-group {}", where, g));
  }
  if (next != all.end()) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: parameter {} is in no sub-group", where, unishard::quote(next->fqn)));
  }
  return regrouped;
}

}  // namespace unishard::converters::deepspeed
