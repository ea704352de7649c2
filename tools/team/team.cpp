// Files in the session's folder (see rendezvous.cpp):
// clang-format off
//   round-<n>-<rank>   the text that a process gave to its n-th gather(), until all have given one
//   round-<n>          the texts of all processes, collected by rank 0; decides the round
//   failed-<rank>      why a process failed; a process that reads it fails too
//   left-<rank>        the process no longer uses the folder
//   alive-<rank>       see peer_watch.cpp
// clang-format on
#include "team/team.hpp"

#include "unishard/format/json.hpp"

#include "team/packed_texts.hpp"
#include "team/patience.hpp"
#include "team/peer_watch.hpp"
#include "team/rendezvous.hpp"
#include "team/team_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace unishard::tools {
namespace {

constexpr std::uint64_t kRoundBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kFailureBytes = std::uint64_t{1} << 20;
constexpr std::chrono::milliseconds kPulse{500};
constexpr std::chrono::seconds kLeaveLimit{30};

using Names = std::set<std::string, std::less<>>;

std::string failed_of(std::uint32_t rank) { return fmt::format("failed-{}", rank); }
std::string part_of(const std::string& round, std::uint32_t rank) {
  return fmt::format("{}-{}", round, rank);
}
std::string left_of(std::uint32_t rank) { return fmt::format("left-{}", rank); }

std::string encode(ErrorCode cause, const std::string& message, const std::string& hint,
                   int signal = 0) {
  return Json{
      {"cause", static_cast<int>(cause)}, {"message", message}, {"hint", hint}, {"signal", signal}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

PeerError decode(const std::string& text, const Path& path) {
  const Json failure = parse_json(text, path.string());
  const auto text_at = [&](const char* key) {
    const bool is_text = failure.is_object() && failure.contains(key) && failure[key].is_string();
    return is_text ? failure[key].get<std::string>() : std::string();
  };
  const auto number_at = [&](const char* key, int last, int otherwise) {
    const bool is_number =
        failure.is_object() && failure.contains(key) && failure[key].is_number_integer();
    return is_number ? std::clamp(failure[key].get<int>(), 0, last) : otherwise;
  };
  constexpr int kLast = static_cast<int>(ErrorCode::MemoryLimit), kLastSignal = 127;
  const int cause = number_at("cause", kLast, static_cast<int>(ErrorCode::Internal));
  return {static_cast<ErrorCode>(cause), text_at("message"), text_at("hint"),
          number_at("signal", kLastSignal, 0)};
}

}  // namespace

class Team::Link {
 public:
  Link(const TeamOptions& options, TeamFolder session)
      : options_(options),
        folder_(std::move(session)),
        watch_(folder_, options.rank, options.silence_limit) {
    watch_.beat();
    pulse_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  const TeamFolder& folder() const { return folder_; }
  void stop_pulse() { pulse_ = {}; }
  std::string next_round() { return fmt::format("round-{}", round_++); }

  /// Rank 0 collects the texts of all processes. Throws when a process has failed by then.
  std::vector<std::string> collect(const std::string& round) {
    std::vector<std::string> texts;
    for (Patience patience(options_.check);; patience.wait()) {
      const Names names = names_now();
      look_for_failures(names);
      check();
      if (is_complete(round, names)) break;
    }
    for (std::uint32_t rank = 0; rank < options_.size; ++rank)
      texts.push_back(text_of(part_of(round, rank)));
    folder_.put(round, pack(texts));
    for (std::uint32_t rank = 0; rank < options_.size; ++rank)
      folder_.remove(part_of(round, rank));  // a short list is quick to read
    return texts;
  }

  /// The other processes read what rank 0 collected. Once it exists, the round is over, whatever
  /// happens next.
  std::vector<std::string> receive(const std::string& round) {
    for (Patience patience(options_.check);; patience.wait()) {
      const Names names = names_now();
      if (names.contains(round)) break;
      look_for_failures(names);
      check();
    }
    return unpack(text_of(round), options_.size, (folder_.path() / round).string());
  }

  /// Waits until the others have left or are dead, or a time limit.
  void wait_until_left() {
    const std::function<void()> nothing;
    for (Patience patience(nothing); patience.waited() < kLeaveLimit; patience.wait()) {
      const Names names = names_now();
      bool all = true;
      for (std::uint32_t rank = 1; rank < options_.size; ++rank)
        all &= names.contains(left_of(rank)) || watch_.look(rank).has_value();
      if (all) return;
    }
  }

  /// Returns the first known failure of another process.
  std::optional<PeerError> look() {
    try {
      look_for_failures(folder_.names());
    } catch (const Error&) {  // there is nothing to see
    }
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  void check() const {
    if (!has_failure_) return;
    const std::lock_guard lock(mutex_);
    if (failure_) throw PeerError(*failure_);
  }

 private:
  void run(const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any asleep;
    while (!stop.stop_requested()) {
      asleep.wait_for(lock, stop, kPulse, [] { return false; });
      try {
        watch_.beat();
        const Names names = folder_.names();
        look_for_failures(names);
        look_for_dead(names);
      } catch (const std::exception&) {  // a later call that uses these files reports it
      }
    }
  }

  /// Returns the names in the folder. They are never empty, because the process's own files are
  /// there while it waits.
  Names names_now() const {
    Names names = folder_.names();
    if (names.empty()) raise_gone(folder_.path());
    return names;
  }

  std::string text_of(const std::string& file) const {
    std::optional<std::string> text = folder_.get(file, kRoundBytes);
    if (!text) raise_gone(folder_.path() / file);
    return std::move(*text);
  }

  [[noreturn]] static void raise_gone(const Path& path) {
    raise(
        ErrorCode::Io,
        fmt::format("{} was deleted while the processes of this job were using it", path.string()),
        "do not remove it while the job runs");
  }

  bool is_complete(const std::string& round, const Names& names) const {
    bool all = true;
    for (std::uint32_t rank = 0; rank < options_.size; ++rank) {
      if (names.contains(part_of(round, rank))) continue;
      all = false;
      // A list may miss a file that appears meanwhile, so it is read a second time.
      if (names.contains(left_of(rank)) && !folder_.names().contains(part_of(round, rank)))
        throw PeerError(ErrorCode::Internal, fmt::format("rank {} has left too early", rank), {});
    }
    return all;
  }

  /// Looks for a failure of this process too, because others may have declared it dead.
  void look_for_failures(const Names& names) {
    for (std::uint32_t rank = 0; rank < options_.size; ++rank) {
      if (!names.contains(failed_of(rank))) continue;
      const auto text = folder_.get(failed_of(rank), kFailureBytes);
      if (text) note(decode(*text, folder_.path() / failed_of(rank)));
    }
  }

  /// Rank 0 watches the others, and they watch rank 0. A process that finds another one dead
  /// records the failure for it.
  void look_for_dead(const Names& names) {
    const bool is_first = options_.rank == 0;
    const std::uint32_t end = is_first ? options_.size : 1;
    for (std::uint32_t rank = is_first ? 1 : 0; rank < end; ++rank) {
      if (has_ended(rank, names)) continue;
      const std::optional<std::string> death = watch_.look(rank);
      if (!death || has_ended(rank, folder_.names())) continue;
      folder_.put(failed_of(rank), encode(ErrorCode::PeerFailed, *death, {}));
      note(PeerError(ErrorCode::PeerFailed, *death, {}));
    }
  }

  static bool has_ended(std::uint32_t rank, const Names& names) {
    return names.contains(left_of(rank)) || names.contains(failed_of(rank));
  }

  void note(const PeerError& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    has_failure_ = true;
  }

  const TeamOptions& options_;
  const TeamFolder folder_;
  PeerWatch watch_;
  std::uint64_t round_ = 0;
  mutable std::mutex mutex_;  ///< guards failure_
  std::optional<PeerError> failure_;
  std::atomic<bool> has_failure_{false};
  std::jthread pulse_;  ///< the last: it uses the others
};

Team::Team() = default;

Team::Team(TeamOptions options) : options_(std::move(options)) {
  if (options_.size > 1) link_ = std::make_unique<Link>(options_, meet(posix_storage(), options_));
}

Team::~Team() {
  if (!link_) return;
  try {
    if (!is_first()) link_->stop_pulse();  // stop the heartbeat before writing `left-<rank>`
    link_->folder().put(left_of(rank()), "");
    if (is_first()) link_->wait_until_left();
    link_.reset();
    if (is_first()) posix_storage().remove_tree(options_.folder);
  } catch (const std::exception&) {  // small files are left behind
  }
}

std::vector<std::string> Team::gather(std::string_view text) {
  if (!link_) return {std::string(text)};
  const std::string round = link_->next_round();
  try {
    link_->folder().put(part_of(round, rank()), text);
    return is_first() ? link_->collect(round) : link_->receive(round);
  } catch (const Error& error) {
    fail("waiting for the others", error);
  }
}

void Team::agree(std::string_view action, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    fail(action, error);
  } catch (const std::bad_alloc&) {
    fail(action, Error(ErrorCode::MemoryLimit, "out of memory",
                       "use fewer --threads, or allow more memory"));
  } catch (const std::exception& error) {
    fail(action, Error(ErrorCode::Internal, error.what()));
  }
  gather("");
}

void Team::check() const {
  if (link_) link_->check();
}

/// Rethrows the exception being handled, or the failure of another process that caused it. Call it
/// in a handler.
void Team::fail(std::string_view action, const Error& error) {
  // A launcher often sends SIGTERM because another process has failed.
  if (link_ && error.code() == ErrorCode::Cancelled) {
    if (const std::optional<PeerError> reason = link_->look()) {
      tell(action, *reason);
      throw PeerError(*reason);
    }
  }
  tell(action, error);
  throw;
}

/// Makes the other processes fail. Rank 0 waits until they have.
void Team::tell(std::string_view action, const Error& error) {
  if (!link_ || std::exchange(failed_, true)) return;
  try {
    if (error.code() != ErrorCode::PeerFailed) {
      const std::string message =
          fmt::format("{} failed on rank {}: {}", action, rank(), error.what());
      const bool is_stopped = error.code() == ErrorCode::Cancelled && options_.stop_signal;
      link_->folder().put(failed_of(rank()), encode(error.code(), message, error.hint(),
                                                    is_stopped ? options_.stop_signal() : 0));
    }
    if (is_first()) link_->wait_until_left();
  } catch (const std::exception&) {  // the others find out by this process's silence
  }
}

}  // namespace unishard::tools
