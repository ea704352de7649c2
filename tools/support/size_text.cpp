#include "support/size_text.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace unishard::tools {
namespace {

struct Unit {
  std::string_view name;  ///< lower case
  double bytes;
};

constexpr std::array<Unit, 13> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"k", 1e3},
                                          {"kb", 1e3},
                                          {"mb", 1e6},
                                          {"gb", 1e9},
                                          {"tb", 1e12},
                                          {"kib", 1024.0},
                                          {"mib", 1048576.0},
                                          {"gib", 1073741824.0},
                                          {"tib", 1099511627776.0},
                                          {"m", 1e6},
                                          {"g", 1e9}}};

}  // namespace

std::uint64_t parse_bytes(std::string_view text, std::string_view what) {
  double number = 0;
  const auto [rest, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string unit;
  for (const char c : std::string_view(rest, text.data() + text.size())) {
    if (c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const auto* found = std::find_if(kUnits.begin(), kUnits.end(),
                                   [&](const Unit& entry) { return entry.name == unit; });
  const double bytes = found == kUnits.end() ? 0 : number * found->bytes;
  if (error != std::errc{} || !(bytes >= 1) || bytes >= 9e18) {
    raise(ErrorCode::InvalidArgument, fmt::format("{}: {} is not a size", what, quote(text)),
          "write a number and a unit, such as 5GB, 64MiB or 4096");
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1023.995 && unit + 1 < kNames.size(); ++unit) value /= 1024;
  return fmt::format("{:.2f} {}", value, kNames[unit]);
}

std::string format_count(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string format_duration(double seconds) {
  const auto total = static_cast<std::uint64_t>(std::llround(std::max(seconds, 0.0)));
  if (total < 60) return fmt::format("{} s", total);
  if (total < 3600) return fmt::format("{} min {:02} s", total / 60, total % 60);
  return fmt::format("{} h {:02} min", total / 3600, total / 60 % 60);
}

}  // namespace unishard::tools
