#include "formats/deepspeed/pickle_fields.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "containers/equal_elements.hpp"
#include "containers/number_value.hpp"
#include "containers/object_tree.hpp"
#include "containers/pickle_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace unishard::converters::deepspeed {
namespace {

double rounded(double value, DType dtype) {
  const auto widen = [&](std::uint16_t half) {
    return float_at(dtype, reinterpret_cast<const std::byte*>(&half));
  };
  if (dtype == DType::BFloat16) return widen(round_to_bfloat16(static_cast<float>(value)));
  if (dtype == DType::Float16) return widen(round_to_float16(static_cast<float>(value)));
  return value;
}

/// Makes a dict of pairs an object where all keys are texts.
void simplify_dict(Json& value) {
  const auto pairs = value.find("pairs");
  if (pairs == value.end() || !pairs->is_array()) return;
  Json object = Json::object();
  for (const Json& pair : *pairs) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string()) return;
    object[pair[0].get<std::string>()] = pair[1];
  }
  if (object.size() == pairs->size()) value = std::move(object);
}

/// Tuples become arrays; sizes do so, and dtypes become texts, unless torch's types stay.
void simplify(Json& value, TorchTypes types) {
  if (value.is_object() && value.contains("$type")) {
    const std::string type = value["$type"].get<std::string>();
    if (type == "tuple" || (type == "torch.Size" && types == TorchTypes::Plain)) {
      Json items = std::move(value["items"]);
      value = std::move(items);
    } else if (type == "torch.dtype" && types == TorchTypes::Plain) {
      Json text = std::move(value["value"]);
      value = std::move(text);
    } else if (type == "collections.OrderedDict" || type == "builtins.dict") {
      simplify_dict(value);
    }
  }
  if (value.is_structured()) {
    for (Json& part : value) simplify(part, types);
  }
}

}  // namespace

TensorView raw_view(const torch::Window& window, DType dtype, std::uint64_t count) {
  const std::uint64_t bytes = checked_mul(count, size_of(dtype), "bytes of a tensor");
  if (bytes > window.size) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} bytes, but {} elements of {} need {}", window.name(), window.size,
                      count, name_of(dtype), bytes));
  }
  auto storage = std::make_shared<torch::StorageBytes>();
  storage->window = {window.file, window.begin, bytes};
  TensorView view;
  view.dtype = dtype;
  view.shape = {count};
  view.strides = {1};
  view.storage = std::move(storage);
  return view;
}

std::vector<double> floats(const TensorView& view, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t width = size_of(view.dtype);
  const std::vector<std::byte> bytes = sampled_bytes(view, first, count);
  std::vector<double> numbers;
  for (std::uint64_t i = 0; i < count; ++i)
    numbers.push_back(float_at(view.dtype, bytes.data() + i * width));
  return numbers;
}

bool rounds_to(const std::vector<double>& wide, DType dtype, const std::vector<double>& narrow) {
  return std::ranges::equal(wide, narrow, [&](double a, double b) {
    return rounded(a, dtype) == b || (std::isnan(a) && std::isnan(b));
  });
}

std::optional<Value> present(Value holder, std::string_view key) {
  if (!holder.is_dict()) return std::nullopt;
  auto found = holder.find(key);
  if (found && found->is_none()) found.reset();
  return found;
}

Shape shape_of(Value value) {
  if (value.size() > limits::kDimensions) {
    raise(ErrorCode::Corrupt, fmt::format("a shape of {} dimensions", value.size()));
  }
  Shape shape;
  for (std::size_t i = 0; i < value.size(); ++i) shape.push_back(value[i].unsigned_int());
  element_count(shape);  // throws on overflow
  return shape;
}

std::vector<NamedShape> named_shapes(Value dict) {
  std::vector<NamedShape> shapes;
  for (std::size_t i = 0; i < dict.pair_count(); ++i) {
    shapes.push_back({std::string(dict.key(i).string()), shape_of(dict.value(i))});
  }
  return shapes;
}

ShapeGroups shape_groups(Value value) {
  if (value.is_dict()) return {named_shapes(value)};
  ShapeGroups groups;
  for (std::size_t i = 0; i < value.size(); ++i) groups.push_back(named_shapes(value[i]));
  return groups;
}

