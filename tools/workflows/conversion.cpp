#include "workflows/conversion.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/parameter_groups.hpp"
#include "unishard/converters/replica_names.hpp"
#include "unishard/format/edit_distance.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/staging_names.hpp"
#include "unishard/format/text.hpp"

#include "support/machine.hpp"
#include "support/size_text.hpp"
#include "workflows/catalog_digests.hpp"
#include "workflows/dequantized_input.hpp"
#include "workflows/native_folder.hpp"
#include "workflows/output_run.hpp"
#include "workflows/run_files.hpp"
#include "workflows/tensor_pairs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>
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

/// The names of both formats begin with it.
constexpr std::string_view kDeepSpeed = "deepspeed";

/// A suffix of files and their format; "" for one that UniShard does not write.
struct Suffix {
  std::string_view text, format;
};
constexpr std::array<Suffix, 31> kSuffixes = {{{".safetensors", "safetensors"},
                                               {".bin", "torch"},
                                               {".pt", "torch"},
                                               {".pth", "torch"},
                                               {".ckpt", "torch"},
                                               {".h5", "hdf5"},
                                               {".hdf5", "hdf5"},
                                               {".npz", "npz"},
                                               {".gguf", "gguf"},
                                               {".npy", ""},
                                               {".onnx", ""},
                                               {".keras", ""},
                                               {".msgpack", ""},
                                               {".pkl", ""},
                                               {".pickle", ""},
                                               {".joblib", ""},
                                               {".tflite", ""},
                                               {".pb", ""},
                                               {".engine", ""},
                                               {".plan", ""},
                                               {".mlmodel", ""},
                                               {".mlpackage", ""},
                                               {".pdparams", ""},
                                               {".json", ""},
                                               {".txt", ""},
                                               {".zip", ""},
                                               {".tar", ""},
                                               {".tgz", ""},
                                               {".gz", ""},
                                               {".zst", ""},
                                               {".xz", ""}}};

/// Returns nullptr for the suffix of a folder.
const Suffix* suffix_of(const Path& path) {
  const auto* const found = std::ranges::find(kSuffixes, path.extension().native(), &Suffix::text);
  return found == kSuffixes.end() ? nullptr : found;
}

/// Returns the suffix that `text` seems to be a misspelling of; empty when it seems to be none.
/// Short suffixes resemble too much.
std::string_view meant_suffix(std::string_view text) {
  for (const Suffix& suffix : kSuffixes) {
    constexpr std::size_t kLong = 8;
    const std::size_t most = suffix.text.size() < kLong ? 1 : 3;
    const bool is_long = suffix.text.size() > 4 && !suffix.format.empty();
    if (is_long && edit_distance(text, suffix.text) <= most) return suffix.text;
  }
  return {};
}

/// Throws: InvalidArgument when a suffix that is none of a format cannot be that of a folder
/// either.
void require_folder_name(std::string_view format, const Path& path) {
  const std::string suffix = path.extension().string();
  if (suffix.empty()) return;
  const bool is_file = converters::format_entry(format).shape == OutputShape::File;
  const std::string_view meant = meant_suffix(suffix);
  if (!is_file && meant.empty()) return;
  const auto* const usual = std::ranges::find(kSuffixes, format, &Suffix::format);
  raise(ErrorCode::InvalidArgument,
        fmt::format("{}: {} is the suffix of no format, and the output is {}", path.string(),
                    suffix, format),
        meant.empty() ? fmt::format("{} files end in {}", format, usual->text)
                      : fmt::format("did you mean {}?", meant));
}

/// Throws: InvalidArgument when the suffix of `path` is that of a file of another format than
/// `format`, of a file that UniShard does not write, or of none.
void require_fitting_suffix(std::string_view format, const Path& path) {
  const Suffix* const suffix = suffix_of(path);
  if (suffix == nullptr) return require_folder_name(format, path);
  if (suffix->format == format) return;
  if (suffix->format.empty()) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {} files cannot be written", path.string(), suffix->text),
          "name a folder, or a file that ends in .safetensors, .pt, .bin, .h5, .npz or .gguf");
  }
  raise(ErrorCode::InvalidArgument,
        fmt::format("{}: {} is the suffix of a {} file, and the output is {}", path.string(),
                    suffix->text, suffix->format, format),
        fmt::format("pass --to {}, or name the output in another way", suffix->format));
}

