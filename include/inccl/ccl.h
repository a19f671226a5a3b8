/* SPDX-License-Identifier: Apache-2.0
 *
 * inccl: in-line compressed collectives. The C API.
 *
 * Shaped like NCCL: the same numbers for results, types and operations, the same calls with the
 * prefix ccl_. What is not written here follows NCCL's documented behaviour and, where NCCL is
 * silent, MPI's.
 *
 * Streams. Buffers in host memory: with stream NULL a call returns when its result is in `recv`;
 * with a stream of ccl_stream_create it returns at once: calls on one stream run in the order in
 * which they were made, also over several communicators; buffers, codecs and stats must live until
 * then, and errors surface at ccl_stream_synchronize and ccl_comm_get_async_error. Any other value
 * is CCL_INVALID_ARGUMENT.
 *
 * Devices. Buffers in memory of a CUDA device (all of a call, or none): the stream is one of CUDA,
 * cast to ccl_stream_t, NULL the legacy one. The call returns when it is on the stream, runs when
 * the device has done what was put there before, and the device goes on when it is done; errors
 * surface at ccl_comm_get_async_error alone. The current device of the thread is not changed. Ranks
 * of one thread need a stream each, or one group for all. A stream that is being captured is
 * CCL_INVALID_ARGUMENT. Needs libinccl_cuda.so and a process that has loaded CUDA before it creates
 * the communicator. Payloads travel through slots in host memory; ranks whose devices reach each
 * other's memory read that of ccl_mem_alloc_device where it lies. The CUDA code is compiled and
 * tested with stand-ins for the driver; nothing has run on a GPU yet.
 *
 * Order. All ranks of a communicator call the same collectives in the same order with matching
 * arguments, whatever streams they use. A mismatch (operation, count, type, reduction, root, codec,
 * seed, step) is CCL_INVALID_USAGE on every rank, and ccl_get_last_error() names two ranks that
 * differ and both their calls; a rank whose call has returned already (the root of a broadcast)
 * gets it at its next call. Sends and receives are matched in order per pair of ranks.
 *
 * Errors. CCL_INVALID_ARGUMENT is local: the call had no effect and used no place in the order of
 * calls. Every other error of a collective, a send or a receive is fatal for the communicator and
 * sticky: later calls return it at once. Queries, ccl_comm_shrink, ccl_comm_abort and
 * ccl_comm_destroy remain to be called. An error of ccl_comm_split or ccl_comm_shrink may concern
 * the new communicator alone: ccl_comm_get_async_error tells. No call blocks for ever, exits or
 * raises. A rank that completes its calls and destroys its communicator does not disturb ranks that
 * come later.
 *
 * Log. The library writes warnings to standard error: calls that fail with their texts, and who is
 * missing when a call has made no progress for 10 seconds. INCCL_DEBUG=NONE makes it silent,
 * INCCL_DEBUG=INFO asks for more.
 *
 * Threads. Different communicators may be used from different threads at the same time; one
 * communicator from one thread at a time, except ccl_comm_abort, ccl_comm_revoke and
 * ccl_comm_get_async_error. After fork() the child may only exit or exec: calls on a communicator
 * of its parent are CCL_INVALID_USAGE.
 *
 * Memory. `count` 0 is legal and takes part. Alignment of the element type suffices. A send buffer
 * is never changed unless the call is in place; a receive buffer is undefined after an error.
 */
#ifndef INCCL_CCL_H_
#define INCCL_CCL_H_

#include <stddef.h>
#include <stdint.h>

#define CCL_MAJOR 0
#define CCL_MINOR 1
#define CCL_PATCH 0
/** Version of this header as one number: major * 10000 + minor * 100 + patch. */
#define CCL_VERSION_CODE (CCL_MAJOR * 10000 + CCL_MINOR * 100 + CCL_PATCH)

