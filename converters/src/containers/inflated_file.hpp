#pragma once
// The content of a deflated zip entry as a file that can be read at any offset. Deflate can only be
// decoded from its beginning; copies of the decoder's state at regular offsets bound what a read
// has to decode again.
#include "unishard/format/storage.hpp"

#include "containers/zip_reader.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace unishard::converters::torch {

/// Thread-safe. Cannot be written to.
/// Memory: about 40 KiB for each copy, at most 64 copies; none for the first MiB, and none once the
/// end was read.
class InflatedFile final : public File {
 public:
  /// `stored` is exactly the raw deflate data, `bytes` the size that it inflates to. Decodes
  /// nothing.
  InflatedFile(Window stored, std::uint64_t bytes);
  ~InflatedFile() override;

  std::uint64_t size() const override { return bytes_; }
  /// Throws: Corrupt, naming the file, when the data is no deflate data of this size.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override;
  void reserve(std::uint64_t bytes) override;
  void resize(std::uint64_t bytes) override;
  void sync() override {}
  void close() override {}
  const Path& path() const override { return stored_.file->path(); }

 private:
  class Decoder;
  using Decoders = std::map<std::uint64_t, std::unique_ptr<Decoder>>;  // by position

  std::unique_ptr<Decoder> take_decoder(std::uint64_t offset) const;
  void keep(std::unique_ptr<Decoder> decoder) const;
  void advance(Decoder& decoder, std::span<std::byte> out) const;
  void finish(Decoder& decoder) const;

  const Window stored_;
  const std::uint64_t bytes_;
  const std::uint64_t step_;  ///< distance of the copies
  mutable std::mutex mutex_;
  mutable Decoders copies_;  ///< never advanced
  mutable Decoders idle_;    ///< where reads ended
};

/// Returns the content of `entry`: a part of the archive's file, or an InflatedFile.
Window content_window(const ZipReader& zip, const ZipEntry& entry);

}  // namespace unishard::converters::torch
