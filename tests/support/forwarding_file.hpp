#pragma once
// A file that passes every call on to another one, for tests and benchmarks that change some calls.
#include "unishard/format/storage.hpp"

#include <memory>
#include <utility>

namespace unishard::test {

class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  std::uint64_t size() const override { return file_->size(); }
  FileStamp stamp() const override { return file_->stamp(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    file_->read_at(offset, out);
  }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    file_->write_at(offset, bytes);
  }
  void reserve(std::uint64_t bytes) override { file_->reserve(bytes); }
  void resize(std::uint64_t bytes) override { file_->resize(bytes); }
  void sync() override { file_->sync(); }
  void close() override { file_->close(); }
  const Path& path() const override { return file_->path(); }

 private:
  std::unique_ptr<File> file_;
};

}  // namespace unishard::test
