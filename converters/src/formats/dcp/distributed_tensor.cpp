#include "formats/dcp/distributed_tensor.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::converters::dcp {
namespace {

using torch::NodeKind;
using torch::TorchFile;
using torch::Value;

constexpr std::uint64_t kMeshBytes = limits::kWorldSize * std::uint64_t{8};

std::string class_of(Value value) {
  if (!value.calls("torch._tensor._rebuild_from_type_v2") || value.args().size() != 4 ||
      !value.args()[1].is(NodeKind::Global))
    return {};
  return value.args()[1].global();
}

Shape numbers(Value sequence) {
  if (sequence.size() > limits::kDimensions)
    raise(ErrorCode::Corrupt, fmt::format("{} dimensions", sequence.size()));
  Shape out;
  for (std::size_t i = 0; i < sequence.size(); ++i) out.push_back(sequence[i].unsigned_int());
  return out;
}

Value need(std::optional<Value> value, std::string_view name) {
  if (value) return *value;
  raise(ErrorCode::Corrupt, fmt::format("a distributed tensor without {}", name));
}

/// Returns a field of a state that is a dict, or a (dict, slots) pair of them.
Value member(Value state, std::string_view name) {
  if (state.is_dict()) return need(state.find(name), name);
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (!state[i].is_dict()) continue;
    if (const auto found = state[i].find(name)) return *found;
  }
  raise(ErrorCode::Corrupt, fmt::format("a distributed tensor without {}", name));
}

struct Mesh {
  Shape shape, coordinate;
};

/// Reads the mesh of torch 2.10 and later: axes of a layout, and the rank's own coordinates.
std::optional<Mesh> mesh_by_layout(Value mesh) {
  const auto layout = mesh.field("_layout"), coordinate = mesh.field("_coordinate_on_dim");
  if (!layout || !coordinate || !coordinate->is_sequence()) return std::nullopt;
  const auto axes = layout->field("axes");
  if (!axes || !axes->is_sequence()) return std::nullopt;
  Mesh out;
  for (std::size_t i = 0; i < axes->size(); ++i) {
    std::uint64_t ranks = 1;
    for (const std::uint64_t n : numbers(need((*axes)[i].field("shape"), "the shape of its mesh")))
      ranks *= n;
    out.shape.push_back(ranks);
  }
  out.coordinate = numbers(*coordinate);
  return out;
}

/// Reads the mesh of earlier versions: a tensor of ranks, in which the file's rank is looked up.
Mesh mesh_by_ranks(const TorchFile& file, Value mesh, std::uint64_t rank) {
  auto ranks = mesh.field("mesh");
  if (!ranks) ranks = need(mesh.field("_mesh"), "a mesh");
  const torch::TensorView view = file.tensor(*ranks);
  const std::vector<std::byte> bytes = view.read_all(kMeshBytes);
  const std::uint64_t width = size_of(view.dtype);
  Mesh out{view.shape, Shape(view.shape.size())};
  for (std::uint64_t i = 0; i < view.elements(); ++i) {
    std::uint64_t number = 0;  // little-endian and not negative: any width reads alike
    std::copy_n(bytes.data() + i * width, width, reinterpret_cast<std::byte*>(&number));
    if (number != rank) continue;
    for (std::uint64_t d = out.shape.size(), rest = i; d-- > 0; rest /= out.shape[d])
      out.coordinate[d] = rest % out.shape[d];
    return out;
  }
  raise(ErrorCode::Corrupt, fmt::format("rank {} is not in the tensor's mesh", rank));
}

/// Returns the box that the placements assign to this rank: each mesh dimension splits what the
/// earlier ones left.
Box placed_box(const Shape& shape, const Mesh& mesh, Value placements) {
  Box box{Shape(shape.size(), 0), shape};
  if (placements.size() != mesh.shape.size() || mesh.coordinate.size() != mesh.shape.size()) {
    raise(ErrorCode::Corrupt, fmt::format("{} placements on a mesh of {} dimensions",
                                          placements.size(), mesh.shape.size()));
  }
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const std::string kind = placements[i].callable_name();
    const std::string name = kind.substr(kind.rfind('.') + 1);
    if (name == "Replicate") continue;
    if (name != "Shard")
      raise(ErrorCode::Unsupported, fmt::format("placement {}", kind),
            "save it with torch.distributed.checkpoint instead");
    const std::uint64_t d =
        need(placements[i].field("dim"), "the dimension of its shards").unsigned_int();
    if (d >= shape.size() || mesh.shape[i] == 0 || mesh.coordinate[i] >= mesh.shape[i])
      raise(ErrorCode::Corrupt, "a shard outside of its mesh or tensor");
    const std::uint64_t chunk =
        box.sizes[d] / mesh.shape[i] + (box.sizes[d] % mesh.shape[i] != 0 ? 1 : 0);
    const std::uint64_t begin = std::min(chunk * mesh.coordinate[i], box.sizes[d]);
    box.offsets[d] += begin;
    box.sizes[d] = std::min(chunk, box.sizes[d] - begin);
  }
  return box;
}

RankTensor read_dtensor(const TorchFile& file, Value args, std::uint64_t rank) {
  RankTensor tensor{numbers(args[2][2]), {}};  // (class, dtype, size, ...)
  const Value spec = member(args[3], "_spec");
  const Value mesh = need(spec.field("mesh"), "a mesh");
  auto where = mesh_by_layout(mesh);
  if (!where) where = mesh_by_ranks(file, mesh, rank);
  Box box = placed_box(tensor.shape, *where, need(spec.field("placements"), "placements"));
  tensor.parts.push_back({std::move(box), file.tensor(member(args[3], "_local_tensor"))});
  return tensor;
}

RankTensor read_sharded_tensor(const TorchFile& file, Value state) {
  RankTensor tensor{numbers(need(state[1].field("size"), "a size")), {}};
  for (std::size_t i = 0; i < state[0].size(); ++i) {
    const Value metadata = need(state[0][i].field("metadata"), "metadata of a shard");
    Box box{numbers(need(metadata.field("shard_offsets"), "offsets")),
            numbers(need(metadata.field("shard_sizes"), "sizes"))};
    tensor.parts.push_back(
        {std::move(box), file.tensor(need(state[0][i].field("tensor"), "the tensor of a shard"))});
  }
  return tensor;
}

}  // namespace

bool is_distributed_tensor(Value value) {
  const std::string name = class_of(value);
  return name.ends_with(".DTensor") || name.ends_with(".ShardedTensor");
}

RankTensor read_distributed_tensor(const TorchFile& file, Value value, std::uint64_t rank) {
  RankTensor tensor = class_of(value).ends_with(".DTensor")
                          ? read_dtensor(file, value.args(), rank)
                          : read_sharded_tensor(file, value.args()[3]);
  for (const RankPart& part : tensor.parts) {
    if (part.view.shape != part.box.sizes) {
      raise(ErrorCode::Corrupt,
            fmt::format("rank {} holds a part of size ({}) where ({}) is expected", rank,
                        fmt::join(part.view.shape, ", "), fmt::join(part.box.sizes, ", ")));
    }
  }
  return tensor;
}

}  // namespace unishard::converters::dcp