/// Throws: InvalidArgument for a name that readers skip or that another writer uses, and for none.
void require_own_name(const Path& path) {
  const std::string name = without_trailing_slash(path).filename().string();
  const bool is_taken = is_leftover(name) || is_lock_name(name);
  if (!is_taken && name != "..") return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("the output {} {}", path.string(),
                    is_taken ? "has a name that UniShard gives to unfinished outputs and to locks"
                             : "ends in .., which is no name"),
        "choose another name; nothing was written");
}

std::vector<std::string> remarks_on_weights(const converters::Source& source) {
  std::vector<std::string> remarks = source.remarks();
  for (const std::string& other : source.remarks_on_states()) std::erase(remarks, other);
  return remarks;
}

/// Returns a remark on tensors that the source took for frozen parameters because its files do not
/// tell them from buffers: DeepSpeed's stage 3 stores the two in different ways.
std::optional<std::string> remark_on_frozen(const converters::Source& source, const Catalog& target,
                                            std::string_view format) {
  const bool is_known = source.format().starts_with(kDeepSpeed) || source.format() == "native";
  if (is_known || format != kDeepSpeed || target.stage != 3) return std::nullopt;
  const auto count = std::ranges::count_if(target.tensors, &TensorInfo::frozen);
  if (count == 0) return std::nullopt;
  const auto first = std::ranges::find_if(target.tensors, &TensorInfo::frozen);
  return fmt::format(
      "{} tensors without optimizer state ({} first) are written as frozen parameters; if they are "
      "buffers, DeepSpeed loads them from stage 0, 1 or 2 only: pass -s 2",
      count, quote(first->fqn));
}

/// accelerate and the Trainer look for two folders of their own names, which no sink writes.
std::optional<std::string> remark_on_fsdp_folders(const converters::Source& source,
                                                  std::string_view format) {
  const Json& producer = source.catalog().producer;
  const bool is_accelerates =
      producer.is_object() && producer.value("library", Json()) == "accelerate";
  if (source.format() != "dcp" || format != "dcp" || !is_accelerates) return std::nullopt;
  return "the result is one folder for torch.distributed.checkpoint, which accelerate and the "
         "Trainer do not load; they load pytorch_model_fsdp_0 and optimizer_0 on any number of "
         "ranks as they are";
}

bool is_of_model(const TensorInfo& tensor) {
  return tensor.state == state::kFp32 || tensor.state == state::kWeights ||
         tensor.state == state::kBuffer;
}

/// Returns the parameters that the groups list.
std::vector<std::string> listed_parameters(const Catalog& catalog) {
  std::vector<std::string> names;
  if (!catalog.groups.is_array()) return names;
  for (const Json& group : catalog.groups) {
    if (const auto listed = converters::listed_parameters(group))
      names.insert(names.end(), listed->begin(), listed->end());
  }
  return names;
}

/// Throws: Unsupported when `format` finds states by their parameters' names, and a reader could
/// not name them.
void require_named_states(const Catalog& target, std::string_view format) {
  if (!format.starts_with(kDeepSpeed)) return;
  std::unordered_set<std::string_view> parameters;
  for (const TensorInfo& tensor : target.tensors) {
    if (is_of_model(tensor)) parameters.insert(tensor.fqn);
  }
  const auto refuse_unnamed = [&](std::string_view fqn, const std::string& label) {
    constexpr std::string_view kStart = "state.";
    if (!fqn.starts_with(kStart) || parameters.contains(fqn) ||
        fqn.find_first_not_of("0123456789", kStart.size()) != std::string_view::npos)
      return;
    raise(
        ErrorCode::Unsupported,
        fmt::format("{}: the optimizer's states have numbers, and nothing says of which "
                    "parameters they are",
                    label),
        "`unishard verify` of the original file says what can name them; trainer, accelerate, dcp "
        "and native keep the numbers; --weights-only converts the model");
  };
  for (const TensorInfo& tensor : target.tensors) refuse_unnamed(tensor.fqn, tensor.label());
  for (const std::string& name : listed_parameters(target)) refuse_unnamed(name, name);
}

