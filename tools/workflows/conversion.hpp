#pragma once
// The one path on which a checkpoint becomes another one: `convert`, `reshard` and `zero_to_fp32`
// plan differently and report differently; everything between is here.
#include "unishard/converters/registry.hpp"

#include "workflows/conversion_notes.hpp"
#include "workflows/conversion_plan.hpp"
#include "workflows/input_check.hpp"
#include "workflows/losses.hpp"
#include "workflows/shared_output.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

/// How a result is compared with its source before it is published.
enum class ReadBack : std::uint8_t {
  None,
  Recorded,  ///< by the digests that the result records, without reading its tensors
  Payload,   ///< by reading every tensor
};

struct ConversionOptions {
  std::string_view verb;  ///< label of the progress; outlives the conversion
  Path input;             ///< where the side files of a model lie
  converters::Output output;
  bool check_input = true;  ///< compare the input with its checksums
  ReadBack read_back = ReadBack::Payload;
  bool may_be_fresh = false;  ///< see decide_latest()
  bool may_overflow = true;   ///< else a number that becomes infinite is an error
  LossRules losses = {};
  /// Quantized weights that the source gives as numbers; the result's config.json then says nothing
  /// of quantization.
  std::size_t dequantized = 0;
  std::size_t kept_quantized = 0;  ///< quantized weights that the result has as they are
};

/// With ReadBack::Recorded only the first process of the team has `different` and `identity`.
struct ConversionResult {
  converters::InputCheck input;
  std::vector<std::string> different = {};   ///< tensors that are not as they were in the source
  std::optional<std::string> identity = {};  ///< of the result, with ReadBack::Recorded
  /// Tensors with numbers beyond the range of their type in the result, which became infinite.
  std::vector<std::string> overflowed = {};
};

/// How much of its target a result has.
struct WrittenSize {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// One result that all processes of a team write.
/// Lifetime: the team and the source outlive it. An object whose run() has not published removes
/// what it wrote.
/// Thread safety: not thread-safe.
class Conversion {
 public:
  /// Collective. Opens the output under a name that nobody takes for a result.
  /// Pre: nothing was read from `source` yet.
  /// Throws: Unsupported when something that the result must hold was not read (losses.hpp);
  /// InvalidArgument and AlreadyExists for an output that cannot be written there, or whose
  /// suffix is that of another format; NoSpace, Mismatch when the processes want different results.
  Conversion(Team& team, converters::Source& source, ConversionPlan plan,
             ConversionOptions options);

  const ConversionPlan& plan() const { return plan_; }
  const ConversionOptions& options() const { return options_; }
  const ConversionNotes& notes() const { return notes_; }
  const InputChecking& checking() const { return checking_; }
  const SharedSink& shared() const { return shared_; }
  /// Returns the size of the result, without the tensors that its format cannot hold. Those that a
  /// reader derives from masters count as tensors without bytes.
  WrittenSize written() const;
  /// Says that one of several processes does all the work, where it is so; else empty.
  std::string_view one_process_note() const;

  /// Collective. Writes, compares and publishes; a result that differs is not published.
  /// `transfer.observer` sees the progress of this process.
  /// Throws: Corrupt when the input's checksums do not fit its bytes; Busy when the input was
  /// written meanwhile; Unsupported for numbers that become infinite, unless they may.
  ConversionResult run(const TransferOptions& transfer);

 private:
  void decide_on_latest();
  void publish();
  void compare(const WrittenOutput& written, const TransferOptions& transfer,
               ConversionResult& result);
  bool is_equal(const ConversionResult& result);

  Team& team_;
  converters::Source& source_;
  ConversionPlan plan_;
  ConversionOptions options_;
  InputChecking checking_;
  ConversionNotes notes_;
  SharedSink shared_;
};

/// Returns a sentence on ConversionResult::overflowed.
/// Pre: there is one.
std::string describe_overflow(const std::vector<std::string>& labels);

/// Returns a sentence on the second names of tied weights where the format has no place for them
/// that other programs know.
std::optional<std::string> remark_on_second_names(const Catalog& target, std::string_view format);

/// Returns whether the suffix is that of one model file; any other name means a folder.
bool is_model_file(const Path& path);
/// Returns the format of a model that its name chooses: "hdf5", "torch", "npz", "gguf" or, for any
/// other name, "safetensors".
std::string model_format(const Path& path);
/// Returns `format`, or where it is empty the format that the suffix of `path` tells.
/// Throws: InvalidArgument when it tells none.
std::string format_or_suffix(std::string format, const Path& path);
/// The output of a model: for a folder, `max_shard_size` is its largest file ("": 5GB).
/// Throws: InvalidArgument for a size where there is no model folder.
/// Throws: InvalidArgument for a size that is none.
converters::Output model_output(std::string format, const Path& path,
                                const std::string& max_shard_size);

}  // namespace unishard::tools
