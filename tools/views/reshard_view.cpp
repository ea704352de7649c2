#include "views/reshard_view.hpp"

#include "unishard/format/text.hpp"

#include "support/size_text.hpp"
#include "views/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace unishard::cli {
namespace {

/// "0-3, 7"
std::string ranks_text(const std::vector<std::uint32_t>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!out.empty()) out += ", ";
    out += end - i == 1 ? std::to_string(ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return out;
}

}  // namespace

std::string reshard_text(const tools::ReshardPlan& plan, const ReshardSurroundings& around) {
  Table table({{"shard"}, {"bytes", Align::Right}, {"reads source shards"}});
  for (const auto& shard : plan.shards) {
    table.add({shard_file_name(shard.rank, plan.target.world_size),
               tools::format_bytes(shard.payload_bytes), ranks_text(shard.source_shards)});
  }
  return table.text() +
         fmt::format(
             "from {} shards to {} at stage {}: {} of tensors\nmemory: at most {}\n"
             "disk: about {} needed, {} free\n",
             around.source_shards, plan.target.world_size, plan.target.stage,
             tools::format_bytes(plan.payload_bytes), tools::format_bytes(around.memory_bytes),
             tools::format_bytes(plan.disk_bytes), tools::format_bytes(around.free_bytes));
}

Json reshard_json(const tools::ReshardPlan& plan, const ReshardSurroundings& around) {
  Json shards = Json::array();
  for (const auto& shard : plan.shards) {
    shards.push_back({{"rank", shard.rank},
                      {"payload_bytes", shard.payload_bytes},
                      {"source_shards", shard.source_shards}});
  }
  return {{"world_size", plan.target.world_size}, {"stage", plan.target.stage},
          {"payload_bytes", plan.payload_bytes},  {"disk_bytes", plan.disk_bytes},
          {"free_bytes", around.free_bytes},      {"memory_bytes", around.memory_bytes},
          {"shards", std::move(shards)}};
}

std::string resharded_text(const Resharded& done) {
  return fmt::format("identity {}  {}\nidentity {}  {}\n{}\n", done.identity_in,
                     printable(done.input.string()), done.identity_out,
                     printable(done.output.string()),
                     done.is_equal ? "equal: every tensor has the same digest" : "DIFFERENT");
}

Json resharded_json(const Resharded& done) {
  return {{"output", done.output.string()},     {"identity_in", done.identity_in},
          {"identity_out", done.identity_out},  {"equal", done.is_equal},
          {"world_size", done.world_size},      {"stage", done.stage},
          {"payload_bytes", done.payload_bytes}};
}

}  // namespace unishard::cli
