#ifndef UNISHARD_C_H
#define UNISHARD_C_H
/* The C interface of UniShard: opens a checkpoint of any format, reads elements of its tensors, and
 * saves the tensors of several processes as one UniShard checkpoint. The Python package calls it
 * through ctypes, so that one library serves every version of Python; other languages may call it
 * too.
 *
 * Errors: a function that can fail returns NULL, or the error as JSON text:
 *   {"code": "corrupt", "message": "...", "hint": "..."}
 * The codes are the texts of ErrorCode in unishard/format/error.hpp. The caller frees every
 * returned text with unishard_free(). Thread safety: all functions are thread-safe;
 * unishard_close() must not run beside a function that uses the same checkpoint.
 */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UNISHARD_C_API __attribute__((visibility("default")))
/* Version of this interface. It changes when a function does not accept the same arguments any
 * more. */
#define UNISHARD_C_VERSION 5

/* A checkpoint that is open for reading. */
typedef struct unishard_checkpoint unishard_checkpoint;

/* Returns UNISHARD_C_VERSION of the library. */
UNISHARD_C_API int unishard_c_version(void);

/* Frees a text that a function returned; NULL is allowed. */
UNISHARD_C_API void unishard_free(char* text);

/* Opens the checkpoint that `path` (UTF-8, a file or folder of any format, or ORG/NAME in the local
 * cache of the Hugging Face hub) and `tag` (may be NULL) name. Reads tables and no payload. With
 * `assume_model_order` other than 0, an optimizer's numbered states are those of the parameters in
 * the model's order, also where another order fits their shapes. */
UNISHARD_C_API char* unishard_open(const char* path, const char* tag, int assume_model_order,
                                   unishard_checkpoint** out);

/* Closes the checkpoint; NULL is allowed. */
UNISHARD_C_API void unishard_close(unishard_checkpoint* checkpoint);

/* Sets `*out` to a JSON object that describes the checkpoint: "format", "path", "tag", "step",
 * "world_size", "stage", "identity", "tensors" (a list; their order gives the numbers that
 * unishard_read() takes), "aliases", "notes", and the sections of SPEC.md, such as "groups". */
UNISHARD_C_API char* unishard_describe(const unishard_checkpoint* checkpoint, char** out);

/* Reads the elements [begin, end) of tensor number `tensor`, row-major and little-endian, into
 * `buffer` of `bytes` bytes, which must be exactly their size. Compares the checksums that the
 * format stores for them. Uses up to `threads` threads, at least 1. */
UNISHARD_C_API char* unishard_read(const unishard_checkpoint* checkpoint, uint64_t tensor,
                                   uint64_t begin, uint64_t end, void* buffer, uint64_t bytes,
                                   unsigned threads);

/* Reads a box in the same way: the elements whose index on each axis i lies in [offsets[i],
 * offsets[i] + sizes[i]). `axes` is the number of axes of the tensor. */
UNISHARD_C_API char* unishard_read_box(const unishard_checkpoint* checkpoint, uint64_t tensor,
                                       const uint64_t* offsets, const uint64_t* sizes,
                                       uint64_t axes, void* buffer, uint64_t bytes,
                                       unsigned threads);

/* Sets `*out` to a text on what this process has read of the checkpoint, for the other processes'
 * unishard_verify_reads(). */
UNISHARD_C_API char* unishard_read_parts(const unishard_checkpoint* checkpoint, char** out);

/* Compares the checksums that reads could not compare because they read only a part of the bytes
 * that one checksum covers, and reads the rest of those bytes. Must not run beside a read. `ranks`
 * processes that have read one part each all call it: `rank` is this one's number, and `parts` is a
 * JSON list of unishard_read_parts() of all; each missing byte is read by one of them. */
UNISHARD_C_API char* unishard_verify_reads(const unishard_checkpoint* checkpoint, uint32_t rank,
                                           uint32_t ranks, const char* parts, unsigned threads);

/* A run that saves several tags to one folder, seen from its rank 0. */
typedef struct unishard_run unishard_run;

/* Claims `folder` for a run until unishard_run_free(): makes the folder, and locks it against other
 * runs by the lock that UniShard's trainer takes. A run that `continues` has loaded a checkpoint of
 * the folder. Any other run is refused with the code "already exists" where the folder has traces
 * of checkpoints, unless it is `fresh`. Sets `*decision` to a JSON object: "beside" is true when a
 * fresh run must not replace what is there, and "beside_whole" when whole checkpoints are there,
 * which must not be removed. Other errors: "busy" when another run holds the lock, "already exists"
 * when `folder` or its file `latest` belongs to another program. */
UNISHARD_C_API char* unishard_run_begin(const char* folder, int continues, int fresh,
                                        unishard_run** out, char** decision);

/* Returns 1 while the claim holds, and 0 when the folder was removed or another run has taken the
 * lock over, because this one seemed dead. */
