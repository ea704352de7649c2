#pragma once
// The collectives that ZeRO needs, on raw memory. All ranks must call the same operations in the
// same order. Memory that is passed in must stay alive and untouched until wait() returned. A rank
// that died or stays silent longer than the timeout is Error(PeerFailed); after any exception the
// group is unusable and the process should end. One thread at a time; a second thread needs a group
// of its own, duplicate().
#include "unishard/format/dtype.hpp"
#include "unishard/trainer/rank_environment.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard::trainer {

/// An operation under way. Destroying it without wait() waits and drops the error.
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

  /// Slice r of `out` becomes rank r's `in`. Pre: out.size() == size() * in.size(); `in` is outside
  /// of `out` or exactly this rank's slice of it.
  virtual WorkPtr all_gather(std::span<std::byte> out, std::span<const std::byte> in) = 0;

  /// Cuts every rank's `in` into size() slices and adds this rank's slices of all ranks, rank 0's
  /// first, one after the other onto `accumulator`: (((acc + g0) + g1) + ...). The chain does not
  /// depend on how many ranks there are when micro-batches are dealt round-robin. Pre: `in` holds
  /// size() * accumulator.size() elements of Float32 or BFloat16.
  virtual WorkPtr reduce_scatter_fold(std::span<float> accumulator, DType dtype,
                                      std::span<const std::byte> in) = 0;

  virtual WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) = 0;
  virtual void barrier() = 0;

  /// The same ranks for small exchanges: *this, unless each operation costs a trip through a
  /// device.
  virtual Communicator& control() { return *this; }

  /// Collective: the same ranks as a second group, which another thread may use while this one is
  /// in use. For small exchanges, never through a device. Either may end before the other.
  virtual std::unique_ptr<Communicator> duplicate() = 0;
};

/// Every rank's `mine` (any length), by rank.
std::vector<std::string> gather_text(Communicator& communicator, const std::string& mine);
/// Every rank's `mine` (equal length on all ranks), by rank, back to back.
std::vector<double> gather_doubles(Communicator& communicator, std::span<const double> mine);
/// The largest value of all ranks.
std::int64_t agree_max(Communicator& communicator, std::int64_t mine);

enum class Backend : std::uint8_t {
  Gloo,  ///< TCP between hosts; alone, copies and adds
  Nccl,  ///< Unsupported where this build has no NCCL or a rank has no CUDA device
  Auto,  ///< NCCL where this build has it and this rank has a device, else Gloo; all ranks must
         ///< agree
};

struct CommunicatorOptions {
  Backend backend = Backend::Gloo;
  std::uint32_t timeout_seconds = 600;  ///< silence after which a peer counts as failed
  std::string interface {};  ///< network interface for Gloo; empty: loopback, or the host name's
};

/// A group of one: copies and adds, no network.
std::unique_ptr<Communicator> make_single_communicator();
/// Host memory over TCP. Blocks until all ranks are there. Throws PeerFailed when they do not come.
std::unique_ptr<Communicator> make_gloo_communicator(const RankEnvironment& environment,
                                                     const CommunicatorOptions& options);
/// NCCL; operations are staged through device memory, small exchanges go over a Gloo group
/// (control()). Compiled and linked by the project's builds, never yet run: treat it as untested.
std::unique_ptr<Communicator> make_nccl_communicator(const RankEnvironment& environment,
                                                     const CommunicatorOptions& options);
/// Whether make_nccl_communicator() would find a device for this rank. False in builds without
/// NCCL.
bool has_nccl_device(const RankEnvironment& environment);
/// By options.backend; Gloo in a world of one is make_single_communicator().
std::unique_ptr<Communicator> make_communicator(const RankEnvironment& environment,
                                                const CommunicatorOptions& options = {});

}  // namespace unishard::trainer
