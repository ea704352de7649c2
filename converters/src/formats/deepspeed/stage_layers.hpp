#pragma once
// Which stage of a pipeline has which layers, for a catalog whose names are those of DeepSpeed's
// PipelineModule: `<layer>.<local>`, and `tied_modules.<key>.<local>` for a module that several
// layers use.
#include "unishard/converters/parallel_ranks.hpp"

#include "formats/deepspeed/writer_model.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed_sink {

/// The parts of a name. `tied_key` is empty for that of a layer.
struct LayerName {
  std::uint32_t layer = 0;
  std::string_view tied_key, local;
};
/// Returns nullopt for a name that is none of a pipeline.
std::optional<LayerName> split_layer_name(std::string_view fqn);

/// Divides layers into parts as DeepSpeed does, by the numbers of their trained elements: so that
/// the largest part differs least from the smallest one, the last of several such divisions.
/// Returns the first layer of each part, then the number of layers.
/// Complexity: O(layers² parts) time, O(layers parts) memory.
std::vector<std::uint32_t> balanced_parts(const std::vector<std::uint64_t>& elements,
                                          std::uint32_t parts);

/// Returns how many elements of a parameter each tensor-parallel rank has: DeepSpeed counts these.
using ElementsOnRank = std::function<std::uint64_t(const SinkParameter&)>;

class StageLayers {
 public:
  /// Throws: Unsupported, naming the tensor, for a name that is none of a pipeline;
  /// InvalidArgument, with what to pass, for parts that do not fit the layers, for tied modules of
  /// which `ranks` do not tell the layers, and for frozen parameters without parts.
  StageLayers(const SinkModel& model, const ParallelRanks& ranks, const ElementsOnRank& elements);

  std::uint32_t stages() const { return static_cast<std::uint32_t>(parts_.size() - 1); }
  /// Returns whether a stage has the tensors of this name.
  /// Pre: the model has it.
  bool has(std::uint32_t stage, std::string_view fqn) const;
  /// Returns the layers of a stage.
  std::uint32_t first(std::uint32_t stage) const { return parts_[stage]; }
  std::uint32_t last(std::uint32_t stage) const { return parts_[stage + 1]; }
  /// Returns the keys of the tied modules that a layer uses: one, or none.
  std::optional<std::string_view> tied_key(std::uint32_t layer) const;
  bool has_tied() const { return !tied_.empty(); }
  /// Returns a number by which the parameters of a stage ascend as PipelineModule makes them: the
  /// tied modules, in the order in which layers of the stage use them, then the layers.
  std::uint32_t place(std::uint32_t stage, std::string_view fqn) const;

  /// Returns a line that tells the layers of each stage.
  std::string remark() const;

 private:
  void read_names(const SinkModel& model);
  void read_tied(const ParallelRanks& ranks);
  std::vector<std::uint32_t> divided(const SinkModel& model, std::uint32_t stages,
                                     const ElementsOnRank& elements) const;
  void check_parts() const;

  std::set<std::uint32_t> own_;  ///< layers with tensors of their own
  std::uint32_t layers_ = 0;     ///< the highest number, and one
  std::map<std::string, std::vector<std::uint32_t>, std::less<>> tied_;  ///< layers, by key
  std::vector<std::uint32_t> parts_;
  bool are_given_ = false;
};

}  // namespace unishard::converters::deepspeed_sink
