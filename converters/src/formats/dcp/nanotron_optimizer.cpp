#include "formats/dcp/nanotron_optimizer.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/pickle_json.hpp"
#include "containers/torch_file.hpp"
#include "core/rounded_elements.hpp"
#include "formats/dcp/view_parts.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace unishard::converters::dcp::nanotron {
namespace {

constexpr std::string_view kFolder = "optimizer", kConfig = "optimizer_config.json";

struct RankFile {
  Path path;
  Ranks ranks;
};

/// Returns the files in the order of their ranks: stages of the pipeline first.
std::vector<RankFile> find_files(Storage& storage, const Path& folder, Losses& losses) {
  std::vector<RankFile> files;
  for (const Entry& entry : storage.list(folder)) {
    const Path path = folder / entry.name;
    if (auto ranks = parse_rank_file(kFolder, entry.name);
        ranks && storage.kind(path) == EntryKind::File) {
      files.push_back({path, *std::move(ranks)});
    } else if (entry.name != kConfig) {
      losses.push_back({role_of_unread_file(entry.name), path.string()});
    }
  }
  std::ranges::sort(files, {}, [](const RankFile& file) {
    const auto rank = [&](std::string_view kind) { return rank_in(file.ranks, kind).rank; };
    return std::tuple(rank("pp"), rank("tp"), rank("exp"), rank("dp"));
  });
  return files;
}

/// Returns how many files the ranks of the first one call for, and whether all agree.
std::optional<std::uint64_t> expected_files(const std::vector<RankFile>& files) {
  std::uint64_t product = 1;
  for (const std::string_view kind : {"pp", "dp", "tp", "exp"}) {
    const std::uint64_t ranks = rank_in(files[0].ranks, kind).ranks;
    product = std::min<std::uint64_t>(product * ranks, limits::kWorldSize);
    const auto differs = [&](const RankFile& file) {
      return rank_in(file.ranks, kind).ranks != ranks ||
             file.ranks.contains(kind) != files[0].ranks.contains(kind);
    };
    if (std::ranges::any_of(files, differs)) return std::nullopt;
  }
  return product;
}

/// How many elements of a tensor-parallel rank's part the data-parallel ranks before have, by key.
using Reached = std::map<std::string, std::uint64_t>;

/// Returns the part of both; nullopt when there is none.
std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    const std::uint64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::uint64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) return std::nullopt;
    both.offsets.push_back(begin);
    both.sizes.push_back(end - begin);
  }
  return both;
}

Box moved(Box box, const Shape& from, const Shape& to) {
  for (std::size_t d = 0; d < box.offsets.size(); ++d) box.offsets[d] += to[d] - from[d];
  return box;
}

/// A parameter group, as the files of all ranks have it.
struct Group {
  Json settings;
  std::vector<std::string> names;
  std::set<std::string> listed;

  void add(std::string name) {
    if (listed.insert(name).second) names.push_back(std::move(name));
  }
};

struct Groups {
  std::vector<Group> all;

  /// Returns the group with these settings, that at `place` before others, or a new one.
  Group& like(const Json& settings, std::size_t place) {
    if (place < all.size() && all[place].settings == settings) return all[place];
    const auto found = std::ranges::find(all, settings, &Group::settings);
    if (found != all.end()) return *found;
    return all.emplace_back(Group{settings, {}, {}});
  }
  Json to_json() const {
    Json list = Json::array();
    for (const Group& group : all) {
      list.push_back(group.settings);
      list.back()["params"] = group.names;
    }
    return list;
  }
};

/// What the files of all ranks have together.
struct Together {
  Groups groups;
  Reached reached;
  std::set<std::string> missing;  ///< parameters that no file of the model holds
  /// Parameters with masters of another type than the weights, and those that do not round to them.
  std::set<std::string> compared, different;
  /// Parameters of 16 bits of which a rank has states and no master, where others may have some.
  std::set<std::string> without_master;
  bool has_masters = false;
  std::set<std::string> unread;  ///< keys that are not read
  double steps = 0;              ///< the largest counter
};

/// Returns whether elements of a master round to those of the weights. `begin` is the master's
/// first element in the weights.
bool rounds_in(const torch::TensorView& master, ElementRange range,
               const torch::TensorView& weights, std::uint64_t begin) {
  std::vector<std::byte> wide(range.size() * size_of(master.dtype)),
      own(range.size() * size_of(weights.dtype));
  master.read(range, wide, torch::Reading::Sample);
  weights.read({begin + range.begin, begin + range.end}, own, torch::Reading::Sample);
  return are_rounded(master.dtype, wide, weights.dtype, own);
}