#if defined(__GNUC__)
#define CCL_API __attribute__((visibility("default")))
#else
#define CCL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Result of every call. The numbers are NCCL's; older versions have no timeout. */
typedef enum {
  CCL_SUCCESS = 0,
  CCL_UNHANDLED_CUDA_ERROR = 1, /**< A CUDA call failed. */
  CCL_SYSTEM_ERROR = 2, /**< A call to the operating system failed: memory, descriptors, sockets. */
  CCL_INTERNAL_ERROR = 3,   /**< A defect of the library, or corrupted data from a peer. */
  CCL_INVALID_ARGUMENT = 4, /**< An argument is wrong; named by ccl_get_last_error. No effect. */
  CCL_INVALID_USAGE =
      5, /**< The ranks do not make the same calls, or the communicator is not usable. */
  CCL_REMOTE_ERROR = 6, /**< A peer died or left; named by ccl_get_last_error. */
  CCL_IN_PROGRESS = 7,  /**< Not an error: an asynchronous operation is still running. */
  CCL_TIMEOUT = 8 /**< A deadline passed (init, operation); the text says who was waited for. */
} ccl_result_t;

/** Element types. 16- and 8-bit floats are summed in fp32 inside a step and rounded once per step.
 */
typedef enum {
  CCL_INT8 = 0,
  CCL_UINT8 = 1,
  CCL_INT32 = 2,
  CCL_UINT32 = 3,
  CCL_INT64 = 4,
  CCL_UINT64 = 5,
  CCL_FLOAT16 = 6,
  CCL_FLOAT32 = 7,
  CCL_FLOAT64 = 8,
  CCL_BFLOAT16 = 9,
  CCL_FLOAT8E4M3 = 10, /**< OCP 8-bit float, 4 exponent bits: no infinity, largest value 448. */
  CCL_FLOAT8E5M2 = 11  /**< OCP 8-bit float, 5 exponent bits: with infinity, largest value 57344. */
} ccl_datatype_t;

/** Reductions. Integer sums and products wrap modulo 2^bits; MAX and MIN of floats return NaN where
 * any input is NaN. */
typedef enum {
  CCL_SUM = 0,
  CCL_PROD = 1,
  CCL_MAX = 2,
  CCL_MIN = 3,
  CCL_AVG = 4, /**< Sum over n. Floats are multiplied by 1/n before they are added, integers divided
                  (truncating) after. */
  CCL_REDOP_LIMIT = 0x7fffffff /**< No operation: the values in between belong to
                                  ccl_redop_create_premulsum. */
} ccl_redop_t;

/** Where the scalar of a premultiplied sum is read. */
typedef enum {
  CCL_SCALAR_DEVICE = 0, /**< In memory of the kind that the buffers of calls have, read whenever a
                            call that uses the operation runs. */
  CCL_SCALAR_HOST_IMMEDIATE = 1 /**< In host memory, before ccl_redop_create_premulsum returns. */
} ccl_scalar_residence_t;

/** Identifies a communicator while it is created. It contains a secret: whoever holds it can join.
 * Never log it. */
typedef struct {
  char internal[128];
} ccl_unique_id_t;

typedef struct ccl_comm* ccl_comm_t;     /**< A communicator: one rank's end of a group of ranks. */
typedef struct ccl_stream* ccl_stream_t; /**< An order of asynchronous calls; NULL: wait. */
typedef struct ccl_codec* ccl_codec_t;   /**< A parsed codec specification. */
typedef struct ccl_residual* ccl_residual_t; /**< Error-feedback state; NULL in this version. */

/** Options of a communicator, to be initialized with CCL_CONFIG_INIT: zero or NULL means default,
 * but for `blocking`. `size` is sizeof as the caller was compiled. */
