#include "unishard/format/error.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace unishard {

Error::Error(ErrorCode code, std::string message, std::string hint)
    : std::runtime_error(std::move(message)), code_(code), hint_(std::move(hint)) {}

Error Error::with_context(std::string_view context) const {
  return Error(code_, std::string(context) + what(), hint_);
}

void raise(ErrorCode code, std::string message, std::string hint) {
  throw Error(code, std::move(message), std::move(hint));
}

void raise_errno(std::string_view action, std::string_view path, int error_number) {
  auto code = ErrorCode::Io;
  std::string hint;
  switch (error_number) {
    case ENOENT:
      code = ErrorCode::NotFound;
      break;
    case EEXIST:
    case ENOTEMPTY:
      code = ErrorCode::AlreadyExists;
      break;
    case ENOSPC:
    case EDQUOT:
      code = ErrorCode::NoSpace;
      hint = "free disk space or choose another folder, then run the same command again";
      break;
    case EFBIG:
      code = ErrorCode::NoSpace;
      hint = "raise the limit of the size of a file (ulimit -f), or that of the file system";
      break;
    case EACCES:
    case EPERM:
      hint = "check the owner and permissions of the path";
      break;
    case EMFILE:
      hint = "raise the limit of open files (ulimit -n)";
      break;
    default:
      break;
  }
  raise(code, fmt::format("{} {}: {}", action, path, std::generic_category().message(error_number)),
        std::move(hint));
}

std::string_view to_string(ErrorCode code) {
  static constexpr std::array<std::string_view, 14> kNames = {
      "invalid argument", "not found",    "already exists", "corrupt",   "unsupported",
      "mismatch",         "input/output", "no space",       "cancelled", "peer failed",
      "internal",         "busy",         "memory limit",   "not finite"};
  return kNames.at(static_cast<std::size_t>(code));
}

int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
    case ErrorCode::Mismatch:
      return 2;
    case ErrorCode::Corrupt:
    case ErrorCode::NotFinite:
      return 4;
    case ErrorCode::Internal:
      return 5;
    case ErrorCode::Unsupported:
      return 6;
    case ErrorCode::NotFound:
    case ErrorCode::AlreadyExists:
    case ErrorCode::Io:
    case ErrorCode::NoSpace:
    case ErrorCode::Cancelled:
    case ErrorCode::PeerFailed:
    case ErrorCode::Busy:
    case ErrorCode::MemoryLimit:
      return 3;
  }
  return 5;
}

bool blames_files(ErrorCode code) {
  switch (code) {
    case ErrorCode::NotFound:
    case ErrorCode::AlreadyExists:
    case ErrorCode::Corrupt:
    case ErrorCode::Unsupported:
    case ErrorCode::Mismatch:
      return true;
    case ErrorCode::InvalidArgument:
    case ErrorCode::Io:
    case ErrorCode::NoSpace:
    case ErrorCode::Cancelled:
    case ErrorCode::PeerFailed:
    case ErrorCode::Internal:
    case ErrorCode::Busy:
    case ErrorCode::MemoryLimit:
    case ErrorCode::NotFinite:
      return false;
  }
  return false;
}

std::string quote(std::string_view text) {
  constexpr std::size_t kShown = 200;
  std::size_t shown = std::min(text.size(), kShown);
  while (shown < text.size() && (static_cast<unsigned char>(text[shown]) & 0xc0) == 0x80) --shown;
  std::string escaped;
  for (const char c : text.substr(0, shown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      escaped += '\\';
      escaped += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      escaped += fmt::format("\\u{:04x}", byte);
    } else {
      escaped += c;
    }
  }
  return fmt::format("\"{}{}\"", printable(escaped), shown < text.size() ? "..." : "");
}

void raise_overflow(std::string_view what) {
  raise(ErrorCode::Corrupt, fmt::format("{} is out of range", what));
}

}  // namespace unishard
