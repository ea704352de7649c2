#pragma once
// The torch.save archives of one result. All archives are planned before the first byte, so
// storages may be written in any order. A file may hold several archives one after the other (DCP's
// .distcp).
#include "unishard/converters/sink.hpp"
#include "unishard/format/storage.hpp"

#include "containers/zip_writer.hpp"
#include "core/file_pool.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// One archive.
struct ArchivePlan {
  std::string file;    ///< path below the output's folder; "" when the output is a file
  std::string root;    ///< the archive's root folder; torch uses the file's name up to its last dot
  std::string pickle;  ///< content of data.pkl; storage i is called "<i>"
  std::vector<std::uint64_t> storage_bytes;  ///< size of each storage
};

/// A file that is no archive: `head`, then the bytes of its only storage.
struct PlainPlan {
  std::string file;  ///< as ArchivePlan::file
  std::string head;
  std::uint64_t storage_bytes = 0;
};

/// Thread safety: write() is thread-safe, the other functions are not.
class TorchOutput {
 public:
  /// Creates no file before the first write() or finish().
  /// Pre: `folder` exists by then.
  /// Lifetime: `storage` must outlive this object.
  TorchOutput(Storage& storage, Path folder);
  ~TorchOutput();

  /// Appends an archive to its file and returns its number.
  /// Pre: called before the first write().
  std::size_t add(ArchivePlan plan);
  /// Adds a file that is no archive. Its number counts among those of the archives.
  std::size_t add(PlainPlan plan);
  /// Returns how many archives were added: the number of the next one.
  std::size_t size() const { return archives_.size(); }
  struct Extent {
    std::uint64_t offset = 0, bytes = 0;  ///< in the file
  };
  Extent extent(std::size_t archive) const;
  /// Keeps only the files that belong to process share.rank. write() and finish() are then limited
  /// to them.
  /// Pre: all archives were added.
  void keep(const WorkSplit& share);
  bool owns(std::size_t archive) const { return archives_.at(archive).output->is_ours; }
  /// Writes bytes of a storage from byte `offset` on. Each byte must be written exactly once.
  /// Thread-safe.
  void write(std::size_t archive, std::size_t storage, std::uint64_t offset,
             std::span<const std::byte> bytes);
  /// Writes all headers and syncs every file, but not the folder. Call it once. Calls `check`
  /// between two files.
  /// Throws: Internal, naming an entry of which bytes were not written; what `check` throws.
  void finish(const std::function<void()>& check = [] {});

 private:
  struct OutputFile {
    std::unique_ptr<File> file;
    std::uint64_t end = 0;  // end of the archives planned so far
    bool created = false;
    bool is_ours = true;
  };
  struct Archive {
    const OutputFile* output = nullptr;
    std::string pickle;  // of a plain file: its head
    std::uint64_t begin = 0;
    std::unique_ptr<ZipWriter> zip;  // null: a plain file
  };

  std::unique_ptr<File> open_file(Storage& storage, const Path& path);
  OutputFile& file_of(const std::string& name);

  std::shared_ptr<FilePool> pool_;
  Path folder_;
  std::map<std::string, OutputFile> files_;
  std::vector<Archive> archives_;
};

}  // namespace unishard::converters::torch
