#include "containers/inline_tensors.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

namespace unishard::converters::torch {
namespace {

constexpr const char* kInlineType = "torch.Tensor";
constexpr std::uint64_t kInlineTotal = std::uint64_t{1} << 20;

std::string hex_text(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes)
    fmt::format_to(std::back_inserter(text), "{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

std::optional<std::vector<std::byte>> bytes_from_hex(const std::string& text) {
  std::vector<std::byte> bytes(text.size() / 2);
  if (text.size() % 2 != 0) return std::nullopt;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::uint8_t byte = 0;
    const char* const digits = text.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) return std::nullopt;
    bytes[i] = std::byte{byte};
  }
  return bytes;
}

std::optional<Json> read_inline(const TorchFile& file, Value value, std::uint64_t& left) {
  try {
    const TensorView view = file.tensor(value);
    if (!view.storage || view.elements() > kInlineBytes) return std::nullopt;
    const std::uint64_t size = view.elements() * size_of(view.dtype);
    if (size > kInlineBytes || size > left) return std::nullopt;
    left -= size;
    return inline_form({view.dtype, view.shape, view.read_all(kInlineBytes)});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw;
    return std::nullopt;
  }
}

void replace(Json& value, const std::map<std::string, Json>& tensors) {
  if (!value.is_structured()) return;
  if (value.is_object() && value.contains("$tensor") && value["$tensor"].is_string()) {
    const auto found = tensors.find(value["$tensor"].get<std::string>());
    if (found != tensors.end()) value = found->second;
    return;
  }
  for (Json& child : value) replace(child, tensors);
}

bool is_inline(const Json& value) {
  return value.is_object() && value.contains("$type") && value["$type"] == kInlineType;
}

void take(Json& value, std::map<std::string, InlineTensor>& taken) {
  if (!value.is_structured()) return;
  if (is_inline(value)) {
    auto tensor = inline_tensor_in(value);
    if (!tensor) return;
    std::string name = fmt::format("inline {}", taken.size());
    value = {{"$tensor", name}};
    taken.emplace(std::move(name), std::move(*tensor));
    return;
  }
  for (Json& child : value) take(child, taken);
}

}  // namespace

Json inline_form(const InlineTensor& tensor) {
  return Json{{"$type", kInlineType},
              {"dtype", name_of(tensor.dtype)},
              {"shape", tensor.shape},
              {"hex", hex_text(tensor.bytes)}};
}

std::vector<std::string> inline_tensors(const TorchFile& file, ObjectTree& tree) {
  std::uint64_t left = kInlineTotal;
  std::map<std::string, Json> forms;
  std::vector<std::string> others;
  for (const NamedTensor& tensor : tree.tensors) {
    if (auto form = read_inline(file, tensor.value, left)) {
      forms.emplace(tensor.name, std::move(*form));
    } else {
      others.push_back(tensor.name);
    }
  }
  replace(tree.content, forms);
  return others;
}

Json with_inline_tensors(const TorchFile& file, const std::string& path, Losses& losses) {
  ObjectTree tree = describe(file.root(), file.pickle().bytes().size());
  for (const std::string& name : inline_tensors(file, tree))
    losses.push_back(
        {Role::Setting, fmt::format("{}.{}", path, name), "a tensor of many elements"});
  return std::move(tree.content);
}

void make_numbers(Json& value) {
  if (!value.is_structured()) return;
  if (const auto tensor = inline_tensor_in(value)) {
    double number = 0;
    float narrow = 0;
    if (tensor->dtype == DType::Float64 && tensor->bytes.size() == sizeof number) {
      std::memcpy(&number, tensor->bytes.data(), sizeof number);
    } else if (tensor->dtype == DType::Float32 && tensor->bytes.size() == sizeof narrow) {
      std::memcpy(&narrow, tensor->bytes.data(), sizeof narrow);
      number = static_cast<double>(narrow);
    } else {
      return;
    }
    value = number;
    return;
  }
  for (Json& child : value) make_numbers(child);
}

std::map<std::string, InlineTensor> take_inline_tensors(Json& value) {
  std::map<std::string, InlineTensor> taken;
  take(value, taken);
  return taken;
}

}  // namespace unishard::converters::torch

namespace unishard::converters {

std::optional<ClientTensor> client_tensor_in(const Json& value) {
  if (!torch::is_inline(value)) return std::nullopt;
  try {
    const auto dtype = dtype_from_name(value.at("dtype").get<std::string>());
    auto bytes = torch::bytes_from_hex(value.at("hex").get_ref<const std::string&>());
    if (!dtype || !bytes) return std::nullopt;
    ClientTensor tensor{*dtype, value.at("shape").get<Shape>(), std::move(*bytes)};
    const std::uint64_t elements = element_count(tensor.shape);
    if (elements > torch::kInlineBytes || tensor.bytes.size() != elements * size_of(*dtype))
      return std::nullopt;
    return tensor;
  } catch (const Json::exception&) {
    return std::nullopt;
  } catch (const Error&) {  // the shape has too many elements
    return std::nullopt;
  }
}

}  // namespace unishard::converters
