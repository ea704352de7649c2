#include "workflows/report/outliers.hpp"

#include "workflows/name_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

namespace unishard::tools {
namespace {

/// |m| / sqrt(v) of Adam stays below (1 - beta1) / sqrt(1 - beta2), which is 3.2 for (0.9, 0.999)
/// and 10 for (0.9, 0.9999).
constexpr double kAdamRatioMax = 10;
/// Fewer layers have no meaningful median.
constexpr std::size_t kPeersMin = 4;
/// Fewer elements have no meaningful root mean square.
constexpr std::uint64_t kElementsMin = 32;

bool is_measured(const TensorInfo& tensor) { return tensor.stats && tensor.stats->count > 0; }

bool is_moment(const TensorInfo& tensor) {
  return tensor.state == state::kExpAvg || tensor.state == state::kExpAvgSq;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

bool is_far(double value, double reference, double factor) {
  return value > reference * factor || value * factor < reference;
}

class OutlierSearch {
 public:
  explicit OutlierSearch(const Catalog& catalog) : catalog_(catalog) {}

  std::vector<Outlier> run() {
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      look_at_elements(i);
    }
    look_at_updates();
    look_at_scales();
    std::ranges::stable_sort(found_, {}, &Outlier::level);
    return std::move(found_);
  }

 private:
  void add(std::size_t tensor, Level level, const char* code, std::string message) {
    found_.push_back({tensor, level, code, std::move(message)});
  }

  void look_at_elements(std::size_t index) {
    const TensorInfo& tensor = catalog_.tensors[index];
    if (!tensor.stats || tensor.stats->count == 0) return;
    const Stats& stats = *tensor.stats;
    if (stats.nan_count > 0)
      add(index, Level::Error, "nan",
          fmt::format("{} of {} elements are NaN", stats.nan_count, stats.count));
    if (stats.inf_count > 0)
      add(index, Level::Error, "inf",
          fmt::format("{} of {} elements are infinite", stats.inf_count, stats.count));
    if (tensor.state == state::kExpAvgSq && stats.min < 0)
      add(index, Level::Error, "negative-variance",
          fmt::format("a second moment is never negative, and the smallest element is {:.4g}",
                      stats.min));
    const bool is_zero = stats.finite_count() > 0 && stats.min == 0 && stats.max == 0;
    if (!is_zero) return;
    if (is_moment(tensor) && catalog_.step > 0)
      add(index, Level::Warning, "all-zero",
          fmt::format("zero everywhere at step {}: the parameter had no gradient", catalog_.step));
    else if (!is_moment(tensor) && tensor.shape.size() > 1)
      add(index, Level::Warning, "all-zero", "zero everywhere");
  }

  /// Returns, by parameter, the index of its tensor of `state`.
  std::unordered_map<std::string, std::size_t> tensors_of(std::string_view state) const {
    std::unordered_map<std::string, std::size_t> out;
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const TensorInfo& tensor = catalog_.tensors[i];
      if (tensor.state == state && is_measured(tensor)) out.emplace(tensor.fqn, i);
    }
    return out;
  }

  void look_at_updates() {
    const auto second = tensors_of(state::kExpAvgSq);
    std::vector<std::pair<std::size_t, double>> ratios;  // tensor of the first moment, ratio
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const TensorInfo& tensor = catalog_.tensors[i];
      if (tensor.state != state::kExpAvg || !is_measured(tensor)) continue;
      const auto found = second.find(tensor.fqn);
      if (found == second.end()) continue;
      const double first_rms = rms_of(tensor);
      const double root = std::sqrt(rms_of(catalog_.tensors[found->second]));
      if (first_rms > 0 && root > 0 && tensor.elements() >= kElementsMin)
        ratios.emplace_back(i, first_rms / root);
    }
    if (ratios.empty()) return;
    std::vector<double> values;
    values.reserve(ratios.size());
    for (const auto& [tensor, ratio] : ratios) values.push_back(ratio);
    const double typical = median(std::move(values));
    for (const auto& [tensor, ratio] : ratios) {
      if (ratio > kAdamRatioMax ||
          (ratios.size() >= kPeersMin && is_far(ratio, typical, kFarRatio)))
        add(tensor, Level::Warning, "update-ratio",
            fmt::format("rms of the first moment / root of the rms of the second is {:.3g}; the "
                        "model's median is {:.3g}",
                        ratio, typical));
    }
  }

  void look_at_scales() {
    std::map<std::string, std::vector<std::size_t>> kinds;
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const TensorInfo& tensor = catalog_.tensors[i];
      if (!is_measured(tensor) || rms_of(tensor) == 0 || tensor.elements() < kElementsMin) continue;
      const NameParts parts = split_name(tensor.fqn);
      if (parts.layer())
        kinds[fmt::format("{}\n{}", fmt::join(parts.texts, "\n"), tensor.state)].push_back(i);
    }
    for (const auto& [kind, tensors] : kinds) {
      if (tensors.size() < kPeersMin) continue;
      std::vector<double> values;
      for (const std::size_t tensor : tensors) values.push_back(rms_of(catalog_.tensors[tensor]));
      const double typical = median(std::move(values));
      for (const std::size_t tensor : tensors) {
        const double rms = rms_of(catalog_.tensors[tensor]);
        const bool is_square = catalog_.tensors[tensor].state == state::kExpAvgSq;
        if (is_far(rms, typical, is_square ? kFarScale * kFarScale : kFarScale))
          add(tensor, Level::Warning, "scale",
              fmt::format("rms {:.3g}; the median of the same parameter in {} layers is {:.3g}",
                          rms, tensors.size(), typical));
      }
    }
  }

  const Catalog& catalog_;
  std::vector<Outlier> found_;
};

}  // namespace

std::string_view name_of(Level level) {
  switch (level) {
    case Level::Error:
      return "error";
    case Level::Warning:
      return "warning";
    case Level::Note:
      return "note";
  }
  return "";
}

double rms_of(const TensorInfo& tensor) {
  // A damaged sum may be negative; medians need numbers that can be ordered.
  if (!tensor.stats || tensor.stats->finite_count() == 0 || !(tensor.stats->sum_squares > 0))
    return 0;
  return std::sqrt(tensor.stats->sum_squares / static_cast<double>(tensor.stats->finite_count()));
}

std::vector<Outlier> find_outliers(const Catalog& catalog) { return OutlierSearch(catalog).run(); }

}  // namespace unishard::tools
