#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "dcp/arrange.hpp"
#include "dcp/dcp.hpp"
#include "dcp/folders.hpp"

#include <fmt/format.h>

namespace unishard::converters {
namespace {

class DcpSource final : public Source {
 public:
  DcpSource(dcp::StateDict state, const std::string& where)
      : state_(std::move(state)), arrangement_(dcp::arrange(state_, where)) {
    validate(arrangement_.catalog, where);
  }

  std::string format() const override { return "dcp"; }
  const Catalog& catalog() const override { return arrangement_.catalog; }
  std::vector<std::string> notes() const override { return arrangement_.notes; }

  void read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    read_elements(state_.tensors[arrangement_.entries.at(tensor)], *state_.items, range, out);
  }

 private:
  const dcp::StateDict state_;
  const dcp::Arrangement arrangement_;
};

}  // namespace

bool is_dcp(Storage& storage, const Path& path) {
  try {
    return dcp::find_layout(storage, path) != dcp::Layout::None;
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Source> open_dcp(Storage& storage, const Path& path) {
  return std::make_unique<DcpSource>(dcp::read_state_dict(storage, path), path.string());
}

}  // namespace unishard::converters
