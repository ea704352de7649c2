#pragma once
// NCCL's functions for ranks that are threads of this process, each with a guarded device of its
// own: a program that links this file calls them instead of the library's. It differs from NCCL:
// - it has the functions and the types that the trainer uses, and communicators never block;
// - ranks whose operations differ all get ncclInvalidUsage, where NCCL may hang;
// - memory that is not the caller's, and results that overlap what is read, throw c10::Error.
#include <nccl.h>

#include <cstddef>

namespace unishard::test {

/// Makes each communicator report this error, as NCCL does after a failure elsewhere.
void fail_nccl(ncclResult_t error);

/// Returns how many communicators have been neither destroyed nor aborted.
std::size_t nccl_communicators();
/// Returns how many communicators have been aborted since the last call.
std::size_t take_nccl_aborts();

}  // namespace unishard::test
