#pragma once
// The exception type that all of UniShard throws. The code tells the caller what to do next, the
// message names what failed and where (file, tensor, byte), and the hint suggests a remedy.
// Thread safety: an Error is immutable and may cross threads inside a std::exception_ptr.
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
  PeerFailed,       ///< another rank failed; the message of that rank gives the cause
  Internal,         ///< a bug in UniShard
  Busy,             ///< another process is writing this output: wait for it, or choose another name
  MemoryLimit,      ///< the input needs more memory than is allowed: allow more
  NotFinite,        ///< a training step gave NaN or infinity: continue from an older checkpoint
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message, std::string hint = {});

  ErrorCode code() const noexcept { return code_; }
  /// Returns the remedy to suggest to the user; may be empty.
  const std::string& hint() const noexcept { return hint_; }
  /// Returns a copy whose message begins with `context`, for example "reading /ckpt/x.h5: ".
  Error with_context(std::string_view context) const;

 private:
  ErrorCode code_;
  std::string hint_;
};

/// Throws Error(code, message, hint).
[[noreturn]] void raise(ErrorCode code, std::string message, std::string hint = {});

/// Throws an Error for a failed system call, with the message "<action> <path>: <text of errno>".
/// The code is NoSpace for ENOSPC and EDQUOT, NotFound for ENOENT, AlreadyExists for EEXIST and
/// ENOTEMPTY, else Io.
[[noreturn]] void raise_errno(std::string_view action, std::string_view path, int error_number);

std::string_view to_string(ErrorCode code);

/// Returns the exit status of the tools for `code`: 2 usage, 3 environment, 4 corrupt or not
/// finite, 5 internal, 6 not supported.
int exit_status(ErrorCode code);

/// Returns true when an error with this code tells of the content of the files that were read.
/// False: it tells of the call, of the environment, of another process or of UniShard, and says
/// nothing about the files.
bool blames_files(ErrorCode code);

/// Returns `text` in double quotes, escaped as in JSON and by printable(), and cut after about 200
/// bytes. Messages quote names and bytes from files with it.
std::string quote(std::string_view text);

}  // namespace unishard
