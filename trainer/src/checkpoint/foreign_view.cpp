#include "checkpoint/foreign_view.hpp"

#include "unishard/format/error.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace unishard::trainer::detail {
namespace {

constexpr std::size_t kListedNames = 3;

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (const std::uint64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

/// Returns, for example, "a, b, c and 9 more".
std::string listing(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kListedNames); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kListedNames)
    text += " and " + std::to_string(names.size() - kListedNames) + " more";
  return text;
}

/// Maps a file's names to the engine's.
class Translation {
 public:
  Translation(const Catalog& wanted, const ForeignNames& names) : names_(names) {
    for (const TensorInfo& tensor : wanted.tensors) canonical_[tensor.fqn] = tensor.fqn;
    for (const Alias& alias : wanted.aliases) canonical_[alias.fqn] = alias.target;
  }

  /// Returns nullopt for a tensor that is no state of the model; an unknown name is unchanged.
  std::optional<std::string> operator()(const std::string& name) const {
    if (const auto found = search(name)) return *found;
    if (const auto found = search(names_.missing_prefix + name)) return *found;
    return name;
  }

 private:
  using Found = std::optional<std::string>;

  std::optional<Found> search(const std::string& name) const {
    if (const auto known = canonical_.find(name); known != canonical_.end())
      return Found(known->second);
    if (matches(name, names_.ignored)) return Found();
    for (const std::string& prefix : names_.prefixes) {
      if (prefix.empty() || !name.starts_with(prefix)) continue;
      if (auto found = search(name.substr(prefix.size()))) return found;
    }
    return std::nullopt;
  }

  const ForeignNames& names_;
  std::unordered_map<std::string, std::string> canonical_;
};

class Viewer {
 public:
  Viewer(const Catalog& saved, const Catalog& wanted, const ForeignNames& names)
      : saved_(saved), names_(names), translate_(wanted, names) {
    for (const TensorInfo& tensor : wanted.tensors) shapes_.emplace(tensor.fqn, &tensor.shape);
  }

  ForeignView run() {
    view_.catalog = saved_;
    view_.catalog.tensors.clear();
    view_.catalog.aliases.clear();
    for (std::size_t i = 0; i < saved_.tensors.size(); ++i) take_tensor(i);
    for (const Alias& alias : saved_.aliases) take_alias(alias);
    turn_matrices();
    if (!left_out_.empty()) note("left out, as no state of the model: " + listing(left_out_));
    for (const ForeignView::Copy& copy : view_.copies)
      note(saved_.tensors[copy.tensor].fqn + " is a copy of " + saved_.tensors[copy.of].fqn);
    return std::move(view_);
  }

 private:
  void note(std::string line) { view_.notes.push_back(std::move(line)); }

  void take_tensor(std::size_t index) {
    TensorInfo tensor = saved_.tensors[index];
    const std::optional<std::string> name = translate_(tensor.fqn);
    if (!name) {
      left_out_.push_back(tensor.fqn);
      return;
    }
    const auto [first, is_new] = taken_.emplace(std::pair{*name, tensor.state}, index);
    if (!is_new) {
      require_same_kind(tensor, saved_.tensors[first->second]);
      view_.copies.push_back({index, first->second});
      return;
    }
    tensor.fqn = *name;
    view_.catalog.tensors.push_back(std::move(tensor));
    view_.places.push_back({index, false});
  }

  static void require_same_kind(const TensorInfo& a, const TensorInfo& b) {
    if (a.shape == b.shape && a.dtype == b.dtype) return;
    raise(ErrorCode::Mismatch,
          a.label() + " and " + b.label() + " are one tensor in this model, and are " +
              std::string(name_of(a.dtype)) + " " + text_of(a.shape) + " and " +
              std::string(name_of(b.dtype)) + " " + text_of(b.shape) + " in the checkpoint");
  }

  void take_alias(const Alias& alias) {
    const auto name = translate_(alias.fqn);
    const auto target = translate_(alias.target);
    if (!name) left_out_.push_back(alias.fqn);
    if (name && target && *name != *target) view_.catalog.aliases.push_back({*name, *target});
  }

  /// Decides whether the file's matrices are transposed; it is the same for all of them.
  void turn_matrices() {
    std::vector<std::size_t> matrices;
    std::string straight, turned;
    for (std::size_t i = 0; i < view_.places.size(); ++i) {
      const TensorInfo& tensor = view_.catalog.tensors[i];
      const Shape* here = shape_here(tensor.fqn);
      if (!here || tensor.shape.size() != 2) continue;
      const bool is_straight = tensor.shape == *here;
      const bool is_turned = Shape{tensor.shape[1], tensor.shape[0]} == *here;
      if (!is_straight && !is_turned) continue;
      matrices.push_back(i);
      if (is_straight && !is_turned) straight = tensor.fqn;
      if (is_turned && !is_straight) turned = tensor.fqn;
    }
    if (matrices.empty()) return;
    if (!straight.empty() && !turned.empty()) {
      raise(ErrorCode::Mismatch, "the checkpoint has the transpose of " + turned + ", but " +
                                     straight + " as it is here: one of them is another matrix");
    }
    if (straight.empty() && turned.empty()) require_no_other_layout(matrices);
    if (turned.empty()) return;
    for (const std::size_t i : matrices) {
      view_.catalog.tensors[i].shape = *shape_here(view_.catalog.tensors[i].fqn);
      view_.places[i].transposed = true;
    }
    note(std::to_string(matrices.size()) + " matrices are stored as their transpose, as " + turned);
  }

  /// Returns the model's shape of a matrix that may be transposed; null for other tensors.
  const Shape* shape_here(const std::string& fqn) const {
    const auto found = shapes_.find(fqn);
    const bool may_turn = found != shapes_.end() && matches(fqn, names_.transposable);
    return may_turn ? found->second : nullptr;
  }

  /// Only square matrices fit. If the model has others, the comparison lists their differences.
  void require_no_other_layout(const std::vector<std::size_t>& matrices) const {
    for (const auto& [fqn, shape] : shapes_) {
      if (shape->size() == 2 && (*shape)[0] != (*shape)[1] && shape_here(fqn)) return;
    }
    raise(ErrorCode::Mismatch,
          "cannot tell whether the checkpoint has " +
              view_.catalog.tensors[matrices.front()].label() +
              " or its transpose: the matrices of the model are all square",
          "convert the checkpoint with the program that wrote it");
  }

  const Catalog& saved_;
  const ForeignNames& names_;
  Translation translate_;
  std::unordered_map<std::string, const Shape*> shapes_;
  std::map<std::pair<std::string, std::string>, std::size_t> taken_;
  std::vector<std::string> left_out_;
  ForeignView view_;
};

}  // namespace

ForeignView view_foreign(const Catalog& saved, const Catalog& wanted, const ForeignNames& names) {
  return Viewer(saved, wanted, names).run();
}

}  // namespace unishard::trainer::detail
