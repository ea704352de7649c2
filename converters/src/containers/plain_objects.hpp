#pragma once
// Python objects that hold nothing but data: numbers, times, paths and arrays of well-known
// libraries, and the states of torchao's optimizers, which are tensors of classes of its own made
// of ordinary tensors. UniShard never creates them; it keeps their parts and writes them as they
// were. Thread safety: pure functions.
#include <algorithm>
#include <array>
#include <string_view>

namespace unishard::converters::torch {

/// The call that makes a tensor of a subclass, and its first argument where a class has parts.
inline constexpr std::string_view kFromType = "torch._tensor._rebuild_from_type_v2";
inline constexpr std::string_view kWrapper = "torch._utils._rebuild_wrapper_subclass";

/// Returns whether it is the class of a state of torchao's optimizers with 8 or 4 bits.
inline bool is_packed_state_class(std::string_view name) {
  constexpr std::array<std::string_view, 2> kModules = {"torchao.optim.",
                                                        "torchao.prototype.low_bit_optim."};
  constexpr std::array<std::string_view, 3> kClasses = {
      "subclass_8bit.OptimState8bit", "subclass_4bit.OptimState4bit", "subclass_fp8.OptimStateFp8"};
  return std::ranges::any_of(kModules, [&](std::string_view module) {
    return name.starts_with(module) && std::ranges::count(kClasses, name.substr(module.size())) > 0;
  });
}

/// Returns whether calling `name` ("module.name") with data, and giving the result a state that is
/// data, makes such an object.
inline bool makes_plain_object(std::string_view name) {
  constexpr std::array<std::string_view, 23> kNames = {
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
      "torch.serialization._get_layout",
      kFromType,
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
inline bool is_plain_class(std::string_view name) {
  return name == "numpy.ndarray" || name == kWrapper || is_packed_state_class(name);
}

}  // namespace unishard::converters::torch
