/* SPDX-License-Identifier: Apache-2.0
 *
 * What the examples share: checks, and how ranks that a launcher has started get one id. */
#ifndef INCCL_EXAMPLES_NCCL_COMMON_H_
#define INCCL_EXAMPLES_NCCL_COMMON_H_

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CUDA(call)                                                    \
  do {                                                                \
    cudaError_t error_ = (call);                                      \
    if (error_ != cudaSuccess) {                                      \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_)); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

#define NCCL(call)                                                                                 \
  do {                                                                                             \
    ncclResult_t result_ = (call);                                                                 \
    if (result_ != ncclSuccess) {                                                                  \
      fprintf(stderr, "%s: %s: %s\n", #call, ncclGetErrorString(result_), ncclGetLastError(NULL)); \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* The first of three variables that is set; `otherwise` without. */
static inline int Number(const char* a, const char* b, const char* c, int otherwise) {
  const char* text = getenv(a);
  if (text == NULL) text = getenv(b);
  if (text == NULL) text = getenv(c);
  return text == NULL ? otherwise : atoi(text);
}

static inline int Rank(void) { return Number("OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID", 0); }
static inline int Size(void) {
  return Number("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS", 1);
}

/* Rank 0 writes the id into a file that does not exist yet, and the others read it. */
static inline ncclUniqueId ShareId(int rank, const char* path) {
  ncclUniqueId id;
  char temporary[4096];
  FILE* file = NULL;
  size_t bytes = 0;
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&id));
    snprintf(temporary, sizeof temporary, "%s.part", path);
    file = fopen(temporary, "wb");
    if (file != NULL) bytes = fwrite(&id, 1, sizeof id, file);
    if (file == NULL || fclose(file) != 0 || bytes != sizeof id || rename(temporary, path) != 0) {
      perror(path);
      exit(1);
    }
    return id;
  }
  while ((file = fopen(path, "rb")) == NULL) usleep(1000);
  bytes = fread(&id, 1, sizeof id, file);
  fclose(file);
  if (bytes != sizeof id) exit(1);
  return id;
}

#endif /* INCCL_EXAMPLES_NCCL_COMMON_H_ */
