// Uses c10d's Gloo for bytes only. Old versions cannot move bf16 and have no reduce-scatter, so the
// reduction is alltoall_base plus the fold of fold.hpp, and an all-gather is one broadcast per rank
// (half the time of Gloo's ring). No c10d type leaves this folder, because their base classes
// differ between versions.
#include "unishard/format/error.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/fold.hpp"

#include "comm/deferred_work.hpp"
#include "comm/failure_board.hpp"
#include "comm/groups.hpp"
#include "comm/join_store.hpp"
#include "comm/operation_scope.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <functional>
#include <utility>

namespace unishard::trainer {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

at::Tensor byte_tensor(std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()),
                       {static_cast<std::int64_t>(bytes.size())},
                       at::TensorOptions().dtype(at::kByte));
}

class GlooCommunicator final : public Communicator {
 public:
  /// Pre: no other group uses `store`.
  GlooCommunicator(const RankEnvironment& environment, const CommunicatorOptions& options,
                   StorePtr store)
      : environment_(environment), options_(options), store_(std::move(store)) {
    join();
  }

  std::uint32_t rank() const override { return environment_.rank; }
  std::uint32_t size() const override { return environment_.world_size; }

  std::unique_ptr<Communicator> duplicate() override {
    const std::string prefix = "duplicate/" + std::to_string(++duplicates_);
    return std::make_unique<GlooCommunicator>(
        environment_, options_, c10::make_intrusive<c10d::PrefixStore>(prefix, store_));
  }

  WorkPtr all_gather(std::span<std::byte> out, std::span<const std::byte> in) override {
    if (out.size() != in.size() * size())
      raise(ErrorCode::Internal, "all_gather: the sizes differ");
    if (in.empty()) return std::make_unique<detail::DeferredWork>(nullptr);
    const auto own = out.subspan(rank() * in.size(), in.size());
    if (own.data() != in.data()) std::copy(in.begin(), in.end(), own.begin());
    return translated("all-gather", [&] {
      std::vector<WorkHandle> works;
      for (std::uint32_t root = 0; root < size(); ++root) {
        works.push_back(start_broadcast(out.subspan(root * in.size(), in.size()), root));
      }
      return pending("all-gather", [works] {
        for (const auto& work : works) work->wait();
      });
    });
  }

  WorkPtr reduce_scatter_fold(std::span<float> accumulator, DType dtype,
                              std::span<const std::byte> in) override {
    if (in.size() != accumulator.size() * size_of(dtype) * size()) {
      raise(ErrorCode::Internal, "reduce_scatter_fold: the sizes differ");
    }
    return translated("reduce-scatter", [&] {
      at::Tensor received = at::empty({static_cast<std::int64_t>(in.size())}, at::kByte);
      at::Tensor sent = byte_tensor(in);
      std::vector<std::int64_t> even;
      auto work = group_->alltoall_base(received, sent, even, even);
      return pending("reduce-scatter", [=, ranks = size()] {
        work->wait();
        const auto* data = static_cast<const std::byte*>(received.data_ptr());
        const std::size_t slice = accumulator.size() * size_of(dtype);
        for (std::size_t r = 0; r < ranks; ++r)
          fold_add(accumulator, dtype, {data + r * slice, slice});
      });
    });
  }

  WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) override {
    return translated("broadcast", [&] {
      auto work = start_broadcast(bytes, root);
      return pending("broadcast", [work] { work->wait(); });
    });
  }

  void barrier() override {
    translated("barrier", [&] { group_->barrier()->wait(); });
  }

 private:
  using WorkHandle = decltype(std::declval<c10d::ProcessGroupGloo&>().barrier());

  /// Runs `body`. Errors of Gloo and the store become PeerFailed, with what the other ranks say.
  template <class Body>
  std::invoke_result_t<Body> translated(const char* what, Body&& body) {
    try {
      return body();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& failure) {
      const std::string operation = detail::in_scope(what);
      const std::string others = detail::ask_about_failure(
          *store_, environment_.store_is_hosted ? "the launcher" : "rank 0", rank(), size(),
          operation);
      raise(ErrorCode::PeerFailed,
            operation + ": " + detail::first_line(failure.what()) +
                (others.empty() ? "" : "; " + others),
            "another rank ended, hangs or is unreachable: read its message, then restart all "
            "ranks");
    }
  }

  /// Runs `finish` under translated().
  WorkPtr pending(const char* what, std::function<void()> finish) {
    return std::make_unique<detail::DeferredWork>(
        [this, what, finish = std::move(finish)] { translated(what, finish); });
  }

  void join() {
    translated("joining the group", [&] {
      auto gloo =
          c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(options_.timeout_seconds));
      gloo->devices.push_back(device());
      gloo->threads = 2;
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, static_cast<int>(rank()),
                                                           static_cast<int>(size()), gloo);
    });
  }

  std::shared_ptr<gloo::transport::Device> device() const {
    using Gloo = c10d::ProcessGroupGloo;
    if (!options_.interface.empty()) return Gloo::createDeviceForInterface(options_.interface);
    const std::string& host = environment_.master_addr;
    const bool loopback = host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
    return loopback ? Gloo::createDeviceForHostname("127.0.0.1") : Gloo::createDefaultDevice();
  }

  WorkHandle start_broadcast(std::span<std::byte> bytes, std::uint32_t root) {
    std::vector<at::Tensor> tensors{byte_tensor(bytes)};
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<int>(root);
    return group_->broadcast(tensors, options);
  }

  RankEnvironment environment_;
  CommunicatorOptions options_;
  StorePtr store_;  // outlives group_
  int duplicates_ = 0;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<Communicator> detail::make_gloo_communicator(
    const RankEnvironment& environment, const CommunicatorOptions& options,
    c10::intrusive_ptr<c10d::Store> store) {
  return std::make_unique<GlooCommunicator>(environment, options, std::move(store));
}

}  // namespace unishard::trainer
