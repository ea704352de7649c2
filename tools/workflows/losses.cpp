#include "workflows/losses.hpp"

#include "unishard/format/error.hpp"

#include "workflows/name_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::tools {
namespace {

using converters::Loss;
using converters::Losses;
using converters::Role;

LossEffect effect_on_model(const Loss& loss) {
  switch (loss.role) {
    case Role::Weight:
    case Role::Scale:
      return LossEffect::Error;
    case Role::Buffer:
    case Role::StaleFile:
    case Role::OtherModel:
      return LossEffect::Note;
    case Role::State:
    case Role::Optimizer:
    case Role::Setting:
      return loss.is_broken ? LossEffect::Note : LossEffect::None;
    case Role::ClientValue:
    case Role::Metadata:
    case Role::SideFile:
      return LossEffect::None;
  }
  return LossEffect::Error;
}

/// Returns the first names for a message, and how many more there are.
std::string named(const Losses& losses) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(losses.size(), kNamed); ++i)
    texts.push_back(text_of(losses[i]));
  const std::size_t more = losses.size() - texts.size();
  return fmt::format("{}{}", fmt::join(texts, "; "),
                     more == 0 ? "" : fmt::format("; and {} more", more));
}

}  // namespace

bool is_unread_weight(const Loss& loss) { return is_weight(loss.role) && !loss.is_kept; }

LossEffect effect_of(const Loss& loss, const LossRules& rules) {
  if (loss.is_frozen && rules.excludes_frozen) return LossEffect::None;
  if (is_weight(loss.role) && !is_wanted(loss.name, rules.only)) return LossEffect::None;
  if (rules.wanted == Wanted::Model) return effect_on_model(loss);
  if (loss.is_kept) return LossEffect::Note;
  const bool is_needed = is_weight(loss.role) || loss.role == Role::Optimizer ||
                         (loss.role == Role::Setting && loss.is_broken);
  return is_needed ? LossEffect::Error : LossEffect::Note;
}

Losses losses_to_name(const Losses& losses, const LossRules& rules, const std::string& where) {
  Losses missing, others;
  for (Loss loss : losses) {
    const LossEffect effect = effect_of(loss, rules);
    if (rules.wanted == Wanted::Model) loss.is_kept = false;  // a model has no values
    if (effect == LossEffect::Error) missing.push_back(loss);
    if (effect == LossEffect::Note) others.push_back(loss);
  }
  if (!missing.empty() && !rules.allows_missing) {
    const bool is_optimizer =
        std::ranges::none_of(missing, [](const Loss& loss) { return is_weight(loss.role); });
    raise(ErrorCode::Unsupported,
          fmt::format("{}: {} of what the result must hold would be missing: {}", where,
                      missing.size(), named(missing)),
          is_optimizer ? "`unishard convert --weights-only` writes the model; --allow-missing "
                         "writes all but this"
                       : "--allow-missing writes the rest, and names what is missing");
  }
  missing.insert(missing.end(), others.begin(), others.end());
  return missing;
}

std::size_t count_missing(const Losses& losses, const LossRules& rules) {
  return static_cast<std::size_t>(std::ranges::count_if(
      losses, [&](const Loss& loss) { return effect_of(loss, rules) == LossEffect::Error; }));
}

Json losses_json(const Losses& losses) {
  Json rows = Json::array();
  for (const Loss& loss : losses) {
    Json row = {{"role", to_string(loss.role)}, {"name", loss.name}, {"why", loss.why}};
    if (loss.shape) row["shape"] = *loss.shape;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace unishard::tools
