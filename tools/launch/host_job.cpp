#include "launch/host_job.hpp"

#include "unishard/format/error.hpp"

#include "launch/message.hpp"
#include "team/packed_texts.hpp"

#include <fmt/format.h>

namespace unishard::tools {
namespace {

constexpr std::string_view kHostJob = "the job of a host";

}  // namespace

std::string pack_job(const HostJob& job) {
  std::vector<std::string> names, values;
  for (const auto& [name, value] : job.variables) {
    names.push_back(name);
    values.push_back(value);
  }
  return pack({std::to_string(job.command.size()), pack(job.command), job.folder,
               std::to_string(names.size()), pack(names), pack(values),
               std::to_string(job.first_rank), std::to_string(job.ranks),
               std::to_string(job.world_size), job.master_addr, std::to_string(job.master_port),
               std::to_string(job.words_before_local_rank)});
}

HostJob unpack_job(std::string_view text) {
  const std::vector<std::string> fields = unpack(text, 12, kHostJob);
  HostJob job{.command = unpack(fields[1], message_number(fields[0]), kHostJob),
              .words_before_local_rank = message_number(fields[11]),
              .folder = fields[2],
              .variables = {},
              .first_rank = message_number(fields[6]),
              .ranks = message_number(fields[7]),
              .world_size = message_number(fields[8]),
              .master_addr = fields[9],
              .master_port = static_cast<std::uint16_t>(message_number(fields[10]))};
  if (job.words_before_local_rank > job.command.size())
    raise(ErrorCode::Corrupt, fmt::format("{}: the place of --local_rank is wrong", kHostJob));
  const std::uint32_t count = message_number(fields[3]);
  const std::vector<std::string> names = unpack(fields[4], count, kHostJob);
  const std::vector<std::string> values = unpack(fields[5], count, kHostJob);
  for (std::uint32_t i = 0; i < count; ++i) job.variables.emplace_back(names[i], values[i]);
  return job;
}

}  // namespace unishard::tools
