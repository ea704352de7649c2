#pragma once
// Which tensors of a source become which tensors of a result. Plans are pure values; conversion.hpp
// carries them out.
#include "unishard/converters/source.hpp"

#include "workflows/rename_rules.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct ConversionPlan {
  Catalog target = {};
  std::vector<std::size_t> tensor_map = {};  ///< target tensor -> source tensor
  std::vector<std::string> notes = {};       ///< what the options leave out, one line each
  std::vector<std::string> remarks = {};     ///< what else the user should know
  std::vector<RenameRule> renames = {};      ///< the rules that gave the names
  /// Key-value pairs for formats that have a place for them: where the result comes from.
  std::vector<std::pair<std::string, std::string>> metadata = {};
  std::size_t frozen_left_out = 0;  ///< frozen parameters that the options leave out
  std::uint64_t disk_bytes = 0;     ///< size of the result; 0: that of its tensors
};

/// For each fqn, in order of first appearance, the tensor that stands for it: fp32, else weights,
/// else buffer. Fqns with other states only have none.
std::vector<std::size_t> model_tensors(const Catalog& catalog);

struct ConvertOptions {
  std::optional<std::uint32_t> world_size = {}, stage = {};  ///< nullopt keeps the source's
  std::optional<std::uint32_t> expert_ranks = {};            ///< DeepSpeed's ep_size; likewise
  Json cut_patterns = {};  ///< how ranks of the result cut its tensors; null keeps the source's
  std::optional<DType> dtype = {};       ///< of the tensors in state "weights" that float
  std::vector<std::string> only = {};    ///< shell patterns of fqns; empty takes all
  std::string layout = {};               ///< of name_layouts(); empty keeps the names
  std::vector<RenameRule> renames = {};  ///< applied to the names of the layout
  bool weights_only = false;             ///< one tensor per parameter and buffer, and nothing else
};

/// Throws: InvalidArgument for a world size or stage that no checkpoint has.
void require_placement(std::optional<std::uint32_t> world_size, std::optional<std::uint32_t> stage);

/// Plans `convert`: the same state in another format, for other ranks, or a part of it.
/// Throws: InvalidArgument when nothing is left, or two tensors get one name.
ConversionPlan plan_convert(const converters::Source& source, const ConvertOptions& options);

struct ConsolidateOptions {
  std::optional<DType> dtype = {};  ///< of trained parameters, frozen ones and floating buffers
  bool exclude_frozen = false;
  std::string layout = {};               ///< of name_layouts(); empty keeps the names
  std::vector<RenameRule> renames = {};  ///< applied to the names of the layout
};

/// Plans `zero_to_fp32`: one model out of a training state. A parameter is its fp32 master, or else
/// its weights. Without a dtype the rules of DeepSpeed's zero_to_fp32 hold: trained parameters and
/// buffers become float32 where they float, frozen parameters keep their type. With a dtype every
/// floating tensor takes it.
/// Throws: Mismatch when there is nothing to write; InvalidArgument when two tensors get one name.
ConversionPlan plan_consolidate(const converters::Source& source,
                                const ConsolidateOptions& options);

}  // namespace unishard::tools