UNISHARD_C_API int unishard_run_is_held(const unishard_run* run);

/* Ends a claim. NULL is allowed. */
UNISHARD_C_API void unishard_run_free(unishard_run* run);

/* Sets `*number` to the number that the next checkpoint of `folder` gets, which need not exist. */
UNISHARD_C_API char* unishard_next_commit(const char* folder, uint64_t* number);

/* Saving. The processes of a run have ranks from 0 on and exchange texts by their own means:
 *   1. all agree on the catalog, a JSON object with the keys of unishard_describe(): "tensors"
 * (each with "name", "state", "dtype", "shape", and if wanted "group", "frozen", "derived"),
 * "aliases", "step", "world_size" (the number of shards), "stage", and the sections of SPEC.md; the
 * elements of a derived tensor are passed like others, for its checksum, but not stored;
 *   2. rank 0 calls unishard_save_begin() and sends the place to all;
 *   3. each rank writes its shard, an own part of the elements, and sends its entry to rank 0;
 *   4. rank 0 calls unishard_save_publish(). Until then, no reader sees anything of the save.
 * `options` is a JSON object; all ranks pass the same. Keys, all optional: "compression" ("none",
 * "zstd", "auto", with a level as in "zstd:3"), "replace" (may a UniShard checkpoint of this tag be
 * replaced; default true), "keep_last" (complete checkpoints to keep; default 0, all),
 * "move_latest" (default true), "commit_number" (that unishard_next_commit() returned when the save
 * was started: saves that overlap have larger ones the later they were started, and `latest` stays
 * where one with a larger number is complete; default 0, the next one), "inside" (the folder may be
 * that of another program's checkpoint, whose files stay; default false), "base" (folder of an
 * older tag: chunks that it has as well are shared and not written). */
typedef struct unishard_save unishard_save;
typedef struct unishard_shard unishard_shard;

/* Locks the name `folder`/`tag` against other writers and makes a staging folder beside it. Sets
 * `*place` to a JSON object with "staging", the name of that folder, and "save_id". A `folder` that
 * is a checkpoint of another program is refused; without "move_latest" the files of a model in it
 * are none. */
UNISHARD_C_API char* unishard_save_begin(const char* folder, const char* tag, const char* catalog,
                                         const char* options, unishard_save** out, char** place);

/* Replaces the catalog that unishard_save_begin() got, when a part of it became known during the
 * save: its tensors and its world size must be the same. */
UNISHARD_C_API char* unishard_save_describe(unishard_save* save, const char* catalog);

/* Checks all shards, commits the checkpoint and moves `latest`. `entries` is a JSON list with one
 * entry for each rank, in rank order. Sets `*warnings` to a JSON list of sentences on what failed
 * after the commit, for example the removal of an old checkpoint. */
UNISHARD_C_API char* unishard_save_publish(unishard_save* save, const char* entries,
                                           char** warnings);

/* Ends a save. One that was not published is removed. NULL is allowed. */
UNISHARD_C_API void unishard_save_free(unishard_save* save);

/* Begins the shard of `rank` in `folder`, which is rank 0's. `fragments` is a JSON list of what it
 * will hold of tensors of the catalog, in the order of tensors and first elements: [tensor, begin,
 * end] for the elements [begin, end), or [tensor, [offset, ...], [size, ...]] for a box. Over all
 * ranks, each element occurs once. */
UNISHARD_C_API char* unishard_shard_begin(const char* folder, const char* place,
                                          const char* catalog, uint32_t rank, const char* fragments,
                                          const char* options, unishard_shard** out);

/* Writes the elements [begin, end) of fragment number `fragment`: numbers of elements of the tensor
 * when the fragment was given as a range, and numbers of elements of the box, from 0 on and
 * row-major, when it was given as a box. Each element is written once. */
UNISHARD_C_API char* unishard_shard_write(unishard_shard* shard, uint64_t fragment, uint64_t begin,
                                          uint64_t end, const void* data, uint64_t bytes);

/* Completes the shard and syncs its file. Sets `*entry` to the text that rank 0 needs. */
UNISHARD_C_API char* unishard_shard_finish(unishard_shard* shard, char** entry);

/* Ends a shard. One that was not finished is removed. NULL is allowed. */
UNISHARD_C_API void unishard_shard_free(unishard_shard* shard);

/* Sets `*out` to the catalog of a state dict of torch.distributed.checkpoint that is about to be
 * saved, by the rules of MAPPING.md. `described` is a JSON object; planned_state_dict.hpp
 * (unishard/converters) lists its keys. Each tensor of the result has its "key" in the state dict;
 * "notes" and "remarks" are sentences. */
UNISHARD_C_API char* unishard_plan_state_dict(const char* described, char** out);

#ifdef __cplusplus
}
#endif
#endif
