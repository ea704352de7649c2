#include "workflows/diff.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/error.hpp"

#include "workflows/client_values.hpp"
#include "workflows/losses.hpp"
#include "workflows/tensor_pairs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <mutex>
#include <set>
#include <unordered_set>

namespace unishard::tools {
namespace {

using converters::OptimizerScalars;
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
      : a_(a), b_(b), options_(options), scalars_a_(a.catalog()), scalars_b_(b.catalog()) {}

  DiffReport run() {
    report_.identity_a = identity(a_.catalog());
    report_.identity_b = identity(b_.catalog());
    const Pairing pairing = pair_tensors(a_, b_, options_.states);
    for (const std::size_t index : pairing.only_a)
      add(a_.catalog().tensors[index], {.kind = DiffKind::OnlyInA});
    for (const std::size_t index : pairing.only_b)
      add(b_.catalog().tensors[index], {.kind = DiffKind::OnlyInB});
    add_unread(a_.losses(), b_.losses(), true);
    add_unread(b_.losses(), a_.losses(), false);
    for (const TensorPair& pair : pairing.pairs) compare_tables(pair);
    compare_scalars();
    compare_steps();
    compare_bytes();
    a_.verify_reads(options_.transfer);
    b_.verify_reads(options_.transfer);
    report_.information = pairing.notes;
    note_uncompared(a_.losses(), "A");
    note_uncompared(b_.losses(), "B");
    note_absent();
    if (widened_ > 0)
      report_.information.push_back(
          fmt::format("{} tensors of different types were compared by their values", widened_));
    compare_surroundings();
    compare_client_states();
    report_.names = names_.size();
    report_.different_names = different_names_.size();
    return std::move(report_);
  }

 private:
  /// Whether it is content of the checkpoint of which no difference can be found.
  static bool is_uncompared(const converters::Loss& loss) {
    using converters::Role;
    return !loss.is_kept && (loss.role == Role::State || loss.role == Role::Optimizer ||
                             loss.role == Role::Buffer || loss.role == Role::ClientValue);
  }

  void note_uncompared(const converters::Losses& losses, std::string_view side) {
    for (const converters::Loss& loss : losses) {
      if (is_uncompared(loss))
        report_.information.push_back(
            fmt::format("not compared, because {} leaves it out: {}", side, text_of(loss)));
    }
  }

  /// Whether a weight is in no file of either side.
  static bool is_absent(const converters::Loss& loss, const converters::Losses& of_other) {
    return loss.is_absent && std::ranges::any_of(of_other, [&](const converters::Loss& other) {
             return other.is_absent && other.name == loss.name;
           });
  }

  void note_absent() {
    for (const converters::Loss& loss : a_.losses()) {
      if (is_absent(loss, b_.losses()))
        report_.information.push_back(fmt::format("in no file of A and of B: {}", text_of(loss)));
    }
  }

  /// What cannot be read is not equal to anything. What is not there is like what is not there.
  void add_unread(const converters::Losses& losses, const converters::Losses& of_other,
                  bool is_of_a) {
    for (const converters::Loss& loss : losses) {
      if (!is_unread_weight(loss) || is_absent(loss, of_other)) continue;
      TensorDiff found{.tensor = loss.name, .kind = DiffKind::Unread};
      (is_of_a ? found.a : found.b) = loss.why;
      add(loss.name, std::string(state::kWeights), std::move(found));
    }
  }

  /// Adds a difference of `tensor`, whose label is filled in.
  void add(const TensorInfo& tensor, TensorDiff found) {
    found.tensor = tensor.label();
    add(tensor.fqn, tensor.state, std::move(found));
  }

  void add(std::string_view fqn, const std::string& state, TensorDiff found) {
    names_.insert(fqn);
    different_names_.insert(fqn);
    StateCount& count = report_.states[state];
    switch (found.kind) {
      case DiffKind::OnlyInA:
        ++count.only_a;
        break;
      case DiffKind::OnlyInB:
        ++count.only_b;
        break;
      default:
        ++count.different;
    }
    report_.differences.push_back(std::move(found));
  }

  /// Returns the tensor that gives the pair its name: that of A, unless A has the name of B's as
  /// the second name of a tied parameter.
  const TensorInfo& named(const TensorPair& pair) const {
    const TensorInfo& a = a_.catalog().tensors[pair.a];
    const TensorInfo& b = b_.catalog().tensors[pair.b];
    const bool is_second =
        a.fqn != b.fqn && std::ranges::count(a_.catalog().aliases, b.fqn, &Alias::fqn) > 0;
    return is_second ? b : a;
  }

