#pragma once
// Reads the files of one model-parallel rank: one model file (stage 3: one per data-parallel rank)
// and, from stage 1 on, one optimizer file per data-parallel rank. Files are read one after the
// other; only the locations of their tensors are kept.
#include "containers/pieced_source.hpp"
#include "formats/deepspeed/expert_files.hpp"
#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/model_file.hpp"
#include "formats/deepspeed/module_files.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

/// Second name and first name of tied parameters.
using NamePairs = std::vector<std::pair<std::string, std::string>>;

/// The rank to read.
struct RankInput {
  Path folder;
  RankFiles files;
  std::uint32_t model_rank = 0;         ///< the number after mp_rank_
  bool is_only = true;                  ///< no other number after mp_rank_ is there
  bool has_whole_tensors = true;        ///< the run was not tensor-parallel
  const NamePairs* aliases = nullptr;   ///< if set, instead of those in the rank's files
  std::vector<ModuleFile> module = {};  ///< parts of the module in files of their own
  /// Instead of param_shapes, which a pipeline at stage 0 has none of.
  std::optional<ShapeGroups> shapes = {};
  const ExpertFiles* experts = nullptr;  ///< of a mixture of experts; they are in `module` too
  /// If set, why the states of the optimizer in the model file cannot be named.
  std::optional<std::string> unnamed_states = {};

  /// Returns, for example, "mp_rank_01".
  std::string name() const;
};

struct RankContent {
  /// The rank's tensors, in the shapes that they have there.
  PiecedCatalog parts;
  std::string model_name;        ///< of its first model file
  std::uint64_t world_size = 1;  ///< data-parallel ranks
  std::int64_t global_steps = 0;
  NamePairs aliases;
  bool has_optimizer = true;
};

/// Leaves `parts.notes` empty: notes are added to `notes`.
/// Throws: Corrupt or Unsupported, naming the file.
RankContent read_rank(Storage& storage, const std::shared_ptr<FilePool>& pool,
                      const RankInput& input, Notes& notes);

/// Checks that two ranks or stages have the same counters and versions.
/// Throws: Corrupt, as raise_two_saves() does.
void check_one_save(const RankContent& first, const RankContent& other);

/// Notes what two ranks or stages should have in common, and contradict each other in.
void note_differing_facts(const RankContent& first, const RankContent& other, Notes& notes);

/// Throws: Corrupt, saying that two files are not of one save.
[[noreturn]] void raise_two_saves(const std::string& a, const std::string& b,
                                  std::string_view what);

}  // namespace unishard::converters::deepspeed