/// Returns the same of both ends of the master.
bool rounds_to(const torch::TensorView& master, const torch::TensorView& weights,
               std::uint64_t begin) {
  constexpr std::uint64_t kCompared = 64;
  if (!convertible(master.dtype, weights.dtype)) return true;
  const std::uint64_t all = master.elements(), count = std::min(kCompared, all);
  return rounds_in(master, {0, count}, weights, begin) &&
         rounds_in(master, {all - count, all}, weights, begin);
}

/// Reads the file of one rank.
class RankReader {
 public:
  RankReader(const RankFile& file, torch::TorchFile object, std::uint32_t number,
             const Parameters& parameters, Together& together, StateDictBuilder& builder)
      : file_(file),
        object_(std::move(object)),
        number_(number),
        parameters_(parameters),
        together_(together),
        builder_(builder) {
    const std::string written = object_.archive_name() + ".pt";
    if (parse_rank_file(kFolder, written) && written != file.path.filename())
      raise_written_as(file.path, written);
  }

  /// Adds masters, states and groups.
  void read() {
    const torch::Value root = object_.root();
    read_names(root.at("names"));
    read_states(root.at("state"));
    if (const auto masters = root.find(kMasters)) read_masters(*masters);
    read_groups(root.at("param_groups"));
    name_unread_keys(root);
    find_missing_masters();
  }

 private:
  static constexpr std::string_view kMasters = "gradient_accumulator";

  void name_unread_keys(torch::Value root) {
    constexpr std::array<std::string_view, 4> kRead = {"names", "state", kMasters, "param_groups"};
    for (std::size_t i = 0; i < root.pair_count(); ++i) {
      const std::string key =
          root.key(i).is(torch::NodeKind::Str) ? std::string(root.key(i).string()) : "?";
      if (std::ranges::count(kRead, key) == 0 && together_.unread.insert(key).second)
        builder_.out.losses.push_back({Role::ClientValue,
                                       fmt::format("{} of {}", key, file_.path.string()),
                                       "no key that nanotron gives its optimizer"});
    }
  }

  void find_missing_masters() {
    together_.has_masters |= !mastered_.empty();
    for (const std::string& name : stateful_) {
      const auto parameter = parameters_.find(name);
      if (mastered_.contains(name) || parameter == parameters_.end()) continue;
      const DType dtype = cut_of(parameter->second).view.dtype;
      if (dtype == DType::BFloat16 || dtype == DType::Float16)
        together_.without_master.insert(name);
    }
  }

  /// The optimizer may have been given the replica of DistributedDataParallel.
  std::string model_name(std::string_view name) const {
    return std::string(parameters_.contains(std::string(name)) ? name : without_replica(name));
  }

  void read_names(torch::Value names) {
    for (std::size_t i = 0; i < names.pair_count(); ++i)
      names_.emplace(names.key(i).unsigned_int(), names.value(i).string());
  }

  void read_states(torch::Value states) {
    for (std::size_t i = 0; i < states.pair_count(); ++i) {
      const std::uint64_t number = states.key(i).unsigned_int();
      const auto name = names_.find(number);
      if (name == names_.end())
        raise(ErrorCode::Corrupt, fmt::format("parameter {} has states and no name", number));
      const torch::Value state = states.value(i);
      for (std::size_t k = 0; k < state.pair_count(); ++k)
        add(name->second, std::string(state.key(k).string()), state.value(k));
    }
  }

  void read_masters(torch::Value masters) {
    for (std::size_t i = 0; i < masters.pair_count(); ++i)
      add(std::string(masters.key(i).string()), std::string(state::kFp32), masters.value(i));
  }

  void add(const std::string& written, const std::string& state, torch::Value value) {
    const std::string name = model_name(written);
    const std::string key = fmt::format("optimizer.state.{}.{}", name, state);
    const KeyPath path = {{"optimizer", false}, {"state", false}, {name, false}, {state, false}};
    if (!torch::TorchFile::is_tensor(value))
      return builder_.add_part(key, path, object_, value, number_);
    const torch::TensorView view = object_.tensor(value);
    if (view.shape.empty()) {
      if (state == "step") count_step(view);
      return builder_.add_piece(key, path, {}, {}, view, number_);
    }
    const auto parameter = parameters_.find(name);
    if (parameter == parameters_.end()) {
      together_.missing.insert(name);
      return;
    }
    (state == state::kFp32 ? mastered_ : stateful_).insert(name);
    try {
      if (state == state::kFp32) compare_master(name, parameter->second, key, view);
      add_tensor(parameter->second, key, path, view);
    } catch (const Error& error) {
      throw error.with_context(fmt::format("{}: ", key));
    }
  }

