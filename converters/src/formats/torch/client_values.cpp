#include "formats/torch/client_values.hpp"

#include "unishard/converters/optimizer_scalars.hpp"

#include "containers/pickle_json.hpp"
#include "containers/plain_parts.hpp"
#include "formats/dcp/embedded_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters::torch {

ClientValues::ClientValues(const Catalog& catalog) {
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (catalog.tensors[i].state == dcp::kExtraState) extras_.emplace(catalog.tensors[i].fqn, i);
  }
  const Json& client = catalog.client_state;
  if (!client.is_object()) return;
  if (!client.contains("$type")) {
    for (const auto& [key, value] : client.items()) add(key, value);
  } else if (client.contains("pairs") && client["pairs"].is_array()) {
    for (const Json& pair : client["pairs"]) {
      if (pair.is_array() && pair.size() == 2 && pair[0].is_string())
        add(pair[0].get<std::string>(), pair[1]);
    }
  }
}

void ClientValues::add(const std::string& key, const Json& value) {
  if (key == kOptimizerScalars || by_key_.contains(key)) return;
  std::vector<std::string> dropped;
  if (key == "unishard" || key.starts_with('$')) {
    dropped.push_back(fmt::format("{}: UniShard uses this key itself", key));
  } else {
    const auto is_known = [&](const std::string& fqn) { return extras_.contains(fqn); };
    Json plain = {{key, with_plain_parts(value, key, is_known, notes_)}};
    Constants taken = take_inline_tensors(plain), constants;
    Json kept = without_unwritable(plain, "", dropped, write_none);
    Names names;
    if (!kept.empty() && rename_tensors(kept.front(), key, names, taken, constants)) {
      constants_.merge(constants);
      for (auto& [fqn, name] : names) {
        tensors_.emplace_back(extras_.at(fqn), name);
        named_.emplace(fqn, std::move(name));
      }
      by_key_.emplace(key, members_.size());
      members_.emplace_back(key, std::move(kept.front()));
    } else if (!kept.empty()) {
      dropped.push_back(fmt::format("{}: {}", key,
                                    std::ranges::all_of(tensors_in(value), is_known)
                                        ? "a tensor in it has no name of its own"
                                        : "tensors in it are not in the checkpoint"));
    }
  }
  for (const std::string& line : dropped)
    notes_.push_back(fmt::format("{} (it is in unishard.catalog only, not under its key)", line));
}

bool ClientValues::rename_tensors(Json& value, const std::string& path, Names& names,
                                  Constants& taken, Constants& constants) const {
  const auto rename = [&](Json& child, const std::string& at) {
    return rename_tensors(child, at, names, taken, constants);
  };
  const auto below = [&](std::string_view part) { return fmt::format("{}.{}", path, part); };
  const auto rename_all = [&](Json& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!rename(list[i], below(std::to_string(i)))) return false;
    }
    return true;
  };
  if (value.is_array()) return rename_all(value);
  if (!value.is_object()) return true;
  if (value.contains("$tensor")) {
    const auto fqn = value["$tensor"].get_ptr<const std::string*>();
    if (fqn == nullptr) return false;
    if (auto constant = taken.extract(*fqn)) {
      value["$tensor"] = path;
      return constants.emplace(path, std::move(constant.mapped())).second;
    }
    if (!extras_.contains(*fqn)) return false;
    if (const auto known = named_.find(*fqn); known != named_.end()) {
      value["$tensor"] = known->second;
      return true;
    }
    const auto here = std::ranges::find(names, *fqn, &Names::value_type::first);
    const std::string name = here == names.end() ? path : here->second;
    if (here == names.end()) names.emplace_back(*fqn, path);
    value["$tensor"] = name;
    return true;
  }
  if (!value.contains("$type")) {
    for (auto& [key, child] : value.items()) {
      if (!rename(child, below(key))) return false;
    }
    return true;
  }
  if (tensors_in(value).empty()) return true;
  if (value.contains("items") && value["items"].is_array()) return rename_all(value["items"]);
  if (!value.contains("pairs") || !value["pairs"].is_array()) return false;
  return std::ranges::all_of(value["pairs"], [&](Json& pair) {
    if (!pair.is_array() || pair.size() != 2) return false;
    if (pair[0].is_number_integer()) return rename(pair[1], below(pair[0].dump()));
    return pair[0].is_string() && rename(pair[1], below(pair[0].get<std::string>()));
  });
}

const Json* ClientValues::find(const std::string& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &members_[found->second].second;
}

}  // namespace unishard::converters::torch
