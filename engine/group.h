/* group.h - ranks that work together; a part of ulysses.h, which includes it.
 *
 * A rank is one process. All ranks of a group call the same functions of this file in the same
 * order, whatever their data: a call waits for the others. Results are the same bits on every rank
 * and with every transport, since sums are taken in the order of the ranks. Groups live until the
 * process ends; ranks are counted from 0 inside each group. NCCL alone adds in an order of its own:
 * its sums too are the same bits on every rank, but not those of another number of ranks.
 *
 * Tensors on meta move nothing: what would be sent is counted.
 */
#ifndef UL_GROUP_H
#define UL_GROUP_H

#include <stdint.h>

typedef struct ul_group ul_group;

/* ---- comm/world.c, comm/group.c ---- */

/* All ranks that a launcher has started together, or this process alone; borrowed. The first call
 * opens MPI where there is more than one rank (mpirun, srun), or NCCL where the launcher starts no
 * MPI (torchrun): all must make it.
 */
int ul_group_world(ul_group **out);
/* Which of these ranks this process is, as its launcher says; opens nothing. */
int ul_launched_rank(void);
/* A world of `size` ranks that are not there, seen by one of them: for tensors on meta. */
int ul_group_pretend(ul_group **out, int size, int rank);
/* The ranks that gave the same color, in the order of their keys (equal keys: of their ranks).
 * color -1: in no group, *out is NULL.
 */
int ul_group_split(ul_group **out, ul_group *group, int color, int key);
/* The same where each rank knows the color of all: needs no talking, and works in a pretended
 * world. */
int ul_group_split_known(ul_group **out, ul_group *group, const int *colors);

int ul_group_rank(const ul_group *group);
int ul_group_size(const ul_group *group);
const char *ul_group_name(const ul_group *group);      /* "world", "world.1" .. */
const char *ul_group_transport(const ul_group *group); /* "self", "mpi", "nccl", "plan" */
/* Of tensors on cuda: "nccl" or "staged", by way of the host; "none" until it is settled. */
const char *ul_group_cuda_transport(const ul_group *group);

/* all [size, n] = each rank's n numbers. what, for both: what a rank that waits too long says it
 * waits for, or NULL
 */
int ul_group_lengths(int64_t *all, ul_group *group, const int64_t *mine, int n, const char *what);
/* Waits for all ranks. patient: without the deadline, for those that are known to be at work. */
int ul_group_barrier(ul_group *group, const char *what, int patient);
/* From one rank to another, which fills a tensor of the same shape and dtype in place. */
int ul_group_send(ul_group *group, ul_tensor *x, int to);
int ul_group_receive(ul_group *group, ul_tensor *x, int from);

typedef enum {
    UL_COMM_ALL_REDUCE,
    UL_COMM_ALL_GATHER,
    UL_COMM_REDUCE_SCATTER,
    UL_COMM_ALL_TO_ALL,
    UL_COMM_BROADCAST,
    UL_COMM_SHIFT, /* of keys and values in a ring */
    UL_COMM_SEND,
    UL_COMM_RECEIVE,
    UL_COMM_BARRIER,
    UL_COMM_SIZES, /* what ranks tell each other before: lengths, colors */
    UL_COMM_END,
    UL_COMM_KINDS
} ul_comm_kind;

typedef struct ul_comm_count {
    int64_t calls;
    int64_t bytes; /* that this rank sent to others; an all_reduce is a reduce_scatter and an
                      all_gather, a broadcast is sent to each */
    double seconds;
} ul_comm_count;
const char *ul_comm_name(ul_comm_kind kind); /* "all_reduce" .. */
void ul_group_count(ul_comm_count *count, const ul_group *group, ul_comm_kind kind);
void ul_group_reset_counts(ul_group *group);

/* Called, on a thread of its own, with a sentence when a call has waited longer than
 * UL_COMM_TIMEOUT (seconds; 600): another rank is dead, or calls something else. It must end the
 * process.
 */
void ul_group_on_stuck(void (*callback)(const char *sentence));
/* Called with a sentence for the user, on the first rank of a group: how ranks exchange tensors on
 * cuda where that is not by NCCL. */
void ul_group_on_notice(void (*callback)(const char *sentence));
/* Before the process ends because of what `stuck` was told: gives up what runs on the device. */
void ul_group_give_up(void);
/* The i-th last call in words, i from 0; whether there is one. */
int ul_group_log(char *text, int size, int i);
/* Leaves the world, after all ranks have come here; status not 0: ends all ranks at once. */
void ul_group_end(int status);

/* ---- comm/interactive.c: calls that can be interrupted, for a prompt over all ranks ---- */

/* To be called before the world is made. `begins` is asked before each call of a group of several
 * ranks: 1 refuses it (UL_ESTOP). While a call waits, `gives_up` is asked: 1 ends the wait. Such a
 * call ends with UL_ESTOP when `is_over` says that no rank has any part of it at work; until then
 * that is asked again and again. After it, no group can be used before ul_group_renew().
 */
void ul_group_interruptible(int (*begins)(void), int (*gives_up)(void), int (*is_over)(void));

/* How many calls this rank has begun, and finished, in one group (`to` is -1, `from` the rank in
 * the world of its first one), or from one rank of the world to another in it.
 */
typedef struct ul_group_progress {
    int context; /* of the group; groups that share ranks have different ones */
    int from, to;
    int64_t begun, finished;
} ul_group_progress;
/* Fills at most `most` of them and returns how many; from any thread. */
int ul_group_progress_list(ul_group_progress *list, int most);
/* All groups begin anew: what was sent and not received is lost, and calls are counted from 0. No
 * call may be at work; epoch: the same number on all ranks, another one each time.
 */
void ul_group_renew(int epoch);

/* ---- op/collective.c ---- */

