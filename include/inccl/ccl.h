/* SPDX-License-Identifier: Apache-2.0
 *
 * inccl: in-line compressed collectives. The C API.
 *
 * The API is shaped like NCCL: the numbers of results, types and operations are the same, and so
 * are the calls, with the prefix ccl_. Where this file is silent, a call behaves as NCCL documents,
 * and where NCCL is silent, too, as MPI does.
 *
 * Streams. For buffers in host memory, a call with stream NULL returns when its result is in
 * `recv`. A call with a stream of ccl_stream_create returns at once. Calls on one stream run in the
 * order in which they were made, also if they belong to several communicators. The caller keeps
 * buffers, codecs and stats until the call has completed; ccl_stream_synchronize and
 * ccl_comm_get_async_error report its error. Any other value of `stream` is CCL_INVALID_ARGUMENT.
 *
 * Devices. Either all buffers of a call are in memory of a CUDA device or none is. If they are, the
 * stream is a CUDA stream, cast to ccl_stream_t; NULL is the legacy stream. The call returns when
 * it has been put on the stream. It runs when the device has done the work that was put there
 * before, and the device continues when the call is done. Only ccl_comm_get_async_error reports
 * errors. The library does not change the current device of the thread. Ranks that share a thread
 * need a stream each, or one group for all. A stream that is being captured is
 * CCL_INVALID_ARGUMENT. Calls on device memory need libinccl_cuda.so and a process that has loaded
 * CUDA before it creates the communicator. Payloads travel through slots in host memory; ranks
 * whose devices reach each other's memory read memory of ccl_mem_alloc_device in place. The CUDA
 * code is compiled, and tested with stand-ins for the driver; nothing has run on a GPU yet.
 *
 * Order. All ranks of a communicator call the same collectives in the same order with matching
 * arguments, on whatever streams. A mismatch (operation, count, type, reduction, root, codec, seed,
 * step) is CCL_INVALID_USAGE on every rank, and ccl_get_last_error() names two ranks that differ
 * and both their calls. A rank whose call has returned already (the root of a broadcast) gets the
 * error at its next call. Sends and receives are matched in order per pair of ranks.
 *
 * Errors. CCL_INVALID_ARGUMENT is local: the call had no effect and does not count in the order of
 * calls. Every other error of a collective, a send or a receive is fatal for the communicator and
 * sticky: later calls return it at once. The caller can still use queries, ccl_comm_shrink,
 * ccl_comm_abort and ccl_comm_destroy. An error of ccl_comm_split or ccl_comm_shrink may concern
 * only the new communicator; ccl_comm_get_async_error shows the state of the old one. No call
 * blocks for ever, exits or raises. A rank that completes its calls and destroys its communicator
 * does not disturb ranks that come later.
 *
 * Log. The library writes warnings to standard error: the text of each call that fails, and the
 * missing ranks when a call has made no progress for 10 seconds. INCCL_DEBUG=NONE makes it silent,
 * INCCL_DEBUG=INFO asks for more.
 *
 * Threads. Several threads may use different communicators at the same time. One thread at a time
 * uses a communicator, except for ccl_comm_abort, ccl_comm_revoke, ccl_comm_set_timeout and
 * ccl_comm_get_async_error. After fork() the child may only exit or exec: its calls on a
 * communicator of the parent are CCL_INVALID_USAGE.
 *
 * Memory. A call with `count` 0 is legal and takes part. Buffers need only the alignment of the
 * element type. The library never changes a send buffer unless the call is in place; a receive
 * buffer is undefined after an error.
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

/** Result of every call. The numbers are NCCL's; older versions of NCCL have no timeout. */
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
  CCL_TIMEOUT =
      8 /**< A deadline passed (init, operation); the text names the ranks that were awaited. */
} ccl_result_t;

/** Element types. A step sums 16- and 8-bit floats in fp32 and rounds once. */
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
  CCL_AVG = 4, /**< Sum over n. Floats are multiplied by 1/n before the sum, and an average of
                  finite floats is finite; integers are divided (truncating) after the sum. */
  CCL_REDOP_LIMIT =
      0x7fffffff /**< Not an operation; ccl_redop_create_premulsum uses the values in between. */
} ccl_redop_t;

/** Where and when the library reads the scalar of a premultiplied sum. */
typedef enum {
  CCL_SCALAR_DEVICE = 0, /**< In memory of the same kind as the buffers; read whenever a call that
                            uses the operation runs. */
  CCL_SCALAR_HOST_IMMEDIATE =
      1 /**< In host memory; read before ccl_redop_create_premulsum returns. */
} ccl_scalar_residence_t;

/**
 * Identifies a communicator while it is created. It contains a secret that admits a rank: never log
 * it.
 */
typedef struct {
  char internal[128];
} ccl_unique_id_t;

typedef struct ccl_comm* ccl_comm_t; /**< A communicator: one rank's end of a group of ranks. */
typedef struct ccl_stream*
    ccl_stream_t; /**< An order of asynchronous calls; with NULL a call waits. */
typedef struct ccl_codec* ccl_codec_t;       /**< A parsed codec specification. */
typedef struct ccl_residual* ccl_residual_t; /**< What calls left out of a vector. */
typedef struct ccl_reducer* ccl_reducer_t;   /**< A parsed reducer specification. */
typedef struct ccl_reducer_state*
    ccl_reducer_state_t; /**< What a reducer keeps of a tensor between calls. */

/**
 * Options of a communicator. The caller initializes them with CCL_CONFIG_INIT. Zero or NULL means
 * the default, except for `blocking`. `size` is sizeof as the caller was compiled.
 */
