#include "launch/child_process.hpp"

#include "unishard/format/error.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace unishard::tools {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// Writes the message at once: the other ranks' messages never lie between its words.
[[noreturn]] void end_with_message(const char* action, const char* path) {
  std::array<iovec, 7> parts;
  std::size_t count = 0;
  for (const char* text : {"unishard launch: error: cannot ", action, " ", path, ": ",
                           static_cast<const char*>(::strerror(errno)), "\n"})
    parts[count++] = {const_cast<char*>(text), std::strlen(text)};
  if (::writev(STDERR_FILENO, parts.data(), static_cast<int>(count)) < 0) ::_exit(126);
  ::_exit(127);
}

/// Runs in the child between fork and exec; makes only calls that are safe there.
[[noreturn]] void become_child(pid_t parent, const ChildProcess& child, char* const* argv,
                               char* const* environment) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  // SIGHUP stays as it is: ignored under nohup.
  for (const int number : {SIGTERM, SIGINT, SIGPIPE, SIGCHLD, SIGXFSZ, SIGTSTP})
    ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A background process group must not read the terminal: it would be stopped.
  const int in = child.in >= 0 ? child.in : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (in >= 0) ::dup2(in, STDIN_FILENO);
  if (child.out >= 0) ::dup2(child.out, STDOUT_FILENO);
  if (child.err >= 0) ::dup2(child.err, STDERR_FILENO);
  if (!child.folder.empty() && ::chdir(child.folder.c_str()) != 0)
    end_with_message("enter", child.folder.c_str());
  ::execvpe(argv[0], argv, environment);
  end_with_message("start", argv[0]);
}

}  // namespace

pid_t start_child(ChildProcess child) {
  const std::vector<char*> argv = pointers(child.command);
  const std::vector<char*> environment = pointers(child.environment);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) raise_errno("starting", child.command.front(), errno);
  if (pid == 0) become_child(parent, child, argv.data(), environment.data());
  ::setpgid(pid, pid);  // in parent and child, because either may run first
  return pid;
}

}  // namespace unishard::tools
