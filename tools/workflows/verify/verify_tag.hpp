#pragma once
// One checkpoint of verify(): structure in verify_tag.cpp, payload in verify_payload.cpp, which the
// processes of a team share.
#include "unishard/format/manifest.hpp"
#include "unishard/format/shard_reader.hpp"

#include "workflows/verify/verify.hpp"

#include <memory>
#include <vector>

namespace unishard::tools {

/// Appends to report.checked, findings and notes.
void verify_tag(Storage& storage, const Path& folder, const VerifyOptions& options, Team& team,
                VerifyReport& report);

/// Reads every chunk of the shards (null where one could not be opened) once: chunk checksums, and
/// the digests of all stored fragments. Appends findings in the order of shards and bytes.
void verify_payload(const Manifest& manifest,
                    const std::vector<std::unique_ptr<ShardReader>>& shards,
                    const TransferOptions& options, Team& team, CheckedTag& checked,
                    VerifyReport& report);

/// Rounds every derived tensor anew from its fp32 state and compares digests.
void verify_derived(Storage& storage, const Path& folder, const TransferOptions& options,
                    Team& team, CheckedTag& checked, VerifyReport& report);

}  // namespace unishard::tools
