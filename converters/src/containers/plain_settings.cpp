#include "containers/plain_settings.hpp"

#include "containers/pickle_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace unishard::converters::torch {
namespace {

template <class T>
std::optional<Json> number_in(const std::string& hex) {
  if (hex.size() != 2 * sizeof(T)) return std::nullopt;
  std::array<std::uint8_t, sizeof(T)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* const at = hex.data() + 2 * i;
    if (std::from_chars(at, at + 2, bytes[i], 16).ptr != at + 2) return std::nullopt;
  }
  T number;
  std::memcpy(&number, bytes.data(), sizeof number);
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(number)) return std::nullopt;
    return Json(static_cast<double>(number));
  }
  return Json(number);
}

/// Returns the number of a type of numpy, "f8".
std::optional<Json> number_in(std::string_view type, const std::string& hex) {
  if (type == "f8") return number_in<double>(hex);
  if (type == "f4") return number_in<float>(hex);
  if (type == "i8") return number_in<std::int64_t>(hex);
  if (type == "i4") return number_in<std::int32_t>(hex);
  if (type == "i2") return number_in<std::int16_t>(hex);
  if (type == "i1") return number_in<std::int8_t>(hex);
  if (type == "u8") return number_in<std::uint64_t>(hex);
  if (type == "u4") return number_in<std::uint32_t>(hex);
  if (type == "u2") return number_in<std::uint16_t>(hex);
  if (type == "u1") return number_in<std::uint8_t>(hex);
  if (type == "b1" && (hex == "00" || hex == "01")) return Json(hex == "01");
  return std::nullopt;
}

/// Whether the state of a dtype of numpy tells the order of bytes of this machine, or none.
bool is_little(const Json& dtype) {
  const Json& tuple = dtype.at("state");
  const Json& state = tuple.is_array() ? tuple : tuple.at("items");
  return state.at(1) == "<" || state.at(1) == "|";
}

bool holds_numpy(const Json& value) {
  if (!value.is_structured()) return false;
  return number_of_numpy(value) || std::ranges::any_of(value, holds_numpy);
}

/// Returns "<path>: <reason>" as a loss. The path begins with `known` bytes.
Loss loss_of(const std::string& line, std::size_t known) {
  const std::size_t colon = line.find(": ", known);
  if (colon == std::string::npos) return {Role::Setting, line};
  return {Role::Setting, line.substr(0, colon), line.substr(colon + 2)};
}

}  // namespace

std::optional<Json> number_of_numpy(const Json& value) {
  if (!is_numpy_scalar(value)) return std::nullopt;
  try {
    const Json& dtype = value.at("args").at(0);
    const Json& bytes = value.at("args").at(1);
    if (dtype.at("name") != "numpy.dtype" || bytes.at("$type") != "bytes" || !is_little(dtype))
      return std::nullopt;
    return number_in(dtype.at("args").at(0).get_ref<const std::string&>(),
                     bytes.at("hex").get_ref<const std::string&>());
  } catch (const Json::exception&) {
    return std::nullopt;  // another version's, or of parts that make no number
  }
}

Json with_plain_numbers(Json value) {
  if (!value.is_structured()) return value;
  if (auto number = number_of_numpy(value)) return *std::move(number);
  for (Json& child : value) child = with_plain_numbers(std::move(child));
  return value;
}

void make_settings_plain(Json& group, std::size_t number, std::vector<std::string>& notes,
                         Losses& losses) {
  Json plain = Json::object();
  for (auto& [key, value] : group.items()) {
    const std::string name = fmt::format("param_groups.{}.{}", number, key);
    if (holds_numpy(value)) {
      notes.push_back(fmt::format("{}: numbers of numpy are read as plain numbers", name));
      value = with_plain_numbers(std::move(value));
    }
    std::vector<std::string> lines;
    auto kept = without_unwritable_parts(value, name, lines, write_none);
    for (const std::string& line : lines) losses.push_back(loss_of(line, name.size()));
    if (kept) plain[key] = *std::move(kept);
  }
  group = std::move(plain);
}

}  // namespace unishard::converters::torch
