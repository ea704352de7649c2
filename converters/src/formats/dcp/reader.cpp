#include "formats/dcp/reader.hpp"

#include "unishard/format/error.hpp"

#include "formats/dcp/folders.hpp"
#include "formats/dcp/state_dict_source.hpp"

namespace unishard::converters {

bool is_dcp(Storage& storage, const Path& path) {
  try {
    return dcp::find_layout(storage, path) != dcp::Layout::None;
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Source> open_dcp(Storage& storage, const Path& path) {
  return dcp::make_state_dict_source("dcp", dcp::read_state_dict(storage, path), path.string());
}

}  // namespace unishard::converters
