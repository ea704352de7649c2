#include "checkpoint/compare.hpp"

#include "unishard/format/dtype.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

namespace unishard::trainer::detail {
namespace {

constexpr std::size_t kListedLines = 20;

/// Tied weights may be stored under either name.
std::map<std::string, std::string> names_of(const Catalog& catalog) {
  std::map<std::string, std::string> canonical;
  for (const Alias& alias : catalog.aliases) canonical[alias.fqn] = alias.target;
  return canonical;
}

using Key = std::pair<std::string, std::string>;

std::map<Key, const TensorInfo*> tensors_of(const Catalog& catalog) {
  std::map<Key, const TensorInfo*> found;
  for (const TensorInfo& tensor : catalog.tensors) found[{tensor.fqn, tensor.state}] = &tensor;
  return found;
}

std::string optimizer_of(const Catalog& catalog) {
  if (!catalog.groups.is_array() || catalog.groups.empty() || !catalog.groups[0].is_object())
    return {};
  return catalog.groups[0].value("optimizer", "");
}

/// 16-bit weights of a parameter carry no information when its fp32 state is present.
bool is_redundant(const Catalog& catalog, const TensorInfo& tensor) {
  return tensor.state == state::kWeights && catalog.find(tensor.fqn, state::kFp32).has_value();
}

class Comparison {
 public:
  Comparison(const Catalog& saved, const Catalog& wanted) : saved_(saved), wanted_(wanted) {}

  std::vector<std::string> run() {
    if (const std::string theirs = optimizer_of(saved_);
        !theirs.empty() && theirs != optimizer_of(wanted_)) {
      add("the checkpoint was saved with optimizer " + theirs + ", here it is " +
          optimizer_of(wanted_));
    }
    const auto saved = tensors_of(saved_);
    const auto aliases = names_of(saved_);
    std::set<Key> used;
    for (const TensorInfo& tensor : wanted_.tensors) {
      if (is_redundant(wanted_, tensor)) continue;
      const auto alias = aliases.find(tensor.fqn);
      const Key key{alias == aliases.end() ? tensor.fqn : alias->second, tensor.state};
      const auto found = saved.find(key);
      if (found == saved.end()) {
        add("missing: " + tensor.label());
        continue;
      }
      used.insert(key);
      if (info(tensor.dtype).kind == Kind::Float &&
          info(found->second->dtype).kind != Kind::Float) {
        add(fmt::format("type: {} is {} in the checkpoint, {} here", tensor.label(),
                        name_of(found->second->dtype), name_of(tensor.dtype)));
      }
      if (found->second->shape != tensor.shape) {
        add(fmt::format("shape: {} is [{}] in the checkpoint, [{}] here", tensor.label(),
                        fmt::join(found->second->shape, ", "), fmt::join(tensor.shape, ", ")));
      }
    }
    for (const auto& [key, tensor] : saved) {
      if (!used.contains(key) && !is_redundant(saved_, *tensor))
        add("unexpected: " + tensor->label());
    }
    return std::move(lines_);
  }

 private:
  void add(std::string line) { lines_.push_back(std::move(line)); }

  const Catalog& saved_;
  const Catalog& wanted_;
  std::vector<std::string> lines_;
};

}  // namespace

void require_match(const Catalog& saved, const Catalog& wanted, const std::string& where) {
  const std::vector<std::string> lines = Comparison(saved, wanted).run();
  if (lines.empty()) return;
  std::string message =
      fmt::format("{} does not fit the model and optimizer ({} differences):", where, lines.size());
  for (std::size_t i = 0; i < std::min(lines.size(), kListedLines); ++i)
    message += "\n  " + lines[i];
  if (lines.size() > kListedLines)
    message += fmt::format("\n  and {} more", lines.size() - kListedLines);
  raise(ErrorCode::Mismatch, message,
        "resume with the model and optimizer that wrote the checkpoint");
}

}  // namespace unishard::trainer::detail
