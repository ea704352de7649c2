#include "workflows/shared_output.hpp"

#include "unishard/format/commit.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/staging_names.hpp"

#include "support/number_text.hpp"
#include "team/shared_digests.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

namespace unishard::tools {
namespace {

std::string fingerprint(const Catalog& target) {
  std::uint64_t crc = 0;
  for (const TensorInfo& tensor : target.tensors) {
    crc = crc64(fmt::format("{}\n{}\n{}\n", tensor.label(), name_of(tensor.dtype),
                            tensor.crc64.value_or(0)),
                crc);
    for (const std::uint64_t extent : tensor.shape) crc = crc64(fmt::format("{} ", extent), crc);
  }
  return fmt::format("{} {} {} {}", hex64(crc), target.world_size, target.stage, target.step);
}

void require_same(Team& team, const Catalog& target) {
  const std::vector<std::string> wanted = team.gather(fingerprint(target));
  for (std::size_t rank = 1; rank < wanted.size(); ++rank) {
    if (wanted[rank] == wanted[0]) continue;
    raise(ErrorCode::Mismatch, fmt::format("rank {} would write another result than rank 0", rank),
          "start all processes with the same arguments, where they see the same files");
  }
}

/// Agrees on one save id, because all processes use it in names of files.
std::string common_id(Team& team) {
  std::string id = team.gather(team.is_first() ? new_save_id() : "").front();
  if (!is_save_id(id))
    raise(ErrorCode::Corrupt, fmt::format("rank 0 gave {} for an id", quote(id)));
  return id;
}

}  // namespace

std::uint64_t SharedSink::total_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

bool SharedSink::is_one_process_work() const {
  return bytes.size() > 1 &&
         std::ranges::any_of(bytes, [&](std::uint64_t each) { return each == total_bytes(); });
}

SharedSink make_shared_sink(
    Team& team, const Catalog& target,
    const std::function<std::unique_ptr<converters::Sink>(const converters::WorkSplit&)>& make) {
  SharedSink out;
  team.agree("opening the output", [&] {
    require_same(team, target);
    const std::string id = common_id(team);
    const converters::WorkSplit share{.rank = team.rank(), .size = team.size(), .id = id};
    team.agree("opening the output", [&] {
      if (team.is_first()) out.sink = make(share);
    });
    if (!team.is_first()) out.sink = make(share);
    const std::uint64_t bytes = bytes_of(target, out.sink->fragments());
    for (const std::string& text : team.gather(std::to_string(bytes)))
      out.bytes.push_back(parse_number(text, "the team's shares"));
  });
  return out;
}

converters::InputCheck verify_reads_together(Team& team, const converters::Source& source,
                                             const TransferOptions& options) {
  if (team.size() == 1) return source.verify_reads(options);
  const converters::ReadPeers peers{.share = {.rank = team.rank(), .size = team.size(), .id = {}},
                                    .parts = team.gather(source.read_parts())};
  converters::InputCheck all;
  team.agree("checking the input", [&] {
    const converters::InputCheck own = source.verify_reads(options, peers);
    for (const std::string& text : team.gather(
             fmt::format("{} {} {}", own.covered_bytes, own.uncovered_bytes, own.extra_bytes))) {
      converters::InputCheck one;
      std::istringstream(text) >> one.covered_bytes >> one.uncovered_bytes >> one.extra_bytes;
      all += one;
    }
  });
  return all;
}

namespace {

std::vector<std::size_t> gather_overflowed(Team& team, const std::vector<std::size_t>& own) {
  std::set<std::size_t> all;
  for (const std::string& text : team.gather(fmt::format("{}", fmt::join(own, " ")))) {
    std::istringstream words(text);
    for (std::size_t tensor = 0; words >> tensor;) all.insert(tensor);
  }
  return {all.begin(), all.end()};
}

}  // namespace

WrittenOutput write_together(Team& team, const converters::CopyPlan& plan, converters::Sink& sink,
                             const TransferOptions& options, WantDigests wants_digests) {
  WrittenOutput out;
  converters::CopyResult copied;
  std::vector<std::string> seals;
  team.agree("writing", [&] {
    copied = converters::copy(plan, sink, options, wants_digests);
    out.input = verify_reads_together(team, *plan.source, options);
    if (options.observer != nullptr) sink.stop_by([&options] { options.observer->advance(0); });
    seals = team.gather(sink.seal());
  });
  if (wants_digests == WantDigests::Yes)
    out.digests = gather_digests(team, *plan.target, copied.digests);
  out.overflowed = gather_overflowed(team, copied.overflowed);
  team.agree("completing the output", [&] {
    if (team.is_first()) out.staged = sink.complete(seals);
  });
  out.staged = team.gather(out.staged.string()).front();
  return out;
}

void publish_together(Team& team, converters::Sink& sink, const std::function<void()>& check) {
  bool is_published = false;
  try {
    team.agree("publishing the output", [&] {
      if (team.is_first()) check();
      if (team.is_first()) sink.publish();
      is_published = team.is_first();
    });
  } catch (const Error&) {
    if (!is_published) throw;  // else the result is whole, whoever dies or is stopped now
  }
}

}  // namespace unishard::tools