typedef struct {
  size_t size;
  int blocking; /**< 1: creation waits. 0: creation, also by split and shrink, returns
                   CCL_IN_PROGRESS at once, and the communicator can be used when
                   ccl_comm_get_async_error no longer returns that. */
  const char*
      codec; /**< Default codec of compressed calls; if NULL, INCCL_CODEC, then "hbi:bits=6". */
  const char* algorithm; /**< As INCCL_ALGO: "ring", "tree", "recursive_doubling", "direct", and on
                            several hosts "hierarchical". If a collective has none of the listed
                            algorithms, its calls are CCL_INVALID_ARGUMENT; "tree;allgather:ring"
                            lists another one for a collective. */
  int channels;          /**< Independent lanes per peer, 1..32. */
  int reproducible;    /**< 1: float sums are in rank order, independent of size and algorithm. This
                          holds for compressed calls, too, if the codec depends on the order. */
  int preserve_input;  /**< 1: after an error, the buffer of an in-place call holds its input again;
                          costs a copy of the input per such call. */
  int init_timeout_ms; /**< Deadline of creation; default 120000. */
  int op_timeout_ms; /**< Deadline of an operation without progress, and of an operation that waits
                        for earlier ones on its stream while none of them completes; default 600000.
                      */
  int heartbeat_ms; /**< Interval of heartbeats between processes, also on one host; default a tenth
                       of dead_ms, 1000 at most. Ranks that are threads of one process send none. */
  int dead_ms;      /**< A process that is silent for this long counts as dead; at least 3 and three
                       times heartbeat_ms; default 10000. A rank that a debugger stops for longer
                       fails the communicator. -1 (INCCL_DEAD_TIMEOUT_MS=0): never; peers still
                       notice a process that ends. */
  const char* socket_ifname; /**< As INCCL_SOCKET_IFNAME: where this rank listens when it makes the
                                id of a split or shrink. CCL_INVALID_ARGUMENT if no interface of
                                that name is up. Other sockets do not leave the host. */
  const char* name; /**< A name for error texts and the log, at most 128 bytes, as in: rank 1/4 of
                       "name". Each rank may have its own. */
} ccl_config_t;
#define CCL_CONFIG_INIT \
  { sizeof(ccl_config_t), 1, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, NULL }

/** What a compressed call did. The library fills it when the call completes. */
typedef struct ccl_compression_stats {
  size_t size;            /**< sizeof as the caller was compiled. */
  uint64_t elements;      /**< Elements of the call. */
  uint64_t payload_bytes; /**< Compressed bytes this rank sent, without headers, counted once per
                             receiver. */
  uint64_t wire_bytes;    /**< All bytes this rank sent: payload and a 64-byte header per slice and
                             receiver. */
  /**
   * Payload bits per element sent: 8 * payload_bytes / (elements * 2(n-1)/n) for an all-reduce over
   * ring or direct; 8 * payload_bytes / (elements * (n-1)) for a reduce-scatter or all-gather,
   * whose elements are those of one segment.
   */
  double bits;
  double ratio; /**< Bytes of an uncompressed call of the same algorithm over payload_bytes. */
  double error_bound;   /**< Upper bound on the absolute error of any element that this rank gets.
                           0: as uncompressed. Infinite if no rank can know a bound (docs/codecs.md),
                           and if results are NaN or may leave the range of the type. */
  uint64_t zero_blocks; /**< Blocks of 32 elements in superblocks of 256 that are zero on every
                           rank. qsgd and qsgd_ms count whole windows, here and in
                           poisoned_blocks; codecs without agreement set none of these fields. */
  uint64_t dropped_superblocks; /**< Superblocks of 256 elements for which the budget left no bits:
                                   their result is zero. With hbi:levels=even none from 2.25 bits on
                                   (docs/format.md). */
  uint64_t poisoned_blocks; /**< Blocks of 32 elements in superblocks with a NaN or infinity on some
                               rank, as it is or as fp32 or (rht=1) rotated; their result is NaN. */
  int compressed; /**< 0: the call ran uncompressed because of its type, reduction or size. Written
                     last: a caller that has set -1 sees with an acquiring load when the others are
                     valid. */
} ccl_compression_stats_t;
#define CCL_COMPRESSION_STATS_INIT \
  { sizeof(ccl_compression_stats_t), 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0 }

/** Arguments of a compressed call. All ranks pass equal codec, seed and step. */
typedef struct {
  size_t size;
  ccl_codec_t codec; /**< NULL: the communicator's default. */
  uint64_t seed;     /**< Seed of the rounding; 0 is an ordinary seed. */
  uint64_t step; /**< Each value gives another rounding; 0: the communicator's count of compressed
                    calls so far. */
  ccl_residual_t residual;             /**< NULL, or error feedback: see ccl_residual_create. */
  struct ccl_compression_stats* stats; /**< NULL, or filled on completion. */
} ccl_compression_t;
#define CCL_COMPRESSION_INIT \
  { sizeof(ccl_compression_t), NULL, 0, 0, NULL, NULL }

/* ---------------------------------------------------------------- version and errors */

/** Writes CCL_VERSION_CODE of the loaded library. */
CCL_API ccl_result_t ccl_get_version(int* version);

/** Returns a constant text for a result code; never NULL. */
CCL_API const char* ccl_get_error_string(ccl_result_t result);

/**
 * Returns the text of the communicator's sticky error. If there is none, or `comm` is NULL, returns
 * the text of the calling thread's last failed call; "" if none has failed. The text names the
 * argument, the local rank, the peer and the value; control characters that peers have sent are
 * escaped. Valid until the next call on the same thread. Any thread may call it, also while another
 * aborts the communicator.
 */
