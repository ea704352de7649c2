#include "torch/torch_output.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

namespace unishard::converters::torch {
namespace {

constexpr std::size_t kPickle = 0, kByteOrder = 1, kFirstStorage = 2;  // items of an archive

/// Opens a file of the output: creates it the first time, with its folder.
FilePool::Open creator(Storage& storage) {
  return [&storage, created = std::set<std::string>()](const Path& path) mutable {
    if (created.contains(path.string())) return storage.open_for_update(path);
    storage.make_directory(path.parent_path());
    std::unique_ptr<File> file = storage.create(path);
    created.insert(path.string());
    return file;
  };
}

}  // namespace

TorchOutput::TorchOutput(Storage& storage, Path folder)
    : pool_(std::make_shared<FilePool>(creator(storage))), folder_(std::move(folder)) {}
TorchOutput::~TorchOutput() = default;

std::size_t TorchOutput::add(ArchivePlan plan) {
  OutputFile& file = files_[plan.file];
  if (!file.file) {
    file.file =
        std::make_unique<PooledFile>(pool_, plan.file.empty() ? folder_ : folder_ / plan.file);
  }
  std::vector<ZipWriter::Item> items = {{"data.pkl", plan.pickle.size()}, {"byteorder", 6}};
  for (std::size_t i = 0; i < plan.storage_bytes.size(); ++i)
    items.push_back({fmt::format("data/{}", i), plan.storage_bytes[i]});
  items.push_back({"version", 2});
  Archive archive;
  archive.begin = file.end;
  archive.zip =
      std::make_unique<ZipWriter>(*file.file, file.end, std::move(plan.root), std::move(items));
  archive.pickle = std::move(plan.pickle);
  file.end = archive.zip->end_offset();
  archives_.push_back(std::move(archive));
  return archives_.size() - 1;
}

TorchOutput::Extent TorchOutput::extent(std::size_t archive) const {
  const Archive& found = archives_.at(archive);
  return {found.begin, found.zip->end_offset() - found.begin};
}

void TorchOutput::write(std::size_t archive, std::size_t storage, std::uint64_t offset,
                        std::span<const std::byte> bytes) {
  archives_.at(archive).zip->write(kFirstStorage + storage, offset, bytes);
}

void TorchOutput::finish() {
  for (Archive& archive : archives_) {
    archive.zip->write(kPickle, archive.pickle);
    archive.zip->write(kByteOrder, "little");
    archive.zip->write(archive.zip->size() - 1, "3\n");
    archive.zip->finish();
  }
  for (auto& [name, output] : files_) output.file->sync();
}

}  // namespace unishard::converters::torch
