#pragma once
// What UniShard recognises on a disk: every layout of files, and what can be done with it.
// Thread safety: all functions are thread-safe.
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

struct Layout {
  std::string_view family;      ///< whose it is: "DeepSpeed"
  std::string_view format;      ///< Source::format() of it
  std::string_view what;        ///< one line
  std::string_view files;       ///< those that show it; `*` is any text
  std::string_view written_as;  ///< what `--to` takes for it; empty: it is only read
  std::string_view resumed_by;  ///< which programs continue what is written; empty: none
};
/// Returns the layouts that are read.
std::vector<Layout> known_layouts();

/// A kind of files that is recognised and refused.
struct RefusedLayout {
  std::string name;   ///< "onnx"
  std::string what;   ///< as the message calls it: "an ONNX model"
  std::string files;  ///< those that show it; empty: their first bytes do
};
/// Returns the layouts that are recognised and refused.
std::vector<RefusedLayout> refused_layouts();

}  // namespace unishard::converters
