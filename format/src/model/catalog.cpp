#include "unishard/format/catalog.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

namespace unishard {
namespace {

[[noreturn]] void broken(std::string_view where, const std::string& problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: {}", where, problem));
}

void check_name(std::string_view where, std::string_view what, const std::string& name) {
  if (name.empty()) broken(where, fmt::format("{} has an empty name", what));
  if (name.size() > limits::kNameBytes) {
    broken(where, fmt::format("the name of {} {} is longer than {} bytes", what, quote(name),
                              limits::kNameBytes));
  }
  if (name.find('\0') != std::string::npos)
    broken(where, fmt::format("the name of {} {} contains NUL", what, quote(name)));
  if (!valid_utf8(name)) broken(where, fmt::format("the name of {} is not UTF-8", what));
}

void check_state(std::string_view where, const TensorInfo& tensor) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  const std::string& name = tensor.state;
  if (name.empty() || name.size() > limits::kStateNameBytes ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    broken(where, fmt::format("tensor {}: state {} must be 1 to {} of A-Z a-z 0-9 _ -",
                              quote(tensor.fqn), quote(name), limits::kStateNameBytes));
  }
}

bool is_sixteen_bit(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }

void check_tensors(const Catalog& catalog, std::string_view where) {
  std::unordered_map<std::string, const TensorInfo*> seen;
  for (const TensorInfo& tensor : catalog.tensors) {
    check_name(where, "a tensor", tensor.fqn);
    check_state(where, tensor);
    if (tensor.shape.size() > limits::kDimensions) {
      broken(where, fmt::format("tensor {} has {} dimensions, more than {}", quote(tensor.fqn),
                                tensor.shape.size(), limits::kDimensions));
    }
    tensor.bytes();
    if (tensor.group < -1 || (catalog.groups.is_array() &&
                              tensor.group >= static_cast<std::int64_t>(catalog.groups.size()))) {
      broken(where, fmt::format("tensor {} is in group {}, which does not exist", quote(tensor.fqn),
                                tensor.group));
    }
    if (!seen.emplace(tensor.fqn + '\0' + tensor.state, &tensor).second) {
      broken(where, fmt::format("tensor {} occurs twice", quote(tensor.label())));
    }
  }
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!tensor.derived) continue;
    const auto master = seen.find(tensor.fqn + '\0' + std::string(state::kFp32));
    if (!is_sixteen_bit(tensor.dtype) || master == seen.end() || master->second->derived ||
        master->second->dtype != DType::Float32 || master->second->shape != tensor.shape) {
      broken(
          where,
          fmt::format("tensor {} is derived, but has no fp32 state of its shape to be rebuilt from",
                      quote(tensor.label())));
    }
  }
}

void check_names(const Catalog& catalog, std::string_view where) {
  std::unordered_set<std::string> fqns;
  for (const TensorInfo& tensor : catalog.tensors) fqns.insert(tensor.fqn);
  std::unordered_set<std::string> aliases;
  for (const Alias& alias : catalog.aliases) {
    check_name(where, "an alias", alias.fqn);
    if (!fqns.contains(alias.target))
      broken(where, fmt::format("alias {} names {}, which is not a tensor", quote(alias.fqn),
                                quote(alias.target)));
    if (fqns.contains(alias.fqn) || !aliases.insert(alias.fqn).second) {
      broken(where, fmt::format("alias {} is also the name of something else", quote(alias.fqn)));
    }
  }
  std::unordered_set<std::string> in_units;
  for (const UnitLayout& unit : catalog.units) {
    for (const std::string& fqn : unit.fqns) {
      if (!fqns.contains(fqn))
        broken(where, fmt::format("unit {} names {}, which is not a tensor", quote(unit.name),
                                  quote(fqn)));
      if (!in_units.insert(fqn).second)
        broken(where, fmt::format("parameter {} is in two units", quote(fqn)));
    }
  }
}

}  // namespace

