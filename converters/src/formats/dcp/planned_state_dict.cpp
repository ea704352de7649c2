#include "unishard/converters/planned_state_dict.hpp"

#include "unishard/format/error.hpp"

#include "containers/object_tree.hpp"
#include "core/embedded_catalog.hpp"
#include "core/key_text.hpp"
#include "formats/dcp/key_layout.hpp"
#include "formats/dcp/state_dict_to_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

namespace unishard::converters {
namespace {

using dcp::KeyPath;

constexpr const char* kWhere = "the state dict";

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned char byte = 0;
    const char* const end = text.data() + i + 2;
    if (std::from_chars(text.data() + i, end, byte, 16).ptr != end)
      raise(ErrorCode::InvalidArgument, fmt::format("{}: not hexadecimal", kWhere));
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

KeyPath path_from(const Json& row) {
  KeyPath path;
  if (row.at("path").is_null()) return path;
  for (const Json& part : row.at("path")) path.push_back({key_text(part), !part.is_string()});
  return path;
}

/// The value of a tensor with one element.
torch::TensorView in_memory(const dcp::TensorEntry& tensor, std::string bytes) {
  bytes.resize(size_of(tensor.dtype));
  torch::TensorView view;
  view.dtype = tensor.dtype;
  view.shape = tensor.shape;
  view.strides.assign(tensor.shape.size(), 1);
  auto storage = std::make_shared<torch::StorageBytes>();
  storage->inflated = std::make_shared<const std::string>(std::move(bytes));
  view.storage = std::move(storage);
  return view;
}

dcp::TensorEntry tensor_from(const Json& row, dcp::Items& items) {
  dcp::TensorEntry tensor;
  tensor.key = row.at("key").get<std::string>();
  tensor.path = path_from(row);
  const std::string name = row.at("dtype").get<std::string>();
  const auto dtype = dtype_from_name(name);
  if (!dtype)
    raise(ErrorCode::Unsupported, fmt::format("tensor {}: UniShard has no element type {}",
                                              unishard::quote(tensor.key), unishard::quote(name)));
  tensor.dtype = *dtype;
  tensor.shape = row.at("shape").get<Shape>();
  if (element_count(tensor.shape) == 1) {
    const std::uint32_t item = items.add(in_memory(tensor, from_hex(row.value("bytes", ""))));
    tensor.chunks.push_back({{Shape(tensor.shape.size(), 0), tensor.shape}, item});
    tensor.reach.push_back(1);
  } else {
    tensor.chunks.resize(std::min(row.at("chunks").get<std::uint32_t>(), 2U));  // one or several
  }
  return tensor;
}

/// Adds the object, without the tensors inside, which stay in what torch.save makes.
void add_object(const Json& row, dcp::StateDict& state) {
  dcp::ObjectEntry object{row.at("key").get<std::string>(), path_from(row),
                          row.value("value", Json())};
  if (row.contains("pickle")) {
    std::string bytes = from_hex(row["pickle"].get<std::string>());
    const std::uint64_t size = bytes.size();
    const torch::TorchFile file(dcp::in_memory(object.key, std::move(bytes)));
    torch::ObjectTree tree = torch::describe(file.root(), file.pickle().bytes().size());
    for (const std::string& line : tree.opaque) state.opaque.emplace_back(object.key, line);
    for (const auto& [at, why] : tree.left_out)
      state.lost_keys.push_back({fmt::format("{}.{}", object.key, at), object.path,
                                 why + ", which torch alone can load"});
    if (tree.tensors.empty()) {
      object.value = std::move(tree.content);
    } else {
      object.value = {{"$type", "torch.save"}, {"bytes", size}};
      state.lost_keys.push_back({object.key, object.path,
                                 "the tensors inside of this object, which torch alone can load"});
    }
  }
  state.objects.push_back(std::move(object));
}

dcp::StateDict state_dict_from(const Json& described, std::vector<std::string>& equal) {
  dcp::StateDict state;
  state.items = std::make_unique<dcp::Items>();
  state.world_size = described.at("world_size").get<std::uint32_t>();
  for (const Json& row : described.at("tensors")) {
    state.tensors.push_back(tensor_from(row, *state.items));
    equal.push_back(row.value("equal", ""));
  }
  for (const Json& row : described.at("objects")) add_object(row, state);
  state.producer = {{"library", "torch.distributed.checkpoint"}, {"writer", "unishard.dcp"}};
  return state;
}

}  // namespace

PlannedStateDict plan_state_dict(const Json& described) {
  std::vector<std::string> equal;
  dcp::StateDict state;
  try {
    state = state_dict_from(described, equal);
  } catch (const Json::exception& error) {
    raise(ErrorCode::InvalidArgument, fmt::format("{}: {}", kWhere, error.what()));
  }
  state.is_equal = [&equal](std::size_t a, std::size_t b) {
    return !equal[a].empty() && equal[a] == equal[b];
  };
  dcp::Arrangement arrangement = dcp::arrange(state, kWhere);
  drop_unreadable(arrangement.catalog, arrangement.losses);
  arrangement.catalog.producer[dcp::kStateDict] = dcp::describe_folder(state, arrangement);
  validate(arrangement.catalog, kWhere);
  PlannedStateDict planned{std::move(arrangement.catalog),
                           {},
                           std::move(arrangement.losses),
                           std::move(arrangement.notes),
                           std::move(arrangement.remarks)};
  for (const std::size_t entry : arrangement.entries)
    planned.keys.push_back(state.tensors[entry].key);
  return planned;
}

}  // namespace unishard::converters
