#pragma once
// The states in which a crash of the machine may leave a disk, derived from a journal of calls. The
// rules are those of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014):
//
// clang-format off
//  - The machine stops between any two calls.
//  - Everything that was synced before is present. Of a file's later writes and size changes, all,
//    none or a part are present: some of them, a prefix, single blocks of 4 KiB or 512 bytes, or
//    the size without the bytes, which are then zeros.
//  - A call that changes names is present completely or not at all. Of those that were not synced:
//     Ordered  the first ones are present and the others are not, as with a journal. Syncing a file
//              makes its name durable, and with it all earlier changes of names.
//     Weak     any of them are present, as long as the names that each needs exist. Syncing a file
//              does not make its name durable; syncing a folder does not affect other folders.
// clang-format on
//
// When there are too many combinations, they are chosen at random.
#include "recording_storage.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unishard::test {

enum class Durability : std::uint8_t { Ordered, Weak };

struct CrashState {
  /// Has inodes of its own.
  InodePtr root;
  bool returned = false;  ///< the caller had been told that everything is durable
  std::string text;       ///< when the machine stopped, and what was lost
};

struct CrashOptions {
  Durability durability = Durability::Ordered;
  std::uint64_t seed = 1;
  std::size_t states = 2000;  ///< approximate number of states; at least a few per call
};

class CrashStates {
 public:
  /// `before` is the durable state when the first call of the journal is made.
  /// Lifetime: `before` and `journal` must outlive this object.
  CrashStates(const InodePtr& before, const std::vector<Operation>& journal, CrashOptions options);
  /// Calls `visit` with each state, with some of them more than once, until it returns false.
  void each(const std::function<bool(const CrashState&)>& visit);

 private:
  struct Name {
    const Operation* operation = nullptr;
    bool durable = false;
    std::set<std::size_t> needs = {};  ///< earlier calls that made the names that this call needs
  };
  struct File {
    std::shared_ptr<Content> durable;
    std::vector<const Operation*> pending = {};
  };
  struct Variant {
    std::shared_ptr<Content> content;
    std::string text;
  };
  using NameSet = std::vector<bool>;                        ///< one flag per Name: it is present
  using DataSet = std::map<std::uint64_t, const Variant*>;  ///< by inode

  void take(const Operation& operation);
  void add_name(const Operation& operation);
  void sync_file(std::uint64_t inode);
  void sync_folder(std::uint64_t inode);
  void make_prefix_durable(std::size_t end);

  std::vector<NameSet> name_sets();
  std::vector<NameSet> weak_name_sets();
  NameSet durable_names() const;
  void drop_unfounded(NameSet& set) const;

  std::vector<Variant> variants(const File& file);
  void add_torn(const File& file, std::vector<Variant>& out);
  std::string with_blocks_of(const std::string& old, const std::string& fresh, std::size_t block);
  std::vector<DataSet> data_sets(const std::map<std::uint64_t, std::vector<Variant>>& variants_of);

  CrashState build(const NameSet& names, const DataSet& data) const;
  bool states_now(const std::function<bool(const CrashState&)>& visit);
  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  const InodePtr& before_;
  const std::vector<Operation>& journal_;
  const CrashOptions options_;
  const std::size_t pairs_;    ///< of names and data, per call: all, or so many of them
  const std::size_t samples_;  ///< random choices of each kind, per call
  std::mt19937_64 random_;
  std::size_t at_ = 0;
  bool returned_ = false;
  std::vector<Name> names_;
  std::map<std::pair<std::uint64_t, std::string>, std::size_t> last_on_;  ///< by folder and name
  std::map<std::uint64_t, File> files_;
};

}  // namespace unishard::test
