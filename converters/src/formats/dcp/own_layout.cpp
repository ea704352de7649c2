#include "formats/dcp/own_layout.hpp"

#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace unishard::converters {
namespace dcp {
namespace {

std::string below(const KeyPath& outer, std::string_view name) {
  return outer.empty() ? std::string(name) : fmt::format("{}.{}", joined(outer), name);
}

}  // namespace

std::string OwnLayout::model_key(std::string_view name_of) const { return below(model, name_of); }
std::string OwnLayout::optimizer_key(std::string_view name_of) const {
  return below(optimizer, name_of);
}

std::span<const OwnLayout> own_layouts() {
  static const std::vector<OwnLayout> layouts = {
      {"model-optim", {{"model", false}}, {{"optim", false}}},
      {"app", {{"app", false}, {"model", false}}, {{"app", false}, {"optim", false}}},
      {"flat", {}, {{"optim", false}}},
      {"titan", {}, {{"optimizer", false}}, true, true},
  };
  return layouts;
}

const OwnLayout& own_layout(std::string_view name) {
  if (name.empty()) return own_layouts().front();
  const auto found = std::ranges::find(own_layouts(), name, &OwnLayout::name);
  if (found != own_layouts().end()) return *found;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{} is no key layout of DCP folders; there are {}",
                    unishard::quote(std::string(name)), fmt::join(dcp_key_layouts(), ", ")));
}

std::string joined(const KeyPath& path) {
  std::string key;
  for (const PathPart& part : path) key += (key.empty() ? "" : ".") + part.text;
  return key;
}

}  // namespace dcp

std::vector<std::string> dcp_key_layouts() {
  std::vector<std::string> names;
  for (const dcp::OwnLayout& layout : dcp::own_layouts()) names.emplace_back(layout.name);
  return names;
}

}  // namespace unishard::converters
