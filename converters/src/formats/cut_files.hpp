#pragma once
// The torch.save files of the tensor-parallel ranks of one model, and how rules that the names of
// the tensors tell put them together.
#include "formats/deepspeed/rank_join.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// How the name of a rank's folder begins.
inline constexpr std::string_view kRankFolderName = "mp_rank_";

/// Returns the file of a rank in its folder `mp_rank_00`; nullopt where there is none.
std::optional<Path> find_rank_file(Storage& storage, const Path& rank_folder);

/// Adds what a part has beside the model: random states, and states of the optimizer, which have no
/// names for the reason `why_not`, where it is known.
void lose_states(const Source& part, deepspeed::Notes& notes, std::string_view why_not = {});

/// Opens the files, by rank. What each loses is in `notes` once, and so are the states of the
/// optimizer: they have numbers, and those of parts have other shapes than the parameters.
/// Pre: there is a file.
/// Throws: Corrupt for a file that was written as another rank's.
deepspeed::CutParts open_cut_files(Storage& storage, const std::vector<Path>& files,
                                   deepspeed::Notes& notes, std::string_view why_not = {});

/// Returns a sentence on the first tensor of the model of which two parts have different shapes.
std::optional<std::string> unequal_part(const deepspeed::CutParts& parts);

/// Puts the parts together by rules with the keys of universal_checkpoint_info, which have one for
/// every tensor. One part is joined as several are: without states of the optimizer and padding.
/// `where` is the checkpoint that messages name.
/// Throws: Corrupt when the parts contradict the rules or each other, or have different shapes.
std::unique_ptr<Source> join_by_names(deepspeed::CutParts parts, const Json& rules,
                                      const std::string& where, deepspeed::Notes& notes);

}  // namespace unishard::converters