  void compare_tables(const TensorPair& pair) {
    const TensorInfo& a = a_.catalog().tensors[pair.a];
    const TensorInfo& b = b_.catalog().tensors[pair.b];
    const TensorInfo& tensor = named(pair);
    names_.insert(tensor.fqn);
    ++report_.states[tensor.state].compared;
    ++report_.compared;
    const bool can_widen = info(a.dtype).kind == Kind::Float && info(b.dtype).kind == Kind::Float;
    if (a.shape != b.shape) {
      add(tensor, {.kind = DiffKind::Shape, .a = shape_text(a.shape), .b = shape_text(b.shape)});
    } else if (a.dtype != b.dtype && !(options_.upcast && can_widen)) {
      add(tensor, {.kind = DiffKind::DType,
                   .a = std::string(name_of(a.dtype)),
                   .b = std::string(name_of(b.dtype))});
      if (can_widen) ++report_.other_types;
    } else if (a.dtype == b.dtype && a.crc64 && a.crc64 == b.crc64) {
      ++report_.by_digest;
    } else {
      if (a.dtype != b.dtype) ++widened_;
      readings_.push_back({pair, {}});
    }
  }

  static bool is_of_optimizer(const TensorInfo& tensor) {
    return tensor.state != state::kFp32 && tensor.state != state::kWeights &&
           tensor.state != state::kBuffer && tensor.state != converters::kExtraState;
  }
  static bool has_optimizer(const Source& source, const OptimizerScalars& scalars) {
    return !scalars.fqns().empty() ||
           std::ranges::any_of(source.catalog().tensors, is_of_optimizer);
  }
  bool have_optimizers() const {
    return has_optimizer(a_, scalars_a_) && has_optimizer(b_, scalars_b_);
  }

  /// Compares the optimizer's states that are no tensors, but for the steps.
  void compare_scalars() {
    if (!have_optimizers()) return;
    for (const std::string& fqn : scalars_a_.fqns()) compare_scalars(fqn);
    for (const std::string& fqn : scalars_b_.fqns()) {
      if (scalars_a_.of(fqn).empty()) compare_scalars(fqn);
    }
  }

  static std::string label_of(const std::string& fqn, const std::string& state) {
    TensorInfo tensor;
    tensor.fqn = fqn;
    tensor.state = state;
    return tensor.label();
  }

  void compare_scalars(const std::string& fqn) {
    const auto in_a = scalars_a_.of(fqn), in_b = scalars_b_.of(fqn);
    const auto label = [&](const std::string& state) { return label_of(fqn, state); };
    for (const auto& [state, value] : in_a) {
      if (!is_compared(state)) continue;
      const auto other = std::ranges::find(in_b, state, &OptimizerScalars::Value::first);
      if (other == in_b.end()) {
        add(fqn, state, {.tensor = label(state), .kind = DiffKind::OnlyInA});
        continue;
      }
      names_.insert(fqn);
      ++report_.states[state].compared;
      if (*value == *other->second) continue;
      add(fqn, state,
          {.tensor = label(state),
           .kind = DiffKind::Scalar,
           .a = value->dump(),
           .b = other->second->dump()});
    }
    for (const auto& [state, value] : in_b) {
      if (is_compared(state) &&
          std::ranges::count(in_a, state, &OptimizerScalars::Value::first) == 0)
        add(fqn, state, {.tensor = label(state), .kind = DiffKind::OnlyInB});
    }
  }

  bool is_compared(const std::string& state) const {
    return options_.states.empty() || std::ranges::count(options_.states, state) > 0;
  }

  /// Compares the step counters of the parameters that have states on both sides.
  void compare_steps() {
    if (!have_optimizers() || !is_compared("step")) return;
    std::set<std::string_view> in_b;
    const auto each = [](const Source& source, const OptimizerScalars& scalars, const auto& use) {
      for (const TensorInfo& tensor : source.catalog().tensors) {
        if (is_of_optimizer(tensor)) use(tensor.fqn);
      }
      for (const std::string& fqn : scalars.fqns()) use(fqn);
    };
    each(b_, scalars_b_, [&](const std::string& fqn) { in_b.insert(fqn); });
    each(a_, scalars_a_, [&](const std::string& fqn) {
      if (in_b.erase(fqn) > 0) compare_step(fqn);
    });
  }

