#include "formats/dcp/distributed_tensor.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "formats/dcp/metadata.hpp"
#include "formats/dcp/placements.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::converters::dcp {
namespace {

using torch::NodeKind;
using torch::TorchFile;
using torch::Value;

/// Upper bound on the boxes that one rank's part consists of.
constexpr std::size_t kMostBoxes = 1 << 16;
constexpr std::uint64_t kMeshBytes = limits::kWorldSize * std::uint64_t{8};

std::string class_of(Value value) {
  if (!value.calls("torch._tensor._rebuild_from_type_v2") || value.args().size() != 4 ||
      !value.args()[1].is(NodeKind::Global))
    return {};
  return value.args()[1].global();
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

/// Reads the mesh of torch 2.10 and later: axes of a layout, and the rank's own coordinates.
std::optional<MeshPlace> mesh_by_layout(Value mesh) {
  const auto layout = mesh.field("_layout"), coordinate = mesh.field("_coordinate_on_dim");
  if (!layout || !coordinate || !coordinate->is_sequence()) return std::nullopt;
  const auto axes = layout->field("axes");
  if (!axes || !axes->is_sequence()) return std::nullopt;
  MeshPlace out;
  for (std::size_t i = 0; i < axes->size(); ++i) {
    std::uint64_t ranks = 1;
    for (const std::uint64_t n :
         extents_of(need((*axes)[i].field("shape"), "the shape of its mesh")))
      ranks *= n;
    out.shape.push_back(ranks);
  }
  out.coordinate = extents_of(*coordinate);
  return out;
}

/// Reads the mesh of earlier versions: a tensor of ranks, in which the file's rank is looked up.
MeshPlace mesh_by_ranks(const TorchFile& file, Value mesh, std::uint64_t rank) {
  auto ranks = mesh.field("mesh");
  if (!ranks) ranks = need(mesh.field("_mesh"), "a mesh");
  const torch::TensorView view = file.tensor(*ranks);
  const std::vector<std::byte> bytes = view.read_all(kMeshBytes);
  const std::uint64_t width = size_of(view.dtype);
  MeshPlace out{view.shape, Shape(view.shape.size())};
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

std::vector<Placement> read_placements(Value sequence) {
  std::vector<Placement> placements;
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    const std::string kind = sequence[i].callable_name();
    const std::string name = kind.substr(kind.rfind('.') + 1);
    Placement& placement = placements.emplace_back();
    if (name == "Replicate") continue;
    if (name != "Shard" && name != "_StridedShard")
      raise(ErrorCode::Unsupported, fmt::format("placement {}", kind),
            "save it with torch.distributed.checkpoint instead");
    placement.is_sharded = true;
    placement.dim = need(sequence[i].field("dim"), "the dimension of its shards").unsigned_int();
    if (name == "_StridedShard")
      placement.split_factor =
          need(sequence[i].field("split_factor"), "the factor of its shards").unsigned_int();
  }
  return placements;
}

/// Since torch 2.10 a spec may say that the dimensions of the mesh split a dimension of the tensor
/// in another order than from left to right. Throws: Unsupported for such an order, and for one
/// that is not understood.
void require_usual_order(Value spec) {
  const auto order = spec.field("shard_order");
  if (!order || !order->is_sequence()) return;
  for (std::size_t i = 0; i < order->size(); ++i) {
    const Value entry = (*order)[i];
    const Value parts = entry.is(NodeKind::Object) ? entry.args() : entry;
    bool is_usual = parts.is_sequence() && parts.size() == 2 && parts[1].is_sequence();
    for (std::size_t k = 1; is_usual && k < parts[1].size(); ++k)
      is_usual = parts[1][k - 1].unsigned_int() < parts[1][k].unsigned_int();
    if (!is_usual)
      raise(ErrorCode::Unsupported, "a distributed tensor whose mesh splits it in another order",
            "save it with torch.distributed.checkpoint instead");
  }
}

/// Cuts the local tensor into the boxes of the whole that it consists of. A rank that holds nothing
/// has one empty box.
std::vector<RankPart> boxes_of_local(const torch::TensorView& local,
                                     const std::vector<HeldIndices>& held) {
  if (local.elements() == 0) return {{{Shape(local.shape.size(), 0), local.shape}, local}};
  std::vector<RankPart> parts = {{{}, local}};
  for (std::size_t d = 0; d < held.size(); ++d) {
    std::vector<RankPart> cut;
    if (held[d].size() > kMostBoxes / parts.size())
      raise(ErrorCode::Unsupported, fmt::format("a part of more than {} boxes", kMostBoxes));
    for (const RankPart& part : parts) {
      std::uint64_t at = 0;
      for (const ElementRange& range : held[d]) {
        RankPart& smaller = cut.emplace_back(part);
        smaller.box.offsets.push_back(range.begin);
        smaller.box.sizes.push_back(range.size());
        smaller.view.offset += at * local.strides[d];
        smaller.view.shape[d] = range.size();
        at += range.size();
      }
    }
    parts = std::move(cut);
  }
  return parts;
}

RankTensor read_dtensor(const TorchFile& file, Value args, std::uint64_t rank) {
  RankTensor tensor{extents_of(args[2][2]), {}};  // (class, dtype, size, ...)
  const Value spec = member(args[3], "_spec");
  const Value mesh = need(spec.field("mesh"), "a mesh");
  auto where = mesh_by_layout(mesh);
  if (!where) where = mesh_by_ranks(file, mesh, rank);
  const std::vector<Placement> placements =
      read_placements(need(spec.field("placements"), "placements"));
  require_usual_order(spec);
  const std::vector<HeldIndices> held = held_indices(tensor.shape, *where, placements);
  const torch::TensorView local = file.tensor(member(args[3], "_local_tensor"));
  Shape expected;
  for (const HeldIndices& indices : held) {
    expected.push_back(0);
    for (const ElementRange& range : indices) expected.back() += range.size();
  }
  if (local.shape != expected) {
    const bool is_strided = std::ranges::any_of(
        placements, [](const Placement& placement) { return placement.split_factor != 1; });
    raise(is_strided ? ErrorCode::Unsupported : ErrorCode::Corrupt,
          fmt::format("rank {} holds a part of size ({}) where ({}) is expected", rank,
                      fmt::join(local.shape, ", "), fmt::join(expected, ", ")));
  }
  tensor.parts = boxes_of_local(local, held);
  return tensor;
}

RankTensor read_sharded_tensor(const TorchFile& file, Value state) {
  RankTensor tensor{extents_of(need(state[1].field("size"), "a size")), {}};
  for (std::size_t i = 0; i < state[0].size(); ++i) {
    const Value metadata = need(state[0][i].field("metadata"), "metadata of a shard");
    Box box{extents_of(need(metadata.field("shard_offsets"), "offsets")),
            extents_of(need(metadata.field("shard_sizes"), "sizes"))};
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

torch::TensorView read_whole_tensor(const TorchFile& file, Value value) {
  const Value args = value.args();
  if (class_of(value).ends_with(".DTensor")) {
    read_placements(need(member(args[3], "_spec").field("placements"), "placements"));
    torch::TensorView local = file.tensor(member(args[3], "_local_tensor"));
    if (local.shape == extents_of(args[2][2])) return local;
  } else {
    RankTensor tensor = read_sharded_tensor(file, args[3]);
    if (tensor.parts.size() == 1 && tensor.parts[0].view.shape == tensor.shape)
      return std::move(tensor.parts[0].view);
  }
  raise(ErrorCode::Unsupported, std::string(kRankPart));
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
