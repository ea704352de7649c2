#pragma once
// The keys under which the files of a PyTorch trainer keep what a catalog holds. A source describes
// them (Source::layout()), and a sink of the same format writes the same keys again.
#include "unishard/format/json.hpp"

#include "containers/archive_draft.hpp"
#include "containers/inline_tensors.hpp"
#include "formats/dcp/own_layout.hpp"
#include "formats/dcp/state_dict.hpp"
#include "formats/dcp/state_dict_to_catalog.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

/// Returns an object: "tensors" lists [key, path, fqn, state]; "constants" lists [key, path, dtype,
/// shape, bytes] of the tensors with one element that became numbers of the catalog. A path lists
/// [text, is_position]; it is empty where the files record none.
Json describe_keys(const StateDict& state, const Arrangement& arrangement);
/// Adds "objects": it lists [key, path, value]. Of a folder that UniShard wrote: {"own": name of
/// its OwnLayout}, or null for the default.
Json describe_folder(const StateDict& state, const Arrangement& arrangement);

/// What the keys of such an object hold, in a catalog that is to be written.
class KeyedContents {
 public:
  using Constant = torch::InlineTensor;
  /// Returns nullopt when the catalog lacks one of the tensors or has others.
  /// Pre: `layout` is null, comes from describe_keys(), or has_layout_rows().
  /// Throws: Internal or Json::exception for constants that describe_keys() does not make.
  static std::optional<KeyedContents> match(const Json& layout, const Catalog& catalog);

  /// Adds constants of any shape.
  void add_constants(std::map<std::string, Constant> constants);
  /// Returns the catalog tensor, or nullopt.
  std::optional<std::size_t> tensor(const std::string& key) const;
  /// Returns the constant, or null.
  const Constant* constant(const std::string& key) const;
  bool has_all(const std::set<std::string>& keys) const;
  /// Returns what can be written of `object`, with a line in `dropped` for everything else; nullopt
  /// when a tensor of the catalog would be lost.
  std::optional<Json> writable(const Json& object, std::vector<std::string>& dropped) const;
  /// Writes `object` with its tensors into an archive.
  /// Pre: has_all(tensors_in(object)); with_all_tensors() or writable() has returned `object`.
  void write(const Json& object, torch::ArchiveDraft& archive) const;

 private:
  std::unordered_map<std::string, std::size_t> tensors_;
  std::unordered_map<std::string, Constant> constants_;
};

/// Returns the name in {"own": name}; "" for everything else.
std::string own_layout_in(const Json& layout);

/// Key in Catalog::producer: the name of the OwnLayout by which the state dict that was read has
/// its keys. Converters of other formats keep it, so that a DCP folder gets these keys again.
inline constexpr const char* kKeyLayout = "dcp_layout";

/// Records the layout by which all tensors have their keys in the arrangement's catalog, if there
/// is one.
void record_layout(const StateDict& state, Arrangement& arrangement);
/// Returns the name of the OwnLayout that a catalog records; "" when it records none.
std::string_view recorded_layout(const Catalog& catalog);

/// Key in Catalog::producer: the state dict that unishard.dcp.Writer saved, as describe_folder()
/// describes it.
inline constexpr const char* kStateDict = "state_dict";

/// Records the layout of a folder of another program, and all of its keys, paths and objects
/// (kDcpFolder) with a digest of the catalog's values, unless that takes more than 64 MiB.
void record_folder(const StateDict& state, Arrangement& arrangement);

/// Returns the state dict or folder that a catalog records; null when it records none, or when the
/// tensors, and of a folder the values, are others by now.
Json recorded_state_dict(const Catalog& catalog);

/// Returns whether `layout` has rows as describe_keys() and describe_folder() make them; paths may
/// be null.
bool has_layout_rows(const Json& layout);

/// Returns the path of a row of "tensors", "constants" or "objects".
KeyPath path_of_row(const Json& row);

}  // namespace unishard::converters::dcp
