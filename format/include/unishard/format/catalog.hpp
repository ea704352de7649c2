#pragma once
// The catalog describes everything in a checkpoint except its bytes. Every Source produces one,
// every Sink consumes one, and the manifest stores one.
// Thread safety: a value; concurrent reads are safe.
#include "unishard/format/json.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard {

/// A second name of a parameter (tied weights). It has no bytes of its own.
struct Alias {
  std::string fqn;
  std::string target;  ///< an fqn in Catalog::tensors
  bool operator==(const Alias&) const = default;
};

/// One flat unit of the trainer: its trained parameters lie in this order in one flat vector that
/// is partitioned over the ranks, and so do its frozen parameters of each type (see partition.hpp).
/// All states of a parameter are partitioned alike.
struct UnitLayout {
  std::string name;
  std::vector<std::string> fqns;
  bool operator==(const UnitLayout&) const = default;
};

struct Catalog {
  std::vector<TensorInfo> tensors;  ///< in model order; (fqn, state) pairs are unique
  std::vector<Alias> aliases;
  std::vector<UnitLayout> units;  ///< empty: every tensor is spread by bytes
  std::int64_t step = 0;          ///< optimizer steps done
  std::uint32_t world_size = 1;
  std::uint32_t stage = 0;  ///< ZeRO stage, 0 to 3
  // Free-form sections; null when the writer stored nothing. SPEC.md, section "Manifest", lists the
  // keys that the trainer writes.
  Json groups, scheduler, loss_scaler, data_position, rng, client_state, config, producer;
  /// Returns name and member of every free-form section.
  static const std::vector<std::pair<const char*, Json Catalog::*>>& sections();

  /// Returns the index in `tensors`, or nullopt.
  /// Complexity: linear; build a map for many look-ups.
  std::optional<std::size_t> find(std::string_view fqn, std::string_view state) const;
  /// Returns the number of elements of all distinct parameters; buffers do not count.
  /// Throws: Corrupt on overflow.
  std::uint64_t parameter_count() const;
  /// Returns the bytes of all tensors except derived ones.
  /// Throws: Corrupt on overflow.
  std::uint64_t stored_bytes() const;
};

/// Checks the rules of SPEC.md on names, states, duplicates, dimensions, overflow, groups, aliases,
/// units, derived tensors, ZeRO stage and world size. `where` begins every message.
/// Throws: Corrupt, naming the tensor; InvalidArgument as validate_sections() does.
void validate(const Catalog& catalog, std::string_view where);

/// A part of a free-form section that exceeds what a manifest reader accepts.
struct UnreadablePart {
  std::string section;  ///< for example "client_state"
  std::string key;      ///< key in the section; empty: the whole section
  std::string reason;
};
/// Returns the parts of the sections that could not be read back from a manifest.
std::vector<UnreadablePart> unreadable_parts(const Catalog& catalog);
/// Throws InvalidArgument, naming the first of unreadable_parts(), if there is one. Writers call
/// this before they write anything.
void validate_sections(const Catalog& catalog, std::string_view where);

/// Returns the identity, 16 hexadecimal digits, or nullopt when a tensor has no crc64 yet. Two
/// checkpoints of any world size, stage or format have equal identities exactly when names, states,
/// dtypes, shapes and bytes of all tensors agree, except for CRC-64 collisions. SPEC.md, section
/// "Identity", defines it.
std::optional<std::string> identity(const Catalog& catalog);

}  // namespace unishard