CCL_API const char* ccl_get_last_error(ccl_comm_t comm);

/* ---------------------------------------------------------------- settings of the process */

/**
 * Gives a variable (docs/environment.md) a value in this process, for communicators and identifiers
 * that are made afterwards. The environment overrides it, and it overrides configuration files.
 * The library does not change the environment, so other threads may read that, and children do not
 * inherit the value. `source` says in messages where the value comes from; NULL: this function.
 * With value NULL the variable has none any more. Copies its arguments.
 */
CCL_API ccl_result_t ccl_set_variable(const char* name, const char* value, const char* source);

/**
 * Gets a line of the log: its level ("WARN", "INFO", ...) and its text, without host, process and
 * end of line. Threads of the caller and of the library call it, also several at a time. It must
 * not wait, and must not call the library.
 */
typedef void (*ccl_log_function_t)(const char* level, const char* text);

/** Passes the log to a function in place of standard error or INCCL_DEBUG_FILE; NULL: no longer. */
CCL_API ccl_result_t ccl_set_log_function(ccl_log_function_t function);

/* ---------------------------------------------------------------- communicators */

/**
 * Creates an identifier and starts to listen for the ranks that will use it. One rank calls it and
 * passes the 128 bytes to the others through a channel that the caller trusts: they contain the
 * secret that admits a rank. An identifier makes one communicator; its creator must live until all
 * ranks have joined.
 */
CCL_API ccl_result_t ccl_get_unique_id(ccl_unique_id_t* id);

/**
 * Joins the communicator of `id` as `rank` of `nranks` (0 <= rank < nranks <= 4096). Blocks until
 * all ranks have joined. At the init deadline it returns CCL_TIMEOUT, and the text names the
 * missing ranks.
 */
CCL_API ccl_result_t ccl_comm_init_rank(ccl_comm_t* comm, int nranks, ccl_unique_id_t id, int rank);

/** As ccl_comm_init_rank, with options; config may be NULL. */
CCL_API ccl_result_t ccl_comm_init_rank_config(ccl_comm_t* comm, int nranks, ccl_unique_id_t id,
                                               int rank, const ccl_config_t* config);

/**
 * Joins with rank, size and meeting point from the launcher's environment: Open MPI's mpirun, PMI,
 * Slurm, torchrun, or INCCL_RANK, INCCL_SIZE and INCCL_JOB, a name that no other job of this user
 * has. Ranks of one host need nothing else. The admission rule is the same user and the same
 * container (pid and user namespace), or knowledge of the content of INCCL_SECRET_FILE. Ranks of
 * several hosts need INCCL_COMM_ID, an address of rank 0's host, and INCCL_SECRET_FILE. The first
 * calls of all ranks make one communicator, the second ones another. config may be NULL.
 */
CCL_API ccl_result_t ccl_comm_init_env(ccl_comm_t* comm, const ccl_config_t* config);

/**
 * Creates all `ndev` ranks of a communicator inside this process. comms[i] is rank i; a thread of
 * its own uses it, or one thread uses all of them in groups. `devices` lists the ranks' devices,
 * which may be the same; NULL for host memory. After an error there is nothing to destroy.
 */
CCL_API ccl_result_t ccl_comm_init_all(ccl_comm_t* comms, int ndev, const int* devices);

#define CCL_SPLIT_NOCOLOR (-1)
/**
 * Divides a communicator: ranks with equal `color` (>= 0) form a new one, ordered by `key` and,
 * where keys are equal, by their rank in `comm`. With CCL_SPLIT_NOCOLOR a rank takes part and gets
 * NULL. Collective over `comm`, in the order of its calls. If `comm` fails, for example because a
 * rank of it dies, the split ends with the error of `comm`. config NULL: that of `comm`.
 *
 * Waits, unless the configuration of the new communicator says blocking = 0. Then it returns
 * CCL_IN_PROGRESS, *newcomm is set (NULL without a color), and until the split has ended
 * ccl_comm_get_async_error says CCL_IN_PROGRESS of both communicators and calls on them are
 * CCL_INVALID_ARGUMENT, except queries of `comm`, ccl_comm_revoke, abort and destroy: if `comm`
 * ends, the split fails; the new communicator may be ended at any time. An error is that of the new
 * communicator.
 */
CCL_API ccl_result_t ccl_comm_split(ccl_comm_t comm, int color, int key, ccl_comm_t* newcomm,
                                    const ccl_config_t* config);

#define CCL_SHRINK_DEFAULT 0 /**< No call on the communicator may be in progress. */
#define CCL_SHRINK_ABORT 1   /**< Calls in progress end with an error first. */
/**
 * Creates a communicator of the remaining ranks: all except those in `excluded` and those that have
 * died. All remaining ranks call it, in the end with equal flags; it keeps the order of ranks. It
 * works on a communicator that has failed or was revoked, and continues when more ranks die
 * meanwhile. The caller must still destroy or abort `comm` afterwards. All ranks that get the new
 * communicator agree on its members. `excluded` may be NULL if nexcluded is 0. config NULL: that of
 * `comm`. An excluded rank that calls it anyway gets CCL_INVALID_USAGE. If ranks do not call it,
 * the others get CCL_TIMEOUT at the init deadline, with their names. With blocking = 0 as
 * ccl_comm_split.
 */
CCL_API ccl_result_t ccl_comm_shrink(ccl_comm_t comm, const int* excluded, int nexcluded,
                                     ccl_comm_t* newcomm, const ccl_config_t* config, int flags);

/**
 * Makes an id with which other processes join the members of `comm` in ccl_comm_grow. The caller
 * sends it to them; it contains a secret. It serves one growth, while this process lives, until
 * `comm` ends or the next call of this function on `comm`. Not collective: any member makes it.
 */
