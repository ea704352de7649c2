#pragma once
// Python objects that hold nothing but data: numbers, times, paths and arrays of well-known
// libraries. UniShard never creates them; it keeps their parts and writes them as they were.
// Thread safety: pure functions.
#include <algorithm>
#include <array>
#include <string_view>

namespace unishard::converters::torch {

/// Returns whether calling `name` ("module.name") with data, and giving the result a state that is
/// data, makes such an object.
inline bool makes_plain_object(std::string_view name) {
  constexpr std::array<std::string_view, 21> kNames = {
      "argparse.Namespace",
      "builtins.range",
      "builtins.slice",
      "builtins.xrange",
      "collections.deque",
      "datetime.date",
      "datetime.datetime",
      "datetime.time",
      "datetime.timedelta",
      "datetime.timezone",
      "decimal.Decimal",
      "fractions.Fraction",
      "numpy.core.multiarray._reconstruct",
      "numpy.core.multiarray.scalar",
      "numpy.core.numeric._frombuffer",
      "numpy.dtype",
      "pathlib.PosixPath",
      "pathlib.PurePosixPath",
      "pathlib.PureWindowsPath",
      "pathlib.WindowsPath",
      "types.SimpleNamespace",
  };
  return std::ranges::count(kNames, name) > 0;
}

/// Returns whether it is a class of which a defaultdict may make its values.
inline bool is_plain_factory(std::string_view name) {
  constexpr std::array<std::string_view, 10> kNames = {
      "builtins.bool",       "builtins.dict",          "builtins.float", "builtins.int",
      "builtins.list",       "builtins.set",           "builtins.str",   "builtins.tuple",
      "collections.Counter", "collections.OrderedDict"};
  return std::ranges::count(kNames, name) > 0;
}

/// Returns whether the name itself may be an argument of such a call.
inline bool is_plain_class(std::string_view name) { return name == "numpy.ndarray"; }

}  // namespace unishard::converters::torch
