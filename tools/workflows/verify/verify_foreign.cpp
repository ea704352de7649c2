#include "workflows/verify/verify_foreign.hpp"

#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "support/number_text.hpp"
#include "team/shared_digests.hpp"
#include "workflows/client_values.hpp"
#include "workflows/dequantized_input.hpp"
#include "workflows/losses.hpp"
#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unishard::tools {
namespace {

/// Every element of this process's share: what a conversion would read. Where the file has the
/// elements in another order, the check of the file covers them.
void read_share(const converters::Source& source, const Team& team,
                const TransferOptions& options) {
  DigestJob job{
      .catalog = &source.catalog(),
      .tensors = {},
      .read = [&](std::size_t tensor, ElementRange range,
                  std::span<std::byte> out) { source.read(tensor, range, out); },
      .boundary = [&](std::size_t tensor,
                      std::uint64_t element) { return source.read_boundary(tensor, element); }};
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) {
    if (source.is_in_order(i)) job.tensors.push_back(i);
  }
  digest_share(job, team, options);
}

/// Reads this process's part. Process 0 then compares all checksums, which cannot be split. Bytes
/// without a checksum are counted by the process that read them.
void check_deep(const converters::Source& source, const VerifyOptions& options, const Team& team,
                CheckedTag& checked) {
  options.transfer.begin("verify", source.catalog().stored_bytes() / team.size());
  read_share(source, team, options.transfer);
  // Without the parts of other processes, this returns how much of what was read a checksum covers.
  checked.bytes_without_checksum =
      source
          .verify_reads(
              options.transfer,
              {.share = {.rank = team.rank(), .size = team.size(), .id = {}}, .parts = {}})
          .uncovered_bytes;
  if (!team.is_first()) return;
  for (const TensorInfo& tensor : source.catalog().tensors) checked.bytes_checked += tensor.bytes();
  checked.chunks_checked = source.check(options.transfer);
}

/// `own` is the number of bytes without a checksum that this process read.
void note_bytes_without_checksum(Team& team, std::uint64_t own, VerifyReport& report) {
  std::uint64_t bytes = 0;
  for (const std::string& text : team.gather(std::to_string(own)))
    bytes += parse_number(text, "the team's bytes");
  CheckedTag& checked = report.checked.front();
  checked.bytes_without_checksum = bytes;
  if (bytes == 0) return;
  report.notes.push_back(
      bytes == checked.bytes_checked
          ? fmt::format("these {} files have no checksums: everything could be read, which does "
                        "not prove that it is what was written",
                        checked.format)
          : fmt::format("no checksum covers {} of its bytes: they could be read, which does not "
                        "prove that they are what was written",
                        bytes));
}

/// Says what the user may do about a file that is damaged, or missing.
std::string hint_on_broken(Storage& storage, const Path& folder, const std::string& name) {
  const bool is_there =
      storage.kind(folder) == EntryKind::Directory &&
      std::ranges::count(storage.list(folder), name, &Entry::name) > 0;  // a link to nothing, too
  return is_there ? "bring the file back, or remove what has its name" : "bring the file back";
}

/// A checkpoint of which weights or files cannot be read is not sound, whatever the rest is.
void find_missing(Storage& storage, const converters::Source& source, const Path& path,
                  VerifyReport& report) {
  const Path& opened = source.path().empty() ? path : source.path();
  for (const converters::Loss& loss : source.losses()) {
    if (!is_unread_weight(loss) && !loss.is_broken) continue;
    report.findings.push_back(
        {.code = loss.is_unreadable ? kNotRead : "incomplete",
         .path = path,
         .message = loss.is_broken ? fmt::format("{}: {}", loss.name, loss.why)
                                   : fmt::format("{} cannot be read", text_of(loss)),
         .hint = loss.is_unreadable ? "check the owner and permissions of the file"
                 : loss.is_broken
                     ? hint_on_broken(storage, opened, loss.name)
                     : "what reads the rest, such as zero_to_fp32, needs --allow-missing",
         .bytes = {},
         .lost = {}});
  }
}

/// Neither is one with a quantized weight that has no value.
void find_incomplete(const converters::Source& source, const Path& path, VerifyReport& report) {
  converters::QuantizedProblems problems = quantized_problems(source, path);
  for (std::string& sentence : problems.incomplete) {
    report.findings.push_back({.code = "incomplete",
                               .path = path,
                               .message = std::move(sentence),
                               .hint = "bring back the files with its scales and descriptions, or "
                                       "quantize the model again",
                               .bytes = {},
                               .lost = {}});
  }
  if (!problems.not_read.empty())
    report.notes.push_back(
        fmt::format("{} quantized weights are not read as numbers, and zero_to_fp32 refuses them; "
                    "the first: {}",
                    problems.not_read.size(), problems.not_read.front()));
}

void check(Storage& storage, const Path& path, const VerifyOptions& options, const Team& team,
           VerifyReport& report) {
  const auto [source, tag] = open_tagged(
      storage, path,
      {.tag = options.tag, .from_rank = options.from_rank, .merge_rules = options.merge_rules},
      options.like);
  CheckedTag checked;
  checked.tag = tag;
  checked.folder = path;
  checked.format = source->format();
  checked.step = source->catalog().step;
  checked.tensors = source->catalog().tensors.size();
  checked.payload_bytes = source->catalog().stored_bytes();
  if (options.deep) check_deep(*source, options, team, checked);
  if (source->part_of())
    report.notes.push_back(
        fmt::format("this file alone is no whole model: {}", *source->part_of()));
  for (std::string& note : source->notes_and_remarks()) report.notes.push_back(std::move(note));
  if (auto note = note_client_tensors(source->catalog().client_state))
    report.notes.push_back(std::move(*note));
  if (team.is_first()) find_missing(storage, *source, path, report);
  if (team.is_first() && !source->part_of()) find_incomplete(*source, path, report);
  report.checked.push_back(std::move(checked));
}

}  // namespace

VerifyReport verify_foreign(Storage& storage, const Path& path, const VerifyOptions& options,
                            Team& team) {
  VerifyReport report;
  report.deep = options.deep;
  Finding found{
      .code = "unreadable", .path = path, .message = {}, .hint = {}, .bytes = {}, .lost = {}};
  try {
    check(storage, path, options, team, report);
  } catch (const Error& error) {
    // What is not supported is not damaged. With --all it stays a finding, because nothing looked
    // at that checkpoint.
    const bool is_refused = error.code() == ErrorCode::Unsupported && !options.all_tags;
    if (!blames_files(error.code()) || is_refused) throw;
    if (error.code() == ErrorCode::Unsupported) found.code = std::string(kUnsupported);
    found.message = error.what();
    found.hint = error.hint();
  }
  const std::vector<std::string> messages = team.gather(found.message);
  const std::vector<std::string> hints = team.gather(found.hint);
  const std::vector<std::string> codes = team.gather(found.code);
  const auto first = std::ranges::find_if(messages, [](const auto& text) { return !text.empty(); });
  if (first == messages.end()) {
    if (options.deep)
      note_bytes_without_checksum(team, report.checked.front().bytes_without_checksum, report);
    return report;
  }
  found.message = *first;
  const auto process = static_cast<std::size_t>(first - messages.begin());
  found.hint = hints[process];
  found.code = codes[process];
  report.findings.push_back(std::move(found));
  report.checked.clear();
  report.notes.clear();
  return report;
}

}  // namespace unishard::tools
