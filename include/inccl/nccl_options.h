/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of single calls for libnccl.so.2 of inccl, in the list `ext` of ncclCollConfig_t (NCCL
 * 2.31 and later). Other libraries of that name ignore them:
 *
 *   ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
 *   ncclConfigExt_t codec = {NULL, {INCCL_NCCL_VENDOR_ID, INCCL_NCCL_OPTION_CODEC},
 *                            {.s = "hbi:bits=6"}};
 *   config.ext = &codec;
 *   ncclAllReduceConfig(send, recv, count, ncclFloat32, ncclSum, comm, stream, &config);
 */
#ifndef INCCL_NCCL_OPTIONS_H_
#define INCCL_NCCL_OPTIONS_H_

/** key.vendorId of these options. */
#define INCCL_NCCL_VENDOR_ID 0x63636c

/**
 * key.optionId: val.s is the codec of this call, a specification of docs/codecs.md, or "none"; it
 * replaces what INCCL_NCCL_POLICY says. For all-reduce, reduce-scatter and all-gather. All ranks
 * pass the same. Elements that the codec does not serve (integers) travel uncompressed.
 */
#define INCCL_NCCL_OPTION_CODEC 1

#endif /* INCCL_NCCL_OPTIONS_H_ */
