#pragma once

/// Marks a function that is compiled for the host and, by nvcc, also for a CUDA device.
#ifdef __CUDACC__
#define UNISHARD_HOST_DEVICE __host__ __device__
#else
#define UNISHARD_HOST_DEVICE
#endif
