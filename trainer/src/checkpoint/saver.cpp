#include "checkpoint/saver.hpp"

#include "unishard/converters/save_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/trainer/agree.hpp"

#include "checkpoint/describe.hpp"
#include "checkpoint/node_folders.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <future>
#include <utility>

namespace unishard::trainer::detail {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void Saver::claim(const Path& folder) {
  if (!state_.nodes.is_one() && !claims_.contains(folder)) {
    require_separate_folders(communicator_, state_.nodes, *options_.storage, folder);
    finish_publishing(communicator_, state_.nodes, *options_.storage, folder);
  }
  agree(communicator_, "claiming the folder for checkpoints", [&] {
    auto& claim = claims_[folder];
    if (claim) return claim->require_held();
    if (!state_.nodes.is_leader(communicator_.rank())) return;
    Storage& storage = *options_.storage;
    converters::require_own_folder(storage, folder);
    converters::require_writable(storage, folder);
    claim.emplace(storage, folder / converters::kTrainingLockFile, folder);
  });
}

SaveHandle Saver::save(const SaveRequest& request) {
  Call call{Clock::now()};
  settle();
  call.waited = seconds_since(call.started);
  claim(request.folder);
  LocalState local(state_);
  const std::vector<std::string> different = local.take_buffers_of_rank0(communicator_);
  auto save = std::make_unique<Save>(describe(state_, local, communicator_), communicator_.rank(),
                                     state_.nodes, request, options_);
  if (!different.empty() && communicator_.rank() == 0)
    save->warn(fmt::format("the ranks have different values of {}, and the checkpoint has rank 0's",
                           fmt::join(different, ", ")));
  save->begin(communicator_);
  if (request.asynchronous) {
    save_behind(std::move(save), local, call);
    return SaveHandle(last_);
  }
  if (!buffers_) buffers_.emplace(device_, kWriters);
  SaveReport report = save->finish(communicator_, [&](ShardWriter& writer, std::size_t index) {
    give_local(writer, index, locate(local, save->catalog(), save->fragments()[index]), *buffers_);
  });
  report.seconds = report.stall_seconds = seconds_since(call.started);
  report.wait_seconds = call.waited;
  const auto outcome = std::make_shared<SaveOutcome>();
  outcome->succeed(std::move(report));
  return SaveHandle(outcome);
}

void Saver::save_behind(std::unique_ptr<Save> save, const LocalState& local, const Call& call) {
  try {
    make_group();
    agree(communicator_, "copying the state",
          [&] { staging_.capture(local, save->catalog(), save->fragments()); });
  } catch (...) {
    save->abandon();
    throw;
  }
  const auto outcome = std::make_shared<SaveOutcome>();
  std::promise<bool> go;  // a thread begins when every rank has started one
  const auto work = [this, outcome, call, stall = seconds_since(call.started)](
                        Save& one, std::future<bool>& may_go) {
    if (!may_go.get()) return;
    try {
      SaveReport report = one.finish(
          *group_, [&](ShardWriter& writer, std::size_t index) { staging_.give(writer, index); });
      staging_.release();
      report.seconds = seconds_since(call.started);
      report.stall_seconds = stall;
      report.wait_seconds = call.waited;
      outcome->succeed(std::move(report));
    } catch (...) {
      outcome->fail(std::current_exception());
    }
  };
  try {
    agree(communicator_, "starting the thread of the save", [&] {
      thread_ = std::jthread([work, one = std::move(save), may_go = go.get_future()]() mutable {
        work(*one, may_go);
      });
    });
  } catch (...) {
    go.set_value(false);
    throw;
  }
  go.set_value(true);
  last_ = outcome;
}

void Saver::prepare() {
  finish();
  make_group();
  agree(communicator_, "allocating the staging memory",
        [&] { staging_.reserve(bytes_to_stage()); });
}

void Saver::finish() {
  if (thread_.joinable()) thread_.join();
}

/// Ends the last asynchronous save for all ranks alike, because its outcome and whether a caller
/// knows it must not differ between them.
void Saver::settle() {
  finish();
  const auto last = std::exchange(last_, nullptr);
  if (!last || agree_max(communicator_, last->failed()) == 0) return;
  group_.reset();  // a failure may have interrupted one of its operations
  if (agree_max(communicator_, last->waited()) != 0) return;
  last->wait();
  raise(ErrorCode::PeerFailed, "the save before this one failed on another rank");
}

void Saver::make_group() {
  if (!group_) group_ = communicator_.duplicate();
}

std::uint64_t Saver::bytes_to_stage() const {
  const LocalState local(state_);
  const Catalog catalog = describe_layout(state_, local, communicator_.size());
  return plan_staging(local, catalog, plan_shard(catalog, communicator_.rank())).bytes;
}

}  // namespace unishard::trainer::detail
