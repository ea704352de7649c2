#pragma once
#include "launch/line_prefixer.hpp"
#include "support/descriptor.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace unishard::tools {

/// Writes what the ranks print to this process's standard output and error, and to one log file
/// per rank. A write that fails is reported once, and the ranks continue. Not thread-safe.
class RankOutput {
 public:
  /// `is_prefixed`: "[rank N] " before each line. `log_folder`: made if it is missing, and gets
  /// `rank-N.log` with both streams of each rank, appended to what is there; empty: no logs.
  /// Throws: Io, NotFound, AlreadyExists when the folder cannot be made.
  RankOutput(bool is_prefixed, std::string log_folder);

  /// Takes bytes that a rank wrote to descriptor 1 or 2; none: the stream has ended.
  void write(std::uint32_t rank, int stream, std::string_view bytes);
  /// Writes last lines that have no newline.
  void finish();
  /// Returns the error number of the first failed write; 0 when there was none.
  int failure() const { return failure_; }

 private:
  void write_log(std::uint32_t rank, std::string_view bytes);
  void note_failure(int error, int descriptor, std::string_view what);

  bool is_prefixed_;
  std::string log_folder_;
  std::map<std::pair<std::uint32_t, int>, LinePrefixer> lines_;
  std::map<std::uint32_t, Descriptor> logs_;
  int failure_ = 0;
};

}  // namespace unishard::tools
