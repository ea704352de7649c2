#include "containers/torch_output.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::converters::torch {
namespace {

constexpr std::size_t kPickle = 0, kByteOrder = 1, kFirstStorage = 2;  // items of an archive

}  // namespace

TorchOutput::TorchOutput(Storage& storage, Path folder)
    : pool_(std::make_shared<FilePool>(
          [this, &storage](const Path& path) { return open_file(storage, path); })),
      folder_(std::move(folder)) {}
TorchOutput::~TorchOutput() = default;

// Creates the file, and its folder, at the first call.
std::unique_ptr<File> TorchOutput::open_file(Storage& storage, const Path& path) {
  OutputFile& output =
      files_.at(path == folder_ ? std::string() : path.lexically_relative(folder_).string());
  if (output.created) return storage.open_for_update(path);
  storage.make_directory(path.parent_path());
  std::unique_ptr<File> file = storage.create(path);
  output.created = true;
  file->reserve(output.end);
  return file;
}

TorchOutput::OutputFile& TorchOutput::file_of(const std::string& name) {
  OutputFile& file = files_[name];
  if (!file.file)
    file.file = std::make_unique<PooledFile>(pool_, name.empty() ? folder_ : folder_ / name);
  return file;
}

std::size_t TorchOutput::add(PlainPlan plan) {
  OutputFile& file = file_of(plan.file);
  file.end = plan.head.size() + plan.storage_bytes;
  archives_.push_back({&file, std::move(plan.head), 0, nullptr});
  return archives_.size() - 1;
}

std::size_t TorchOutput::add(ArchivePlan plan) {
  OutputFile& file = file_of(plan.file);
  std::vector<ZipWriter::Item> items = {{"data.pkl", plan.pickle.size()}, {"byteorder", 6}};
  for (std::size_t i = 0; i < plan.storage_bytes.size(); ++i)
    items.push_back({fmt::format("data/{}", i), plan.storage_bytes[i]});
  items.push_back({"version", 2});
  Archive archive;
  archive.output = &file;
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

void TorchOutput::keep(const WorkSplit& share) {
  std::vector<std::uint64_t> bytes;
  for (const auto& [name, output] : files_) bytes.push_back(output.end);
  const std::vector<bool> ours = owned(bytes, share);
  std::size_t index = 0;
  for (auto& [name, output] : files_) output.is_ours = ours[index++];
}

void TorchOutput::write(std::size_t archive, std::size_t storage, std::uint64_t offset,
                        std::span<const std::byte> bytes) {
  const Archive& to = archives_.at(archive);
  if (to.zip) return to.zip->write(kFirstStorage + storage, offset, bytes);
  to.output->file->write_at(to.pickle.size() + offset, bytes);
}

void TorchOutput::finish(const std::function<void()>& check) {
  for (Archive& archive : archives_) {
    if (!archive.output->is_ours) continue;
    check();
    if (!archive.zip) {
      archive.output->file->write_at(0, std::as_bytes(std::span(archive.pickle)));
      continue;
    }
    archive.zip->write(kPickle, archive.pickle);
    archive.zip->write(kByteOrder, "little");
    archive.zip->write(archive.zip->size() - 1, "3\n");
    archive.zip->finish();
  }
  for (auto& [name, output] : files_) {
    if (!output.is_ours) continue;
    check();
    output.file->sync();
  }
}

}  // namespace unishard::converters::torch