CCL_API ccl_result_t ccl_comm_get_unique_id(ccl_comm_t comm, ccl_unique_id_t* id);

/**
 * Creates a communicator of `nranks` ranks: the members of `comm`, and nranks - n ranks that join.
 * Collective over `comm`, in the order of its calls; waits until those on streams have completed.
 * A member passes its `comm` and, as `rank`, -1 to keep its rank, or its rank in the new
 * communicator: after ccl_comm_shrink, members that pass their former ranks leave the places of the
 * dead to those who join. At least one member passes the id of ccl_comm_get_unique_id; who passes
 * NULL gets it from that one. A rank that joins passes NULL as `comm`, the id and the rank that it
 * takes; for it the call is ccl_comm_init_rank_config. config NULL: that of `comm`.
 *
 * `comm` stays as it is, with its registrations and the numbers of its operations, until it is
 * destroyed; residuals and reducers' states are of no communicator and serve both. Those of a rank
 * that joins are new; calls with reducers then pass a `step`, because a state counts its own calls.
 * A process that asks for the rank of a member is refused. If joining ranks do not come, die or do
 * not fit, the new communicator fails with an error that names them (CCL_TIMEOUT at the init
 * deadline), `comm` goes on, and the next growth needs another id. If a member dies, `comm` fails,
 * and with it the growth. With blocking = 0 and in groups as ccl_comm_split. Operations of the new
 * communicator count from 1.
 */
CCL_API ccl_result_t ccl_comm_grow(ccl_comm_t comm, int nranks, const ccl_unique_id_t* id, int rank,
                                   ccl_comm_t* newcomm, const ccl_config_t* config);

/**
 * After ccl_comm_shrink, writes the last operation of the parent that completed on every rank of
 * `comm`; collective calls count from 1. The caller repeats later operations. For other
 * communicators, writes how many operations have completed on this rank.
 */
CCL_API ccl_result_t ccl_comm_last_completed(ccl_comm_t comm, uint64_t* operation);

/**
 * Waits until every call on the communicator has completed; afterwards the caller can only destroy,
 * abort or shrink it. A communicator that was created with blocking = 0 returns CCL_IN_PROGRESS,
 * and ccl_comm_get_async_error returns it, too, until the communicator is finalized. NULL is
 * CCL_INVALID_ARGUMENT.
 */
CCL_API ccl_result_t ccl_comm_finalize(ccl_comm_t comm);

/**
 * Ends a communicator after its last call and frees it. Waits for this rank's calls on streams, not
 * for other ranks: what late ranks have not taken yet, half a second later, goes on in the
 * background, and exit() waits for that, at most op_timeout_ms. A process that ends otherwise
 * (_exit, a signal) may lose it. With NULL it does nothing and returns CCL_SUCCESS.
 */
CCL_API ccl_result_t ccl_comm_destroy(ccl_comm_t comm);

/**
 * Ends a communicator at any time, from any thread, within a second (longer if a device works for
 * it), and frees it. Operations in progress end with an error, including creation, finalization,
 * splits and shrinks. With NULL it does nothing and returns CCL_SUCCESS.
 */
CCL_API ccl_result_t ccl_comm_abort(ccl_comm_t comm);

/**
 * Makes a communicator fail on all ranks, from any thread: calls in progress and all later ones
 * return CCL_REMOTE_ERROR everywhere. A rank that has seen an error that the others cannot see
 * calls it, so that all ranks can meet in ccl_comm_shrink.
 */
CCL_API ccl_result_t ccl_comm_revoke(ccl_comm_t comm);

/**
 * Sets the limit of operations (ccl_config_t.op_timeout_ms) of this rank; 0 means that of the
 * creation. It counts for calls in progress, too. Any thread may call it. Communicators made of
 * this one get the limit of the creation.
 */
CCL_API ccl_result_t ccl_comm_set_timeout(ccl_comm_t comm, int op_timeout_ms);

/**
 * Writes the communicator's sticky error; CCL_SUCCESS if there is none; CCL_IN_PROGRESS while it is
 * being created (blocking = 0), divided (a split, shrink or growth with blocking = 0) or finalized.
 * Never blocks; any thread may call it.
 */
CCL_API ccl_result_t ccl_comm_get_async_error(ccl_comm_t comm, ccl_result_t* error);

/** Writes the number of ranks. */
CCL_API ccl_result_t ccl_comm_count(ccl_comm_t comm, int* count);
/** Writes the rank of this end. */
CCL_API ccl_result_t ccl_comm_user_rank(ccl_comm_t comm, int* rank);
/**
 * Writes the device of this rank: the one given to ccl_comm_init_all, or the current one when the
 * communicator was created; -1 in a process without devices.
 */
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
 * s of recv comes from rank s. In place: send == recv, which costs a copy of the buffer.
 */
CCL_API ccl_result_t ccl_alltoall(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                  ccl_comm_t comm, ccl_stream_t stream);

/**
 * recv on root holds nranks segments of `count` elements, segment r is rank r's send; other ranks
 * do not use recv. In place: send == recv + root * count on root.
 */
CCL_API ccl_result_t ccl_gather(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                int root, ccl_comm_t comm, ccl_stream_t stream);

/**
 * send on root holds nranks segments of `count` elements, rank r gets segment r; other ranks do not
 * use send. In place: recv == send + root * count on root.
 */
CCL_API ccl_result_t ccl_scatter(const void* send, void* recv, size_t count, ccl_datatype_t type,
                                 int root, ccl_comm_t comm, ccl_stream_t stream);

