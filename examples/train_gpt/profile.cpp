#include "profile.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/trainer/agree.hpp"
#include "unishard/trainer/model_flops.hpp"

#include "console.hpp"

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <system_error>

namespace train_gpt {
namespace {

using namespace unishard;
using namespace unishard::trainer;
using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

at::ScalarType matrix_type(DType compute) {
  if (compute == DType::BFloat16) return at::kBFloat16;
  return compute == DType::Float16 ? at::kHalf : at::kFloat;
}

/// Returns additions and multiplications per second of this rank. Reading an element back waits for
/// the device.
double product_rate(DType compute, at::Device device) {
  const std::int64_t size = device.is_cpu() ? 512 : 8192;
  constexpr double kSeconds = 0.3;
  const at::Tensor a = at::ones({size, size}, at::device(device).dtype(matrix_type(compute)));
  const auto product = [&] { return at::matmul(a, a)[0][0].to(at::kFloat).item<float>(); };
  product();  // the first one allocates
  const auto begin = Clock::now();
  double done = 0;
  for (; seconds_from(begin) < kSeconds; ++done) product();
  const auto width = static_cast<double>(size);
  return done * 2 * width * width * width / seconds_from(begin);
}

std::string in_units(double operations) {
  return operations < 1e12 ? fmt::format("{:.3f} G", operations / 1e9)
                           : fmt::format("{:.3f} T", operations / 1e12);
}

void write_report(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  if (file << text << std::flush) return;
  raise(ErrorCode::Io, fmt::format("writing {}: {}", path, std::generic_category().message(errno)));
}

}  // namespace

StepStats timed_step(Engine& engine, const LossFunction& loss, StepTimes& times) {
  times = {};
  for (;;) {
    auto begin = Clock::now();
    const at::Tensor value = engine.forward(loss);
    times.forward += seconds_from(begin);
    begin = Clock::now();
    engine.backward(value);
    times.backward += seconds_from(begin);
    begin = Clock::now();
    const std::optional<StepStats> stats = engine.step();
    times.update += seconds_from(begin);
    if (stats) return *stats;
  }
}

std::string times_text(const StepTimes& times) {
  return fmt::format("  time (ms): forward {:.2f}, backward {:.2f}, step {:.2f}\n",
                     times.forward * 1e3, times.backward * 1e3, times.update * 1e3);
}

double measure_peak(Communicator& communicator, DType compute, at::Device device) {
  communicator.barrier();
  const std::vector<double> mine{product_rate(compute, device)};
  double sum = 0;
  for (const double rate : gather_doubles(communicator, mine)) sum += rate;
  return sum;
}

std::string profile_text(const Options& options, const BatchPlan& batch, std::int64_t step,
                         double seconds, double peak) {
  const auto& profiler = options.config.flops_profiler;
  const auto samples = static_cast<double>(batch.train);
  const std::vector<UnitFlops> units = forward_flops(options.model, options.context);
  double forward = 0;
  for (const UnitFlops& unit : units) forward += unit.forward() * samples;
  std::string text = fmt::format("profile of step {}: {} samples of {} tokens\n", step, batch.train,
                                 options.context);
  for (const UnitFlops& unit : units) {
    if (!profiler.detailed) break;
    text += fmt::format("  {:24} {:>12} parameters {:>16}FLOP forward {:6.2f} %\n", unit.unit,
                        unit.parameters, in_units(unit.forward() * samples),
                        100 * unit.forward() * samples / forward);
  }
  // The backward pass has two products for each one of the forward pass.
  const double model = 3 * forward;
  const double done = model + profiler.recompute_fwd_factor * forward;
  text += fmt::format("  forward {}FLOP, backward {}FLOP, computed again {}FLOP\n",
                      in_units(forward), in_units(2 * forward), in_units(done - model));
  text += fmt::format("  {:.4f} s: {:.0f} tokens/s, {:.2f} samples/s, {}FLOP/s\n", seconds,
                      samples * static_cast<double>(options.context) / seconds, samples / seconds,
                      in_units(done / seconds));
  return text + fmt::format(
                    "  measured peak of all ranks {}FLOP/s: model FLOPs utilization "
                    "(MFU) {:.1f} %, of the hardware {:.1f} %\n",
                    in_units(peak), 100 * model / seconds / peak, 100 * done / seconds / peak);
}

void require_profile_file(const Config& config) {
  const Path path = config.flops_profiler.output_file;
  if (!config.flops_profiler.enabled || path.empty()) return;
  const Path folder = path.has_parent_path() ? path.parent_path() : Path(".");
  if (posix_storage().kind(folder) != EntryKind::Directory)
    raise(ErrorCode::NotFound,
          fmt::format("flops_profiler.output_file: the folder {} does not exist",
                      quote(folder.string())));
  if (posix_storage().kind(path) == EntryKind::Directory)
    raise(ErrorCode::InvalidArgument,
          fmt::format("flops_profiler.output_file: {} is a folder", quote(path.string())));
}

void report_profile(const Options& options, const Engine& engine, Communicator& communicator,
                    at::Device device, std::int64_t step, double seconds) {
  const DType compute = engine.widens_fp16() ? DType::Float32 : options.config.compute;
  const double peak = measure_peak(communicator, compute, device);
  if (communicator.rank() != 0) return;
  const std::string text = profile_text(options, engine.batch(), step, seconds, peak);
  const std::string& path = options.config.flops_profiler.output_file;
  if (path.empty()) return say(text);
  try {
    write_report(path, text);
  } catch (const Error& error) {
    say_error(0, "warning", std::string(error.what()) + "; training goes on");
  }
}

}  // namespace train_gpt
