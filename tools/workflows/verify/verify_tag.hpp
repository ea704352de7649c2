#pragma once
// The parts of verify() for one native checkpoint: structure in verify_tag.cpp; payload, shared by
// the processes of a team, in verify_payload.cpp.
#include "unishard/format/manifest.hpp"
#include "unishard/format/shard_reader.hpp"

#include "workflows/verify/verify.hpp"

#include <memory>
#include <vector>

namespace unishard::tools {

/// Appends to report.checked, findings and notes.
void verify_tag(Storage& storage, const Path& folder, const VerifyOptions& options, Team& team,
                VerifyReport& report);

/// Reads every chunk of the shards (null for one that could not be opened) once, and checks the
/// chunks' checksums and the digests of all stored fragments. Appends findings in the order of
/// shards and bytes.
void verify_payload(const Manifest& manifest,
                    const std::vector<std::unique_ptr<ShardReader>>& shards,
                    const TransferOptions& options, Team& team, CheckedTag& checked,
                    VerifyReport& report);

/// Rounds every derived tensor again from its fp32 state and compares digests.
void verify_derived(Storage& storage, const Path& folder, const TransferOptions& options,
                    Team& team, CheckedTag& checked, VerifyReport& report);

}  // namespace unishard::tools
