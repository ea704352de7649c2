#include "formats/deepspeed/module_files.hpp"

#include "unishard/format/error.hpp"

#include "reading/completeness.hpp"

#include <fmt/format.h>

namespace unishard::converters::deepspeed {

namespace {

FileName told_name(const TorchFile& file) { return parse_file_name(file.archive_name() + ".pt"); }

}  // namespace

std::string file_name(const ModuleFile& file) { return Path(file.name).filename().string(); }

bool tells_its_name(const TorchFile& file) { return told_name(file).role != FileRole::Other; }

TorchFile open_rank_file(const std::shared_ptr<FilePool>& pool, const Path& path) {
  TorchFile file(open_window(pool, path));
  const FileName told = told_name(file);
  if (told.role != FileRole::Other && told != parse_file_name(path.filename().string()))
    raise_written_as(path, file.archive_name() + ".pt");
  return file;
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
                    where, unishard::quote(file_name(file)), compared.differing.size(),
                    unishard::quote(compared.differing.front())),
        "copy the files of one save again from the nodes that wrote them");
}

}  // namespace unishard::converters::deepspeed
