#include "workflows/convert.hpp"

#include "unishard/format/error.hpp"

#include "team/shared_digests.hpp"
#include "workflows/consolidate.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>

namespace unishard::tools {
namespace {

RenameRule parse_rename(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename {}: not FROM=TO", unishard::quote(text)));
  }
  RenameRule rule{text.substr(0, equals), text.substr(equals + 1)};
  try {
    const std::regex check(rule.from);
  } catch (const std::regex_error&) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename: {} is not a regular expression", unishard::quote(rule.from)));
  }
  return rule;
}

/// The file of `--rename @file`: a regular file, or what a shell makes of <(...).
std::string rules_text(const Path& path) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  std::error_code code;
  const bool is_folder = std::filesystem::is_directory(path, code);
  std::ifstream file(path);
  std::string text;
  if (file && !is_folder) {
    text.resize(kBytes);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (is_folder || file.bad() || !(file || file.eof())) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename: cannot read {}{}", path.string(),
                      is_folder ? ", which is a folder" : ""),
          "@ is followed by the name of a file with one FROM=TO a line");
  }
  if (!file.eof())
    raise(ErrorCode::InvalidArgument, fmt::format("--rename: {} is too large", path.string()));
  return text;
}

class Renamer {
 public:
  explicit Renamer(const std::vector<RenameRule>& rules) {
    for (const RenameRule& rule : rules) rules_.emplace_back(std::regex(rule.from), rule.to);
  }
  std::string operator()(std::string fqn) const {
    for (const auto& [from, to] : rules_) fqn = std::regex_replace(fqn, from, to);
    return fqn;
  }

 private:
  std::vector<std::pair<std::regex, std::string>> rules_;
};

bool is_wanted(const std::string& fqn, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return true;
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), fqn.c_str(), 0) == 0;
  });
}

std::vector<std::size_t> choose(const Catalog& catalog, const ConvertOptions& options,
                                std::vector<std::string>& notes) {
  std::vector<bool> stands(catalog.tensors.size());
  for (const std::size_t i : model_tensors(catalog)) stands[i] = true;
  std::size_t filtered = 0, states = 0;
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (!is_wanted(catalog.tensors[i].fqn, options.only)) {
      ++filtered;
    } else if (options.weights_only && !stands[i]) {
      ++states;
    } else {
      chosen.push_back(i);
    }
  }
  if (filtered > 0) notes.push_back(fmt::format("{} tensors that --only leaves out", filtered));
  if (states > 0)
    notes.push_back(fmt::format("{} optimizer states and other copies (--weights-only)", states));
  return chosen;
}

void rename_groups(Json& groups, const Renamer& rename, const std::set<std::string>& kept) {
  if (!groups.is_array()) return;
  for (Json& group : groups) {
    if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) continue;
    Json params = Json::array();
    for (const Json& fqn : group["params"]) {
      if (!fqn.is_string()) continue;
      std::string name = rename(fqn.get<std::string>());
      if (kept.contains(name)) params.push_back(std::move(name));
    }
    group["params"] = std::move(params);
  }
}

/// Aliases, units and groups of the tensors that are left, under their new names.
void take_surroundings(const Catalog& from, const Renamer& rename, const ConvertOptions& options,
                       ConvertPlan& plan) {
  Catalog& to = plan.target;
  std::set<std::string> kept;
  for (const TensorInfo& tensor : to.tensors) kept.insert(tensor.fqn);
  for (const Alias& alias : from.aliases) {
    const Alias renamed{rename(alias.fqn), rename(alias.target)};
    if (kept.contains(renamed.target)) to.aliases.push_back(renamed);
  }
  if (options.weights_only) {
    for (const auto& [name, section] : {std::pair{"parameter groups", &from.groups},
                                        {"scheduler", &from.scheduler},
                                        {"client state", &from.client_state}}) {
      if (!section->is_null()) plan.notes.push_back(fmt::format("{} (--weights-only)", name));
    }
    return;
  }
  to.groups = from.groups;
  rename_groups(to.groups, rename, kept);
  for (const UnitLayout& unit : from.units) {
    UnitLayout renamed{unit.name, {}};
    for (const std::string& fqn : unit.fqns) {
      if (std::string name = rename(fqn); kept.contains(name))
        renamed.fqns.push_back(std::move(name));
    }
    if (!renamed.fqns.empty()) to.units.push_back(std::move(renamed));
  }
  to.scheduler = from.scheduler;
  to.loss_scaler = from.loss_scaler;
  to.data_position = from.data_position;
  to.rng = from.rng;
  to.client_state = from.client_state;
  to.config = from.config;
  to.producer = from.producer;
}

