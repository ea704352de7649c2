#include "formats/dcp/nanotron.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/inline_tensors.hpp"
#include "containers/pickle_json.hpp"
#include "containers/torch_file.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/nanotron_optimizer.hpp"
#include "formats/dcp/nanotron_weights.hpp"
#include "reading/broken_files.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kMetadata = "checkpoint_metadata.json", kConfig = "model_config.json",
                           kNewest = "latest.txt", kModelFolder = "model",
                           kSchedule = "lr_scheduler";
constexpr std::uint64_t kTextBytes = 1 << 20;

std::optional<Json> read_object(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::File) return std::nullopt;
  return parse_json(read_text(storage, path, kTextBytes), path.string());
}

bool is_checkpoint(Storage& storage, const Path& folder) {
  if (storage.kind(folder / kMetadata) != EntryKind::File ||
      storage.kind(folder / kModelFolder) != EntryKind::Directory)
    return false;
  try {
    const auto metadata = read_object(storage, folder / kMetadata);
    return torch::member(*metadata, "version") != nullptr &&
           torch::member(*metadata, "tp") != nullptr && torch::member(*metadata, "dp") != nullptr;
  } catch (const Error&) {
    return true;  // the reader names the defect
  }
}

/// A value of the run, which no program takes for a tensor or an optimizer.
void add_value(std::string_view file, Json value, StateDictBuilder& builder) {
  const std::string key(file.substr(0, file.find('.')));
  builder.out.values.insert(key);
  builder.out.objects.push_back({key, {{key, false}}, std::move(value)});
}

void read_metadata(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  Json metadata = *read_object(storage, folder / kMetadata);
  const Json* const metas = torch::member(metadata, "metas");
  const Json* const step = metas ? torch::member(*metas, "last_train_step") : nullptr;
  if (step != nullptr && step->is_number_unsigned()) builder.out.step = step->get<double>();
  add_value(kMetadata, std::move(metadata), builder);
}

/// Checks that the model has as many layers as its configuration says. Notes a layer that lacks a
/// tensor of the first.
void require_layers(const Json& config, const nanotron::Parameters& parameters, const Path& folder,
                    StateDictBuilder& builder) {
  std::map<std::uint64_t, std::set<std::string_view>> layers;
  for (const auto& [name, parameter] : parameters) {
    constexpr std::string_view kLayers = "decoder.";
    const std::size_t at = name.find(kLayers);
    if (at == name.npos) continue;
    const std::string_view rest = std::string_view(name).substr(at + kLayers.size());
    const std::size_t dot = rest.find('.');
    if (dot == rest.npos || !is_number(rest.substr(0, dot))) continue;
    layers[std::stoull(std::string(rest.substr(0, dot)))].insert(rest.substr(dot));
  }
  if (layers.empty()) return;
  const Json* const count = torch::member(config, "num_hidden_layers");
  const std::uint64_t wanted = count != nullptr && count->is_number_unsigned()
                                   ? count->get<std::uint64_t>()
                                   : layers.rbegin()->first + 1;
  std::uint64_t next = 0;
  for (const auto& [number, names] : layers) {
    if (number == next) ++next;
    for (const std::string_view name : layers.begin()->second) {
      if (names.contains(name)) continue;
      builder.out.notes.push_back(fmt::format("layer {} has no {}, which layer {} has", number,
                                              name.substr(1), layers.begin()->first));
    }
  }
  if (next == wanted && layers.size() == wanted) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: the model has {} layers, and model/ holds files of {}: the first without "
                    "files is layer {}",
                    folder.string(), wanted, layers.size(), next),
        "bring the files of all stages of the pipeline into one folder");
}

constexpr std::string_view kHead = "lm_head.pp_block.weight",
                           kEmbedding = "token_position_embeddings.pp_block.token_embedding.weight",
                           kNorm = "final_layer_norm.pp_block.weight";