/// An optimizer without states (SGD without momentum) does not tell masters from weights; DeepSpeed
/// keeps them all the same. Of the parameters in its groups, weights of float32 and of float64 are
/// the masters.
void name_masters(Catalog& target, std::string_view format) {
  if (!format.starts_with(kDeepSpeed)) return;
  if (std::ranges::any_of(target.tensors,
                          [](const TensorInfo& t) { return t.state == state::kFp32; }))
    return;
  const std::vector<std::string> listed = listed_parameters(target);
  const std::unordered_set<std::string_view> trained(listed.begin(), listed.end());
  for (TensorInfo& tensor : target.tensors) {
    const bool is_wide = tensor.dtype == DType::Float32 || tensor.dtype == DType::Float64;
    if (tensor.state == state::kWeights && is_wide && !tensor.frozen &&
        trained.contains(tensor.fqn))
      tensor.state = state::kFp32;
  }
}

/// Only floating-point numbers are trained. The files of a state dict alone do not tell the other
/// tensors, such as the counters of BatchNorm, from weights; DeepSpeed's do.
void name_buffers(Catalog& target, std::string_view format) {
  if (!format.starts_with(kDeepSpeed)) return;
  for (TensorInfo& tensor : target.tensors) {
    if (tensor.state == state::kWeights && !tensor.frozen && info(tensor.dtype).kind != Kind::Float)
      tensor.state = state::kBuffer;
  }
}

/// DeepSpeed trains float32 masters, which other programs do not have beside weights of 16 bits.
std::optional<std::string> remark_on_masters(const Catalog& target, std::string_view format) {
  if (!format.starts_with(kDeepSpeed)) return std::nullopt;
  std::unordered_set<std::string_view> known, made;
  for (const TensorInfo& tensor : target.tensors) {
    if (tensor.state == state::kFp32) known.insert(tensor.fqn);
  }
  const std::vector<std::string> listed = listed_parameters(target);
  const std::unordered_set<std::string_view> trained(listed.begin(), listed.end());
  std::string_view type;
  for (const TensorInfo& tensor : target.tensors) {
    const bool is_narrow =
        info(tensor.dtype).kind == Kind::Float && size_of(tensor.dtype) < sizeof(float);
    if (tensor.state != state::kWeights || tensor.frozen || !is_narrow ||
        known.contains(tensor.fqn) || !trained.contains(tensor.fqn))
      continue;
    made.insert(tensor.fqn);
    type = name_of(tensor.dtype);
  }
  if (made.empty()) return std::nullopt;
  return fmt::format(
      "{} parameters have no float32 masters, which DeepSpeed trains: new ones are made of their "
      "{} weights",
      made.size(), type);
}

/// DeepSpeed keeps a state of all parameters of a group in one vector, which has one type: the
/// narrower ones of several floating-point types are widened, which loses nothing.
void share_types(Catalog& target, std::string_view format, std::vector<std::string>& remarks) {
  if (format != kDeepSpeed) return;
  const auto is_shared = [](const TensorInfo& tensor) {
    return tensor.state != state::kWeights && tensor.state != state::kBuffer &&
           tensor.state != converters::kExtraState && info(tensor.dtype).kind == Kind::Float;
  };
  std::map<std::pair<std::int32_t, std::string>, DType> types;
  for (const TensorInfo& tensor : target.tensors) {
    if (!is_shared(tensor)) continue;
    const auto [type, is_new] = types.try_emplace({tensor.group, tensor.state}, tensor.dtype);
    if (is_new || type->second == tensor.dtype) continue;
    const bool is_double = type->second == DType::Float64 || tensor.dtype == DType::Float64;
    type->second = is_double ? DType::Float64 : DType::Float32;
  }
  std::size_t widened = 0;
  for (TensorInfo& tensor : target.tensors) {
    if (!is_shared(tensor)) continue;
    const DType type = types.at({tensor.group, tensor.state});
    widened += tensor.dtype == type ? 0 : 1;
    tensor.dtype = type;
  }
  if (widened == 0) return;
  remarks.push_back(
      fmt::format("{} optimizer states become as wide as the widest of their group, because "
                  "DeepSpeed has one type for all",
                  widened));
}

