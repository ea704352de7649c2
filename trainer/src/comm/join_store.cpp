// Two versions of LibTorch may speak different protocols with their TCPStore: torchrun of one and a
// program built with the other. Neither side notices. The client's reads have no timeout, so it
// hangs, or the server closes the connection. Hence the two measures here: the first thing asked of
// the store is an answer that can be checked, and it is awaited on another thread.
#include "comm/join_store.hpp"

#include "unishard/format/error.hpp"

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

/// A launcher's store runs before its ranks do: it answers at once, or never.
constexpr seconds kHostedStoreTimeout{45};
/// LibTorch's own time-out, where it has one, comes first: its message says more.
constexpr seconds kGrace{2};

/// LibTorch 2.x defaults to a store on libuv, which distributions leave out.
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

/// The result of `body`, or nullopt when it takes longer. Nothing interrupts LibTorch's reads, so
/// its thread is then left behind: the process is expected to end.
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
    raise(ErrorCode::PeerFailed, fmt::format("joining the group: serving {}: {}", where, why),
          "if another program uses the port, set MASTER_PORT to a free one for all ranks");
  }
  raise(
      ErrorCode::PeerFailed,
      fmt::format("joining the group: rank 0 at {} does not answer: {}", where, why),
      "read the message of rank 0; MASTER_ADDR and MASTER_PORT must name its host and a port that "
      "is free there");
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

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
