#pragma once
// Finds models in the local cache of the Hugging Face hub. Layout and environment variables:
// https://huggingface.co/docs/huggingface_hub/guides/manage-cache. No network is used.
#include "unishard/format/storage.hpp"

#include <string>

namespace unishard::tools {

/// Returns the snapshot's folder that `name` means: that of a cached model's folder
/// (models--ORG--NAME), or of "ORG/NAME" or "NAME", each with or without "hf://" before it and
/// "@REVISION" behind it, where no file has that path. Returns `name` itself when it means none.
/// Throws: NotFound when a name with "hf://", "ORG/NAME" without a folder ORG, or the revision is
/// not in the cache; Corrupt when the cache names a revision outside of it.
std::string find_in_hub_cache(Storage& storage, const std::string& name);

}  // namespace unishard::tools