  void compare_step(const std::string& fqn) {
    const Json a = scalars_a_.step(fqn), b = scalars_b_.step(fqn);
    if (a == b) return;
    ++report_.states["step"].compared;
    add(fqn, "step",
        {.tensor = label_of(fqn, "step"), .kind = DiffKind::Scalar, .a = a.dump(), .b = b.dump()});
  }

  /// A format of models alone holds no client state.
  void compare_client_states() {
    const Json& a = a_.catalog().client_state;
    const Json& b = b_.catalog().client_state;
    const bool may_lack = a_.format() != b_.format() && (a.is_null() || b.is_null());
    if (may_lack && a.is_null() != b.is_null())
      report_.information.push_back(
          fmt::format("client state: only in {}", a.is_null() ? "B" : "A"));
    if (may_lack || !is_compared(std::string(converters::kExtraState))) return;
    ClientComparison found = compare_client_values(a, b, options_.tolerance);
    report_.compared += found.tensors;
    if (found.tensors > 0)
      report_.states[std::string(converters::kExtraState)].compared += found.tensors;
    for (TensorDiff& each : found.differences) {
      client_names_.push_back(each.tensor);
      add(client_names_.back(), std::string(converters::kExtraState), std::move(each));
    }
    std::ranges::move(found.within_tolerance, std::back_inserter(report_.within_tolerance));
    std::ranges::move(found.information, std::back_inserter(report_.information));
  }

  void compare_bytes() {
    std::vector<Run> runs;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < readings_.size(); ++i) {
      const TensorInfo& tensor = a_.catalog().tensors[readings_[i].pair.a];
      const TensorInfo& other = b_.catalog().tensors[readings_[i].pair.b];
      const std::uint64_t step =
          options_.transfer.buffer_bytes / (size_of(tensor.dtype) + size_of(other.dtype));
      total += tensor.bytes() + other.bytes();
      for (std::uint64_t begin = 0; begin < tensor.elements(); begin += step) {
        runs.push_back({i, {begin, std::min(begin + step, tensor.elements())}});
      }
    }
    std::mutex mutex;
    options_.transfer.begin("diff", total);
    run_bounded(
        runs.size(), options_.transfer, [&](std::size_t index, std::span<std::byte> buffer) {
          Reading& reading = readings_[runs[index].reading];
          const ElementRange range = runs[index].range;
          const DType in_a = a_.catalog().tensors[reading.pair.a].dtype;
          const DType in_b = b_.catalog().tensors[reading.pair.b].dtype;
          const auto from_a = buffer.first(range.size() * size_of(in_a));
          const auto from_b = buffer.subspan(from_a.size(), range.size() * size_of(in_b));
          a_.read(reading.pair.a, range, from_a);
          b_.read(reading.pair.b, range, from_b);
          const ElementDiff found =
              in_a == in_b
                  ? compare_elements(in_a, from_a, from_b, range.begin, options_.tolerance)
                  : compare_widened(in_a, from_a, in_b, from_b, range.begin, options_.tolerance);
          const std::uint64_t bytes = from_a.size() + from_b.size();
          const std::lock_guard lock(mutex);
          reading.result.append(found);
          report_.bytes_read += bytes;
          return bytes;
        });
    for (const Reading& reading : readings_) {
      if (reading.result.differing == 0) continue;
      const TensorInfo& tensor = named(reading.pair);
      TensorDiff found{.kind = DiffKind::Values, .elements = reading.result};
      if (reading.result.beyond > 0) {
        add(tensor, std::move(found));
      } else {
        found.tensor = tensor.label();
        report_.within_tolerance.push_back(std::move(found));
      }
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
    section("configurations", a.config, b.config);
    section("scheduler states", a.scheduler, b.scheduler);
    section("loss scalers", a.loss_scaler, b.loss_scaler);
    section("data positions", a.data_position, b.data_position);
    section("random states", a.rng, b.rng);
    if (a.aliases != b.aliases) report_.information.push_back("tied names differ");
  }

  const Source& a_;
  const Source& b_;
  const DiffOptions& options_;
  const OptimizerScalars scalars_a_, scalars_b_;
  DiffReport report_;
  std::vector<Reading> readings_;
  std::uint64_t widened_ = 0;
  std::deque<std::string> client_names_;  // of values, to which names_ refers
  std::unordered_set<std::string_view> names_, different_names_;
};

}  // namespace

DiffReport diff(const Source& a, const Source& b, const DiffOptions& options) {
  return Comparison(a, b, options).run();
}

}  // namespace unishard::tools