/// A folder of pytorch_model.bin tells only names, so all its tensors are weights. Where each name
/// has one tensor, the plan says so; other catalogs are refused by the sink.
void name_weights(Catalog& target, std::vector<std::string>& remarks) {
  std::set<std::string_view> names;
  std::size_t others = 0;
  for (const TensorInfo& tensor : target.tensors) {
    if (!names.insert(tensor.fqn).second) return;
    if (tensor.state == state::kBuffer || tensor.state == state::kFp32) {
      ++others;
    } else if (tensor.state != state::kWeights) {
      return;
    }
  }
  if (others == 0) return;
  for (TensorInfo& tensor : target.tensors) tensor.state = state::kWeights;
  remarks.push_back(fmt::format(
      "{} buffers and masters are weights in the result: pytorch_model.bin tells names only",
      others));
}

}  // namespace

std::vector<std::string> ConversionNotes::losses() const {
  std::vector<std::string> out = lines_of(lost);
  out.insert(out.end(), not_read.begin(), not_read.end());
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
  require_own_name(output.path);
  require_fitting_suffix(output.format, output.path);
  require_named_states(plan_.target, output.format);
  name_masters(plan_.target, output.format);
  name_buffers(plan_.target, output.format);
  notes_.lost = losses_to_name(source.losses(), options_.losses, options_.input.string());
  notes_.missing = count_missing(notes_.lost, options_.losses);
  notes_.not_read = source.notes();
  notes_.remarks = source.remarks();
  notes_.of_weights = remarks_on_weights(source);
  if (auto remark = remark_on_masters(plan_.target, output.format))
    notes_.remarks.push_back(std::move(*remark));
  if (auto remark = remark_on_frozen(source, plan_.target, output.format))
    notes_.remarks.push_back(std::move(*remark));
  if (auto remark = remark_on_second_names(plan_.target, output.format))
    notes_.remarks.push_back(std::move(*remark));
  if (auto remark = remark_on_fsdp_folders(source, output.format))
    notes_.remarks.push_back(std::move(*remark));
  notes_.left_out = std::exchange(plan_.notes, {});
  notes_.asked_for = notes_.left_out.size();
  if (output.format == "torch" && output.max_shard_bytes > 0)
    name_weights(plan_.target, notes_.remarks);
  share_types(plan_.target, output.format, notes_.remarks);
  take_side_files(source, options_.input, plan_, output, notes_);
  std::ranges::copy(plan_.remarks, std::back_inserter(notes_.remarks));
  if (options_.dequantized > 0) forget_quantization(output.side_files, plan_.target);
  // A model alone is no training file, whatever file it comes from.
  const bool is_whole = options_.losses.wanted == Wanted::Everything;
  if (is_whole && output.format == source.format() && output.key_layout.empty())
    output.layout = source.layout();
  checking_.mark(plan_.target, output);
  const std::uint64_t bytes =
      plan_.disk_bytes != 0 ? plan_.disk_bytes : plan_.target.stored_bytes();
  const bool has_tags = converters::format_entry(output.format).shape == OutputShape::Tags;
  require_outside_checkpoints(storage, output.path, has_tags);
  require_outside_model(source, output.path);
  require_space(output.path, bytes);
  shared_ = make_shared_sink(team, plan_.target, [&](const converters::WorkSplit& share) {
    output.share = share;
    if (has_tags && share.rank == 0) decide_on_latest();
    return converters::make_sink(storage, output, plan_.target);
  });
  notes_.cannot_be_written = shared_.sink->notes();
  std::ranges::move(shared_.sink->remarks(), std::back_inserter(notes_.remarks));
}

/// Only the first process moves `latest`.
void Conversion::decide_on_latest() {
  LatestDecision decision =
      decide_latest(posix_storage(), options_.output, plan_.target, options_.may_be_fresh);
  options_.output.moves_latest = decision.moves;
  if (!decision.moves) notes_.remarks.push_back(std::move(decision.remark));
}

