#include "launch/pid_file.hpp"

#include "unishard/format/error.hpp"

#include "support/descriptor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

namespace unishard::tools {

PidFile::PidFile(const std::string& folder)
    : path_(fmt::format("{}/{}.deepspeed", folder, ::getpid())) {
  constexpr mode_t kReadableByAll = 0644;
  // The folder is open to others: no link of theirs is followed.
  const Descriptor file(
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kReadableByAll));
  if (file.get() < 0) raise_errno("creating", path_, errno);
  const std::string text = std::to_string(::getpid());
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    raise_errno("writing", path_, errno);
}

PidFile::~PidFile() { ::unlink(path_.c_str()); }

}  // namespace unishard::tools