std::int64_t step_of(const TorchFile& file, Value value) {
  constexpr double kLargest = 9007199254740992.0;  // 2^53: every count below is exact
  const auto number = number_of(file, value);
  if (!number || !(*number >= 0 && *number < kLargest) || *number != std::floor(*number)) {
    raise(ErrorCode::Corrupt, fmt::format("{}: the optimizer's step is not a count", file.name()));
  }
  return static_cast<std::int64_t>(*number);
}

std::uint32_t zero_stage(Value value) {
  // ZeroStageEnum.<name>, as Python 3.11.0 to 3.11.6 pickle it: getattr(ZeroStageEnum, "<name>").
  constexpr std::array<std::string_view, 4> kMembers = {"disabled", "optimizer_states", "gradients",
                                                        "weights"};
  std::uint64_t stage = kMembers.size();
  if (value.is(NodeKind::Int)) {
    stage = value.unsigned_int();
  } else if (value.calls("builtins.getattr") && value.args().size() == 2) {
    const std::string_view name = value.args()[1].string();
    for (std::size_t i = 0; i < kMembers.size(); ++i) {
      if (kMembers[i] == name) stage = i;
    }
  } else if (value.is(NodeKind::Object) && value.args().size() == 1) {
    stage = value.args()[0].unsigned_int();
  }
  if (stage >= kMembers.size()) raise(ErrorCode::Corrupt, "zero_stage is none of 0 to 3");
  return static_cast<std::uint32_t>(stage);
}

TensorView tensor_of(const TorchFile& file, Value value, std::string_view what) {
  try {
    return file.tensor(value);
  } catch (const Error& error) {
    throw error.with_context(fmt::format("{}: {}: ", file.name(), what));
  }
}

namespace {

/// Returns the role of an entry of a module that is no tensor: modules keep values of their own
/// below "_extra_state".
Role role_of_entry(std::string_view name, Value value, std::uint64_t pickle_bytes) {
  if (name.ends_with("_extra_state")) return Role::Buffer;
  if (value.is_none()) return Role::Weight;  // a state dict names what has values
  if (!value.is(NodeKind::Object) && !value.is_dict() && !value.is_sequence())
    return Role::ClientValue;
  const torch::ObjectTree tree = torch::describe(value, pickle_bytes);
  const bool has_numbers = !tree.tensors.empty() || torch::is_numpy_array(tree.content);
  return has_numbers ? Role::Weight : Role::ClientValue;
}

}  // namespace

std::vector<NamedView> named_views(const TorchFile& file, Value dict, std::string_view what,
                                   Notes& notes) {
  std::vector<NamedView> views;
  for (std::size_t i = 0; i < dict.pair_count(); ++i) {
    std::string name(dict.key(i).string());
    if (!TorchFile::is_tensor(dict.value(i))) {
      const Role role = role_of_entry(name, dict.value(i), file.pickle().bytes().size());
      const bool is_none = dict.value(i).is_none();
      notes.lose({role, std::move(name), is_none ? "it is None" : "it is not a tensor"});
      continue;
    }
    try {
      TensorView view = tensor_of(file, dict.value(i), fmt::format("{} {}", what, name));
      views.push_back({std::move(name), std::move(view)});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;
      notes.lose({Role::Weight,
                  dict.key(i).is(NodeKind::Str) ? std::string(dict.key(i).text()) : "",
                  error.what()});
    }
  }
  return views;
}

Json plain_json(const TorchFile& file, Value value, const std::string& path, Notes& notes,
                TorchTypes types) {
  if (TorchFile::is_tensor(value)) {
    if (const auto number = number_of(file, value)) return *number;
  }
  Json json = exact_json(value, path, file.pickle().bytes().size(), notes);
  simplify(json, types);
  return json;
}

Json exact_json(Value value, const std::string& path, std::uint64_t pickle_bytes, Notes& notes) {
  torch::ObjectTree tree = torch::describe(value, pickle_bytes);
  for (const torch::NamedTensor& tensor : tree.tensors) {
    notes.lose({Role::ClientValue, fmt::format("{}.{}", path, tensor.name), "a tensor in a value"});
  }
  for (const std::string& line : tree.opaque) {
    notes.add(fmt::format("kept as its parts, not as an object: {} in {}", line, path));
  }
  for (const auto& [at, why] : tree.left_out)
    notes.lose({Role::ClientValue, fmt::format("{}.{}", path, at), why});
  return std::move(tree.content);
}

}  // namespace unishard::converters::deepspeed
