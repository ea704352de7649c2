#include "lib/verify_foreign.hpp"

#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "lib/native_folder.hpp"
#include "lib/read_blocks.hpp"

#include <fmt/format.h>

namespace unishard::tools {
namespace {

void add_finding(VerifyReport& report, const Path& path, const Error& error) {
  if (error.code() == ErrorCode::Cancelled || error.code() == ErrorCode::Io) throw error;
  report.findings.push_back({.code = "unreadable",
                             .path = path,
                             .message = error.what(),
                             .hint = error.hint(),
                             .bytes = {},
                             .lost = {}});
}

/// Every element of every tensor: what a conversion would read.
std::uint64_t read_all(const converters::Source& source, const TransferOptions& options) {
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : source.catalog().tensors) total += tensor.bytes();
  run_bounded(source.catalog().tensors.size(), options,
              [&](std::size_t index, std::span<std::byte> buffer) {
                return read_blocks(source, index, buffer, [](std::span<const std::byte>) {});
              });
  return total;
}

}  // namespace

VerifyReport verify_foreign(Storage& storage, const Path& path, const VerifyOptions& options) {
  VerifyReport report;
  report.deep = options.deep;
  try {
    const auto source = converters::open_source(storage, path, options.tag);
    CheckedTag checked;
    checked.tag = tag_of(storage, path, options.tag).value_or("");
    checked.folder = path;
    checked.step = source->catalog().step;
    checked.tensors = source->catalog().tensors.size();
    checked.payload_bytes = source->catalog().stored_bytes();
    if (options.deep) {
      checked.bytes_checked = read_all(*source, options.transfer);
      checked.chunks_checked = source->check(options.transfer);
      if (checked.chunks_checked == 0) {
        report.notes.push_back(
            fmt::format("the format {} has no checksums here: everything could be read, which does "
                        "not prove that it is what was written",
                        source->format()));
      }
    }
    for (std::string& note : source->notes()) report.notes.push_back(std::move(note));
    report.checked.push_back(std::move(checked));
  } catch (const Error& error) {
    add_finding(report, path, error);
  }
  return report;
}

}  // namespace unishard::tools