typedef struct {
  size_t size;
  int blocking; /**< 1: creation waits. 0: it returns CCL_IN_PROGRESS at once; the communicator can
                   be used when ccl_comm_get_async_error no longer says so. */
  const char* codec; /**< Default codec of compressed calls; else INCCL_CODEC, else "hbi:bits=6". */
  const char*
      algorithm;       /**< As INCCL_ALGO: "ring", "tree", "recursive_doubling", "direct". A call of
                           a collective that has none of those asked for is CCL_INVALID_ARGUMENT;
                           "tree;allgather:ring" asks for another one of it. */
  int channels;        /**< Independent lanes per peer, 1..32. */
  int reproducible;    /**< 1: float sums in rank order, independent of size and algorithm; those
                          of compressed calls too, whose codecs depend on the order. */
  int preserve_input;  /**< 1: after an error, the buffer of a call in place holds its input
                          again; costs a copy of the input per such call. */
  int init_timeout_ms; /**< Deadline of creation; default 120000. */
  int op_timeout_ms;   /**< Deadline of an operation without progress, and of its turn on a stream
                          on which nothing moves; default 600000. */
  int heartbeat_ms;    /**< Interval of signs of life between processes, on one host too; default
                          1000. Ranks that are threads of one process send none. */
  int dead_ms; /**< Silence after which a process counts as dead, at least three times heartbeat_ms;
                  default 10000. A rank that a debugger stops for longer fails the communicator. -1
                  (INCCL_DEAD_TIMEOUT_MS=0): never; a process that ends is seen all the same. */
  const char* socket_ifname; /**< As INCCL_SOCKET_IFNAME: where this rank listens when it makes the
                                id of a split or shrink. CCL_INVALID_ARGUMENT if no interface of
                                that name is up. Other sockets stay on the host. */
  const char* name; /**< A name for error texts and the log, at most 128 bytes; each rank's own:
                       rank 1/4 of "name". */
} ccl_config_t;
#define CCL_CONFIG_INIT \
  { sizeof(ccl_config_t), 1, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, NULL }

/** What a compressed call did. Filled when the call completes. */
typedef struct ccl_compression_stats {
  size_t size;       /**< sizeof as the caller was compiled. */
  uint64_t elements; /**< Elements of the call. */
  uint64_t
      payload_bytes;   /**< Compressed bytes this rank sent, without headers; once per receiver. */
  uint64_t wire_bytes; /**< All bytes this rank sent: payload and a 64-byte header per slice and
                          receiver. */
  /**
   * Payload bits per element sent: 8 * payload_bytes / (elements * 2(n-1)/n) for an all-reduce over
   * ring or direct; 8 * payload_bytes / (elements * (n-1)) for a reduce-scatter or all-gather,
   * whose elements are those of one segment.
   */
  double bits;
  double ratio; /**< Bytes of an uncompressed call of the same algorithm over payload_bytes. */
  double error_bound;   /**< Upper bound on the absolute error of any element of this call. 0: as
                           uncompressed. Infinite where no rank can know one (docs/codecs.md). */
  uint64_t zero_blocks; /**< Blocks of 32 elements that are zero on every rank. This and the next
                           two: of hbi, else 0. */
  uint64_t dropped_superblocks; /**< Superblocks of 256 elements for which the budget left no bits.
                                 */
  uint64_t poisoned_blocks; /**< Blocks with a NaN or infinity on some rank: NaN in the result. */
  int compressed;           /**< 0: the call ran uncompressed (type, reduction or size). */
} ccl_compression_stats_t;
#define CCL_COMPRESSION_STATS_INIT \
  { sizeof(ccl_compression_stats_t), 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0 }

/** Arguments of a compressed call. All ranks pass equal codec, seed and step. */
typedef struct {
  size_t size;
  ccl_codec_t codec;       /**< NULL: the communicator's default. */
  uint64_t seed;           /**< Seed of the rounding; 0 is a seed like any other. */
  uint64_t step;           /**< Another rounding for each value; 0: the communicator's count of
                              compressed calls so far. */
  ccl_residual_t residual; /**< NULL in this version, else CCL_INVALID_ARGUMENT. */
  struct ccl_compression_stats* stats; /**< NULL, or filled on completion. */
} ccl_compression_t;
#define CCL_COMPRESSION_INIT \
  { sizeof(ccl_compression_t), NULL, 0, 0, NULL, NULL }

