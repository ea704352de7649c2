#include "formats/deepspeed/frozen_pieces.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace unishard::converters::deepspeed {
namespace {

bool same_bytes(const TensorView& a, const TensorView& b) {
  constexpr std::uint64_t kCompared = 1024;
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const std::uint64_t count = std::min(kCompared, a.elements());
  return sampled_bytes(a, 0, count) == sampled_bytes(b, 0, count);
}

void compare_buffers(const ModelFile& first, const ModelFile& other, Notes& notes) {
  if (!first.buffer_names) return;
  const std::set<std::string> buffers(first.buffer_names->begin(), first.buffer_names->end());
  for (std::size_t i = 0; i < std::min(first.module.size(), other.module.size()); ++i) {
    const NamedView &a = first.module[i], &b = other.module[i];
    if (a.name != b.name || !buffers.contains(a.name)) continue;
    if (!same_bytes(a.view, b.view))
      notes.add(fmt::format("buffer {} differs between ranks; that of rank 0 is kept", a.name));
  }
}

void check_frozen_shape(const ModelFile& model, const NamedView& frozen, const Shape& other,
                        std::string_view holder) {
  if (other == frozen.view.shape) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: frozen parameter {} has the shape ({}) in frozen_param_fragments and ({}) "
                    "in {}",
                    model.name, unishard::quote(frozen.name), fmt::join(frozen.view.shape, ", "),
                    fmt::join(other, ", "), holder),
        "use another checkpoint: its values may be those of another parameter");
}

/// Returns the name of a frozen parameter that one file has and the other lacks or gives another
/// shape; nullopt when the lists are equal.
std::optional<std::string> differing_shape(const std::vector<NamedShape>& one,
                                           const std::vector<NamedShape>& other) {
  std::unordered_map<std::string_view, const Shape*> shapes;
  for (const NamedShape& named : one) shapes[named.fqn] = &named.shape;
  for (const NamedShape& named : other) {
    const auto found = shapes.find(named.fqn);
    if (found == shapes.end() || *found->second != named.shape) return named.fqn;
    shapes.erase(found);
  }
  if (shapes.empty()) return std::nullopt;
  return std::string(shapes.begin()->first);
}

}  // namespace

FrozenTable whole_frozen(const ModelFile& model, Notes& notes) {
  FrozenTable table;
  std::unordered_map<std::string_view, const TensorView*> module;
  std::unordered_map<std::string_view, const Shape*> listed;
  for (const NamedView& entry : model.module) module.emplace(entry.name, &entry.view);
  for (const NamedShape& named : model.frozen_shapes) listed.emplace(named.fqn, &named.shape);
  std::vector<std::string_view> differing;
  for (const NamedView& frozen : model.frozen_fragments) {
    if (const auto shape = listed.find(frozen.name); shape != listed.end())
      check_frozen_shape(model, frozen, *shape->second, "frozen_param_shapes");
    if (const auto entry = module.find(frozen.name); entry != module.end()) {
      check_frozen_shape(model, frozen, entry->second->shape, "the module");
      const bool has_values = frozen.view.storage && entry->second->storage;
      if (has_values && !same_bytes(frozen.view, *entry->second)) differing.push_back(frozen.name);
    }
    table[frozen.name] = {frozen.view.shape, {{{0, frozen.view.elements()}, frozen.view, 0}}};
  }
  if (!differing.empty()) {
    notes.add(
        fmt::format("{} frozen parameters, first {}, are not in the module what "
                    "frozen_param_fragments holds, which is kept",
                    differing.size(), unishard::quote(differing.front())));
  }
  return table;
}

FrozenSlices::FrozenSlices(const ModelFile& first, std::uint64_t world_size)
    : first_(first), world_size_(world_size) {
  for (const NamedShape& named : first.frozen_shapes) table_[named.fqn].shape = named.shape;
}

FrozenTable FrozenSlices::take() {
  std::erase_if(table_, [](const auto& frozen) { return frozen.second.pieces.empty(); });
  return std::move(table_);
}

void FrozenSlices::check_lists(const ModelFile& file) const {
  if (const auto name = differing_shape(first_.frozen_shapes, file.frozen_shapes)) {
    raise(ErrorCode::Corrupt,
          fmt::format("{} and {}: frozen parameter {} is not the same in their "
                      "frozen_param_shapes: the files are not of one save",
                      first_.name, file.name, unishard::quote(*name)),
          "use another checkpoint, or find the files that belong together");
  }
  std::set<std::string_view> missing;
  for (const NamedView& fragment : first_.frozen_fragments) missing.insert(fragment.name);
  for (const NamedView& fragment : file.frozen_fragments) {
    if (missing.erase(fragment.name) == 0) missing.insert(fragment.name);
  }
  if (missing.empty()) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{} and {}: only one has a part of frozen parameter {}", first_.name, file.name,
                    unishard::quote(*missing.begin())),
        "use another checkpoint, or find the files that belong together");
}

/// Every rank's part has the same size; the last ones end with padding.
void FrozenSlices::check_size(const ModelFile& file, const NamedView& fragment,
                              const Shape& shape) const {
  const std::uint64_t needed = stage3_range(element_count(shape), 0, world_size_).size();
  if (fragment.view.elements() == needed) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: the part of frozen parameter {} has {} elements; its shape ({}) in "
                    "frozen_param_shapes needs {} on each of {} ranks",
                    file.name, unishard::quote(fragment.name), fragment.view.elements(),
                    fmt::join(shape, ", "), needed, world_size_),
        "use another checkpoint: the files do not hold the parameter's values");
}

void FrozenSlices::add_rank(const ModelFile& file, std::uint32_t rank, Notes& notes) {
  if (&file != &first_) check_lists(file);
  for (const NamedView& fragment : file.frozen_fragments) {
    const auto found = table_.find(fragment.name);
    if (found == table_.end()) {
      raise(ErrorCode::Corrupt, fmt::format("{}: frozen parameter {} has no shape in {}", file.name,
                                            unishard::quote(fragment.name), first_.name));
    }
    check_size(file, fragment, found->second.shape);
    const ElementRange range = stage3_range(element_count(found->second.shape), rank, world_size_);
    if (!range.empty() || rank == 0) found->second.pieces.push_back({range, fragment.view, 0});
  }
  if (&file != &first_) compare_buffers(first_, file, notes);
}

std::vector<std::int32_t> owners(const std::vector<std::vector<std::uint64_t>>& members,
                                 std::size_t flat_groups, const std::string& where) {
  std::vector<std::int32_t> owner(flat_groups, -1);
  for (std::size_t g = 0; g < members.size(); ++g) {
    for (const std::uint64_t flat : members[g]) {
      if (flat >= flat_groups || owner[flat] >= 0) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: the parameter groups list sub-group {} wrongly", where, flat));
      }
      owner[flat] = static_cast<std::int32_t>(g);
    }
  }
  if (std::ranges::count(owner, -1) > 0) {
    raise(ErrorCode::Corrupt, fmt::format("{}: a sub-group is in no parameter group", where));
  }
  return owner;
}

}  // namespace unishard::converters::deepspeed
