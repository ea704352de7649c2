#include "saves.hpp"

#include "unishard/trainer/agree.hpp"

#include "console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

namespace train_gpt {
namespace {

using namespace unishard;
using namespace unishard::trainer;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// Returns the bytes that the kernel estimates can be used without swapping; 0 when it does not
/// report them.
std::uint64_t available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kField = "MemAvailable:";
    if (line.starts_with(kField)) return std::stoull(line.substr(kField.size())) * 1024;
  }
  return 0;
}

/// Empty when the ranks of this host have room to stage what they would; else what is missing.
std::string lack_of_memory(const Engine& engine, Communicator& communicator) {
  const std::string host = host_name();
  const auto hosts = gather_text(communicator, host);
  const std::vector<double> mine{static_cast<double>(engine.bytes_to_stage())};
  const auto bytes = gather_doubles(communicator, mine);
  double needed = 0;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] == host) needed += bytes[rank];
  }
  const auto available = static_cast<double>(available_bytes());
  if (available >= 2 * needed) return {};
  return fmt::format("asynchronous ones would copy {:.0f} MB on {}, where {:.0f} MB are available",
                     needed / 1e6, host, available / 1e6);
}

}  // namespace

void Saves::claim() {
  if (!options_.save_folder.empty()) engine_.claim_save_folder(options_.save_folder);
}

void Saves::require_free_names(const unishard::converters::ResumeDecision& start) {
  start_ = start;
  if (options_.save_folder.empty()) return;
  agree(communicator_, "looking for the names of the checkpoints", [&] {
    if (communicator_.rank() != 0 && !options_.config.node_local_checkpoints) return;
    unishard::converters::require_free_names(posix_storage(), options_.save_folder,
                                             {.prefix = options_.tag_prefix,
                                              .first = engine_.global_steps(),
                                              .last = options_.steps,
                                              .interval = options_.save_interval},
                                             /*may_replace=*/!start.beside);
  });
}

void Saves::prepare() {
  if (options_.save_folder.empty()) return;
  asynchronous_ = options_.async_save.value_or(true);
  if (!options_.async_save) {
    const auto lacks = gather_text(communicator_, lack_of_memory(engine_, communicator_));
    const auto lack = std::ranges::find_if_not(lacks, &std::string::empty);
    asynchronous_ = lack == lacks.end();
    if (!asynchronous_ && communicator_.rank() == 0)
      say(fmt::format("  note: saves are synchronous: {}\n", *lack));
  }
  if (asynchronous_) engine_.prepare_asynchronous_saves();
}

void Saves::note_short_interval(double save_seconds, double step_seconds) {
  const auto enough = static_cast<std::int64_t>(std::ceil(save_seconds / step_seconds));
  const bool is_noted = has_noted_interval_ || enough <= options_.save_interval;
  if (is_noted || communicator_.rank() != 0) return;
  has_noted_interval_ = true;
  say(
      fmt::format("  note: the save before took {:.2f} s, longer than the steps after it: with "
                  "--save-interval {} or more, training would not wait for it\n",
                  save_seconds, enough));
}

void Saves::start() {
  if (options_.save_folder.empty() || started_step_ == engine_.global_steps()) return;
  const std::chrono::duration<double> passed = Clock::now() - goes_on_;
  const bool is_by_interval = options_.save_interval > 0 &&
                              engine_.global_steps() == started_step_ + options_.save_interval;
  const bool waits = asynchronous_ && is_by_interval && last_.has_value();
  started_step_ = engine_.global_steps();
  const SaveHandle next =
      engine_.save_checkpoint({.folder = options_.save_folder,
                               .tag = options_.tag_prefix + std::to_string(engine_.global_steps()),
                               .client_state = client_state_,
                               .keep_last = start_.beside_whole ? 0 : options_.keep_last,
                               .replace = !start_.beside,
                               .asynchronous = asynchronous_,
                               .compression = options_.compression,
                               .incremental = options_.incremental_save});
  if (waits)
    note_short_interval(last_->wait().seconds,
                        passed.count() / static_cast<double>(options_.save_interval));
  finish();  // the one before; it is durable
  last_ = next;
  goes_on_ = Clock::now();
  if (!asynchronous_) finish();
}

void Saves::finish() {
  if (!last_) return;
  const SaveHandle last = *last_;
  last_.reset();
  const SaveReport& report = last.wait();
  if (communicator_.rank() == 0) print_save(report);
}

}  // namespace train_gpt
