#include "fault_storage.hpp"

#include "unishard/format/error.hpp"

#include "forwarding_file.hpp"

namespace unishard::test {
namespace {

class FaultFile final : public ForwardingFile {
 public:
  FaultFile(FaultStorage& storage, std::unique_ptr<File> file)
      : ForwardingFile(std::move(file)), storage_(storage) {}
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (storage_.strikes()) {
      if (storage_.tears()) ForwardingFile::write_at(offset, bytes.first(bytes.size() / 2));
      storage_.fail(path());
    }
    ForwardingFile::write_at(offset, bytes);
  }
  void reserve(std::uint64_t bytes) override {
    if (storage_.strikes()) storage_.fail(path());
    ForwardingFile::reserve(bytes);
  }
  void resize(std::uint64_t bytes) override {
    if (storage_.strikes()) storage_.fail(path());
    ForwardingFile::resize(bytes);
  }
  void sync() override {
    if (storage_.strikes()) storage_.fail(path());
    ForwardingFile::sync();
  }
  void close() override {
    if (storage_.strikes()) storage_.fail(path());
    ForwardingFile::close();
  }

 private:
  FaultStorage& storage_;
};

}  // namespace

bool FaultStorage::strikes() {
  const std::uint64_t call = calls_++;
  if (fault_ == Fault::None) return false;
  return fault_ == Fault::FailOnce ? call == at_ : call >= at_;
}

void FaultStorage::fail(const Path& path) const {
  raise_errno("injected failure at", path.native(), error_number_);
}

std::unique_ptr<File> FaultStorage::create(const Path& path) {
  pass(path);
  return std::make_unique<FaultFile>(*this, posix_storage().create(path));
}
std::unique_ptr<File> FaultStorage::open_for_update(const Path& path) {
  pass(path);
  return std::make_unique<FaultFile>(*this, posix_storage().open_for_update(path));
}
void FaultStorage::make_directory(const Path& path) {
  pass(path);
  posix_storage().make_directory(path);
}
void FaultStorage::create_directory(const Path& path) {
  pass(path);
  posix_storage().create_directory(path);
}
void FaultStorage::rename(const Path& from, const Path& to) {
  pass(to);
  posix_storage().rename(from, to);
}
void FaultStorage::rename_new(const Path& from, const Path& to) {
  pass(to);
  posix_storage().rename_new(from, to);
}
void FaultStorage::exchange(const Path& a, const Path& b) {
  pass(b);
  posix_storage().exchange(a, b);
}
void FaultStorage::hard_link(const Path& from, const Path& to) {
  pass(to);
  posix_storage().hard_link(from, to);
}
void FaultStorage::remove_tree(const Path& path) {
  pass(path);
  posix_storage().remove_tree(path);
}
void FaultStorage::remove_directory(const Path& path) {
  pass(path);
  posix_storage().remove_directory(path);
}
void FaultStorage::remove_file(const Path& path) {
  pass(path);
  posix_storage().remove_file(path);
}
void FaultStorage::sync_directory(const Path& path) {
  pass(path);
  posix_storage().sync_directory(path);
}

LockAttempt FaultStorage::try_lock(const Path& path, const std::string& description) {
  pass(path);
  return posix_storage().try_lock(path, description);
}

}  // namespace unishard::test
