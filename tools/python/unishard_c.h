#ifndef UNISHARD_C_H
#define UNISHARD_C_H
/* The C interface of UniShard: opens a checkpoint of any format and reads elements of its tensors.
 * The Python package calls it through ctypes, so that one library serves every version of Python;
 * other languages may call it too.
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
#define UNISHARD_C_VERSION 1

/* A checkpoint that is open for reading. */
typedef struct unishard_checkpoint unishard_checkpoint;

/* Returns UNISHARD_C_VERSION of the library. */
UNISHARD_C_API int unishard_c_version(void);

/* Frees a text that a function returned; NULL is allowed. */
UNISHARD_C_API void unishard_free(char* text);

/* Opens the checkpoint that `path` (UTF-8, a file or folder of any format, or ORG/NAME in the local
 * cache of the Hugging Face hub) and `tag` (may be NULL) name. Reads tables and no payload. */
UNISHARD_C_API char* unishard_open(const char* path, const char* tag, unishard_checkpoint** out);

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

#ifdef __cplusplus
}
#endif
#endif