/* ---------------------------------------------------------------- point to point */

/**
 * Sends `count` elements to rank `peer`. The peer's ccl_recv must have the same count and type,
 * else both get CCL_INVALID_USAGE (a sender that has returned already gets it at its next call).
 * Messages of one pair of ranks arrive in the order in which they were sent. As in NCCL, a send may
 * wait for its receive, so an exchange needs a group. With count 0 it sends a message of no
 * elements. A rank can send to itself only inside a group that also receives the message.
 */
CCL_API ccl_result_t ccl_send(const void* send, size_t count, ccl_datatype_t type, int peer,
                              ccl_comm_t comm, ccl_stream_t stream);
/** Receives what `peer` sends; see ccl_send. */
CCL_API ccl_result_t ccl_recv(void* recv, size_t count, ccl_datatype_t type, int peer,
                              ccl_comm_t comm, ccl_stream_t stream);

/* ---------------------------------------------------------------- groups */

/**
 * The outermost ccl_group_end starts all calls that the thread has made since its first
 * ccl_group_start together, and waits for those without a stream. First all sends and receives of a
 * communicator progress at the same time, then its collectives, splits, shrinks and growths run in
 * the order of the calls. Different communicators progress at the same time, so one thread can call
 * for several ranks. The group takes its positions on all its streams at one moment. The end of the
 * group also performs ccl_comm_init_rank[_config], ccl_comm_init_env, ccl_comm_split, _shrink and
 * _grow: it waits for them and writes the new handles, which are NULL until then. It waits for
 * splits, shrinks and growths with blocking = 0, too; a creation with blocking = 0 begins at once,
 * as outside a group. If a call inside the group fails, it returns the error, the outermost
 * ccl_group_end returns it again, and then it starts nothing.
 */
CCL_API ccl_result_t ccl_group_start(void);
CCL_API ccl_result_t ccl_group_end(void);

/* ---------------------------------------------------------------- custom reductions */

/**
 * Creates a reduction of `comm`: every rank multiplies its input by its *scalar, of type `type`,
 * then sums. Calls that use it have the same type. Its value is above those of ccl_redop_t. Ranks
 * create their operations in the same order; their scalars may differ. With CCL_SCALAR_DEVICE
 * *scalar must live until the last of these calls has completed. The communicator destroys it at
 * its own end, if the caller has not. A communicator has at most 65536 at the same time (more:
 * CCL_INVALID_USAGE).
 */
CCL_API ccl_result_t ccl_redop_create_premulsum(ccl_redop_t* op, void* scalar, ccl_datatype_t type,
                                                ccl_scalar_residence_t residence, ccl_comm_t comm);
CCL_API ccl_result_t ccl_redop_destroy(ccl_redop_t op, ccl_comm_t comm);

/* ---------------------------------------------------------------- streams */

/**
 * Creates a host stream: an order of asynchronous calls, for any communicators of this process.
 * ccl_stream_synchronize and ccl_stream_query do not take NULL (CCL_INVALID_ARGUMENT), because
 * calls without a stream have completed when they return.
 */
CCL_API ccl_result_t ccl_stream_create(ccl_stream_t* stream);
/**
 * Waits until all calls on the stream have completed. Returns the first error since this function
 * or ccl_stream_query last returned one.
 */
CCL_API ccl_result_t ccl_stream_synchronize(ccl_stream_t stream);
/**
 * Returns CCL_IN_PROGRESS while calls are running, else the same as ccl_stream_synchronize. Does
 * not wait.
 */
CCL_API ccl_result_t ccl_stream_query(ccl_stream_t stream);
/** Frees the stream; calls on it still complete. NULL is ignored. */
CCL_API ccl_result_t ccl_stream_destroy(ccl_stream_t stream);

/* ---------------------------------------------------------------- memory */

/**
 * Allocates `size` bytes (not 0) for buffers: aligned to pages, zero. Calls on this memory give the
 * same results as on any other and save copies. From 1 MiB on it is a file in memory (one
 * descriptor). Ranks of the same user on this host map it when a call first uses it, then read
 * inputs and write results in place. The caller may free it as soon as the calls on it have
 * returned. After a failed call the contents of its receive buffer are undefined (usually zeros).
 * The child of a fork has private pages, as for all memory; in a page that neither process has
 * written since, it may see what its parent writes.
 */
CCL_API ccl_result_t ccl_mem_alloc(void** ptr, size_t size);
/**
 * Allocates `size` bytes (not 0; CUDA: from 2 MiB on up to the next multiple of 2 MiB) for buffers
 * on device number `device`, with undefined contents. Calls on this memory give the same results as
 * on any other; ranks of this host can open it and access it in place (CUDA: from 2 MiB on). The
 * current device of the thread does not change. Memory that other ranks have opened stays allocated
 * after ccl_mem_free; this function reuses it for requests of at least half its size, or if the
 * device has no other memory. CCL_INVALID_ARGUMENT: a size of 0, no such device, or a process that
 * has not loaded CUDA. CCL_UNHANDLED_CUDA_ERROR: the device has no memory left.
 */
CCL_API ccl_result_t ccl_mem_alloc_device(void** ptr, size_t size, int device);
/**
 * Frees memory of ccl_mem_alloc or ccl_mem_alloc_device; NULL is ignored. For device memory it
 * usually waits until the device has done all its work. The library keeps device memory that ranks
 * of other processes may have opened for the next ccl_mem_alloc_device. CCL_INVALID_ARGUMENT: the
 * memory comes from neither function, or has been freed.
 */
