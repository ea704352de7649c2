#include "formats/deepspeed/universal_copies.hpp"

#include "unishard/converters/dtype_cast.hpp"

#include "containers/equal_elements.hpp"
#include "formats/deepspeed/pickle_fields.hpp"

#include <algorithm>

namespace unishard::converters::deepspeed {

void RankModules::add(const TorchFile& file, const std::vector<std::string>& buffers) {
  buffers_.insert(buffers.begin(), buffers.end());
  std::set<std::string> missing(buffers.begin(), buffers.end());
  Notes unread;
  std::vector<NamedView> views;
  if (const auto module = present(file.root(), "module"))
    views = named_views(file, *module, "module entry", unread);
  std::map<torch::ViewIdentity, std::vector<std::string>> by_view;
  for (const NamedView& entry : views) {
    missing.erase(entry.name);
    const auto [at, is_new] = entries_.try_emplace(entry.name, Entry{entry.view});
    if (!is_new && !equal_elements(at->second.first, entry.view)) at->second.differs = true;
    // Stage 3 leaves empty tensors in the places of parameters.
    if (entry.view.elements() > 0 && !buffers_.contains(entry.name))
      by_view[identity_of(entry.view)].push_back(entry.name);
  }
  missing_buffers_.merge(missing);
  for (auto& [view, of_one] : by_view) names_.push_back(std::move(of_one));
  for (const Loss& loss : unread.losses()) {
    if (is_weight(loss.role)) names_.push_back({loss.name});
  }
  if (const auto shapes = present(file.root(), "frozen_param_shapes")) {
    for (const NamedShape& frozen : named_shapes(*shapes)) names_.push_back({frozen.fqn});
  }
}

std::vector<NamedView> RankModules::whole_buffers() const {
  std::vector<NamedView> whole;
  for (const std::string& name : buffers_) {
    const auto found = entries_.find(name);
    if (found != entries_.end() && !found->second.differs && !missing_buffers_.contains(name))
      whole.push_back({name, found->second.first});
  }
  return whole;
}

std::vector<std::string> RankModules::other_buffers() const {
  std::vector<std::string> others;
  for (const std::string& name : buffers_) {
    const auto found = entries_.find(name);
    if (found == entries_.end() || found->second.differs || missing_buffers_.contains(name))
      others.push_back(name);
  }
  return others;
}

bool RankModules::is_part(const std::string& name, const Shape& whole) const {
  const auto found = entries_.find(name);
  return found != entries_.end() && found->second.differs && found->second.first.shape == whole;
}

bool is_copy_of(const TensorView& payload, const TensorView& entry) {
  constexpr std::uint64_t kCompared = 4096;
  if (payload.elements() != entry.elements()) return false;
  if (!payload.storage || !entry.storage || payload.dtype != DType::Float32 ||
      !convertible(entry.dtype, DType::Float32)) {
    return true;
  }
  const std::uint64_t count = std::min(kCompared, entry.elements());
  std::vector<std::byte> cast(count * size_of(DType::Float32));
  convert_elements(entry.dtype, sampled_bytes(entry, 0, count), DType::Float32, cast);
  return cast == sampled_bytes(payload, 0, count);
}

}  // namespace unishard::converters::deepspeed
