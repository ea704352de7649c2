#include "containers/placed_sink.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/commit.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace unishard::converters::torch {
namespace {

/// Returns the part of the plan that lies in this process's files, in file order, so that files are
/// written front to back.
OutputPlan our_part(OutputPlan plan, const TorchOutput& output) {
  const auto is_others = [&](const auto& place) { return !output.owns(place.archive); };
  std::erase_if(plan.placements, is_others);
  std::erase_if(plan.constants, is_others);
  std::ranges::sort(plan.placements, {}, [](const Placement& place) {
    return std::tuple(place.archive, place.storage, place.offset);
  });
  return plan;
}

}  // namespace

PlacedSink::PlacedSink(Catalog catalog, OutputPlan plan, Ending ending,
                       std::unique_ptr<TorchOutput> output, const WorkSplit& share)
    : catalog_(std::move(catalog)), ending_(std::move(ending)), output_(std::move(output)) {
  output_->keep(share);
  plan_ = our_part(std::move(plan), *output_);
  fragments_.reserve(plan_.placements.size());
  for (const Placement& placement : plan_.placements)
    fragments_.push_back({placement.tensor, placement.range});
}

void PlacedSink::write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) {
  const Placement& place = plan_.placements.at(fragment);
  if (place.box) return write_box(place, range, bytes);
  store(place, place.offset + (range.begin - place.range.begin) * size_of(place.dtype), bytes);
}

void PlacedSink::write_box(const Placement& place, ElementRange range,
                           std::span<const std::byte> bytes) {
  const ElementRange own = intersect(place.box->own_in(range), place.own);
  if (own.empty()) return;
  const std::uint64_t width = size_of(catalog_.tensors[place.tensor].dtype);
  std::vector<std::byte> gathered(own.size() * width);
  place.box->each_run(own, [&](std::uint64_t first, ElementRange run) {
    std::memcpy(&gathered[(first - own.begin) * width], &bytes[(run.begin - range.begin) * width],
                run.size() * width);
  });
  store(place, place.offset + (own.begin - place.own.begin) * size_of(place.dtype), gathered);
}

void PlacedSink::store(const Placement& place, std::uint64_t offset,
                       std::span<const std::byte> bytes) {
  const DType from = catalog_.tensors[place.tensor].dtype;
  std::vector<std::byte> converted;
  if (from != place.dtype) {
    converted.resize(bytes.size() / size_of(from) * size_of(place.dtype));
    convert_elements(from, bytes, place.dtype, converted);
    bytes = converted;
  }
  if (place.agreed) place.agreed->check(catalog_.tensors[place.tensor].label(), bytes);
  output_->write(place.archive, place.storage, offset, bytes);
}

std::string PlacedSink::seal() {
  const std::vector<std::byte> zeros(std::size_t{1} << 16);
  for (const OutputPlan::Constant& constant : plan_.constants) {
    check_stop();
    output_->write(constant.archive, constant.storage, constant.offset, constant.bytes);
    std::uint64_t offset = constant.offset + constant.bytes.size();
    for (std::uint64_t left = constant.zeros; left > 0;) {
      const std::uint64_t count = std::min<std::uint64_t>(left, zeros.size());
      output_->write(constant.archive, constant.storage, offset, std::span(zeros).first(count));
      offset += count;
      left -= count;
    }
  }
  output_->finish([this] { check_stop(); });
  return {};
}

Path PlacedSink::complete(std::span<const std::string> /*seals*/) {
  if (ending_.complete) ending_.complete();
  ending_.partial->sync();
  return ending_.partial->path();
}

void PlacedSink::publish() {
  std::optional<LatestMove> latest;
  if (const auto& file = ending_.latest) latest.emplace(*file->storage, file->path, file->text);
  ending_.partial->publish();
  if (ending_.beside) ending_.beside();
  if (latest) latest->commit();
}

}  // namespace unishard::converters::torch
