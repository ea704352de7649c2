#include "formats/dcp/flat_places.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace unishard::converters::dcp {
namespace {

using Places = std::vector<std::uint64_t>;

/// The elements of 2, 4 and 8 bytes that 16 bytes have; 1 is without gaps.
constexpr std::array<std::uint64_t, 4> kAlignments = {1, 2, 4, 8};

/// Returns nullopt where the members have more elements than the vector, or too few.
std::optional<Places> places_of(const std::vector<FlatMember>& members, const FlatVector& vector,
                                std::uint64_t alignment) {
  Places places;
  std::uint64_t end = 0;
  for (const FlatMember& member : members) {
    if (const std::uint64_t over = end % alignment; over != 0) end += alignment - over;
    if (end > vector.elements || member.elements > vector.elements - end) return std::nullopt;
    places.push_back(end);
    end += member.elements;
  }
  const std::uint64_t rest = vector.elements - end;
  const bool may_be_filled = vector.is_filled || alignment > 1;
  if (rest != 0 && (!may_be_filled || rest >= vector.ranks)) return std::nullopt;
  return places;
}

bool is_cut_so(const FlatMember& member, std::uint64_t begin, const FlatVector& vector) {
  return std::ranges::all_of(member.pieces, [&](const auto& each) {
    const auto& [rank, piece] = each;
    const auto part = vector.parts.find(rank);
    const ElementRange held = part == vector.parts.end() ? ElementRange{} : part->second;
    const ElementRange common = intersect({begin, begin + member.elements}, held);
    const std::uint64_t elements = common.empty() ? 0 : common.size();
    if (piece.elements != elements) return false;
    return elements == 0 || !piece.begin || *piece.begin == common.begin - held.begin;
  });
}

}  // namespace

std::optional<std::vector<std::uint64_t>> flat_places(const std::vector<FlatMember>& members,
                                                      const FlatVector& vector) {
  const bool may_have_gaps =
      vector.may_have_gaps ||
      std::ranges::any_of(members, [](const FlatMember& member) { return !member.pieces.empty(); });
  std::optional<Places> found;
  for (const std::uint64_t alignment : kAlignments) {
    if (alignment > 1 && !may_have_gaps) break;
    auto places = places_of(members, vector, alignment);
    if (!places) continue;
    bool fits = true;
    for (std::size_t i = 0; fits && i < members.size(); ++i)
      fits = is_cut_so(members[i], (*places)[i], vector);
    if (!fits) continue;
    if (found && *found != *places) return std::nullopt;
    found = std::move(places);
  }
  return found;
}

}  // namespace unishard::converters::dcp
