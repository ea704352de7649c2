#include "formats/deepspeed/expert_files.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters::deepspeed {
namespace {

constexpr std::string_view kExperts = ".deepspeed_moe.experts.deepspeed_experts.";
constexpr const char* kFindExperts =
    "copy it from the node that wrote it, or use another checkpoint";

/// Checks the files against each other while they are read.
class ExpertGrid {
 public:
  ExpertGrid(const TagFiles& files, const TorchFile& model)
      : files_(files), where_(files.folder.string()), model_(model.name()) {
    const auto told = present(model.root(), "num_experts");
    if (!told || !told->is_sequence()) return;
    is_told_ = true;
    for (std::size_t i = 0; i < told->size(); ++i) counts_.push_back((*told)[i].unsigned_int());
  }

  /// Checks that the names of the files are those of whole layers.
  void check_names() const {
    if (files_.experts.empty()) raise_missing(0, 0);
    std::uint32_t layer = 0, expert = 0;
    if (is_told_ && counts_.empty()) raise_stray(files_.experts.front().name);
    for (const NumberedFile& file : files_.experts) {
      if (file.name.model_rank != 0) refuse_tensor_parallel(file);
      if (file.name.layer != layer) {
        check_count(layer, expert);
        ++layer;
        expert = 0;
      }
      if (file.name.layer != layer || file.name.expert != expert) raise_missing(layer, expert);
      ++expert;
    }
    check_count(layer, expert);
    if (layer + std::size_t{1} < counts_.size()) raise_missing(layer + 1, 0);
  }

  /// Checks that a file holds the expert that its name says, and adds it to its layer. The experts
  /// of a layer are copies of one module, so that all have the same tensors.
  void add(const ModuleFile& file, std::vector<ExpertLayer>& layers) {
    if (file.entries.empty()) return raise_other(file, "it has no tensors");
    for (const NamedView& entry : file.entries) {
      const auto name = split_expert(entry.name);
      if (!name || name->number != file.numbers.expert)
        raise_other(file, fmt::format("it holds {}", unishard::quote(entry.name)));
      if (file.numbers.layer == layers.size()) add_layer(file, *name, layers);
      if (layers.back().prefix != name->prefix)
        raise_other(
            file, fmt::format("the experts before it are called {}<number>", layers.back().prefix));
    }
    require_tensors(file, layers.back().experts == 0);
    ++layers.back().experts;
  }

 private:
  void require_tensors(const ModuleFile& file, bool is_first) {
    NamedShapes own{file.name, {}};
    for (const NamedView& entry : file.entries)
      own.shapes.emplace(split_expert(entry.name)->local.substr(1), entry.view.shape);
    if (is_first) {
      first_ = std::move(own);
    } else {
      require_tensors_of(own, first_);
      require_tensors_of(first_, own);
    }
  }

  /// The shapes of an expert's tensors by local name.
  struct NamedShapes {
    std::string file;
    TensorShapes shapes;
  };

  void require_tensors_of(const NamedShapes& one, const NamedShapes& other) const {
    const std::vector<std::string> found = differences(one.shapes, other.shapes, 1);
    if (found.empty()) return;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it {}, unlike {}: the experts of a layer have the same tensors, so that "
                      "one of these files is damaged, or of another save",
                      one.file, found.front(), other.file),
          kFindExperts);
  }

  void add_layer(const ModuleFile& file, const ExpertName& name,
                 std::vector<ExpertLayer>& layers) const {
    if (std::ranges::find(layers, name.prefix, &ExpertLayer::prefix) != layers.end())
      raise_other(file, fmt::format("another layer's experts are called {}<number>", name.prefix));
    layers.push_back({std::string(name.prefix), 0});
  }

  void check_count(std::uint32_t layer, std::uint32_t experts) const {
    if (!is_told_) return;
    if (layer >= counts_.size() || experts > counts_[layer]) {
      FileName last;
      last.layer = layer;
      last.expert = experts - 1;
      raise_stray(last);
    }
    if (experts < counts_[layer]) raise_missing(layer, experts);
  }

  [[noreturn]] void raise_stray(const FileName& file) const {
    raise(
        ErrorCode::Corrupt,
        fmt::format("{}: layer_{}_expert_{}_mp_rank_00_model_states.pt is left from another save: "
                    "by num_experts of {}, layer {} has {} experts",
                    where_, file.layer, file.expert, model_, file.layer,
                    file.layer < counts_.size() ? counts_[file.layer] : 0),
        "remove it, if the run that saved last had fewer experts");
  }

  [[noreturn]] void raise_missing(std::uint32_t layer, std::uint32_t expert) const {
    raise(
        ErrorCode::Corrupt,
        fmt::format("{}: layer_{}_expert_{}_mp_rank_00_model_states.pt is missing: the weights of "
                    "that expert are lost",
                    where_, layer, expert),
        kFindExperts);
  }

  [[noreturn]] void raise_other(const ModuleFile& file, const std::string& problem) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it is not the file of expert {} of layer {}: {}", file.name,
                      file.numbers.expert, file.numbers.layer, problem),
          kFindExperts);
  }

  [[noreturn]] void refuse_tensor_parallel(const NumberedFile& file) const {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: {} is of a run with experts and tensor parallelism, which is not read",
                      where_, unishard::quote(file.path.filename().string())),
          kGatherExperts);
  }

  const TagFiles& files_;
  const std::string where_, model_;
  bool is_told_ = false;
  std::vector<std::uint64_t> counts_;  ///< experts of each layer, if they are told
  NamedShapes first_;                  ///< the first expert of the layer
};

}  // namespace

std::string ExpertName::with_number(std::uint64_t other) const {
  return fmt::format("{}{}{}", prefix, other, local);
}

std::optional<ExpertName> split_expert(std::string_view fqn) {
  const std::size_t found = fqn.rfind(kExperts);
  if (found == std::string_view::npos) return std::nullopt;
  const std::size_t begin = found + kExperts.size(), end = fqn.find('.', begin);
  if (end == std::string_view::npos) return std::nullopt;
  const auto number = match_numbers("#", fqn.substr(begin, end - begin));
  if (!number) return std::nullopt;
  return ExpertName{fqn.substr(0, begin), number->front(), fqn.substr(end)};
}

const ExpertLayer* ExpertFiles::find(std::string_view prefix) const {
  const auto found = std::ranges::find(layers, prefix, &ExpertLayer::prefix);
  return found == layers.end() ? nullptr : &*found;
}

ExpertFiles read_expert_files(const std::shared_ptr<FilePool>& pool, const TagFiles& files,
                              const TorchFile& model, Notes& notes) {
  ExpertGrid grid(files, model);
  grid.check_names();
  ExpertFiles experts;
  experts.optimizers = files.expert_optimizers;
  for (const NumberedFile& file : files.experts) {
    experts.files.push_back(read_module_file(pool, file, notes));
    grid.add(experts.files.back(), experts.layers);
  }
  return experts;
}

}  // namespace unishard::converters::deepspeed
