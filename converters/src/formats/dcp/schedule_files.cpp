#include "formats/dcp/schedule_files.hpp"

#include "formats/dcp/keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kFirst = "scheduler.bin", kStart = "scheduler_", kEnd = ".bin";

std::optional<std::uint64_t> schedule_number(std::string_view name) {
  if (name == kFirst) return 0;
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kStart.size());
  name.remove_suffix(std::min(name.size(), kEnd.size()));
  if (!is_number(name)) return std::nullopt;
  return std::stoull(std::string(name));
}

std::set<std::uint64_t> schedule_numbers(Storage& storage, const Path& folder) {
  std::set<std::uint64_t> numbers;
  for (const Entry& entry : storage.list(folder)) {
    if (const auto number = schedule_number(entry.name)) numbers.insert(*number);
  }
  return numbers;
}

std::string words_on_missing(const std::vector<std::string>& scheduled) {
  return fmt::format(
      "not there, and a schedule set the learning rates of {}: it is missing, unless the script "
      "did not prepare that schedule",
      fmt::join(scheduled, " and "));
}

std::string schedule_name(std::uint64_t number) {
  return number == 0 ? std::string(kFirst) : fmt::format("{}{}{}", kStart, number, kEnd);
}

bool has_key(const Json& value, std::string_view key) {
  if (value.is_object() && value.contains(key)) return true;
  return value.is_structured() &&
         std::ranges::any_of(value, [&](const Json& part) { return has_key(part, key); });
}

}  // namespace

bool has_schedule(const ObjectEntry& object) {
  constexpr std::string_view kKey = "initial_lr";
  return object.key.ends_with(kKey) || has_key(object.value, kKey);
}

bool has_schedule_files(Storage& storage, const Path& folder) {
  return !schedule_numbers(storage, folder).empty();
}

Losses missing_schedules(Storage& storage, const Path& folder,
                         const std::vector<std::string>& scheduled) {
  const std::set<std::uint64_t> numbers = schedule_numbers(storage, folder);
  if (const auto gap = find_gap(numbers, 0))
    return {{.role = Role::Setting,
             .name = schedule_name(gap->missing),
             .why = fmt::format("missing, and {} is there", schedule_name(gap->there)),
             .is_broken = true}};
  if (numbers.empty() || scheduled.size() <= numbers.size()) return {};
  return {{.role = Role::SideFile,
           .name = schedule_name(numbers.size()),
           .why = words_on_missing(scheduled)}};
}

std::string doubt_about_schedule(const std::vector<std::string>& scheduled) {
  return fmt::format("{} is {}", kFirst, words_on_missing(scheduled));
}

}  // namespace unishard::converters::dcp
