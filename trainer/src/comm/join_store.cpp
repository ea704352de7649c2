// Two versions of LibTorch may use different protocols for their TCPStore, for example torchrun of
// one and a program built with the other. Neither side notices: the client's reads have no timeout,
// so it hangs, or the server closes the connection. Therefore the first request to the store is one
// whose answer can be checked, and another thread waits for that answer.
#include "comm/join_store.hpp"

#include "unishard/format/error.hpp"

#include "comm/operation_scope.hpp"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <thread>

namespace unishard::trainer::detail {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using std::chrono::seconds;

/// A launcher's store runs before its ranks do, so it answers at once or never.
constexpr seconds kHostedStoreTimeout{45};
/// LibTorch's own time-out, if it has one, expires first, because its message is more precise.
constexpr seconds kGrace{2};

/// LibTorch 2.x defaults to a store on libuv, which distributions omit.
template <class Options>
void without_libuv(Options& options) {
  if constexpr (requires { options.useLibUV; }) options.useLibUV = false;
}

StorePtr connect(const RankEnvironment& environment, seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = environment.rank == 0 && !environment.store_is_hosted;
  options.numWorkers = environment.world_size;
  options.waitWorkers = false;
  options.timeout = timeout;
  without_libuv(options);
  const auto tcp = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  return c10::make_intrusive<c10d::PrefixStore>(environment.group, tcp);
}

/// Writes a value and reads it back.
void check_answer(c10d::Store& store, std::uint32_t rank) {
  const std::string key = fmt::format("hello/{}", rank);
  const std::vector<std::uint8_t> value{'u', 'n', 'i', 's', 'h', 'a', 'r', 'd'};
  store.set(key, value);
  if (store.get(key) != value) throw std::runtime_error("it does not return what was stored");
}

/// Returns the result of `body`, or nullopt when it takes longer. Nothing can interrupt LibTorch's
/// reads, so the thread is then abandoned: the process is expected to end.
std::optional<StorePtr> within(seconds limit, std::function<StorePtr()> body) {
  std::packaged_task<StorePtr()> task(std::move(body));
  std::future<StorePtr> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

[[noreturn]] void give_up(const RankEnvironment& environment, const std::string& why) {
  const std::string where = fmt::format("{}:{}", environment.master_addr, environment.master_port);
  if (environment.store_is_hosted) {
    raise(ErrorCode::PeerFailed,
          fmt::format("joining the group: {}'s store at {} does not answer in the protocol of this "
                      "program's LibTorch {}: {}",
                      environment.launcher, where, TORCH_VERSION, why),
          "torchrun is probably of another torch version: start it with --rdzv-backend c10d and "
          "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, use `unishard launch`, or build with torchrun's "
          "torch");
  }
  if (environment.rank == 0) {
    raise(
        ErrorCode::PeerFailed, fmt::format("joining the group: serving {}: {}", where, why),
        "MASTER_ADDR must be an address of this host, and MASTER_PORT a port that no other program "
        "uses: set them alike for all ranks");
  }
  raise(
      ErrorCode::PeerFailed,
      fmt::format("joining the group: rank 0 at {} does not answer: {}", where, why),
      "read the message of rank 0; MASTER_ADDR and MASTER_PORT must name its host and a port that "
      "is free there");
}

}  // namespace

StorePtr join_store(const RankEnvironment& environment, const CommunicatorOptions& options) {
  const seconds timeout = environment.store_is_hosted
                              ? std::min(seconds(options.timeout_seconds), kHostedStoreTimeout)
                              : seconds(options.timeout_seconds);
  std::optional<StorePtr> store;
  try {
    store = within(timeout + kGrace, [environment, timeout] {
      StorePtr joined = connect(environment, timeout);
      check_answer(*joined, environment.rank);
      return joined;
    });
  } catch (const std::exception& failure) {
    give_up(environment, first_line(failure.what()));
  }
  if (!store) give_up(environment, fmt::format("silence for {} s", (timeout + kGrace).count()));
  return *store;
}

}  // namespace unishard::trainer::detail
