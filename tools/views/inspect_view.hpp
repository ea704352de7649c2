#pragma once
// A Description as text or JSON. Pure.
#include "unishard/format/json.hpp"

#include "workflows/inspect.hpp"

#include <string>

namespace unishard::cli {

enum class SortBy : unsigned char { Model, Name, Bytes, Elements, Norm };

struct InspectView {
  std::string filter;  ///< shell pattern on the fqn; empty shows all
  SortBy sort = SortBy::Model;
  bool stats = false;
  bool layout = false;
  std::size_t width = 100;
};

std::string inspect_text(const tools::Description& description, const InspectView& view);
std::string layout_text(const tools::Description& description, const InspectView& view);
std::string tags_text(const tools::Description& description);
/// The part of inspect_json() that describe_tags() knows.
Json tags_json(const tools::Description& description);

/// The schema is in tools/README.md; keys are only ever added.
Json inspect_json(const tools::Description& description, const InspectView& view);

/// null for tensors that are not measured; NaN and infinities never occur in it.
Json stats_json(const Stats& stats);

}  // namespace unishard::cli
