#include "formats/deepspeed/frozen_pieces.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters::deepspeed {
namespace {

bool same_bytes(const TensorView& a, const TensorView& b) {
  constexpr std::uint64_t kCompared = 1024;
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const std::uint64_t count = std::min(kCompared, a.elements());
  std::vector<std::byte> left(count * size_of(a.dtype)), right(left.size());
  a.read({0, count}, left, torch::Reading::Sample);
  b.read({0, count}, right, torch::Reading::Sample);
  return left == right;
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

}  // namespace

FrozenTable whole_frozen(const ModelFile& model) {
  FrozenTable table;
  for (const NamedView& frozen : model.frozen_fragments) {
    table[frozen.name] = {frozen.view.shape, {{{0, frozen.view.elements()}, frozen.view, 0}}};
  }
  return table;
}

FrozenSlices::FrozenSlices(const ModelFile& first, std::uint64_t world_size)
    : first_(first), world_size_(world_size) {
  for (const NamedShape& named : first.frozen_shapes) table_[named.fqn].shape = named.shape;
}

void FrozenSlices::add_rank(const ModelFile& file, std::uint32_t rank, Notes& notes) {
  for (const NamedView& fragment : file.frozen_fragments) {
    const auto found = table_.find(fragment.name);
    if (found == table_.end()) {
      raise(ErrorCode::Corrupt, fmt::format("{}: frozen parameter {} has no shape in {}", file.name,
                                            unishard::quote(fragment.name), first_.name));
    }
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
