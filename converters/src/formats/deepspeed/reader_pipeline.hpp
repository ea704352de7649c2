#pragma once
// Reads the checkpoint of a pipeline: per stage and tensor-parallel rank one model file and the
// optimizer files of its data-parallel ranks, and the module in one file per layer.
#include "unishard/converters/source.hpp"

#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/merge_rules.hpp"
#include "formats/deepspeed/pickle_fields.hpp"

#include <memory>

namespace unishard::converters::deepspeed {

/// `files` are those of a pipeline. `first` is the model file of mp_rank_00. `rules` says how
/// tensor-parallel ranks are put together, where there are such.
/// Throws: Corrupt or Unsupported, naming the file.
std::unique_ptr<Source> read_pipeline(Storage& storage, const std::shared_ptr<FilePool>& pool,
                                      const TagFiles& files, const TorchFile& first,
                                      MergeRules& rules);

}  // namespace unishard::converters::deepspeed