/* ---------------------------------------------------------------- version and errors */

/** Writes CCL_VERSION_CODE of the library that is loaded. */
CCL_API ccl_result_t ccl_get_version(int* version);

/** A constant text for a result code; never NULL. */
CCL_API const char* ccl_get_error_string(ccl_result_t result);

/**
 * The text of the communicator's sticky error if there is one, else (and with NULL) of the calling
 * thread's last failed call; "" if none has failed. Names the argument, the local rank, the peer
 * and the value; control characters in what peers have sent are escaped. Valid until the next call
 * on the same thread. Any thread, also while another aborts the communicator.
 */
CCL_API const char* ccl_get_last_error(ccl_comm_t comm);

/* ---------------------------------------------------------------- communicators */

/**
 * Creates an identifier and starts to listen for the ranks that will use it. Call it on one rank
 * and hand the 128 bytes to the others by a channel you trust: they contain the secret that admits
 * a rank. An identifier makes one communicator; its creator must live until all ranks have joined.
 */
CCL_API ccl_result_t ccl_get_unique_id(ccl_unique_id_t* id);

/**
 * Joins the communicator of `id` as `rank` of `nranks` (0 <= rank < nranks <= 64). Blocks until all
 * ranks are there, or CCL_TIMEOUT at the init deadline with the missing ranks named.
 */
CCL_API ccl_result_t ccl_comm_init_rank(ccl_comm_t* comm, int nranks, ccl_unique_id_t id, int rank);

/** As ccl_comm_init_rank, with options; config may be NULL. */
CCL_API ccl_result_t ccl_comm_init_rank_config(ccl_comm_t* comm, int nranks, ccl_unique_id_t id,
                                               int rank, const ccl_config_t* config);

/**
 * Joins with rank, size and meeting point taken from the launcher's environment: Open MPI's mpirun,
 * PMI, Slurm, torchrun, or INCCL_RANK, INCCL_SIZE and INCCL_JOB, a name that no other job of this
 * user has. Ranks of one host need nothing else; same user and same container (pid and user
 * namespace) is the admission rule, or knowing the content of INCCL_SECRET_FILE. The first calls
 * of all ranks make one communicator, the second ones another. config may be NULL.
 */
CCL_API ccl_result_t ccl_comm_init_env(ccl_comm_t* comm, const ccl_config_t* config);

/**
 * Creates all `ndev` ranks of a communicator inside this process; comms[i] is rank i, to be used by
 * a thread of its own, or by one thread in groups. `devices`: the ranks' devices, which may be the
 * same; NULL for host memory. After an error there is nothing to destroy.
 */
CCL_API ccl_result_t ccl_comm_init_all(ccl_comm_t* comms, int ndev, const int* devices);

#define CCL_SPLIT_NOCOLOR (-1)
/**
 * Divides a communicator: ranks with equal `color` (>= 0) form a new one, ordered by `key` and,
 * where keys are equal, by their rank in `comm`. With CCL_SPLIT_NOCOLOR a rank takes part and gets
 * NULL. Collective over `comm`, in the order of its calls; waits. Ends with the error of `comm`
 * when that fails, as when a rank of it dies. config NULL: that of `comm`.
 */
CCL_API ccl_result_t ccl_comm_split(ccl_comm_t comm, int color, int key, ccl_comm_t* newcomm,
                                    const ccl_config_t* config);

#define CCL_SHRINK_DEFAULT 0 /**< No call on the communicator may be in progress. */
#define CCL_SHRINK_ABORT 1   /**< Calls in progress end with an error first. */
/**
 * A new communicator of the ranks that are left: all but those in `excluded` and those that have
 * died. Called by all of them, in the end with equal flags; the order of ranks is kept. Works on a
 * communicator that has failed or was revoked, which must still be destroyed or aborted afterwards,
 * and goes on when more ranks die meanwhile. All that get the new communicator agree who is in it.
 * `excluded` may be NULL if nexcluded is 0. config NULL: that of `comm`. An excluded rank that
 * calls it all the same gets CCL_INVALID_USAGE; ranks that do not call it are named by CCL_TIMEOUT
 * at the init deadline.
 */
