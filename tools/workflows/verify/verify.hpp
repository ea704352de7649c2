#pragma once
// Is this checkpoint sound, and if not, what exactly is lost? verify() collects everything it can
// find and does not stop at the first problem. It changes nothing.
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "team/team.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct VerifyOptions {
  std::optional<std::string> tag = {};  ///< nullopt: what `latest` names, else the newest
  bool all_tags = false;  ///< every checkpoint of the folder, whatever formats they are in
  bool deep = false;      ///< read every byte; otherwise names, sizes, tables and digests of tables
  TransferOptions transfer = {};
};

/// A part of a tensor that cannot be read back.
struct LostRange {
  std::string tensor;  ///< TensorInfo::label()
  ElementRange range;
};

struct Finding {
  std::string code;  ///< stable, for scripts; the list is in tools/README.md
  Path path;
  std::string message;
  std::string hint;
  struct Bytes {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  std::optional<Bytes> bytes;  ///< of the file, when a part of it is meant
  std::vector<LostRange> lost;
};

/// What was looked at in one checkpoint.
struct CheckedTag {
  std::string tag;
  std::string format;
  Path folder;
  std::int64_t step = 0;
  std::optional<std::string> identity;
  std::uint64_t shards = 0;
  std::uint64_t tensors = 0;
  std::uint64_t payload_bytes = 0;  ///< of all shards, padding included, before compression
  std::uint64_t chunks_checked = 0;
  std::uint64_t bytes_checked = 0;
  std::uint64_t bytes_without_checksum = 0;  ///< of these
};

struct VerifyReport {
  bool deep = false;
  std::vector<CheckedTag> checked;
  std::vector<Finding> findings;
  std::vector<std::string> notes;  ///< worth knowing, and no damage

  bool is_clean() const { return findings.empty(); }
};

/// `path` is a checkpoint, or a folder of them. Throws NotFound or Unsupported when there is
/// nothing that could be verified: no such path, no checkpoint. The processes of a team read a part
/// of the payload each; the report of rank 0 is of all.
VerifyReport verify(Storage& storage, const Path& path, const VerifyOptions& options, Team& team);
VerifyReport verify(Storage& storage, const Path& path, const VerifyOptions& options);

}  // namespace unishard::tools
