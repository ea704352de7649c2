#include "formats/deepspeed/universal_copies.hpp"

#include "unishard/converters/dtype_cast.hpp"

#include "containers/equal_elements.hpp"
#include "formats/deepspeed/pickle_fields.hpp"

#include <algorithm>

namespace unishard::converters::deepspeed {

std::vector<NamedView> read_buffers(const TorchFile& file) {
  const auto module = present(file.root(), "module");
  const auto listed = present(file.root(), "buffer_names");
  if (!module || !listed) return {};
  std::set<std::string, std::less<>> names;
  for (std::size_t i = 0; i < listed->size(); ++i) names.emplace((*listed)[i].string());
  Notes unused;  // about the other entries: zero/ has their values
  std::vector<NamedView> views = named_views(file, *module, "module entry", unused);
  std::erase_if(views, [&](const NamedView& entry) { return !names.contains(entry.name); });
  return views;
}

void SharedBuffers::add_rank(const std::vector<std::string>& names, std::vector<NamedView> held) {
  std::set<std::string> missing(names.begin(), names.end());
  for (NamedView& buffer : held) {
    missing.erase(buffer.name);
    const auto [at, is_new] = first_.try_emplace(buffer.name, buffer.view);
    if (!is_new && !equal_elements(at->second, buffer.view)) others_.insert(buffer.name);
  }
  others_.merge(missing);
}

std::vector<NamedView> SharedBuffers::whole() const {
  std::vector<NamedView> buffers;
  for (const auto& [name, view] : first_) {
    if (!others_.contains(name)) buffers.push_back({name, view});
  }
  return buffers;
}

std::vector<std::string> SharedBuffers::others() const { return {others_.begin(), others_.end()}; }

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
