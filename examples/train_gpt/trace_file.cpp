#include "trace_file.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/agree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

namespace train_gpt {
namespace {

using unishard::Json;

void begin_at_zero(Json& events) {
  double first = std::numeric_limits<double>::max();
  for (const Json& event : events) first = std::min(first, event["ts"].get<double>());
  for (Json& event : events) event["ts"] = event["ts"].get<double>() - first;
}

}  // namespace

void write_trace_file(const std::string& path, const Json& events,
                      unishard::trainer::Communicator& communicator, const std::string& hint) {
  const auto ranks = gather_text(communicator, events.dump());
  agree(communicator, "writing the trace", [&] {
    if (communicator.rank() != 0) return;
    Json all = Json::array();
    for (const std::string& rank : ranks) {
      Json one = Json::parse(rank);
      for (Json& event : one) all.push_back(std::move(event));
    }
    begin_at_zero(all);
    std::ofstream file(path, std::ios::trunc);
    file << kTraceStart << all.dump() << R"(,"displayTimeUnit":"ms"})" << std::flush;
    if (file) return;
    raise(unishard::ErrorCode::Io,
          fmt::format("writing {}: {}", path, std::generic_category().message(errno)), hint);
  });
}

}  // namespace train_gpt
