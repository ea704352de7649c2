#pragma once
// The object of a torch.save training file, which the catalog records as one JSON text. A file that
// is written from another format then has every key and value that the first one had. The plug-in
// for Lightning keeps the dict that Lightning would have saved as client state:
//    {"content": the dict, "tensors": {key of a tensor in it: [fqn, state]}}
#include "unishard/format/catalog.hpp"

#include "formats/dcp/key_layout.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::torch {

struct RecordedFile {
  Json object;  ///< {"$tensor": key} represents a tensor
  dcp::KeyedContents contents;
};

/// Returns the text that describes a file: `layout` is that of dcp::describe_keys() with the
/// "object", and `catalog` what was read from the file. Empty when the text would exceed 64 MiB.
std::string text_of_file(const Json& layout, const Catalog& catalog);

/// Returns the file that a catalog records; nullopt when it records none, or when its tensors,
/// groups, step or client state are others by now.
std::optional<RecordedFile> recorded_file(const Catalog& catalog);

/// Returns true when a catalog comes from a torch.save file of which it records that it has several
/// models or optimizers.
bool had_several_parts(const Catalog& catalog);

/// Returns `object`, a dict, with another member at its end.
Json with_member(Json object, std::string_view key, Json value);

}  // namespace unishard::converters::torch
