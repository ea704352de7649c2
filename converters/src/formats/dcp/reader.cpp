#include "formats/dcp/reader.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"

#include "formats/dcp/folders.hpp"
#include "formats/dcp/nanotron.hpp"
#include "formats/dcp/state_dict_source.hpp"

#include <fmt/format.h>

namespace unishard::converters {

namespace {

/// None also for what cannot be examined.
dcp::Layout layout_of(Storage& storage, const Path& path) {
  try {
    return dcp::find_layout(storage, path);
  } catch (const Error&) {
    return dcp::Layout::None;
  }
}

}  // namespace

bool is_dcp(Storage& storage, const Path& path) {
  return layout_of(storage, path) != dcp::Layout::None;
}

bool is_one_dcp(Storage& storage, const Path& path) {
  const dcp::Layout layout = layout_of(storage, path);
  if (layout == dcp::Layout::Nanotron) return dcp::find_nanotron(storage, path) == path;
  return layout != dcp::Layout::None && layout != dcp::Layout::Megatron;
}

std::unique_ptr<Source> open_dcp(Storage& storage, const Path& path, const OpenOptions& options,
                                 const dcp::LikeModel* like) {
  if (options.tag) {
    const dcp::Layout layout = dcp::find_layout(storage, path);
    if (layout != dcp::Layout::Megatron && layout != dcp::Layout::Nanotron) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("{} is a PyTorch distributed checkpoint: it has no tags to choose from",
                        path.string()));
    }
    validate_tag(*options.tag);
    OpenOptions within = options;
    within.tag.reset();
    return open_dcp(storage, path / *options.tag, within, like);
  }
  dcp::StateDict state = dcp::read_state_dict(storage, path, options, like);
  return dcp::make_state_dict_source("dcp", std::move(state), path.string());
}

}  // namespace unishard::converters
