#pragma once
// The one exception type of UniShard. A code says what the caller can do next, the message says
// what failed and where (file, tensor, byte), the hint says what to try. Values are immutable and
// may cross threads inside a std::exception_ptr.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace unishard {

enum class ErrorCode : std::uint8_t {
  InvalidArgument,  ///< fix the call, the option or the configuration
  NotFound,         ///< the path, tag or tensor is not there
  AlreadyExists,    ///< choose another name; nothing was overwritten
  Corrupt,          ///< the bytes are damaged: try another checkpoint
  Unsupported,      ///< valid, but written by a newer version or with an unknown feature
  Mismatch,         ///< shapes, dtypes or names differ from what was asked for
  Io,               ///< the environment failed; a retry may help
  NoSpace,          ///< free disk space and retry
  Cancelled,        ///< stopped on request
  PeerFailed,       ///< another rank failed; its message is the one to read
  Internal,         ///< a bug in UniShard
  Busy,             ///< another process is writing this output: wait for it, or choose another
  MemoryLimit,      ///< the input needs more memory than is allowed: allow more
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message, std::string hint = {});

  ErrorCode code() const noexcept { return code_; }
  /// What to try next; may be empty.
  const std::string& hint() const noexcept { return hint_; }
  /// The same failure with `context` ("reading /ckpt/x.h5: ") put before the message.
  Error with_context(std::string_view context) const;

 private:
  ErrorCode code_;
  std::string hint_;
};

[[noreturn]] void raise(ErrorCode code, std::string message, std::string hint = {});

/// Throws NoSpace for ENOSPC and EDQUOT, NotFound for ENOENT, AlreadyExists for EEXIST and
/// ENOTEMPTY, else Io. The message reads "<action> <path>: <text of errno>".
[[noreturn]] void raise_errno(std::string_view action, std::string_view path, int error_number);

std::string_view to_string(ErrorCode code);

/// Exit status of the tools: 3 environment, 4 corrupt or unsupported, 2 usage, 5 internal.
int exit_status(ErrorCode code);

/// `text` in double quotes, escaped as in JSON (and, beyond that, printable()): for names and bytes
/// from files in messages.
std::string quote(std::string_view text);

}  // namespace unishard
