#pragma once
// The collectives that ZeRO needs, on host memory. All ranks must call the same operations in the
// same order. A group with NCCL gives the engine collectives on its device's memory, too.
// Lifetime: memory passed to an operation must stay alive and unchanged until wait() has returned.
// Throws: PeerFailed when a rank died or was silent for longer than the timeout, naming the
// operation and the ranks that did not answer. After any exception the group is unusable and the
// process should end.
// Thread safety: a communicator is not thread-safe; a second thread needs its own group from
// duplicate().
#include "unishard/format/dtype.hpp"
#include "unishard/trainer/rank_environment.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard::trainer {

/// An operation in progress. The destructor waits and ignores the error; call wait().
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t size() const = 0;

  /// Copies the `in` of rank r to slice r of `out`.
  /// Pre: out.size() == size() * in.size(); `in` is outside `out` or exactly this rank's slice of
  /// it.
  virtual WorkPtr all_gather(std::span<std::byte> out, std::span<const std::byte> in) = 0;

  /// Splits every rank's `in` into size() slices and adds this rank's slices to `accumulator` one
  /// after the other, rank 0's first: (((acc + g0) + g1) + ...). When micro-batches are assigned
  /// round-robin, this order of additions does not depend on the number of ranks.
  /// Pre: `in` holds size() * accumulator.size() elements of Float32, BFloat16 or Float16.
  virtual WorkPtr reduce_scatter_fold(std::span<float> accumulator, DType dtype,
                                      std::span<const std::byte> in) = 0;

  virtual WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) = 0;
  virtual void barrier() = 0;

  /// Creates a second group of the same ranks, which another thread may use at the same time. It is
  /// for host memory alone. Either group may be destroyed first. Collective.
  virtual std::unique_ptr<Communicator> duplicate() = 0;
};

/// Returns every rank's `mine`, of any length, by rank.
std::vector<std::string> gather_text(Communicator& communicator, const std::string& mine);
/// Returns the `text` of rank `root`, of any length.
std::string broadcast_text(Communicator& communicator, const std::string& text, std::uint32_t root);
/// Returns every rank's `mine`, by rank, back to back.
/// Pre: all ranks pass the same number of values.
std::vector<double> gather_doubles(Communicator& communicator, std::span<const double> mine);
/// Returns the largest value of all ranks.
std::int64_t agree_max(Communicator& communicator, std::int64_t mine);

enum class Backend : std::uint8_t {
  Gloo,  ///< TCP between hosts; no network in a world of one. What is on a device passes the host
  Nccl,  ///< also from device to device; Unsupported without NCCL or with a rank without a device
  Auto,  ///< NCCL when every rank's build has it and every rank has a device of its own, else Gloo
};

struct CommunicatorOptions {
  Backend backend = Backend::Gloo;
  std::uint32_t timeout_seconds = 600;  ///< silence after which a peer counts as failed
  std::string interface {};  ///< network interface for Gloo; empty: loopback, or the host name's
};

/// Returns a group of one rank: copies and adds without a network.
std::unique_ptr<Communicator> make_single_communicator();
/// Returns true when NCCL would find a device for this rank, that of its local rank; false in
/// builds without NCCL.
bool has_nccl_device(const RankEnvironment& environment);
/// Returns a group of options.backend. Blocks until all ranks have joined. A world of one has no
/// network unless it asks for NCCL. NCCL has run with one rank on a device, and never with several:
/// treat that as untested.
/// Throws: PeerFailed when the ranks do not join in time; on every rank, Mismatch or Unsupported
/// when they do not agree on a backend.
std::unique_ptr<Communicator> make_communicator(const RankEnvironment& environment,
                                                const CommunicatorOptions& options = {});

}  // namespace unishard::trainer