/// Notes what nothing but the configuration tells, and which of the tensors around the layers are
/// not there.
void note_doubts(const Json& config, const nanotron::Parameters& parameters,
                 StateDictBuilder& builder) {
  const Json* const layers = torch::member(config, "num_hidden_layers");
  if (layers == nullptr || !layers->is_number_unsigned())
    builder.out.notes.push_back(fmt::format(
        "{} does not say how many layers the model has: nothing tells whether the last are missing",
        kConfig));
  const Json* const tied = torch::member(config, "tie_word_embeddings");
  for (const std::string_view wanted : {kEmbedding, kNorm, kHead}) {
    if (wanted == kHead && tied != nullptr && *tied == true) continue;
    const auto is_wanted = [&](const auto& each) { return each.first.ends_with(wanted); };
    if (std::ranges::none_of(parameters, is_wanted))
      builder.out.notes.push_back(fmt::format("no file of the model holds a {}", wanted));
  }
}

/// Of tied tensors only the first is saved. Source: nanotron models/llama (tie_embeddings).
void tie_embeddings(const Json& config, const nanotron::Parameters& parameters,
                    StateDictBuilder& builder) {
  const Json* const is_tied = torch::member(config, "tie_word_embeddings");
  if (is_tied == nullptr || *is_tied != true) return;
  for (const auto& [name, parameter] : parameters) {
    if (!name.ends_with(kEmbedding)) continue;
    const std::string head = name.substr(0, name.size() - kEmbedding.size()) + std::string(kHead);
    if (parameters.contains(head)) return;
    builder.out.second_keys.push_back(
        {"model." + head, "model." + name, {{"model", false}, {head, false}}, {}});
    return;
  }
}

void read_schedule(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  const Path place = folder / kSchedule;
  if (storage.kind(place) != EntryKind::Directory) return;
  std::vector<std::string> names;
  for (const Entry& entry : storage.list(place)) {
    if (nanotron::parse_rank_file(kSchedule, entry.name)) names.push_back(entry.name);
  }
  std::ranges::sort(names);
  if (names.empty()) return;
  try {
    const torch::TorchFile file(torch::whole_file(storage, place / names[0]));
    builder.out.scheduler =
        torch::with_inline_tensors(file, std::string(kSchedule), builder.out.losses);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt) throw;
    builder.out.losses.push_back(damaged(Role::Setting, std::string(kSchedule), error));
  }
}

void name_other_files(Storage& storage, const Path& folder, Losses& losses) {
  constexpr std::array<std::string_view, 5> kRead = {kMetadata, kConfig, kModelFolder, kSchedule,
                                                     "optimizer"};
  for (const Entry& entry : storage.list(folder)) {
    if (std::ranges::find(kRead, entry.name) == kRead.end())
      losses.push_back({role_of_unread_file(entry.name), entry.name});
  }
}

}  // namespace

std::optional<Path> find_nanotron(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return std::nullopt;
  if (is_checkpoint(storage, path)) return path;
  if (storage.kind(path / kNewest) != EntryKind::File) return std::nullopt;
  std::string step = read_text(storage, path / kNewest, kTextBytes);
  step.erase(step.find_last_not_of(" \r\n") + 1);
  if (!is_number(step) || !is_checkpoint(storage, path / step)) return std::nullopt;
  return path / step;
}

void read_nanotron(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  builder.ranks_repeat = true;
  builder.out.producer = {{"library", "nanotron"}};
  read_metadata(storage, folder, builder);
  const nanotron::Parameters parameters =
      nanotron::read_weights(storage, folder / kModelFolder, builder);
  if (parameters.empty())
    raise(ErrorCode::Corrupt, fmt::format("{}: model/ holds no tensor", folder.string()));
  Json config = read_object(storage, folder / kConfig).value_or(Json::object());
  require_layers(config, parameters, folder, builder);
  note_doubts(config, parameters, builder);
  tie_embeddings(config, parameters, builder);
  if (!config.empty()) add_value(kConfig, std::move(config), builder);
  nanotron::read_optimizer(storage, folder, parameters, builder);
  read_schedule(storage, folder, builder);
  name_other_files(storage, folder, builder.out.losses);
}

}  // namespace unishard::converters::dcp
