#pragma once
// The part of a job that one host runs, as a value that can be sent to it.
#include "launch/environment_file.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

struct HostJob {
  std::vector<std::string> command;  ///< program, looked up in PATH, and its arguments
  /// Words before `--local_rank=N`, which each rank gets with its number on the host; 0: it gets
  /// none.
  std::uint32_t words_before_local_rank = 0;
  std::string folder;   ///< working folder of the ranks; empty: that of this process
  Variables variables;  ///< set for every rank, before those of its place
  std::uint32_t first_rank = 0;
  std::uint32_t ranks = 1;  ///< on this host, from first_rank on
  std::uint32_t world_size = 1;
  std::string master_addr;
  std::uint16_t master_port = 0;
};

/// Returns the job as one text of any bytes, which unpack_job() takes.
std::string pack_job(const HostJob& job);
/// Throws: Corrupt when `text` is not from pack_job().
HostJob unpack_job(std::string_view text);

}  // namespace unishard::tools
