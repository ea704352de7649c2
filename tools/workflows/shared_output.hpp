#pragma once
// Writes one result with all processes of a team.
#include "unishard/converters/sink.hpp"

#include "team/team.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace unishard::tools {

/// The sink of this process for its own part.
struct SharedSink {
  std::unique_ptr<converters::Sink> sink;
  std::vector<std::uint64_t> bytes;  ///< bytes that each process will write

  std::uint64_t total_bytes() const;
  /// Returns true when one of several processes has all the work.
  bool is_one_process_work() const;
};

/// Calls `make` in process 0, then in the others. Collective.
/// Throws: Mismatch when the processes have different `target` catalogs.
SharedSink make_shared_sink(
    Team& team, const Catalog& target,
    const std::function<std::unique_ptr<converters::Sink>(const converters::WorkSplit&)>& make);

/// A result that is complete and durable, but not published.
struct WrittenOutput {
  Path staged;  ///< result of Sink::complete()
  /// Digests of what all sinks were given, if requested.
  converters::Digests digests;
  /// Counts of what all processes read.
  converters::InputCheck input;
  /// Target tensors with numbers that became infinite in one of the processes. Ascending.
  std::vector<std::size_t> overflowed;
};
using converters::WantDigests;
/// Calls copy(), verify_reads(), seal() and complete(). A result is never completed when checksums
/// prove that its input is damaged. Collective.
WrittenOutput write_together(Team& team, const converters::CopyPlan& plan, converters::Sink& sink,
                             const TransferOptions& options,
                             WantDigests wants_digests = WantDigests::No);
/// Publishes the result of write_together(). Rank 0 returns once the result has its name, even
/// where another process has died or the job was stopped meanwhile; the team's next collective call
/// then throws. `check` is called on rank 0 just before; nothing is published if it throws.
/// Collective.
void publish_together(
    Team& team, converters::Sink& sink, const std::function<void()>& check = [] {});

/// Calls Source::verify_reads() in processes that have read one part each. Collective.
converters::InputCheck verify_reads_together(Team& team, const converters::Source& source,
                                             const TransferOptions& options);

}  // namespace unishard::tools