typedef enum { UL_REDUCE_SUM, UL_REDUCE_MAX, UL_REDUCE_MIN } ul_reduction;
/* y = the sum (..) of all ranks' x, in the order of the ranks, in accumulators. In place: outside
 * of the tape. Only sums have gradients. */
int ul_all_reduce(ul_tensor **y, ul_tensor *x, ul_group *group, ul_reduction how);
int ul_all_reduce_(ul_tensor *x, ul_group *group, ul_reduction how);
/* y = all ranks' x side by side along dim, where sizes may differ. */
int ul_all_gather(ul_tensor **y, ul_tensor *x, ul_group *group, int dim);
/* y = this rank's part along dim of the sum of all x; sizes [P] of the parts, NULL: ul_share. */
int ul_reduce_scatter(ul_tensor **y, ul_tensor *x, ul_group *group, int dim, const int64_t *sizes);
/* y = root's x */
int ul_broadcast(ul_tensor **y, ul_tensor *x, ul_group *group, int root);
int ul_broadcast_(ul_tensor *x, ul_group *group, int root);

/* ---- op/gather_linear.c ---- */

/* y[i] = X w[i]^T, with X = all ranks' x [.., K] side by side along dim, which is not the last, and
 * w[i] [N_i, K]; n of them, 4 at most. X is gathered again for the gradients of w, unless `keep`.
 */
int ul_gather_linear(ul_tensor **y, ul_tensor *x, ul_tensor *const *w, int n, ul_group *group,
                     int dim, int keep);

/* ---- op/sharded.c ---- */

/* Weights that are needed together, as those of a block of a model are. It lives until it is given
 * back, and its weights are gone. */
typedef struct ul_shard_unit ul_shard_unit;
int ul_shard_unit_new(ul_shard_unit **unit);
void ul_shard_unit_free(ul_shard_unit *unit);
/* A weight of `shape` of which each rank keeps `mine`, its ul_share of the elements in row-major
 * order. It takes memory only while ops need its values, which are gathered when the first one asks
 * for them; then weights of other units lose theirs. All ranks run the same ops in the same order.
 * No op may change it; where the slices have changed it is gathered anew. */
int ul_sharded(ul_tensor **whole, ul_tensor *mine, ul_group *group, int ndim, const int64_t *shape,
               ul_shard_unit *unit);
/* y = the whole weight, for use in ops; its gradient, summed over the ranks, goes to the slice,
 * which may be another tensor than before, of the same shape, dtype and device. */
int ul_whole_weight(ul_tensor **y, ul_tensor *whole, ul_tensor *mine);
/* Whether t looks into a sharded weight. */
int ul_is_sharded(const ul_tensor *t);
/* Gives back what is gathered; backward does it at its end. */
int ul_sharded_release(void);

/* ---- op/shard.c ---- */

/* How many of n are rank's, where the first ranks hold one more if need be; *first: where they
 * begin. first may be NULL. */
int64_t ul_share(int64_t *first, int64_t n, int size, int rank);
/* Sends to each rank its part of x along `split` (sizes [P], NULL: ul_share); y = the parts that
 * arrive, side by side along `cat`. */
int ul_all_to_all(ul_tensor **y, ul_tensor *x, ul_group *group, int split, int cat,
                  const int64_t *sizes);

/* x[r], of any shape and dtype, goes to rank r; y[r] is what r has sent. n: as many as ranks. y is
 * NULL where it fails. (op/lists.c) */
int ul_all_to_all_list(ul_tensor **y, ul_tensor *const *x, int n, ul_group *group);

/* How many of `heads` query heads rank has, and the *first: from rank heads / size on, rounded
 * down. kv_heads not 0: the same of the kv heads that these read (head h: h kv_heads / heads), of
 * which some may be needed by several ranks.
 */
int64_t ul_head_share(int64_t *first, int64_t heads, int64_t kv_heads, int size, int rank);
/* y[i] [B, S, h, D] = this rank's heads of all tokens, from x[i] [B, T, H, D], all heads of this
 * rank's tokens: n tensors, at most 8, in one exchange. q_heads: 0, or how many query heads there
 * are where x holds kv heads. lengths [P]: T of each rank; NULL: they tell each other. y is NULL
 * where it fails. later: it only begins, and nothing but ul_arrive() may be done with y.
 */
int ul_shard_heads(ul_tensor **y, ul_tensor *const *x, int n, ul_group *group, int64_t q_heads,
                   const int64_t *lengths, int later);
/* The way back: y[i] [B, T, H, D] from x[i] [B, S, h, D]. heads: H; 0: they tell each other.
 * lengths [P]: T of each rank; NULL: ul_share of S.
 */
int ul_shard_tokens(ul_tensor **y, ul_tensor *const *x, int n, ul_group *group, int64_t heads,
                    const int64_t *lengths, int later);
/* The end of an exchange that was begun, with all n tensors that it gave: what is computed next has
 * them. On cuda what was computed in between went on beside it; in backward the way back begins at
 * this call, and ends at the other. y is NULL where it fails.
 */
int ul_arrive(ul_tensor **y, ul_tensor *const *x, int n);

/* ---- op/ring.c ---- */

/* o = ul_attention of rows of `tokens`, of which rank r of R holds the chunks r and 2 R - 1 - r of
 * 2 R, one behind the other (the sizes are ul_share's): q, o [B, T, H, D], k, v [B, T, Hkv, D].
 * Queries stay, keys and values go round as far as a query sees them; neither is ever whole. docs
 * are of whole rows. All ranks have the same heads.
 */
int ul_ring_attention(ul_tensor **o, ul_tensor *q, ul_tensor *k, ul_tensor *v, ul_group *group,
                      int64_t tokens, const ul_attention_options *options);

#endif