  void count_step(const torch::TensorView& view) {
    float step = 0;
    if (view.dtype != DType::Float32) return;
    view.read({0, 1}, std::as_writable_bytes(std::span(&step, 1)), torch::Reading::Sample);
    together_.steps = std::max(together_.steps, static_cast<double>(step));
  }

  Cut cut_of(const Parameter& parameter) const {
    return parameter.cut_of(rank_in(file_.ranks, "tp").rank, rank_in(file_.ranks, "exp").rank);
  }

  void compare_master(const std::string& name, const Parameter& parameter, const std::string& key,
                      const torch::TensorView& master) {
    const torch::TensorView weights = cut_of(parameter).view;
    const auto before = together_.reached.find(key);
    const std::uint64_t begin = before == together_.reached.end() ? 0 : before->second;
    if (master.dtype == weights.dtype || master.elements() == 0 || begin > weights.elements() ||
        master.elements() > weights.elements() - begin)
      return;
    together_.compared.insert(name);
    if (!rounds_to(master, weights, begin)) together_.different.insert(name);
  }

  void add_tensor(const Parameter& parameter, const std::string& key, const KeyPath& path,
                  const torch::TensorView& view) {
    const Cut cut = cut_of(parameter);
    const auto add_part = [&](const Box& local, const torch::TensorView& part) {
      for (const CutBox& box : cut.boxes) {
        const auto both = intersection(local, box.local);
        if (!both) continue;
        const Shape none(local.sizes.size(), 0);
        builder_.add_piece(key, path, parameter.shape,
                           moved(*both, box.local.offsets, box.whole.offsets),
                           box_of(part, moved(*both, local.offsets, none)), number_);
      }
    };
    if (!file_.ranks.contains("dp")) {
      if (view.shape != cut.view.shape)
        raise(ErrorCode::Corrupt,
              fmt::format("its shape is ({}), and the model's part has ({})",
                          fmt::join(view.shape, ", "), fmt::join(cut.view.shape, ", ")));
      return add_part({Shape(cut.view.shape.size(), 0), cut.view.shape}, view);
    }
    // optimizer_config.json says the slices of the first stage of a pipeline only; they lie one
    // behind the other in the order of the ranks.
    std::uint64_t& begin = together_.reached[key];
    const std::uint64_t elements = element_count(cut.view.shape);
    if (view.shape.size() != 1 || view.shape[0] > elements - begin)
      raise(ErrorCode::Corrupt,
            fmt::format(
                "its shape is ({}), and ({}) has {} elements behind those of the ranks before",
                fmt::join(view.shape, ", "), fmt::join(cut.view.shape, ", "), elements - begin));
    const ElementRange slice{begin, begin + view.shape[0]};
    begin = slice.end;
    std::uint64_t at = 0;
    for (const Box& box : boxes_of(cut.view.shape, slice)) {
      add_part(box, slice_of(view, at, box.sizes));
      at += box.elements();
    }
  }

  /// A rank of ZeRO-1 lists the parameters of which it has a slice, and a stage of a pipeline its
  /// own: the groups of all ranks are put together.
  void read_groups(torch::Value list) {
    for (std::size_t g = 0; g < list.size(); ++g) {
      Json settings = torch::to_json(list[g]);
      if (!settings.is_object() || !settings.contains("params"))
        raise(ErrorCode::Corrupt, fmt::format("param_groups[{}] has no parameters", g));
      const Json numbers = std::move(settings["params"]);
      settings.erase("params");
      Group& group = together_.groups.like(settings, g);
      for (const Json& number : numbers) {
        const auto name =
            number.is_number_integer() ? names_.find(number.get<std::uint64_t>()) : names_.end();
        if (name == names_.end()) {
          builder_.out.losses.push_back(
              {Role::Setting, fmt::format("param_groups[{}] of {}", g, file_.path.string()),
               "parameters without states, whose names nothing tells"});
          break;
        }
        group.add(model_name(name->second));
      }
    }
  }