CCL_API ccl_result_t ccl_mem_free(void* ptr);
/**
 * Exports memory of ccl_mem_alloc (of 1 MiB or more) or ccl_mem_alloc_device to the other ranks
 * until ccl_comm_deregister, and sets *handle. Calls use such memory in place without it, too; but
 * then ranks import it during the first call, which copies meanwhile, and each rank keeps only the
 * 32 allocations that it used last. With it, ranks import the memory in their next call of any
 * kind, and keep it. A rank registers at most 1024 allocations; more have no effect. Of more than
 * about 250 registrations between two calls the later ones may be imported only during the first
 * call that uses them.
 *
 * Over RDMA (the transport verbs) devices send from registered memory, and any host memory can be
 * registered, with INCCL_NET_SECURITY=none also any memory of a GPU of which the driver makes
 * dma-bufs; deregister it before you free it. Elsewhere other memory cannot be exported; the call
 * then sets *handle to NULL, succeeds, and logs the reason (INCCL_DEBUG=INFO,
 * INCCL_DEBUG_SUBSYS=TRANSPORT). Calls on such memory copy as before.
 *
 * Not collective: each rank registers what it likes. It returns at once, also while a call is in
 * progress; the registration then takes effect when that call has ended. ccl_mem_free of registered
 * memory is safe and ends its registration. Communicators made of this one do not inherit
 * registrations.
 */
CCL_API ccl_result_t ccl_comm_register(ccl_comm_t comm, void* ptr, size_t size, void** handle);
/**
 * Ends a registration. NULL is ignored. The communicator ends registrations at its own end.
 * CCL_INVALID_ARGUMENT: not a handle of this communicator, or deregistered already.
 */
CCL_API ccl_result_t ccl_comm_deregister(ccl_comm_t comm, void* handle);

/* ---------------------------------------------------------------- compression */

/**
 * Parses a specification: "none", "lossless", "bf16", "mxfp8", "qsgd:q=8", ... (docs/codecs.md
 * lists all codecs and their keys), or "hbi" with any of these keys after a colon, as in
 * "hbi:bits=5,rht=1" (docs/format.md describes them):
 * - bits=B: bits per element and phase, a multiple of 1/8 in [0.5, 16]; 6 by default
 * - k=K, k2=K: fixed levels of the sum and of the result, instead of bits
 * - levels=even|energy: about as many levels for all superblocks of 256 elements, or more for those
 *   with much energy, which makes the squared error of all small
 * - code=auto|fixed|entropy: how contributions and results travel. auto: in packed fields, or over
 *   slow links in a prefix code, which changes no result; fixed: in packed fields. entropy: in the
 *   code, with levels to match: bits is what usual data take, and ccl_codec_bound tells the most
 *   (needs ref=direct, ag=requant, no m)
 * - ref=direct|ring: the algorithm that sends no more than bits; others may send more
 * - m=M: groups of M neighbouring ranks, 2 or more; sums inside a group are exact, and groups
 *   exchange them re-quantized; over direct only, for all-reduce only
 * - ag=requant|exact: the owner quantizes the result once more, or sends sums in full
 * - unbiased=0|1: 1: the mean over many steps tends to the sum; bits must suffice for all values.
 *   0: each rank's contribution tends to its value rounded to a grid nranks times finer than that
 *   of one step, and results are rounded to nearest in every step (docs/codecs.md, "Bias")
 * - rht=0|1: 1: a randomized Hadamard transform first: less error where tails are heavy, but zeros
 *   are not exact
 * - checksum=0|1: 1: payloads carry a CRC-32C; damage is an error on all ranks
 * - min_bytes=N: calls of fewer bytes run uncompressed, 1024 by default, summed in rank order if an
 *   admitted algorithm does so; 0: none
 *
 * An unknown key, bad value or contradiction is CCL_INVALID_ARGUMENT, and the message names it.
 */
CCL_API ccl_result_t ccl_codec_create(ccl_codec_t* codec, const char* spec);

/**
 * Writes the canonical specification: all keys, sorted, NUL-terminated. Codecs with equal texts
 * give results with equal bytes. CCL_INVALID_ARGUMENT if `size` is too small (the message has the
 * size needed; 256 is enough in this version).
 */
CCL_API ccl_result_t ccl_codec_spec(ccl_codec_t codec, char* buffer, size_t size);

/** Frees a codec; calls that use it must have completed. NULL is ignored. */
CCL_API ccl_result_t ccl_codec_destroy(ccl_codec_t codec);

/** Options of a residual. The caller initializes them with CCL_RESIDUAL_CONFIG_INIT. */
typedef struct {
  size_t size;            /**< sizeof as the caller was compiled. */
  ccl_datatype_t storage; /**< CCL_FLOAT32, or CCL_BFLOAT16: half the memory, and what rounding
                             to nearest leaves out is lost. */
  float keep;             /**< In [0, 1). new = keep * scale * old + (1 - keep) * error of the
                             call; 0: the error itself. */
} ccl_residual_config_t;
#define CCL_RESIDUAL_CONFIG_INIT \
  { sizeof(ccl_residual_config_t), CCL_FLOAT32, 0.0f }

