#include "formats/trainer/listed_tensors.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::converters::trainer {

ListedTensors::ListedTensors(Path index, WeightMap listed)
    : index_(std::move(index)), listed_(std::move(listed)) {}

Losses ListedTensors::missing() const {
  Losses losses;
  for (const auto& [tensor, file] : listed_) {
    if (held_.contains(tensor)) continue;
    if (!others_.contains(tensor))
      raise(ErrorCode::Corrupt,
            fmt::format("{}: tensor {} is not in {}, where the index lists it, nor in another file",
                        index_.string(), unishard::quote(tensor), file),
            std::string(kOtherIndexHint));
    losses.push_back({.role = Role::Weight,
                      .name = tensor,
                      .why = fmt::format("{} lists it, and what {} has of this name is no tensor",
                                         index_.filename().string(), file),
                      .is_broken = true});
  }
  return losses;
}

std::vector<std::string> ListedTensors::doubts() const {
  std::vector<std::string> lines;
  if (const auto names = misplaced(); !names.empty())
    lines.push_back(fmt::format("{} lists tensors in other files than those that have them: {}",
                                index_.filename().string(), first_names(names)));
  if (const auto names = unlisted(); !names.empty())
    lines.push_back(
        fmt::format("{} does not list all tensors of its files, and these are read too: "
                    "{}",
                    index_.filename().string(), first_names(names)));
  return lines;
}

std::vector<std::string> ListedTensors::misplaced() const {
  std::vector<std::string> names;
  for (const auto& [tensor, file] : listed_) {
    const auto held = held_.find(tensor);
    if (held != held_.end() && !held->second.contains(file))
      names.push_back(fmt::format("{} ({}, and not {})", tensor, *held->second.begin(), file));
  }
  return names;
}

std::vector<std::string> ListedTensors::unlisted() const {
  std::vector<std::string> names;
  if (listed_.empty()) return names;  // there is no index
  for (const auto& [tensor, files] : held_) {
    if (!listed_.contains(tensor)) names.push_back(fmt::format("{} ({})", tensor, *files.begin()));
  }
  return names;
}

}  // namespace unishard::converters::trainer
