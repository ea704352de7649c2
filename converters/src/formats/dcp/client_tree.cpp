#include "formats/dcp/client_tree.hpp"

#include <algorithm>

namespace unishard::converters::dcp {

bool ClientTree::insert(const KeyPath& path, Json value) {
  ClientTree* at = this;
  for (const PathPart& part : path) {
    if (at->value_) return false;
    const auto [found, is_new] = at->by_text_.emplace(part.text, at->children_.size());
    if (is_new) at->children_.emplace_back(part, std::make_unique<ClientTree>());
    at = at->children_[found->second].second.get();
  }
  if (at->value_ || !at->children_.empty()) return false;
  at->value_ = std::move(value);
  return true;
}

Json ClientTree::json() const {
  if (value_) return *value_;
  std::vector<Json> values;
  for (const auto& [part, child] : children_) values.push_back(child->json());
  const auto is_position = [](const auto& child) { return child.first.is_position; };
  bool is_list = !children_.empty() && std::ranges::all_of(children_, is_position);
  for (std::size_t i = 0; is_list && i < children_.size(); ++i)
    is_list = by_text_.contains(std::to_string(i));
  if (is_list) {
    Json list = Json::array();
    for (std::size_t i = 0; i < children_.size(); ++i)
      list.push_back(std::move(values[by_text_.at(std::to_string(i))]));
    return list;
  }
  const auto is_mark = [](const auto& child) { return child.first.text.starts_with('$'); };
  if (std::ranges::none_of(children_, is_mark)) {
    Json::object_t members;
    for (std::size_t i = 0; i < values.size(); ++i)
      members.push_back({children_[i].first.text, std::move(values[i])});
    return Json(std::move(members));
  }
  // A key with "$" would be mistaken for one of UniShard's own marks.
  Json pairs = Json::array();
  for (std::size_t i = 0; i < values.size(); ++i)
    pairs.push_back(Json::array({children_[i].first.text, std::move(values[i])}));
  return {{"$type", "builtins.dict"}, {"pairs", std::move(pairs)}};
}

}  // namespace unishard::converters::dcp
