// SPDX-License-Identifier: Apache-2.0
//
// How libnccl.so.2 exports a function: a strong pncclX and a weak ncclX for the same code, so that
// a tool can define ncclX and call pncclX.
#ifndef INCCL_EXT_NCCL_EXPORT_H_
#define INCCL_EXT_NCCL_EXPORT_H_

#define INCCL_NCCL_VISIBLE __attribute__((visibility("default")))

// INCCL_NCCL_EXPORT(type, AllReduce, (parameters)) { body }
#define INCCL_NCCL_EXPORT(type, name, parameters)            \
  extern "C" INCCL_NCCL_VISIBLE type pnccl##name parameters; \
  extern "C" INCCL_NCCL_VISIBLE type nccl##name parameters   \
      __attribute__((weak, alias("pnccl" #name)));           \
  extern "C" type pnccl##name parameters

#endif  // INCCL_EXT_NCCL_EXPORT_H_