WrittenSize Conversion::written() const {
  const Catalog& target = plan_.target;
  WrittenSize size{target.tensors.size(), target.stored_bytes()};
  std::set<std::string_view> masters;
  for (const TensorInfo& tensor : target.tensors)
    if (tensor.state == state::kFp32) masters.insert(tensor.fqn);
  for (const std::size_t i : shared_.sink->left_out()) {
    const TensorInfo& tensor = target.tensors[i];
    const bool is_derived = tensor.state == state::kWeights && masters.contains(tensor.fqn);
    if (!is_derived) --size.tensors;
    if (!tensor.derived) size.bytes -= tensor.bytes();
  }
  return size;
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
  for (const std::size_t tensor : written.overflowed)
    result.overflowed.push_back(plan_.target.tensors[tensor].label());
  if (!options_.may_overflow && !result.overflowed.empty()) {
    const bool is_half = plan_.target.tensors[written.overflowed.front()].dtype == DType::Float16;
    raise(ErrorCode::Unsupported, describe_overflow(result.overflowed),
          is_half ? "leave --dtype out, or pass --dtype bf16, which has the range of fp32; nothing "
                    "was published"
                  : "leave --dtype out; nothing was published");
  }
  compare(written, transfer, result);
  if (is_equal(result)) publish();
  return result;
}

/// Another conversion may have published into the folder since this one looked at its run.
void Conversion::publish() {
  std::optional<OutputLock> lock;
  publish_together(team_, *shared_.sink, [&] {
    if (converters::format_entry(options_.output.format).shape != OutputShape::Tags) return;
    lock.emplace(lock_run(posix_storage(), options_.output));
    decide_latest(posix_storage(), options_.output, plan_.target, options_.may_be_fresh);
  });
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
  const Catalog read = with_digests(*staged, transfer, team_);
  // A file of weights has no place to say that "module." is the name of a module.
  if (auto plain = converters::without_replica(expected, read)) expected = std::move(*plain);
  result.different = differing(expected, read, shared_.sink->left_out());
  transfer.observer->end();
}

std::string describe_overflow(const std::vector<std::string>& labels) {
  return fmt::format(
      "{} tensors have numbers beyond the range of their new type, which became infinite: {}",
      labels.size(), first_names(labels));
}

std::optional<std::string> remark_on_second_names(const Catalog& target, std::string_view format) {
  if (format != "npz" || target.aliases.empty()) return std::nullopt;
  return fmt::format(
      "{} second names of tied weights ({} first) are in unishard.catalog only: a file of numpy "
      "has "
      "one name for each array",
      target.aliases.size(), quote(target.aliases.front().fqn));
}

bool is_model_file(const Path& path) {
  const Suffix* const suffix = suffix_of(path);
  return suffix != nullptr && !suffix->format.empty();
}

std::string model_format(const Path& path) {
  const Suffix* const suffix = suffix_of(path);
  return suffix == nullptr || suffix->format.empty() ? "safetensors" : std::string(suffix->format);
}

std::string format_or_suffix(std::string format, const Path& path) {
  if (!format.empty() || is_model_file(path))
    return format.empty() ? model_format(path) : std::move(format);
  raise(ErrorCode::InvalidArgument,
        fmt::format("--to is required: the name {} tells no format", path.string()),
        "add --to with one of the formats that `unishard formats` lists; nothing was written");
}

converters::Output model_output(std::string format, const Path& path,
                                const std::string& max_shard_size) {
  const bool is_folder =
      converters::format_entry(format).shape == OutputShape::FileOrFolder && !is_model_file(path);
  if (!is_folder && !max_shard_size.empty()) {
    raise(ErrorCode::InvalidArgument, "--max-shard-size is for model folders",
          fmt::format("leave it out, or name a folder instead of {}; nothing was written",
                      path.string()));
  }
  const std::string size = max_shard_size.empty() ? "5GB" : max_shard_size;
  return {.format = std::move(format),
          .path = path,
          .tag = {},
          .max_shard_bytes = is_folder ? parse_bytes(size, "--max_shard_size") : 0};
}

}  // namespace unishard::tools
