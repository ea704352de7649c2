#include "unishard/converters/save_folder.hpp"
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/output_lock.hpp"

#include "python/c_texts.hpp"
#include "unishard_c.h"

#include <memory>

struct unishard_run {
  unishard::OutputLock lock;
};

using namespace unishard;
using c_interface::guarded;
using c_interface::set_text;

namespace {

/// Throws: what require_own_folder() throws, with what a program in Python can do about it.
void require_own(Storage& storage, const Path& folder) {
  try {
    converters::require_own_folder(storage, folder);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::AlreadyExists) throw;
    raise(error.code(), error.what(), "save to another folder; nothing was written");
  }
}

/// Decides what a run that has loaded nothing from `folder` may do there.
/// Throws: what decide_start() throws, with what a program in Python can do about it.
converters::ResumeDecision decide(const Path& folder, bool fresh) {
  try {
    return converters::decide_start(posix_storage(), folder, fresh);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Io) throw;
    raise(error.code(), error.what(),
          "load a checkpoint from this folder first to go on with its run, save to another folder, "
          "or pass fresh=True to save beside what is there: then nothing of it is replaced or "
          "removed");
  }
}

}  // namespace

char* unishard_run_begin(const char* folder, int continues, int fresh, unishard_run** out,
                         char** decision) {
  return guarded([&] {
    Storage& storage = posix_storage();
    require_own(storage, folder);
    converters::require_writable(storage, folder);
    auto run = std::make_unique<unishard_run>(
        OutputLock(storage, Path(folder) / converters::kTrainingLockFile, folder));
    require_own_latest(storage, folder);
    converters::ResumeDecision start;
    if (continues == 0) start = decide(folder, fresh != 0);
    set_text(decision, {{"beside", start.beside}, {"beside_whole", start.beside_whole}});
    *out = run.release();
  });
}

char* unishard_next_commit(const char* folder, uint64_t* number) {
  return guarded([&] {
    Storage& storage = posix_storage();
    const bool is_there = storage.kind(folder) == EntryKind::Directory;
    *number = is_there ? next_commit_number(storage, folder) : 1;
  });
}

int unishard_run_is_held(const unishard_run* run) {
  try {
    run->lock.require_held();
    return 1;
  } catch (const std::exception&) {  // the state of the lock is unknown
    return 0;
  }
}

void unishard_run_free(unishard_run* run) { delete run; }