/**
 * Makes the residual (error feedback) of a vector of `count` elements, which is zero. A compressed
 * call with it in ccl_compression_t sends z = input + scale * residual instead of its input, which
 * it does not change, and then sets the residual to z minus what z counts as in the sum: what the
 * rounding, a dropped superblock or a selection has left out of this rank's contribution. Errors
 * that several ranks make together (the second quantization of hbi with ag=requant, the rounding of
 * partial sums) stay out of it. With the codecs onebit and dither it also holds what this rank
 * leaves out of the totals that it alone encodes for all ranks, and adds that to its next totals.
 * The arithmetic is in fp32, for CCL_FLOAT64 in fp64. An error that is not finite leaves a residual
 * of 0. A call that fails does not change the residual.
 *
 * Takes part in calls of the types CCL_FLOAT32, CCL_FLOAT16, CCL_BFLOAT16 and CCL_FLOAT64 with
 * CCL_SUM or CCL_AVG whose `send` has `count` elements; also if the call runs uncompressed, which
 * leaves a residual of zero, but for the rounding to a type of 2 bytes. Each rank has its own, and
 * a rank may pass one where others pass NULL. The memory is on the host: three vectors of the
 * storage type, and for totals 12 bytes per element of this rank's part; calls on device memory
 * then compress on the host. One call at a time uses a residual: on one stream, or one after the
 * other; else a call fails with CCL_INVALID_USAGE, and so do the functions below. config may be
 * NULL.
 */
CCL_API ccl_result_t ccl_residual_create(ccl_residual_t* residual, size_t count,
                                         const ccl_residual_config_t* config);

/** Frees a residual; calls that use it must have completed. NULL is ignored. */
CCL_API ccl_result_t ccl_residual_destroy(ccl_residual_t residual);

/**
 * Sets the factor of the residual in the next calls, 1 at first. A step of size lr leaves
 * lr * residual out; where the size changes, that is made up by scale = former lr / new lr.
 */
CCL_API ccl_result_t ccl_residual_set_scale(ccl_residual_t residual, float scale);

/**
 * Writes the residual to `values`, e.g. into a checkpoint; what was left out of totals is added.
 * `count` must be that of creation.
 */
CCL_API ccl_result_t ccl_residual_export(ccl_residual_t residual, float* values, size_t count);

/** Replaces the residual by `values`, which are finite. `count` must be that of creation. */
CCL_API ccl_result_t ccl_residual_import(ccl_residual_t residual, const float* values,
                                         size_t count);

/** Sets the residual to zero. */
CCL_API ccl_result_t ccl_residual_reset(ccl_residual_t residual);

/**
 * Takes back the residual's last call if some rank of `comm` has not completed it. When a rank
 * dies, a call may have succeeded on some ranks only. `comm` is what ccl_comm_shrink has made, or
 * comes from it by split, grow or another shrink; the ranks repeat the calls after the one that
 * ccl_comm_last_completed names. A call on such a communicator does this first, so this function is
 * only for who reads the residual before. Who goes on in another way, e.g. with a communicator of
 * ccl_comm_init_rank, imports an exported state. CCL_INVALID_USAGE while a call uses the residual.
 */
CCL_API ccl_result_t ccl_residual_rollback(ccl_residual_t residual, ccl_comm_t comm);

/**
 * Computes what a codec promises for `count` elements on `nranks` ranks. `bits`: bits per element
 * and phase that its reference algorithm sends (key `ref` of the specification, else direct; other
 * algorithms may send more); 0: no more than the type has. `relative_error_bound`: an upper bound
 * of the absolute error of an element of the sum, before its rounding to a narrow type of the call,
 * relative to `nranks` times the largest |x| of its
 * block of 32 elements (hbi: of its superblock of 256; qsgd and qsgd_ms: of its 2^20
 * elements) over all ranks; 0: as uncompressed. Both are a priori and hold in the codec's
 * range of magnitudes (docs/codecs.md), with hbi:local=fp32 on hosts that have equally many ranks;
 * the stats of a call have the actual values.
 * CCL_INVALID_ARGUMENT if no such call is possible, e.g. with too few bits for unbiased=1.
 */
CCL_API ccl_result_t ccl_codec_bound(ccl_codec_t codec, size_t count, int nranks, double* bits,
                                     double* relative_error_bound);

/**
 * As ccl_allreduce, with compressed bytes on the way (docs/codecs.md). op is CCL_SUM or CCL_AVG
 * (any with the codec lossless) and type a float of 2 bytes or more. With any other type or op, or
 * below the codec's min_bytes, the call runs uncompressed and the stats say so. The result is
 * bit-identical on all ranks. With hbi, qsgd and qsgd_ms, whose sums are exact, it is also
 * bit-identical over algorithms, slice sizes, channels, transports and instruction sets. A
 * specification that this communicator cannot satisfy (m=4 if algorithms other than direct are
 * forced, unbiased=1 with too few bits) is CCL_INVALID_ARGUMENT, and nothing has been sent.
 * compression may be NULL: all defaults.
 */
CCL_API ccl_result_t ccl_allreduce_compressed(const void* send, void* recv, size_t count,
                                              ccl_datatype_t type, ccl_redop_t op,
                                              const ccl_compression_t* compression, ccl_comm_t comm,
                                              ccl_stream_t stream);

/** One vector of ccl_allreduce_fused. */
typedef struct ccl_vector {
  const void* send;        /**< `count` elements; in place: send == recv. */
  void* recv;              /**< `count` elements. */
  size_t count;            /**< 0: send and recv are not used. */
  ccl_residual_t residual; /**< Of `count` elements; NULL: no error feedback for this vector. */
} ccl_vector_t;

/**
 * An all-reduce of several vectors as one call, which is faster than a call for each if they are
 * small. The result is that of ccl_allreduce_compressed on all vectors one after the other (with
 * the codec "none": of ccl_allreduce), and its conditions apply. Each vector has its own residual,
 * so it may be in another group the next time; compression->residual must be NULL. All ranks pass
 * the same counts in the same order. No recv may overlap another buffer, and no residual may be
 * there twice; else CCL_INVALID_ARGUMENT. The elements are copied into one vector and back: the
 * communicator keeps memory for the largest such call. The library reads `vectors` during this
 * function only; the buffers belong to the call until it has completed.
 */