TensorInfo target_tensor(TensorInfo tensor, const Renamer& rename, const ConvertOptions& options) {
  tensor.fqn = rename(tensor.fqn);
  if (options.weights_only) {
    tensor.state = state::kWeights;
    tensor.group = -1;
    tensor.frozen = tensor.derived = false;
  }
  const bool is_weight = tensor.state == state::kWeights && info(tensor.dtype).kind == Kind::Float;
  if (options.dtype && is_weight && tensor.dtype != *options.dtype) {
    tensor.dtype = *options.dtype;
    tensor.derived = false;
    tensor.crc64.reset();
    tensor.stats.reset();
  }
  return tensor;
}

}  // namespace

std::vector<RenameRule> parse_renames(const std::vector<std::string>& texts) {
  std::vector<RenameRule> rules;
  for (const std::string& text : texts) {
    if (!text.starts_with('@')) {
      rules.push_back(parse_rename(text));
      continue;
    }
    std::istringstream lines(rules_text(text.substr(1)));
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && line[0] != '#') rules.push_back(parse_rename(line));
    }
  }
  return rules;
}

ConvertPlan plan_convert(const converters::Source& source, const ConvertOptions& options) {
  const Catalog& from = source.catalog();
  const Renamer rename(options.renames);
  ConvertPlan plan;
  plan.tensor_map = choose(from, options, plan.notes);
  if (plan.tensor_map.empty())
    raise(ErrorCode::InvalidArgument, "no tensor is left to convert",
          "see `unishard inspect` for the names");
  plan.target.step = from.step;
  plan.target.world_size = options.world_size.value_or(from.world_size);
  plan.target.stage = options.stage.value_or(from.stage);
  std::map<std::pair<std::string, std::string>, std::string> sources;
  for (const std::size_t index : plan.tensor_map) {
    plan.target.tensors.push_back(target_tensor(from.tensors[index], rename, options));
    const TensorInfo& made = plan.target.tensors.back();
    const auto [other, is_new] =
        sources.emplace(std::pair{made.fqn, made.state}, from.tensors[index].fqn);
    if (!is_new) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("--rename gives {} and {} one name: {}", other->second,
                        from.tensors[index].fqn, made.label()));
    }
  }
  take_surroundings(from, rename, options, plan);
  validate(plan.target, "the result");
  return plan;
}

void add_digests(const converters::Source& source, const std::vector<std::size_t>& tensor_map,
                 const TransferOptions& options, Team& team, Catalog& catalog) {
  DigestJob job{
      .catalog = &catalog,
      .tensors = {},
      .read = [&](std::size_t tensor, ElementRange range,
                  std::span<std::byte> out) { source.read(tensor_map[tensor], range, out); },
      .boundary =
          [&](std::size_t tensor, std::uint64_t element) {
            return source.read_boundary(tensor_map[tensor], element);
          }};
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (!catalog.tensors[i].crc64) job.tensors.push_back(i);
  }
  const auto digests = gather_digests(team, catalog, digest_share(job, team, options));
  for (const std::size_t i : job.tensors) catalog.tensors[i].crc64 = digests[i];
}

Catalog with_digests(const converters::Source& source, const TransferOptions& options, Team& team) {
  Catalog catalog = source.catalog();
  std::vector<std::size_t> itself(catalog.tensors.size());
  std::iota(itself.begin(), itself.end(), std::size_t{0});
  add_digests(source, itself, options, team, catalog);
  return catalog;
}

Catalog with_digests(const converters::Source& source, const TransferOptions& options) {
  Team alone;
  return with_digests(source, options, alone);
}

std::vector<std::string> differing(const Catalog& expected, const Catalog& written) {
  std::map<std::pair<std::string_view, std::string_view>, const TensorInfo*> there;
  for (const TensorInfo& tensor : written.tensors) there[{tensor.fqn, tensor.state}] = &tensor;
  std::vector<std::string> labels;
  for (const TensorInfo& tensor : expected.tensors) {
    const auto found = there.find({tensor.fqn, tensor.state});
    const bool equal = found != there.end() && found->second->dtype == tensor.dtype &&
                       found->second->shape == tensor.shape && found->second->crc64 == tensor.crc64;
    if (!equal) labels.push_back(tensor.label());
  }
  return labels;
}

}  // namespace unishard::tools
