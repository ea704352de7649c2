#include "workflows/conversion.hpp"

#include "unishard/format/error.hpp"

#include "support/machine.hpp"
#include "support/size_text.hpp"
#include "workflows/catalog_digests.hpp"
#include "workflows/model_config.hpp"
#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace unishard::tools {
namespace {

using converters::OutputShape;

/// The digests that the result must have: those of what the sink was given, and the source's for
/// what the sink derives. A tensor that is both converted and derived has none to be compared with.
struct ExpectedDigests {
  Catalog catalog;
  std::vector<std::size_t> source_tensors;  ///< tensor of `catalog` -> source tensor
};

ExpectedDigests expected_digests(const converters::Source& source, const ConversionPlan& plan,
                                 const converters::Digests& written) {
  ExpectedDigests out;
  for (std::size_t i = 0; i < written.size(); ++i) {
    TensorInfo tensor = plan.target.tensors[i];
    const bool was_converted = tensor.dtype != source.catalog().tensors[plan.tensor_map[i]].dtype;
    if (!written[i] && was_converted) continue;
    tensor.crc64 = written[i];
    out.catalog.tensors.push_back(std::move(tensor));
    out.source_tensors.push_back(plan.tensor_map[i]);
  }
  return out;
}

}  // namespace

std::vector<std::string> ConversionNotes::lines() const {
  std::vector<std::string> out = not_read;
  for (const auto& [reason, notes] :
       {std::pair{"left out", &left_out}, {"cannot be written", &cannot_be_written}}) {
    for (const std::string& note : *notes) out.push_back(fmt::format("{}: {}", reason, note));
  }
  return out;
}

Conversion::Conversion(Team& team, converters::Source& source, ConversionPlan plan,
                       ConversionOptions options)
    : team_(team),
      source_(source),
      plan_(std::move(plan)),
      options_(std::move(options)),
      checking_(source, options_.check_input) {
  Storage& storage = posix_storage();
  converters::Output& output = options_.output;
  notes_.not_read = source.notes();
  notes_.left_out = std::exchange(plan_.notes, {});
  if (output.max_shard_bytes != 0)
    output.side_files =
        model_side_files(options_.input, source.catalog(), plan_.target, notes_.left_out);
  if (output.format == source.format()) output.layout = source.layout();
  checking_.mark(plan_.target, output);
  const std::uint64_t bytes =
      plan_.disk_bytes != 0 ? plan_.disk_bytes : plan_.target.stored_bytes();
  const bool has_tags = converters::format_entry(output.format).shape == OutputShape::Tags;
  require_outside_checkpoints(storage, output.path, has_tags);
  require_space(output.path, bytes);
  shared_ = make_shared_sink(team, plan_.target, [&](const converters::WorkSplit& share) {
    output.share = share;
    return converters::make_sink(storage, output, plan_.target);
  });
  notes_.cannot_be_written = shared_.sink->notes();
}

std::string_view Conversion::one_process_note() const {
  return shared_.is_one_process_work() ? "this output is written by one process, the others wait"
                                       : "";
}

ConversionResult Conversion::run(const TransferOptions& transfer) {
  Observer& observer = *transfer.observer;
  observer.begin(options_.verb, shared_.bytes[team_.rank()]);
  const WrittenOutput written = write_together(
      team_, {.source = &source_, .target = &plan_.target, .tensor_map = plan_.tensor_map},
      *shared_.sink, transfer,
      options_.read_back == ReadBack::Payload ? WantDigests::Yes : WantDigests::No);
  observer.end();
  ConversionResult result{.input = written.input};
  compare(written, transfer, result);
  if (is_equal(result)) publish_together(team_, *shared_.sink);
  return result;
}

/// The first process decides for all.
bool Conversion::is_equal(const ConversionResult& result) {
  return team_.gather(result.different.empty() ? "equal" : "different").front() == "equal";
}

void Conversion::compare(const WrittenOutput& written, const TransferOptions& transfer,
                         ConversionResult& result) {
  if (options_.read_back == ReadBack::None) return;
  const auto open = [&] {
    return converters::open_source_as(posix_storage(), options_.output.format, written.staged);
  };
  if (options_.read_back == ReadBack::Recorded) {
    team_.agree("comparing the output", [&] {
      if (!team_.is_first()) return;
      const auto staged = open();
      result.identity = identity(staged->catalog());
      if (result.identity != identity(plan_.target))
        result.different = differing(plan_.target, staged->catalog());
    });
    return;
  }
  const auto staged = open();
  transfer.observer->begin("check", plan_.target.stored_bytes() / team_.size());
  auto [expected, source_tensors] = expected_digests(source_, plan_, written.digests);
  add_digests(source_, source_tensors, transfer, team_, expected);
  verify_reads_together(team_, source_, transfer);
  result.different =
      differing(expected, with_digests(*staged, transfer, team_), shared_.sink->left_out());
  transfer.observer->end();
}

bool is_model_file(const Path& path) {
  constexpr std::array<std::string_view, 7> kFiles = {".safetensors", ".bin", ".pt",  ".pth",
                                                      ".ckpt",        ".h5",  ".hdf5"};
  return std::ranges::count(kFiles, path.extension().string()) > 0;
}

std::string model_format(const Path& path) {
  const Path suffix = path.extension();
  if (suffix == ".h5" || suffix == ".hdf5") return "hdf5";
  return is_model_file(path) && suffix != ".safetensors" ? "torch" : "safetensors";
}

converters::Output model_output(std::string format, const Path& path,
                                const std::string& max_shard_size) {
  const bool is_folder =
      converters::format_entry(format).shape == OutputShape::FileOrFolder && !is_model_file(path);
  return {.format = std::move(format),
          .path = path,
          .tag = {},
          .max_shard_bytes = is_folder ? parse_bytes(max_shard_size, "--max_shard_size") : 0};
}

}  // namespace unishard::tools