CCL_API ccl_result_t ccl_allreduce_fused(const ccl_vector_t* vectors, size_t nvectors,
                                         ccl_datatype_t type, ccl_redop_t op,
                                         const ccl_compression_t* compression, ccl_comm_t comm,
                                         ccl_stream_t stream);

/**
 * As ccl_reduce_scatter, with compressed bytes on the way. The conditions are those of
 * ccl_allreduce_compressed.
 */
CCL_API ccl_result_t ccl_reduce_scatter_compressed(const void* send, void* recv, size_t recvcount,
                                                   ccl_datatype_t type, ccl_redop_t op,
                                                   const ccl_compression_t* compression,
                                                   ccl_comm_t comm, ccl_stream_t stream);

/**
 * As ccl_allgather, but each sender compresses its segment once; all ranks, including the sender,
 * get the decoded values. The conditions are those of ccl_allreduce_compressed.
 */
CCL_API ccl_result_t ccl_allgather_compressed(const void* send, void* recv, size_t sendcount,
                                              ccl_datatype_t type,
                                              const ccl_compression_t* compression, ccl_comm_t comm,
                                              ccl_stream_t stream);

/* ---------------------------------------------------------------- reducers */

/**
 * Parses the specification of a reducer, "method:key=value,...|codec": a sparse, low-rank or
 * sketching method, and the codec through which its values travel ("none" if there is no '|'), as
 * in "topk:k=0.01|fp16". docs/reducers.md lists all methods and their keys, with formulas and
 * sources. An unknown method or key, a bad value or a contradiction is CCL_INVALID_ARGUMENT, and
 * the message names it. The reducer never changes; any thread may use it at any time.
 */
CCL_API ccl_result_t ccl_reducer_create(ccl_reducer_t* reducer, const char* spec);

/**
 * Writes the canonical specification: all keys, sorted, NUL-terminated. CCL_INVALID_ARGUMENT if
 * `size` is too small (the message has the size needed; 512 is enough in this version).
 */
CCL_API ccl_result_t ccl_reducer_spec(ccl_reducer_t reducer, char* buffer, size_t size);

/** Frees a reducer; its states stay valid. NULL is ignored. */
CCL_API ccl_result_t ccl_reducer_destroy(ccl_reducer_t reducer);

/**
 * Makes the state of a row-major tensor of `rows` x `cols` elements (at most 2^32 - 1) of type
 * CCL_FLOAT32, CCL_FLOAT16 or CCL_BFLOAT16; a vector has one row or one column. It holds the
 * residual (error feedback, unless the specification says residual=0), which is zero, a warm start
 * where the method has one, and the number of calls. Each rank makes its own, of equal shape. The
 * memory is on the host: up to four fp32 vectors of rows * cols. One call at a time uses a state:
 * on one stream, or one after the other; else a call fails with CCL_INVALID_USAGE, and so do the
 * functions below.
 */
CCL_API ccl_result_t ccl_reducer_state_create(ccl_reducer_state_t* state, ccl_reducer_t reducer,
                                              size_t rows, size_t cols, ccl_datatype_t type);

/** Frees a state; calls that use it must have completed. NULL is ignored. */
CCL_API ccl_result_t ccl_reducer_state_destroy(ccl_reducer_state_t state);

/** Sets residual, warm start and number of calls to those of a new state. */
CCL_API ccl_result_t ccl_reducer_state_reset(ccl_reducer_state_t state);

/**
 * Writes the state to `data`, e.g. into a checkpoint, and its bytes to *size. *size is the room at
 * `data`; with data NULL only *size is written. CCL_INVALID_ARGUMENT if the room is too small. Each
 * rank has its own residual, so each rank exports.
 */
CCL_API ccl_result_t ccl_reducer_state_export(ccl_reducer_state_t state, void* data, size_t* size);

/**
 * Replaces the state by one that ccl_reducer_state_export has written for an equal specification
 * and shape. Anything else is CCL_INVALID_ARGUMENT and changes nothing.
 */
CCL_API ccl_result_t ccl_reducer_state_import(ccl_reducer_state_t state, const void* data,
                                              size_t size);

/** As ccl_residual_rollback, for a state. */
CCL_API ccl_result_t ccl_reducer_state_rollback(ccl_reducer_state_t state, ccl_comm_t comm);

/**
 * An all-reduce of the state's tensor by its reducer: some elements, factors or sketches travel, in
 * one or more rounds, through the reducer's codec. The result approximates the sum (or the average)
 * of send + residual over the ranks, and is bit-identical on all ranks; the residual becomes what
 * this call has left out of this rank's part. `send` and `recv` hold rows * cols elements; in
 * place: send == recv. op is CCL_SUM or CCL_AVG. Arithmetic is in fp32.
 *
 * Of `compression`, which may be NULL, seed, step and stats count; codec and residual must be NULL,
 * because the reducer and the state have their own. step 0: the state's number of calls, which must
 * be equal on all ranks. Steps should count up by one. In the stats, error_bound is infinite, and
 * bits and ratio compare the bytes of all rounds with an uncompressed all-reduce.
 *
 * It is one call: one number in the order of calls, whose specification, shape, type, op, seed and
 * step ranks compare. A call that fails leaves the state as it was. Calls on device memory run on
 * copies in host memory. A communicator of one rank runs the method, too.
 */
CCL_API ccl_result_t ccl_allreduce_reduced(const void* send, void* recv, ccl_reducer_state_t state,
                                           ccl_redop_t op, const ccl_compression_t* compression,
                                           ccl_comm_t comm, ccl_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif /* INCCL_CCL_H_ */
