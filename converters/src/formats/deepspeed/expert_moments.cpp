#include "formats/deepspeed/expert_moments.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "formats/deepspeed/expert_files.hpp"
#include "formats/deepspeed/pickle_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace unishard::converters::deepspeed {
namespace {

/// Returns the first elements of a moment; none for those of one value, and for what is no moment.
std::vector<std::byte> telling_beginning(const StatePieces& state) {
  constexpr std::uint64_t kCompared = 64;
  if (state.state == state::kFp32 || state.state == state::kWeights || state.pieces.empty())
    return {};
  const ViewPiece& piece = state.pieces.front();
  if (piece.range.begin != 0 || piece.range.size() < 2 || !piece.view.storage) return {};
  std::vector<std::byte> bytes =
      sampled_bytes(piece.view, piece.first, std::min(kCompared, piece.range.size()));
  const auto width = static_cast<std::ptrdiff_t>(size_of(piece.view.dtype));
  const bool is_one_value = std::equal(bytes.begin() + width, bytes.end(), bytes.begin());
  return is_one_value ? std::vector<std::byte>() : bytes;
}

}  // namespace

void note_equal_experts(const ParameterTable& parameters, Notes& notes) {
  constexpr std::size_t kLeastShare = 4;
  std::size_t telling = 0, equal = 0;
  std::string first;
  /// By layer, name in the expert, state and values.
  std::map<std::tuple<std::string_view, std::string_view, std::string_view, std::vector<std::byte>>,
           const Parameter*>
      seen;
  for (const Parameter& parameter : parameters.all()) {
    const auto name = split_expert(parameter.fqn);
    if (!name) continue;
    for (const StatePieces& state : parameter.states) {
      std::vector<std::byte> bytes = telling_beginning(state);
      if (bytes.empty()) continue;
      ++telling;
      const auto [place, is_new] = seen.try_emplace(
          std::tuple(name->prefix, name->local, std::string_view(state.state), std::move(bytes)),
          &parameter);
      if (is_new || equal++ > 0) continue;
      first = fmt::format("{} of {} and {}", state.state, quote(place->second->fqn),
                          quote(parameter.fqn));
    }
  }
  if (equal < 2 || equal * kLeastShare < telling) return;
  notes.add(
      fmt::format("{} moments of experts, first {}, have the values of another expert's: an expert "
                  "rank's may be another's",
                  equal, first));
}

}  // namespace unishard::converters::deepspeed