CCL_API ccl_result_t ccl_comm_shrink(ccl_comm_t comm, const int* excluded, int nexcluded,
                                     ccl_comm_t* newcomm, const ccl_config_t* config, int flags);

/**
 * After ccl_comm_shrink: the last operation of the parent that completed on every rank of `comm`;
 * collective calls count from 1. What came later must be repeated. Else: how many have completed on
 * this rank.
 */
CCL_API ccl_result_t ccl_comm_last_completed(ccl_comm_t comm, uint64_t* operation);

/** Waits until every call on the communicator has completed; afterwards it can only be destroyed,
 * aborted or shrunk. CCL_IN_PROGRESS if it was created with blocking = 0: then
 * ccl_comm_get_async_error tells the end. NULL is CCL_INVALID_ARGUMENT. */
CCL_API ccl_result_t ccl_comm_finalize(ccl_comm_t comm);

/** Ends a communicator after its last call and frees it. Waits for this rank's calls on streams,
 * not for other ranks. NULL: CCL_SUCCESS, and no effect. */
CCL_API ccl_result_t ccl_comm_destroy(ccl_comm_t comm);

/** Ends a communicator at any time, from any thread, within a second (longer if a device works for
 * it), and frees it: what is in progress, its creation, finalization, splits and shrinks included,
 * ends with an error. NULL: CCL_SUCCESS, and no effect. */
CCL_API ccl_result_t ccl_comm_abort(ccl_comm_t comm);

/** Makes a communicator fail on all ranks, from any thread: calls in progress and all later ones
 * return CCL_REMOTE_ERROR everywhere. For a rank that has seen an error the others cannot see; they
 * can then meet in ccl_comm_shrink. */
CCL_API ccl_result_t ccl_comm_revoke(ccl_comm_t comm);

/** Writes the communicator's sticky error, CCL_SUCCESS if there is none, CCL_IN_PROGRESS while it
 * is being created (blocking = 0) or finalized. Never blocks; any thread. */
CCL_API ccl_result_t ccl_comm_get_async_error(ccl_comm_t comm, ccl_result_t* error);

/** Number of ranks. */
CCL_API ccl_result_t ccl_comm_count(ccl_comm_t comm, int* count);
/** Rank of this end. */
CCL_API ccl_result_t ccl_comm_user_rank(ccl_comm_t comm, int* rank);
/** Device of this rank: given to ccl_comm_init_all, or current when the communicator was created;
 * -1 in a process without devices. */
CCL_API ccl_result_t ccl_comm_device(ccl_comm_t comm, int* device);

/* ---------------------------------------------------------------- collectives */

/** recv[i] = op over ranks of send[i], i < count. In place: send == recv. */
CCL_API ccl_result_t ccl_allreduce(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                   ccl_redop_t op, ccl_comm_t comm, ccl_stream_t stream);

/**
 * send holds nranks * recvcount elements; rank r receives the reduction of segment r.
 * In place: recv == send + rank * recvcount.
 */
CCL_API ccl_result_t ccl_reduce_scatter(const void* send, void* recv, size_t recvcount,
                                        ccl_datatype_t type, ccl_redop_t op, ccl_comm_t comm,
                                        ccl_stream_t stream);

/**
 * recv holds nranks * sendcount elements; segment r is rank r's send buffer.
 * In place: send == recv + rank * sendcount.
 */
CCL_API ccl_result_t ccl_allgather(const void* send, void* recv, size_t sendcount,
                                   ccl_datatype_t type, ccl_comm_t comm, ccl_stream_t stream);

