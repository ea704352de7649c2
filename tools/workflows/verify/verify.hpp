#pragma once
// Checks a checkpoint and reports exactly what is lost. verify() collects every finding instead of
// stopping at the first one, and changes nothing.
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "team/team.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::tools {

struct VerifyOptions {
  /// nullopt: the tag that `latest` names, else the newest.
  std::optional<std::string> tag = {};
  /// Every checkpoint of the folder, in any format.
  bool all_tags = false;
  /// Read every byte; otherwise only names, sizes, tables and digests of tables.
  bool deep = false;
  /// See converters::OpenOptions.
  Json merge_rules = {};
  /// A model, as for open_tagged(). Empty: none is given.
  std::string like = {};
  std::optional<std::uint32_t> from_rank = {};  ///< see OpenOptions
  TransferOptions transfer = {};
};

/// A part of a tensor that cannot be read back.
struct LostRange {
  LostRange(std::string label, ElementRange bounds)
      : LostRange(std::move(label), bounds, bounds.size()) {}
  LostRange(std::string label, ElementRange bounds, std::uint64_t count)
      : tensor(std::move(label)), range(bounds), elements(count) {}

  std::string tensor;  ///< TensorInfo::label()
  ElementRange range;
  std::uint64_t elements;  ///< how many of the range; all unless boxes are concerned
};

/// The code of a finding about a file that the system cannot read, which may be sound.
inline constexpr const char* kNotRead = "file-not-read";

struct Finding {
  std::string code;  ///< stable, for scripts; tools/README.md lists the codes
  Path path;
  std::string message;
  std::string hint;
  struct Bytes {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  /// Byte range in the file, if the finding concerns a part of it.
  std::optional<Bytes> bytes;
  std::vector<LostRange> lost;
};

/// What was examined in one checkpoint.
struct CheckedTag {
  std::string tag;
  std::string format;
  Path folder;
  std::int64_t step = 0;
  std::optional<std::string> identity;
  std::uint64_t shards = 0;
  std::uint64_t tensors = 0;
  /// Payload of all shards, including padding, before compression.
  std::uint64_t payload_bytes = 0;
  std::uint64_t chunks_checked = 0;
  std::uint64_t bytes_checked = 0;
  /// Bytes among `bytes_checked` that have no checksum.
  std::uint64_t bytes_without_checksum = 0;
};

struct VerifyReport {
  bool deep = false;
  std::vector<CheckedTag> checked;
  std::vector<Finding> findings;
  /// Remarks that are no damage.
  std::vector<std::string> notes;

  bool is_clean() const { return findings.empty(); }
  /// Returns true when files that the system cannot read are all that was found.
  bool is_only_unread() const;
};

/// Verifies `path`, a checkpoint or a folder of them. Each process of a team reads a part of the
/// payload; the report of rank 0 covers all parts.
/// Throws: NotFound or Unsupported when there is nothing to verify: no such path, or no checkpoint.
VerifyReport verify(Storage& storage, const Path& path, const VerifyOptions& options, Team& team);
VerifyReport verify(Storage& storage, const Path& path, const VerifyOptions& options);

}  // namespace unishard::tools
