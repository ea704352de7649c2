#include "views/report/tensor_columns.hpp"

#include "unishard/format/crc64.hpp"

#include "workflows/name_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <utility>

namespace unishard::cli {
namespace {

/// A list without duplicates.
class Dictionary {
 public:
  /// Returns the index of the entry `key`; a new one is `value`.
  std::size_t index_of(const std::string& key, const Json& value) {
    const auto [place, is_new] = index_.emplace(key, index_.size());
    if (is_new) values_.push_back(value);
    return place->second;
  }
  bool contains(const std::string& key) const { return index_.contains(key); }
  Json take() { return std::move(values_); }

 private:
  std::unordered_map<std::string, std::size_t> index_;
  Json values_ = Json::array();
};

constexpr int kFrozen = 1, kDerived = 2;

class Columns {
 public:
  explicit Columns(const Catalog& catalog) : catalog_(catalog) {}

  Json run(const tools::DigestComparison* comparison) {
    for (const char* column : {"name", "state", "dtype", "shape", "group", "flags", "crc", "norm",
                               "min", "max", "nan", "inf", "sameness"})
      out_[column] = Json::array();
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      describe(catalog_.tensors[i]);
      add_stats(i);
      if (comparison != nullptr)
        out_["sameness"].push_back(static_cast<int>(comparison->tensors[i]));
    }
    out_["names"] = names_.take();
    out_["patterns"] = patterns_.take();
    out_["states"] = states_.take();
    out_["dtypes"] = dtypes_.take();
    out_["shapes"] = shapes_.take();
    return std::move(out_);
  }

 private:
  std::size_t name_index(const std::string& fqn) {
    if (names_.contains(fqn)) return names_.index_of(fqn, nullptr);
    const tools::NameParts parts = tools::split_name(fqn);
    Json entry = Json::array();
    entry.push_back(
        patterns_.index_of(fmt::format("{}", fmt::join(parts.texts, "\n")), parts.texts));
    for (const std::uint32_t number : parts.numbers) entry.push_back(number);
    return names_.index_of(fqn, entry);
  }

  void describe(const TensorInfo& tensor) {
    const std::string dtype(name_of(tensor.dtype));
    out_["name"].push_back(name_index(tensor.fqn));
    out_["state"].push_back(states_.index_of(tensor.state, tensor.state));
    out_["dtype"].push_back(dtypes_.index_of(dtype, Json::array({dtype, size_of(tensor.dtype)})));
    out_["shape"].push_back(
        shapes_.index_of(fmt::format("{}", fmt::join(tensor.shape, ",")), tensor.shape));
    out_["group"].push_back(tensor.group);
    out_["flags"].push_back((tensor.frozen ? kFrozen : 0) + (tensor.derived ? kDerived : 0));
    out_["crc"].push_back(tensor.crc64 ? Json(hex64(*tensor.crc64)) : Json(nullptr));
  }

  void add_stats(std::size_t index) {
    const std::optional<Stats>& stats = catalog_.tensors[index].stats;
    const bool is_measured = stats && stats->count > 0;
    const bool is_finite = is_measured && stats->finite_count() > 0;
    // Without statistics the norm is null, without finite elements the others are.
    out_["norm"].push_back(is_measured ? few_digits(std::sqrt(stats->sum_squares)) : Json());
    out_["min"].push_back(is_finite ? few_digits(stats->min) : Json());
    out_["max"].push_back(is_finite ? few_digits(stats->max) : Json());
    if (is_measured && stats->nan_count > 0) out_["nan"].push_back({index, stats->nan_count});
    if (is_measured && stats->inf_count > 0) out_["inf"].push_back({index, stats->inf_count});
  }

  const Catalog& catalog_;
  Dictionary names_, patterns_, states_, dtypes_, shapes_;
  Json out_ = Json::object();
};

}  // namespace

Json tensor_columns(const Catalog& catalog, const tools::DigestComparison* comparison) {
  return Columns(catalog).run(comparison);
}

Json few_digits(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

}  // namespace unishard::cli
