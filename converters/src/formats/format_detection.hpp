#pragma once
// Recognises paths by names and first bytes alone, so that messages can say what a path is instead
// of only what it is not.
#include "unishard/format/storage.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Files of Keras are zip archives, which torch.save's are too.
inline constexpr std::string_view kKerasSuffix = ".keras";
/// Archives of NeMo are tar archives of torch.save files, the last of which would be found.
inline constexpr std::string_view kNemoSuffix = ".nemo";

/// A format that UniShard recognises but does not read.
struct ForeignFormat {
  std::string name;  ///< for example "onnx"
  /// What it is, and what to do: "an ONNX model: load it with ...".
  std::string text;
};

/// A sign by which recognise_foreign() tells a format, also one that UniShard reads.
struct SignedFormat {
  std::string name;   ///< as ForeignFormat::name
  std::string what;   ///< "an ONNX model"
  std::string files;  ///< with `*` for any text; empty for first bytes
};
std::vector<SignedFormat> signed_formats();

/// Looks at a folder, at the tag that its `latest` names and at its sub-folders, or at a file's
/// first bytes.
std::optional<ForeignFormat> recognise_foreign(Storage& storage, const Path& path);

/// Returns why an unrecognised path cannot be read: it is missing, empty, holds only interrupted
/// saves, is a part of a native checkpoint, or is unknown.
std::string explain_unknown(Storage& storage, const Path& path);

}  // namespace unishard::converters
