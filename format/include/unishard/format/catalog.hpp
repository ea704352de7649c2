#pragma once
// The catalog: everything a checkpoint says except its bytes. Every Source produces one, every Sink
// consumes one, the manifest stores one. A value; copyable; safe to read from any thread.
#include "unishard/format/json.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard {

/// A second name of a parameter (tied weights): `fqn` has no bytes of its own.
struct Alias {
  std::string fqn;
  std::string target;  ///< an fqn that is in Catalog::tensors
  bool operator==(const Alias&) const = default;
};

/// One flat unit of the trainer: these parameters, in this order, lie in one flat vector that the
/// ranks share out (see partition.hpp). All states of a parameter are partitioned alike.
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
  // Free-form sections, null where the writer had nothing to say. SPEC.md section "Manifest" names
  // the keys that the trainer writes.
  Json groups, scheduler, loss_scaler, data_position, rng, client_state, config, producer;
  /// Their names and members.
  static const std::vector<std::pair<const char*, Json Catalog::*>>& sections();

  /// Index into tensors, or nullopt. Linear: build your own map for many look-ups.
  std::optional<std::size_t> find(std::string_view fqn, std::string_view state) const;
  /// Number of parameters: elements of distinct fqns, buffers not counted.
  std::uint64_t parameter_count() const;
  /// Bytes of all tensors, derived ones not counted.
  std::uint64_t stored_bytes() const;
};

/// Throws Corrupt naming `where` and the tensor when a rule of SPEC.md is broken: empty or
/// over-long or non-UTF-8 names, bad state names, duplicates, too many dimensions, overflow,
/// aliases or units that name nothing, derived tensors without an fp32 state, stage or world size
/// out of range.
void validate(const Catalog& catalog, std::string_view where);

/// A part of a free-form section that a manifest cannot hold, because it would not be read back.
struct UnreadablePart {
  std::string section;  ///< "client_state"
  std::string key;      ///< of the section; empty: the section as a whole
  std::string reason;
};
std::vector<UnreadablePart> unreadable_parts(const Catalog& catalog);
/// Throws InvalidArgument naming the first of unreadable_parts(). validate() does so, too; writers
/// call this before they write anything.
void validate_sections(const Catalog& catalog, std::string_view where);

/// The digest of the state, 16 hexadecimal digits: equal for two checkpoints of any world size,
/// stage or format exactly when all tensors' names, states, dtypes, shapes and bytes agree (up to a
/// CRC-64 collision). nullopt when a tensor has no crc64 yet.
std::optional<std::string> identity(const Catalog& catalog);

}  // namespace unishard
