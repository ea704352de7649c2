#pragma once
// One result written by all processes of a team.
#include "unishard/converters/sink.hpp"

#include "team/team.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace unishard::tools {

/// A sink in each process, of its own share.
struct SharedSink {
  std::unique_ptr<converters::Sink> sink;
  std::vector<std::uint64_t> bytes;  ///< that each process will give to its sink

  std::uint64_t total_bytes() const;
  /// Several processes, and all the work is one's.
  bool is_one_process_work() const;
};

/// Calls `make` in the first process, then in the others. Throws Mismatch when they do not want the
/// same `target`.
SharedSink make_shared_sink(
    Team& team, const Catalog& target,
    const std::function<std::unique_ptr<converters::Sink>(const converters::WorkSplit&)>& make);

/// A result that is whole and durable, and not published yet.
struct WrittenOutput {
  Path staged;                   ///< what Sink::complete() returned
  converters::Digests digests;   ///< of what all sinks were given, where they were wanted
  converters::InputCheck input;  ///< of what all processes read
};
enum class WantDigests : std::uint8_t { No, Yes };
/// Collective: copy(), verify_reads(), seal() and complete(). What the checksums of the source
/// prove to be damaged is never completed.
WrittenOutput write_together(Team& team, const converters::CopyPlan& plan, converters::Sink& sink,
                             const TransferOptions& options,
                             WantDigests wants_digests = WantDigests::No);
/// Collective, after write_together(): gives the result its name.
void publish_together(Team& team, converters::Sink& sink);

/// Collective: Source::verify_reads() of processes that have read a part each.
converters::InputCheck verify_reads_together(Team& team, const converters::Source& source,
                                             const TransferOptions& options);

}  // namespace unishard::tools
