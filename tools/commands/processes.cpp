#include "commands/processes.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/launch_environment.hpp"

#include "launch/launcher.hpp"
#include "support/machine.hpp"
#include "support/size_text.hpp"
#include "views/progress.hpp"
#include "views/terminal.hpp"
#include "workflows/native_folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

namespace unishard::cli {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

namespace {

/// Environment variable with the folder in which the processes of `--procs` meet.
constexpr const char* kTeamVariable = "UNISHARD_TEAM";

Path temporary_folder() {
  std::error_code code;
  Path path = std::filesystem::temp_directory_path(code);
  if (code) {
    raise(ErrorCode::Io, fmt::format("the folder for temporary files: {}", code.message()),
          "set TMPDIR to a folder that is there");
  }
  return path;
}

/// Returns the nearest existing folder, in which a new folder can be created.
Path nearest_existing(Path folder) {
  std::error_code code;
  while (!std::filesystem::is_directory(folder, code) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder;
}

/// A folder of this process, removed at the end.
class PrivateFolder {
 public:
  PrivateFolder() : path_((temporary_folder() / "unishard-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) raise_errno("creating", path_, errno);
  }
  ~PrivateFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A name that all processes of a launch share, and that differs for any two launches at the same
/// time.
Path meeting_place(const LaunchEnvironment& job, const Processes::Work& work,
                   const std::string& verb) {
  const Path target = tools::absolute_folder(work.path);
  const bool in_temporary = work.kind == Processes::Work::Kind::Reads && job.one_host;
  const std::string key = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", ::geteuid(), job.launcher, job.id(),
                                      job.world_size, verb, target.string());
  return (in_temporary ? temporary_folder() : nearest_existing(target.parent_path())) /
         (".unishard-team-" + hex64(crc64(key)));
}

/// Throws: InvalidArgument when so many processes leave no memory for any work.
void require_memory(unsigned count) {
  constexpr std::uint64_t kOfEach = std::uint64_t{32} << 20;  // program, threads, one small buffer
  const std::uint64_t available = tools::available_memory();
  if (available / kOfEach >= count) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("--procs {}: so many processes take at least {}, and {} are available", count,
                    tools::format_bytes(count * kOfEach), tools::format_bytes(available)),
        fmt::format("this machine has {} hardware threads: more processes than these gain nothing",
                    tools::hardware_threads()));
}

}  // namespace

void Processes::add_to(CLI::App& app) {
  app.add_option(
         "--procs", count,
         "Processes that share the work, each with its own --threads and --memory-limit. "
         "Default: those that torchrun, mpirun or srun started; 1: this one alone, in spite "
         "of a launcher's variables")
      ->check(CLI::Range(1u, 4096u));
}

int Processes::run(const Work& work, const std::function<int(tools::Team&)>& body) const {
  tools::TeamOptions options;
  const auto parent = environment(kTeamVariable);
  const bool is_started = count > 1 && parent.has_value();
  if (count == 0 || is_started) {
    const LaunchEnvironment job = read_launch_environment(
        environment, "pass --procs 1 if this process is not meant to be one of several");
    options = {.rank = job.rank, .size = job.world_size};
    if (is_started) {
      options.folder = Path(*parent) / "team";
    } else if (job.world_size > 1) {
      options.folder = meeting_place(job, work, command.front());
    }
  }
  if (work.kind == Work::Kind::Whole) {
    if (options.rank > 0) return 0;
    tools::Team alone;
    return body(alone);
  }
  if (count > 1 && !is_started) return launch();
  return run_in_team(std::move(options), body);
}

int Processes::run_in_team(tools::TeamOptions options,
                           const std::function<int(tools::Team&)>& body) const {
  if (options.size > 1) {
    // The second signal is often the launcher's answer to the first process that stopped.
    catch_interrupts(SecondInterrupt::Ignored);
    options.check = throw_if_interrupted;
    options.stop_signal = interrupting_signal;
  }
  const bool is_first = options.rank == 0;
  bool has_met = false;
  std::optional<int> done;  // the status of the work, once it is done here
  try {
    tools::Team team(std::move(options));
    has_met = true;
    team.agree(command.front(), [&] { done = body(team); });
    return *done;
  } catch (const std::exception& error) {
    if (is_first && done) {
      say(fmt::format("note: {}; the result was complete by then", error.what()));
      return *done;
    }
    if (is_first || !has_met || cause_of(error) == ErrorCode::PeerFailed) throw;
    return status_of(error);  // rank 0 reports the error for all
  }
}

int Processes::launch() const {
  require_memory(count);
  const PrivateFolder folder;
  if (::setenv(kTeamVariable, folder.path().c_str(), 1) != 0)
    raise_errno("setting", kTeamVariable, errno);
  tools::LaunchOptions options{.ranks = count, .command = command};
  options.command.insert(options.command.begin(),
                         std::filesystem::read_symlink("/proc/self/exe").string());
  const auto failure = tools::launch(options);
  if (!failure) return 0;
  constexpr int kFound = 1;  // differences or damage
  if (failure->first_rank_exit && *failure->first_rank_exit <= kFound) {
    if (failure->rank != 0)
      say(fmt::format("note: {} after the result was complete", failure->text()));
    return *failure->first_rank_exit;
  }
  if (failure->signal != 0) {
    say_error(command.front(), ErrorCode::PeerFailed,
              failure->text() + "; the other processes were stopped", {});
  }
  return failure->status();
}

ErrorCode cause_of(const std::exception& error) {
  if (const auto* peer = dynamic_cast<const tools::PeerError*>(&error)) return peer->cause();
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->code();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return ErrorCode::MemoryLimit;
  // A thread that cannot be started, a folder that cannot be walked.
  const bool is_system = dynamic_cast<const std::system_error*>(&error) != nullptr;
  return is_system ? ErrorCode::Io : ErrorCode::Internal;
}

int status_of(const std::exception& error) {
  if (dynamic_cast<const ClosedPipe*>(&error) != nullptr) return 128 + SIGPIPE;
  const ErrorCode cause = cause_of(error);
  if (cause != ErrorCode::Cancelled) return exit_status(cause);
  const auto* peer = dynamic_cast<const tools::PeerError*>(&error);
  return 128 + (peer != nullptr && peer->signal() != 0 ? peer->signal() : interrupting_signal());
}

}  // namespace unishard::cli
