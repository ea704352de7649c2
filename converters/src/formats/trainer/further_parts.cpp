#include "formats/trainer/further_parts.hpp"

#include "containers/pickle_json.hpp"
#include "core/embedded_catalog.hpp"
#include "formats/dcp/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace unishard::converters::trainer {
namespace {

constexpr std::string_view kModelKey = "model_", kOptimizerKey = "optimizer_",
                           kScheduleKey = "scheduler_";

struct FurtherForm {
  std::string_view start, end, key;
};
/// Where two forms have one key, accelerate looks for the file of the first.
constexpr std::array<FurtherForm, 3> kFurtherForms = {{{"model_", ".safetensors", kModelKey},
                                                       {"pytorch_model_", ".bin", kModelKey},
                                                       {"optimizer_", ".bin", kOptimizerKey}}};

/// Whether the key has a number behind `start`. The first of all has none.
bool is_numbered(std::string_view key, std::string_view start) {
  return key.starts_with(start) && dcp::is_number(key.substr(start.size()));
}

std::optional<std::string> further_key(const FurtherForm& form, std::string_view file) {
  if (!file.starts_with(form.start) || !file.ends_with(form.end)) return std::nullopt;
  file.remove_prefix(form.start.size());
  file.remove_suffix(std::min(file.size(), form.end.size()));
  if (!dcp::is_number(file)) return std::nullopt;
  return fmt::format("{}{}", form.key, file);
}

/// Returns nullopt when some of its tensors are not there, or all of a model's.
std::optional<FurtherPart> further_part(const std::string& key, const Json& value,
                                        const std::map<std::string, std::size_t>& extras,
                                        std::vector<std::string>& notes) {
  auto written = torch::with_all_tensors(value, key, notes);
  if (!written) return std::nullopt;
  FurtherPart part{key, std::move(*written), {}};
  for (const std::string& fqn : torch::tensors_in(part.value)) {
    const auto found = extras.find(fqn);
    if (found == extras.end()) return std::nullopt;
    part.tensors.insert(*found);
  }
  if (is_further_model(key) && part.tensors.empty()) return std::nullopt;
  return part;
}

}  // namespace

bool is_further_model(std::string_view key) { return is_numbered(key, kModelKey); }
bool is_further_optimizer(std::string_view key) { return is_numbered(key, kOptimizerKey); }

std::map<std::string, std::string> find_further_files(Storage& storage, const Path& folder) {
  std::map<std::string, std::string> files;
  const std::vector<Entry> entries = storage.list(folder);
  for (const FurtherForm& form : kFurtherForms) {
    for (const Entry& entry : entries) {
      if (storage.kind(folder / entry.name) != EntryKind::File) continue;
      if (auto key = further_key(form, entry.name)) files.emplace(std::move(*key), entry.name);
    }
  }
  return files;
}

Losses missing_further_files(Storage& storage, const Path& folder) {
  std::array<std::set<std::uint64_t>, 2> found;  // numbers of models and optimizers
  for (const auto& [key, name] : find_further_files(storage, folder)) {
    const bool is_model = is_further_model(key);
    found[is_model ? 0 : 1].insert(
        std::stoull(key.substr((is_model ? kModelKey : kOptimizerKey).size())));
  }
  Losses losses;
  // What was read tells of the first model and optimizer, and their numbers begin at 1.
  const auto lose_gap = [&](const std::set<std::uint64_t>& numbers, Role role,
                            std::string_view start, std::string_view end) {
    const auto gap = dcp::find_gap(numbers, 1);
    if (!gap) return;
    losses.push_back({.role = role,
                      .name = fmt::format("{}{}{}", start, gap->missing, end),
                      .why = fmt::format("missing, and {}{} is there", start, gap->there),
                      .is_broken = true});
  };
  lose_gap(found[0], Role::OtherModel, kModelKey, ".safetensors");
  lose_gap(found[1], Role::Optimizer, kOptimizerKey, ".bin");
  const std::uint64_t last_model = found[0].empty() ? 0 : *found[0].rbegin();
  if (!found[1].empty() && *found[1].rbegin() > last_model)
    losses.push_back({Role::OtherModel, fmt::format("{}{}.safetensors", kModelKey, last_model + 1),
                      fmt::format("not there, and {}{}.bin is: it is missing, unless one model has "
                                  "several optimizers",
                                  kOptimizerKey, *found[1].rbegin())});
  for (const Entry& entry : storage.list(folder)) {
    const auto number = further_key({kScheduleKey, ".bin", ""}, entry.name);
    if (!number || std::stoull(*number) == 0 || found[1].contains(std::stoull(*number))) continue;
    losses.push_back({Role::SideFile, fmt::format("{}{}.bin", kOptimizerKey, *number),
                      fmt::format("no such file is beside {}", entry.name)});
  }
  return losses;
}

std::vector<FurtherPart> further_parts(const Catalog& catalog, std::vector<std::string>& notes) {
  std::vector<FurtherPart> parts;
  if (!catalog.client_state.is_object()) return parts;
  std::map<std::string, std::size_t> extras;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (catalog.tensors[i].state == kExtraState) extras.emplace(catalog.tensors[i].fqn, i);
  }
  for (const auto& [key, value] : catalog.client_state.items()) {
    if (!is_further_model(key) && !is_further_optimizer(key)) continue;
    if (auto part = further_part(key, value, extras, notes)) {
      parts.push_back(std::move(*part));
    } else {
      notes.push_back(fmt::format("{} (tensors of it are not there)", key));
    }
  }
  return parts;
}

}  // namespace unishard::converters::trainer
