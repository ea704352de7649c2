#include "formats/deepspeed/module_files.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

namespace unishard::converters::deepspeed {

namespace {

FileName told_name(const TorchFile& file) { return parse_file_name(file.archive_name() + ".pt"); }

}  // namespace

bool tells_its_name(const TorchFile& file) { return told_name(file).role != FileRole::Other; }

TorchFile open_rank_file(const std::shared_ptr<FilePool>& pool, const Path& path) {
  TorchFile file(open_window(pool, path));
  if (!tells_its_name(file) || told_name(file) == parse_file_name(path.filename().string()))
    return file;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: it was written as {}: the file was renamed, or another's copy is in its "
                    "place",
                    file.name(), unishard::quote(file.archive_name() + ".pt")),
        "give each file the name that it was written with, or copy it again from its node");
}

ModuleFile read_module_file(const std::shared_ptr<FilePool>& pool, const NumberedFile& file,
                            Notes& notes) {
  const TorchFile torch_file = open_rank_file(pool, file.path);
  if (!torch_file.root().is_dict()) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: not a part of a module: it holds no names", torch_file.name()));
  }
  return {file.name, torch_file.name(),
          named_views(torch_file, torch_file.root(), "module entry", notes)};
}

void check_against_masters(const ModuleFile& file, const ParameterTable& parameters, bool is_exact,
                           const std::string& where) {
  const WeightComparison compared = compare_weights(file.entries, parameters, is_exact);
  const bool is_foreign = is_exact
                              ? !compared.differing.empty()
                              : compared.telling > 0 && 2 * compared.foreign >= compared.telling;
  if (!is_foreign) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {} does not hold what the optimizer's fp32 copy rounds to ({} parameters "
                    "differ, first {}): the file is in another's place, or of another save",
                    where, unishard::quote(Path(file.name).filename().string()),
                    compared.differing.size(), unishard::quote(compared.differing.front())),
        "copy the files of one save again from the nodes that wrote them");
}

}  // namespace unishard::converters::deepspeed