/** recv on every rank = send of root. send is read on root only. In place: send == recv. */
CCL_API ccl_result_t ccl_broadcast(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                   int root, ccl_comm_t comm, ccl_stream_t stream);

/** recv on root = op over ranks of send. recv is written on root only. In place: send == recv. */
CCL_API ccl_result_t ccl_reduce(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                ccl_redop_t op, int root, ccl_comm_t comm, ccl_stream_t stream);

/**
 * send and recv hold nranks segments of `count` elements: segment d of send goes to rank d, segment
 * s of recv comes from rank s. Not in place.
 */
CCL_API ccl_result_t ccl_alltoall(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                  ccl_comm_t comm, ccl_stream_t stream);

/** recv on root holds nranks segments of `count` elements, segment r is rank r's send; recv is not
 * used on other ranks. In place: send == recv + root * count on root. */
CCL_API ccl_result_t ccl_gather(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                int root, ccl_comm_t comm, ccl_stream_t stream);

/** send on root holds nranks segments of `count` elements, rank r gets segment r; send is not used
 * on other ranks. In place: recv == send + root * count on root. */
CCL_API ccl_result_t ccl_scatter(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                 int root, ccl_comm_t comm, ccl_stream_t stream);

/* ---------------------------------------------------------------- point to point */

/**
 * Sends `count` elements to rank `peer`, whose ccl_recv names the same count and type, else
 * CCL_INVALID_USAGE on both (a sender that has returned already gets it at its next call). Messages
 * of one pair of ranks arrive in the order in which they were sent. Like NCCL's, a send may wait
 * for its receive: exchanges belong into a group. count 0 sends a message of no elements. To
 * oneself only inside a group that receives it.
 */
CCL_API ccl_result_t ccl_send(const void* send, size_t count, ccl_datatype_t type, int peer,
                              ccl_comm_t comm, ccl_stream_t stream);
/** Receives what `peer` sends; see ccl_send. */
CCL_API ccl_result_t ccl_recv(void* recv, size_t count, ccl_datatype_t type, int peer,
                              ccl_comm_t comm, ccl_stream_t stream);

/* ---------------------------------------------------------------- groups */

/**
 * Calls between ccl_group_start and the matching ccl_group_end of a thread are started together by
 * the outermost ccl_group_end, which waits for those without a stream. All sends and receives of a
 * communicator progress at the same time, then its collectives, splits and shrinks run in the order
 * of the calls; different communicators progress at the same time, so one thread can call for
 * several ranks. The group takes its places on all its streams at one moment.
 * ccl_comm_init_rank[_config], ccl_comm_init_env, ccl_comm_split and ccl_comm_shrink in a group are
 * also done by its end, which waits for them (blocking = 0 too) and writes the new handles: until
 * then they are NULL. An error of a call inside is returned by it and again by the outermost
 * ccl_group_end, which then starts nothing.
 */
CCL_API ccl_result_t ccl_group_start(void);
CCL_API ccl_result_t ccl_group_end(void);

/* ---------------------------------------------------------------- reductions of one's own */

/**
 * A reduction of `comm`: every rank multiplies its input by its *scalar, of type `type`, then sums.
 * The calls it is used in have the same type. Its values are above those of ccl_redop_t; ranks
 * create their operations in the same order, scalars may differ. With CCL_SCALAR_DEVICE *scalar
 * must live until the last of these calls has completed. Goes with its communicator, if not before;
 * a communicator has at most 65536 at the same time (more: CCL_INVALID_USAGE).
 */
CCL_API ccl_result_t ccl_redop_create_premulsum(ccl_redop_t* op, void* scalar, ccl_datatype_t type,
                                                ccl_scalar_residence_t residence, ccl_comm_t comm);
CCL_API ccl_result_t ccl_redop_destroy(ccl_redop_t op, ccl_comm_t comm);

/* ---------------------------------------------------------------- streams */

/** A host stream: an order of asynchronous calls, for any communicators of this process. NULL is
 * CCL_INVALID_ARGUMENT for ccl_stream_synchronize and ccl_stream_query: nothing can be under way.
 */
