#include "team/team_folder.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace unishard::tools {

void TeamFolder::make() const {
  if (::mkdir(path_.c_str(), S_IRWXU) == 0) return;
  if (errno != EEXIST) raise_errno("creating", path_.native(), errno);
  struct stat status {};
  if (::lstat(path_.c_str(), &status) != 0) {
    if (errno == ENOENT) return make();  // the job before removed it at this moment
    raise_errno("looking at", path_.native(), errno);
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} is not a folder of this user, and the processes of this job would meet "
                      "there",
                      path_.native()),
          "remove it, or set TMPDIR");
  }
}

void TeamFolder::put(const std::string& name, std::string_view text) const {
  const Path beside = path_ / fmt::format(".{}-{}", writer_, name);
  {
    const auto file = storage_.create(beside);
    file->write_at(0, std::as_bytes(std::span(text)));
    file->close();
  }
  storage_.rename(beside, path_ / name);
}

std::optional<std::string> TeamFolder::get(const std::string& name,
                                           std::uint64_t limit_bytes) const {
  try {
    return read_text(storage_, path_ / name, limit_bytes);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::NotFound) return std::nullopt;
    throw;
  }
}

std::set<std::string, std::less<>> TeamFolder::names() const {
  std::set<std::string, std::less<>> names;
  try {
    for (Entry& entry : storage_.list(path_)) names.insert(std::move(entry.name));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound) throw;
  }
  return names;
}

}  // namespace unishard::tools