const std::vector<std::pair<const char*, Json Catalog::*>>& Catalog::sections() {
  static const std::vector<std::pair<const char*, Json Catalog::*>> kSections = {
      {"groups", &Catalog::groups},
      {"scheduler", &Catalog::scheduler},
      {"loss_scaler", &Catalog::loss_scaler},
      {"data_position", &Catalog::data_position},
      {"rng", &Catalog::rng},
      {"client_state", &Catalog::client_state},
      {"config", &Catalog::config},
      {"producer", &Catalog::producer}};
  return kSections;
}

std::optional<std::size_t> Catalog::find(std::string_view fqn, std::string_view state) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].fqn == fqn && tensors[i].state == state) return i;
  }
  return std::nullopt;
}

std::uint64_t Catalog::parameter_count() const {
  std::unordered_map<std::string_view, std::uint64_t> parameters;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.state == state::kFp32 || tensor.state == state::kWeights)
      parameters.emplace(tensor.fqn, tensor.elements());
  }
  std::uint64_t count = 0;
  for (const auto& [fqn, elements] : parameters)
    count = checked_add(count, elements, "the number of parameters");
  return count;
}

std::uint64_t Catalog::stored_bytes() const {
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.derived) bytes = checked_add(bytes, tensor.bytes(), "the checkpoint's byte count");
  }
  return bytes;
}

std::vector<UnreadablePart> unreadable_parts(const Catalog& catalog) {
  JsonLimits inside;
  --inside.depth;  // the manifest object encloses the section
  std::vector<UnreadablePart> parts;
  for (const auto& [name, member] : Catalog::sections()) {
    const Json& section = catalog.*member;
    std::string reason = unreadable_reason(section, inside);
    if (reason.empty()) continue;
    const std::size_t before = parts.size();
    if (section.is_object() && section.size() <= inside.keys_per_object) {
      JsonLimits below = inside;
      --below.depth;
      for (const auto& [key, value] : section.items()) {
        if (std::string why = unreadable_reason(value, below); !why.empty())
          parts.push_back({name, key, std::move(why)});
      }
    }
    if (parts.size() == before) parts.push_back({name, {}, std::move(reason)});
  }
  return parts;
}

void validate_sections(const Catalog& catalog, std::string_view where) {
  const std::vector<UnreadablePart> parts = unreadable_parts(catalog);
  if (parts.empty()) return;
  const auto& [section, key, reason] = parts.front();
  raise(ErrorCode::InvalidArgument,
        fmt::format("{}: {}{}{} cannot be kept: {}", where, section, key.empty() ? "" : ".", key,
                    reason),
        "store it with less nesting, or as one text (JSON in a string)");
}

void validate(const Catalog& catalog, std::string_view where) {
  validate_sections(catalog, where);
  if (catalog.tensors.size() > limits::kTensors)
    broken(where, fmt::format("more than {} tensors", limits::kTensors));
  if (catalog.world_size < 1 || catalog.world_size > limits::kWorldSize) {
    broken(where, fmt::format("world size {} is not within 1 to {}", catalog.world_size,
                              limits::kWorldSize));
  }
  if (catalog.stage > 3)
    broken(where, fmt::format("ZeRO stage {} is not within 0 to 3", catalog.stage));
  if (catalog.step < 0) broken(where, "the step is negative");
  const bool has_groups =
      catalog.groups.is_array() &&
      std::ranges::all_of(catalog.groups, [](const Json& group) { return group.is_object(); });
  if (!catalog.groups.is_null() && !has_groups) broken(where, "groups must be an array of objects");
  check_tensors(catalog, where);
  check_names(catalog, where);
}

std::optional<std::string> identity(const Catalog& catalog) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!tensor.crc64) return std::nullopt;
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->fqn != b->fqn ? a->fqn < b->fqn : a->state < b->state;
  });
  std::uint64_t digest = 0;
  for (const TensorInfo* tensor : order) {
    std::string line = tensor->fqn;
    line += '\0';
    line += tensor->state;
    line += '\0';
    line += name_of(tensor->dtype);
    line += '\0';
    line += fmt::format("{}", fmt::join(tensor->shape, ","));
    line += '\0';
    line += hex64(*tensor->crc64);
    line += '\n';
    digest = crc64(line, digest);
  }
  return hex64(digest);
}

}  // namespace unishard
