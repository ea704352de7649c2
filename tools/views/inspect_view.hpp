#pragma once
// A Description as text or JSON.
// Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include "workflows/inspect.hpp"

#include <string>

namespace unishard::cli {

enum class SortBy : unsigned char { Model, Name, Bytes, Elements, Norm };

struct InspectView {
  std::string filter = {};  ///< shell pattern on the fqn; empty shows all
  SortBy sort = SortBy::Model;
  bool stats = false;
  bool states = false;   ///< a row per tensor; else one per parameter
  bool collapse = true;  ///< numbered layers that agree in one row
  bool layout = false;
  std::size_t width = 100;
};

std::string inspect_text(const tools::Description& description, const InspectView& view);
std::string layout_text(const tools::Description& description, const InspectView& view);
std::string tags_text(const tools::Description& description);
/// The part of inspect_json() that describe_tags() knows.
Json tags_json(const tools::Description& description);

/// Returns JSON by the schema in tools/README.md. Versions may add keys, but never remove or change
/// them.
Json inspect_json(const tools::Description& description, const InspectView& view);

/// Returns null for a tensor without statistics. NaN and infinity never occur in the result.
Json stats_json(const Stats& stats);

}  // namespace unishard::cli
