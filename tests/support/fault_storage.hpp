#pragma once
// The real storage, with failures injected at the n-th call that changes anything (create, write,
// sync, rename, ...).
#include "unishard/format/storage.hpp"

#include <atomic>
#include <cstdint>

namespace unishard::test {

enum class Fault : std::uint8_t {
  None,
  FailOnce,   ///< the n-th call throws, later ones work: an I/O error that the program survives
  FailOn,     ///< the n-th and all later calls throw: a full or broken disk
  TornWrite,  ///< as FailOn, and a failing write stores its first half
};

class FaultStorage : public Storage {
 public:
  explicit FaultStorage(Fault fault = Fault::None, std::uint64_t at = 0,
                        int error_number = 5 /* EIO */)
      : fault_(fault), at_(at), error_number_(error_number) {}

  /// Returns the number of changing calls so far.
  std::uint64_t calls() const { return calls_; }

  std::unique_ptr<File> open(const Path& path) override { return posix_storage().open(path); }
  std::unique_ptr<File> create(const Path& path) override;
  std::unique_ptr<File> open_for_update(const Path& path) override;
  EntryKind kind(const Path& path) override { return posix_storage().kind(path); }
  std::vector<Entry> list(const Path& directory) override {
    return posix_storage().list(directory);
  }
  void make_directory(const Path& path) override;
  void create_directory(const Path& path) override;
  void rename(const Path& from, const Path& to) override;
  void rename_new(const Path& from, const Path& to) override;
  void exchange(const Path& a, const Path& b) override;
  void hard_link(const Path& from, const Path& to) override;
  void remove_tree(const Path& path) override;
  void remove_directory(const Path& path) override;
  void remove_file(const Path& path) override;
  void sync_directory(const Path& path) override;
  LockAttempt try_lock(const Path& path, const std::string& description) override;

  /// Counts a call; returns true when it must fail.
  bool strikes();
  [[noreturn]] void fail(const Path& path) const;
  bool tears() const { return fault_ == Fault::TornWrite; }

 private:
  void pass(const Path& path) {
    if (strikes()) fail(path);
  }
  Fault fault_;
  std::uint64_t at_;
  int error_number_;
  std::atomic<std::uint64_t> calls_{0};
};

}  // namespace unishard::test
