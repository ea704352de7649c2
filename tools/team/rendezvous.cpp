// Files of an earlier job must not be mistaken for files of this one, and no process may delete
// them, because they might belong to a process of this job that arrived first. The protocol
// therefore relies on fresh random numbers:
//
// clang-format off
//  1. Every process but rank 0 writes `hello-<rank>` with a nonce of its own.
//  2. Rank 0 reads all hellos, creates a session folder with a random name, and writes `reply`:
//     that name and the nonces that it read.
//  3. A process accepts a reply only if it contains its own nonce, and then writes `here-<rank>` to
//     the session folder. It ignores old replies and a reply to an old hello.
//  4. When a hello changes (the old one was of a crashed job), rank 0 begins a new session. When
//     all are `here`, it writes `go`: all processes are alive and have seen each other.
// clang-format on
#include "team/rendezvous.hpp"

#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/staging_names.hpp"

#include "team/patience.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

namespace unishard::tools {
namespace {

constexpr std::uint64_t kNonceBytes = 64;
constexpr std::uint64_t kReplyBytes = std::uint64_t{16} << 20;
constexpr const char* kReply = "reply";
constexpr const char* kGo = "go";

std::string hello_of(std::uint32_t rank) { return fmt::format("hello-{}", rank); }
std::string here_of(std::uint32_t rank) { return fmt::format("here-{}", rank); }

class Meeting {
 public:
  Meeting(Storage& storage, const TeamOptions& options)
      : options_(options),
        nonce_(new_save_id()),
        folder_(storage, options.folder, nonce_),
        nonces_(options.size) {}

  TeamFolder hold() {
    try {
      Patience patience(options_.check);
      while (!look()) {
        if (patience.waited() > options_.meet_limit) give_up();
        patience.wait();
      }
      return folder_.below(session_);
    } catch (...) {
      withdraw();
      throw;
    }
  }

 private:
  /// Checks once; returns true when all processes have arrived.
  bool look() {
    try {
      return options_.rank == 0 ? is_complete() : has_begun();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::NotFound) throw;
      return false;  // an earlier job of the same name removed its folder just now
    }
  }

  bool is_complete() {
    folder_.make();
    const auto names = folder_.names();
    std::vector<std::string> nonces(options_.size);
    missing_.clear();
    for (std::uint32_t rank = 1; rank < options_.size; ++rank) {
      if (names.contains(hello_of(rank)))
        nonces[rank] = folder_.get(hello_of(rank), kNonceBytes).value_or("");
      if (nonces[rank].empty()) missing_.push_back(rank);
    }
    if (!missing_.empty()) return false;
    if (session_.empty() || nonces != nonces_) begin_session(std::move(nonces));
    const auto here = folder_.below(session_).names();
    for (std::uint32_t rank = 1; rank < options_.size; ++rank) {
      if (!here.contains(here_of(rank))) missing_.push_back(rank);
    }
    if (missing_.empty()) folder_.below(session_).put(kGo, "");
    return missing_.empty();
  }

  void begin_session(std::vector<std::string> nonces) {
    nonces_ = std::move(nonces);
    session_ = "session-" + new_save_id();
    folder_.below(session_).make();
    folder_.put(kReply, Json{{"session", session_}, {"nonces", nonces_}}.dump());
  }

  /// The part of every process but rank 0.
  bool has_begun() {
    if (!session_.empty() && folder_.below(session_).names().contains(kGo)) return true;
    const auto names = folder_.names();
    // A reply that exists at the start is for another process. An earlier job may remove this
    // process's hello when it leaves.
    if (!said_hello_ || !names.contains(hello_of(options_.rank))) {
      folder_.make();
      folder_.put(hello_of(options_.rank), nonce_);
      said_hello_ = true;
    }
    if (names.contains(kReply)) read_reply();
    return false;
  }

  void read_reply() {
    const auto text = folder_.get(kReply, kReplyBytes);
    if (!text) return;
    const Json reply = parse_json(*text, (folder_.path() / kReply).string());
    const auto field = [&](const char* name) { return reply.is_object() && reply.contains(name); };
    if (!field("session") || !field("nonces") || !reply["session"].is_string() ||
        !reply["nonces"].is_array() || reply["nonces"].size() != options_.size ||
        reply["nonces"][options_.rank] != nonce_) {
      return;  // a reply to another process
    }
    const auto session = reply["session"].get<std::string>();
    if (session == session_ || !is_session(session)) return;
    session_ = session;
    folder_.below(session_).put(here_of(options_.rank), "");
  }

  static bool is_session(std::string_view name) {
    constexpr std::string_view kStart = "session-";
    return name.starts_with(kStart) && is_save_id(name.substr(kStart.size()));
  }

  [[noreturn]] void give_up() {
    if (options_.rank != 0) missing_ = {0};
    const auto seconds = std::chrono::duration<double>(options_.meet_limit).count();
    raise(ErrorCode::PeerFailed,
          fmt::format("waited {:g} s for {} {} of {} in {}", seconds,
                      missing_.size() == 1 ? "rank" : "ranks", fmt::join(missing_, ", "),
                      options_.size, options_.folder.string()),
          "all processes must see that folder; if this process is not meant to be one of several, "
          "pass --procs 1");
  }

  /// The last process to give up removes the folder.
  void withdraw() const noexcept {
    std::error_code ignored;
    if (options_.rank == 0) {
      std::filesystem::remove(folder_.path() / kReply, ignored);
      if (!session_.empty()) std::filesystem::remove_all(folder_.path() / session_, ignored);
    } else {
      std::filesystem::remove(folder_.path() / hello_of(options_.rank), ignored);
    }
    std::filesystem::remove(folder_.path(), ignored);
  }

  const TeamOptions& options_;
  const std::string nonce_;
  const TeamFolder folder_;
  std::vector<std::string> nonces_;  ///< rank 0: those that the session is for
  std::string session_;
  bool said_hello_ = false;
  std::vector<std::uint32_t> missing_;
};

}  // namespace

TeamFolder meet(Storage& storage, const TeamOptions& options) {
  return Meeting(storage, options).hold();
}

}  // namespace unishard::tools