CCL_API ccl_result_t ccl_stream_create(ccl_stream_t* stream);
/** Waits until all calls on the stream have completed; returns the first error since this or
 * ccl_stream_query last returned one. */
CCL_API ccl_result_t ccl_stream_synchronize(ccl_stream_t stream);
/** CCL_IN_PROGRESS while calls are running, else as ccl_stream_synchronize. Does not wait. */
CCL_API ccl_result_t ccl_stream_query(ccl_stream_t stream);
/** Frees the stream; calls on it complete all the same. NULL is ignored. */
CCL_API ccl_result_t ccl_stream_destroy(ccl_stream_t stream);

/* ---------------------------------------------------------------- memory */

/**
 * Memory for buffers, `size` bytes (not 0), aligned to pages, zero. Calls on it give the same
 * results as on any other and save copies: from 1 MiB on it is a file in memory (one descriptor),
 * which ranks of the same user on this host map when they first meet it in a call, so that they
 * read inputs and write results where these lie. It may be freed as soon as the calls on it have
 * returned. After a call has failed, its receive buffer holds anything (zeros, as a rule). The
 * child of a fork has private pages, as of all memory, but where neither has written since, it may
 * see what its parent writes.
 */
CCL_API ccl_result_t ccl_mem_alloc(void** ptr, size_t size);
/**
 * Memory of a device for buffers, `size` bytes (not 0; CUDA: from 2 MiB on up to the next multiple
 * of 2 MiB) on device number `device`, with any contents. Calls on it give the same results as on
 * any other; it is memory that ranks of this host can open and reach where it lies (CUDA: from 2
 * MiB on). The current device of the thread stays as it is. Memory that was opened by others stays
 * taken after ccl_mem_free, and is given out again here: for at least half its size, or where the
 * device has no other. CCL_INVALID_ARGUMENT: a size of 0, no such device, or a process that has not
 * loaded CUDA; CCL_UNHANDLED_CUDA_ERROR: the device has no memory left.
 */
CCL_API ccl_result_t ccl_mem_alloc_device(void** ptr, size_t size, int device);
/** Frees memory of ccl_mem_alloc or ccl_mem_alloc_device; NULL is ignored. That of a device waits,
 * as a rule, until the device has done all that it was given, and is kept for the next
 * ccl_mem_alloc_device where ranks of other processes may have opened it. CCL_INVALID_ARGUMENT: it
 * is of neither, or freed. */
CCL_API ccl_result_t ccl_mem_free(void* ptr);
/** Does nothing in this version but check its arguments and make a handle: memory that peers read
 * and write where it lies comes from ccl_mem_alloc and ccl_mem_alloc_device. The handle goes with
 * its communicator, if ccl_comm_deregister has not taken it before. */
CCL_API ccl_result_t ccl_comm_register(ccl_comm_t comm, void* ptr, size_t size, void** handle);
CCL_API ccl_result_t ccl_comm_deregister(ccl_comm_t comm, void* handle);

/* ---------------------------------------------------------------- compression */

/**
 * Parses a specification: "none", "lossless", "bf16", "mxfp8", "qsgd:q=8", ... (docs/codecs.md has
 * all codecs and their keys), or "hbi" with any of these keys behind a colon, as in
 * "hbi:bits=5,rht=1" (docs/format.md has all of it):
 * - bits=B: bits per element and phase, a multiple of 1/8 in [0.5, 16]; 6 by default
 * - k=K, k2=K: fixed levels of the sum and of the result, instead of bits
 * - ref=direct|ring: the algorithm that sends no more than bits; others may send more
 * - m=M: groups of M neighbouring ranks, 2 or more, whose sums are exact and meet re-quantized:
 *   over direct only, for all-reduce only
 * - ag=requant|exact: the result is quantized once more, or sums travel in full
 * - unbiased=0|1: 1: the mean over many steps tends to the sum; bits must be enough for all
 * - rht=0|1: 1: a randomized Hadamard transform first: less error where tails are heavy, but zeros
 *   are not exact and a NaN reaches 256 elements instead of 32
 * - checksum=0|1: 1: payloads carry a CRC-32C; damage is an error on all ranks
 * - min_bytes=N: calls of fewer bytes run uncompressed, summed in rank order where an algorithm
 *   that is admitted does so
 *
 * Every unknown key, bad value or contradiction is CCL_INVALID_ARGUMENT and named.
 */