  const RankFile& file_;
  const torch::TorchFile object_;
  std::uint32_t number_;
  const Parameters& parameters_;
  Together& together_;
  StateDictBuilder& builder_;
  std::map<std::uint64_t, std::string> names_;
  std::set<std::string> stateful_, mastered_;  // parameters with tensors of states, and of masters
};

void lose_optimizer(const Path& place, const std::string& why, StateDictBuilder& builder) {
  builder.out.losses.push_back(
      {.role = Role::Optimizer,
       .name = place.string(),
       .why = why + ": its states are left out, and the float32 masters where it had them",
       .is_broken = true});
}

/// Returns nothing, with a loss, when one is damaged.
std::vector<torch::TorchFile> open_all(const std::vector<RankFile>& files, const Path& place,
                                       StateDictBuilder& builder) {
  std::vector<torch::TorchFile> objects;
  objects.reserve(files.size());
  try {
    for (const RankFile& file : files) {
      const std::shared_ptr<const File> opened = builder.open(file.path);
      objects.emplace_back(torch::Window{opened, 0, opened->size()});
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt) throw;
    lose_optimizer(place, fmt::format("damaged ({})", error.what()), builder);
    return {};
  }
  return objects;
}

/// A run may have no masters at all.
void doubt_masters(const Together& together, StateDictBuilder& builder) {
  if (together.without_master.empty()) return;
  if (together.has_masters)
    builder.out.remarks.push_back(fmt::format(
        "{} parameters of 16 bits, {} first, have no fp32 master, or lack a part of it, and others "
        "have one: what is needed in fp32 is made of the 16 bits",
        together.without_master.size(), unishard::quote(*together.without_master.begin())));
  else if (!together.unread.empty())
    builder.out.remarks.push_back(
        fmt::format("the optimizer's files have no fp32 masters, and keys that are not read: {}",
                    fmt::join(together.unread, ", ")));
}

/// Says what the files contradict the model in.
void check(const Together& together, const Path& place, StateDictBuilder& builder) {
  for (const std::string& name : together.missing)
    builder.out.losses.push_back(unsaved_weight(name));
  if (together.steps > 0 && builder.out.step && *builder.out.step != together.steps)
    builder.out.notes.push_back(fmt::format(
        "the optimizer counts {} steps, and checkpoint_metadata.json {}: the optimizer's "
        "files may be of another save",
        together.steps, *builder.out.step));
  doubt_masters(together, builder);
  if (together.different.empty()) return;
  if (together.different.size() == together.compared.size())
    raise(ErrorCode::Corrupt,
          fmt::format("{}: its masters do not round to the weights of model/: the files are of "
                      "another save",
                      place.string()),
          "use another checkpoint, or find the files that belong together");
  builder.out.notes.push_back(fmt::format(
      "the masters of {} parameters, {} first, do not round to their weights: the masters are kept",
      together.different.size(), unishard::quote(*together.different.begin())));
}

}  // namespace

void read_optimizer(Storage& storage, const Path& folder, const Parameters& parameters,
                    StateDictBuilder& builder) {
  const Path place = folder / kFolder;
  if (storage.kind(place) != EntryKind::Directory) return;
  const std::vector<RankFile> files = find_files(storage, place, builder.out.losses);
  if (files.empty() && storage.kind(place / kConfig) == EntryKind::File)
    return lose_optimizer(place, "no rank's file is there", builder);
  if (files.empty()) return;
  const auto expected = expected_files(files);
  if (!expected || *expected != files.size()) {
    return lose_optimizer(place,
                          expected
                              ? fmt::format("{} of {} files are there", files.size(), *expected)
                              : "files of runs on different numbers of ranks",
                          builder);
  }
  std::vector<torch::TorchFile> objects = open_all(files, place, builder);
  if (objects.empty()) return;
  builder.out.has_masters = true;
  Together together;
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    if (rank_in(files[i].ranks, "dp").rank == 0) together.reached.clear();
    try {
      RankReader(files[i], std::move(objects[i]), i, parameters, together, builder).read();
    } catch (const Error& error) {
      throw error.with_context(files[i].path.string() + ": ");
    }
  }
  check(together, place, builder);
  builder.out.world_size =
      std::max(builder.out.world_size, static_cast<std::uint32_t>(files.size()));
  builder.out.objects.push_back({"optimizer.param_groups",
                                 {{"optimizer", false}, {"param_groups", false}},
                                 together.groups.to_json()});
}

}  // namespace unishard::converters::dcp::nanotron
