#include "workflows/diff.hpp"

#include "unishard/format/error.hpp"

#include "workflows/tensor_pairs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace unishard::tools {
namespace {

using converters::Source;

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// A pair whose bytes have to be read.
struct Reading {
  TensorPair pair;
  ElementDiff result;
};

/// Consecutive elements that are read together.
struct Run {
  std::size_t reading = 0;
  ElementRange range;
};

class Comparison {
 public:
  Comparison(const Source& a, const Source& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  DiffReport run() {
    report_.identity_a = identity(a_.catalog());
    report_.identity_b = identity(b_.catalog());
    const Pairing pairing = pair_tensors(a_, b_, options_.states);
    for (const std::size_t index : pairing.only_a) {
      add(a_.catalog().tensors[index].label(), DiffKind::OnlyInA, {}, {});
    }
    for (const std::size_t index : pairing.only_b) {
      add(b_.catalog().tensors[index].label(), DiffKind::OnlyInB, {}, {});
    }
    for (const TensorPair& pair : pairing.pairs) compare_tables(pair);
    compare_bytes();
    a_.verify_reads(options_.transfer);
    b_.verify_reads(options_.transfer);
    report_.information = pairing.notes;
    compare_surroundings();
    return std::move(report_);
  }

 private:
  void add(std::string tensor, DiffKind kind, std::string a, std::string b) {
    report_.differences.push_back({std::move(tensor), kind, std::move(a), std::move(b), {}});
  }

  void compare_tables(const TensorPair& pair) {
    const TensorInfo& a = a_.catalog().tensors[pair.a];
    const TensorInfo& b = b_.catalog().tensors[pair.b];
    ++report_.compared;
    if (a.shape != b.shape) {
      add(a.label(), DiffKind::Shape, shape_text(a.shape), shape_text(b.shape));
    } else if (a.dtype != b.dtype) {
      add(a.label(), DiffKind::DType, std::string(name_of(a.dtype)), std::string(name_of(b.dtype)));
    } else if (a.crc64 && a.crc64 == b.crc64) {
      ++report_.by_digest;
    } else {
      readings_.push_back({pair, {}});
    }
  }

  void compare_bytes() {
    std::vector<Run> runs;
    std::uint64_t total = 0;
    const std::uint64_t run_bytes = options_.transfer.buffer_bytes / 2;
    for (std::size_t i = 0; i < readings_.size(); ++i) {
      const TensorInfo& tensor = a_.catalog().tensors[readings_[i].pair.a];
      const std::uint64_t step = run_bytes / size_of(tensor.dtype);
      total += 2 * tensor.bytes();
      for (std::uint64_t begin = 0; begin < tensor.elements(); begin += step) {
        runs.push_back({i, {begin, std::min(begin + step, tensor.elements())}});
      }
    }
    std::mutex mutex;
    options_.transfer.begin("diff", total);
    run_bounded(runs.size(), options_.transfer,
                [&](std::size_t index, std::span<std::byte> buffer) {
                  Reading& reading = readings_[runs[index].reading];
                  const ElementRange range = runs[index].range;
                  const DType dtype = a_.catalog().tensors[reading.pair.a].dtype;
                  const std::uint64_t bytes = range.size() * size_of(dtype);
                  const auto from_a = buffer.first(bytes);
                  const auto from_b = buffer.subspan(bytes, bytes);
                  a_.read(reading.pair.a, range, from_a);
                  b_.read(reading.pair.b, range, from_b);
                  const ElementDiff found =
                      compare_elements(dtype, from_a, from_b, range.begin, options_.tolerance);
                  const std::lock_guard lock(mutex);
                  reading.result.append(found);
                  report_.bytes_read += 2 * bytes;
                  return 2 * bytes;
                });
    for (const Reading& reading : readings_) {
      if (reading.result.differing == 0) continue;
      TensorDiff found{
          a_.catalog().tensors[reading.pair.a].label(), DiffKind::Values, {}, {}, reading.result};
      (reading.result.beyond > 0 ? report_.differences : report_.within_tolerance)
          .push_back(std::move(found));
    }
  }

  void inform(std::string_view what, const std::string& a, const std::string& b) {
    if (a != b) report_.information.push_back(fmt::format("{}: {} and {}", what, a, b));
  }

  void compare_surroundings() {
    const Catalog& a = a_.catalog();
    const Catalog& b = b_.catalog();
    inform("format", a_.format(), b_.format());
    if (a_.format() != b_.format()) return;  // not every format has the rest
    inform("step", std::to_string(a.step), std::to_string(b.step));
    inform("world size", std::to_string(a.world_size), std::to_string(b.world_size));
    inform("stage", std::to_string(a.stage), std::to_string(b.stage));
    const auto section = [&](std::string_view name, const Json& left, const Json& right) {
      if (left != right) report_.information.push_back(fmt::format("{} differ", name));
    };
    section("parameter groups", a.groups, b.groups);
    section("scheduler states", a.scheduler, b.scheduler);
    section("loss scalers", a.loss_scaler, b.loss_scaler);
    section("data positions", a.data_position, b.data_position);
    section("random states", a.rng, b.rng);
    if (a.aliases != b.aliases) report_.information.push_back("tied names differ");
  }

  const Source& a_;
  const Source& b_;
  const DiffOptions& options_;
  DiffReport report_;
  std::vector<Reading> readings_;
};

}  // namespace

DiffReport diff(const Source& a, const Source& b, const DiffOptions& options) {
  return Comparison(a, b, options).run();
}

}  // namespace unishard::tools