CCL_API ccl_result_t ccl_codec_create(ccl_codec_t* codec, const char* spec);

/**
 * Writes the canonical specification, every key sorted, NUL-terminated. Equal texts mean equal
 * bytes of results. CCL_INVALID_ARGUMENT if `size` is too small (the message says how much is
 * needed; 256 is enough in this version).
 */
CCL_API ccl_result_t ccl_codec_spec(ccl_codec_t codec, char* buffer, size_t size);

/** Frees a codec; calls that use it must have completed. NULL is ignored. */
CCL_API ccl_result_t ccl_codec_destroy(ccl_codec_t codec);

/**
 * What a codec promises for `count` elements on `nranks` ranks: bits per element and phase that its
 * reference algorithm sends (key `ref` of the specification, else direct; other algorithms may send
 * more; 0: no more than the type has), and an upper bound of the absolute error of an element of
 * the sum, relative to `nranks` times the largest |x| of its block of 32 elements (hbi with rht=1:
 * of its superblock of 256; qsgd, qsgd_ms and randk: of its 2^20 elements) over all ranks. 0: as
 * uncompressed. Both are a priori and hold in the codec's range of magnitudes (docs/codecs.md); the
 * stats of a call have what really happened. CCL_INVALID_ARGUMENT if no such call is possible, e.g.
 * with bits that are too few for unbiased=1.
 */
CCL_API ccl_result_t ccl_codec_bound(ccl_codec_t codec, size_t count, int nranks, double* bits,
                                     double* relative_error_bound);

/**
 * As ccl_allreduce, with compressed bytes on the way (docs/codecs.md). op is CCL_SUM or CCL_AVG
 * (with the codec lossless any) and type a float of 2 bytes or more; any other type or op, or a
 * call below the codec's min_bytes, runs uncompressed and says so in the stats. The result is
 * bit-identical on all ranks; with hbi, qsgd, qsgd_ms and randk, whose sums are exact,
 * also over algorithms, slice sizes, channels, transports and instruction sets. What a
 * specification cannot do on this communicator (m=4 where algorithms other than direct are
 * forced, unbiased=1 with too few bits) is CCL_INVALID_ARGUMENT, and nothing has been sent.
 * compression may be NULL: all defaults.
 */
CCL_API ccl_result_t ccl_allreduce_compressed(const void* send, void* recv, size_t count,
                                              ccl_datatype_t type, ccl_redop_t op,
                                              const ccl_compression_t* compression, ccl_comm_t comm,
                                              ccl_stream_t stream);

/**
 * As ccl_reduce_scatter, with compressed bytes on the way, under the conditions of
 * ccl_allreduce_compressed.
 */
CCL_API ccl_result_t ccl_reduce_scatter_compressed(const void* send, void* recv, size_t recvcount,
                                                   ccl_datatype_t type, ccl_redop_t op,
                                                   const ccl_compression_t* compression,
                                                   ccl_comm_t comm, ccl_stream_t stream);

/**
 * As ccl_allgather, with every rank's segment compressed once by its sender; all ranks, the sender
 * too, get the decoded values. Under the conditions of ccl_allreduce_compressed.
 */
CCL_API ccl_result_t ccl_allgather_compressed(const void* send, void* recv, size_t sendcount,
                                              ccl_datatype_t type,
                                              const ccl_compression_t* compression, ccl_comm_t comm,
                                              ccl_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif /* INCCL_CCL_H_ */
