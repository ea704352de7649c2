#include "formats/dcp/like_model.hpp"

#include "unishard/format/error.hpp"

#include "core/model_tensors.hpp"
#include "core/wrapped_names.hpp"
#include "reading/named_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace unishard::converters::dcp {
namespace {

/// Whether the names can be those of a walk through modules, as Module.state_dict() makes it.
bool is_module_walk(const std::vector<LikeTensor>& tensors) {
  std::set<std::string_view> left;  // modules that the walk has left
  std::string_view here;
  for (const LikeTensor& tensor : tensors) {
    const std::string_view module = module_of(tensor.name);
    if (module != here && here.starts_with(module)) return false;  // back in an outer module
    for (std::size_t dot = here.find('.'); dot != here.npos; dot = here.find('.', dot + 1)) {
      const std::string_view outer = here.substr(0, dot + 1);
      if (!module.starts_with(outer)) left.insert(outer);
    }
    for (std::size_t dot = module.find('.'); dot != module.npos; dot = module.find('.', dot + 1)) {
      if (left.contains(module.substr(0, dot + 1))) return false;
    }
    here = module;
  }
  return true;
}

std::string why_unordered(const Source& source, const std::vector<LikeTensor>& tensors) {
  if (source.format() != "torch")
    return fmt::format("files of the format {} need not keep it", source.format());
  if (!std::filesystem::is_regular_file(source.path())) return "it is not one file";
  if (std::ranges::is_sorted(tensors, {}, &LikeTensor::name)) return "its names are sorted";
  if (!is_module_walk(tensors)) return "its names are not in the order of any module";
  return {};
}

}  // namespace

const LikeTensor* LikeModel::find(std::string_view name) const {
  const auto found = places.find(std::string(name));
  return found == places.end() ? nullptr : &tensors[found->second];
}

LikeModel like_model(const Source& source) {
  LikeModel like{.where = source.path().string(),
                 .tensors = {},
                 .places = {},
                 .aliases = {},
                 .why_unordered = {}};
  for (const TensorInfo& tensor : source.catalog().tensors) {
    if (!is_of_model(tensor)) continue;
    std::string name = without_wrappers(tensor.fqn);
    if (!like.places.try_emplace(name, like.tensors.size()).second) continue;
    const Kind kind = info(tensor.dtype).kind;
    like.tensors.push_back(
        {std::move(name), tensor.shape, kind == Kind::Float || kind == Kind::Complex});
  }
  if (like.tensors.empty())
    raise(ErrorCode::InvalidArgument, fmt::format("--like: {} holds no model", like.where),
          "name a file or folder with the names and shapes of the model's parameters");
  for (const Alias& alias : source.catalog().aliases)
    like.aliases.push_back({without_wrappers(alias.fqn), without_wrappers(alias.target)});
  like.why_unordered = why_unordered(source, like.tensors);
  return like;
}

}  // namespace unishard::converters::dcp
