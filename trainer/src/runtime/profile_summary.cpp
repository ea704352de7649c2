#include "unishard/trainer/operator_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace unishard::trainer {
namespace {

/// Rows of each table; what is left is one row more.
constexpr std::size_t kRows = 30;

struct Row {
  std::string name;
  std::int64_t count = 0;
  double time = 0;  ///< microseconds
};

double end_of(const ProfiledWork& work) { return work.begin + work.duration; }

/// Returns for each work its duration without that of the work of the same lane inside it.
std::vector<double> own_times(const std::vector<ProfiledWork>& work) {
  std::vector<double> own(work.size());
  std::map<std::string, std::vector<std::size_t>> open;  // by lane, the innermost last
  for (std::size_t i = 0; i < work.size(); ++i) {
    own[i] = work[i].duration;
    std::vector<std::size_t>& around = open[work[i].lane];
    while (!around.empty() && end_of(work[around.back()]) < end_of(work[i])) around.pop_back();
    if (!around.empty()) own[around.back()] -= work[i].duration;
    around.push_back(i);
  }
  for (double& time : own) time = std::max(time, 0.0);
  return own;
}

std::vector<Row> rows_of(const std::vector<ProfiledWork>& work) {
  const std::vector<double> own = own_times(work);
  std::map<std::string, Row> by_name;
  for (std::size_t i = 0; i < work.size(); ++i) {
    Row& row = by_name[work[i].name];
    ++row.count;
    row.time += own[i];
  }
  std::vector<Row> rows;
  for (auto& [name, row] : by_name) rows.push_back({name, row.count, row.time});
  std::ranges::stable_sort(rows, std::greater{}, &Row::time);
  if (rows.size() <= kRows) return rows;
  Row rest{fmt::format("{} more names", rows.size() - kRows)};
  for (std::size_t i = kRows; i < rows.size(); ++i) {
    rest.count += rows[i].count;
    rest.time += rows[i].time;
  }
  rows.resize(kRows);
  rows.push_back(std::move(rest));
  return rows;
}

/// Microseconds in which any of the work was done.
double busy_time(const std::vector<ProfiledWork>& work) {
  double busy = 0, end = 0;
  for (const ProfiledWork& each : work) {
    busy += std::max(0.0, end_of(each) - std::max(each.begin, end));
    end = std::max(end, end_of(each));
  }
  return busy;
}

std::string table(const std::vector<ProfiledWork>& work, const char* title, double steps) {
  if (work.empty()) return {};
  double end = 0;
  for (const ProfiledWork& each : work) end = std::max(end, end_of(each));
  const double busy = busy_time(work), span = end - work.front().begin;
  std::string text = fmt::format("  {}: {:.0f} a step, busy {:.3f} ms, idle {:.3f} ms\n", title,
                                 static_cast<double>(work.size()) / steps, busy / steps / 1e3,
                                 (span - busy) / steps / 1e3);
  for (const Row& row : rows_of(work)) {
    text += fmt::format("  {:>10.3f} ms {:>9.1f} x  {}\n", row.time / steps / 1e3,
                        static_cast<double>(row.count) / steps, row.name);
  }
  return text;
}

}  // namespace

Json profile_events(const std::vector<ProfiledWork>& work, std::uint32_t process) {
  Json events = Json::array();
  for (const ProfiledWork& each : work) {
    events.push_back({{"name", each.name},
                      {"cat", each.on_device ? "kernel" : "operator"},
                      {"ph", "X"},
                      {"ts", each.begin},
                      {"dur", each.duration},
                      {"pid", process},
                      {"tid", each.lane}});
  }
  return events;
}

std::string profile_summary(const std::vector<ProfiledWork>& work, std::int64_t steps) {
  std::vector<ProfiledWork> host, device;
  for (const ProfiledWork& each : work) (each.on_device ? device : host).push_back(each);
  const auto count = static_cast<double>(steps);
  return table(device, "kernels and copies of the device", count) +
         table(host, "operators of the host, without those that they call", count);
}

}  // namespace unishard::trainer
