/* checkpoint_parts: a checkpoint that the ranks of several hosts write together, each the tensors that it holds and its
 * pieces of others (train/ckpt_pieces.h), into files of its own.
 *
 *   rank 0   checkpoint_parts_begin: RUN/ckpt/.tmp-STEP-PID; what it has begun is told to all ranks (a collective)
 *   all      checkpoint_parts_open: the layout, which every rank computes from one list; checkpoint_parts_write: files
 *   rank r   checkpoint_parts_tell: part-RRRRR.json there, with the checksums; it says that the files are synced
 *   rank 0   checkpoint_parts_wait: has read it of all ranks; checkpoint_parts_commit: manifest, rename
 *
 * The word that a rank has finished is a file, because writers are threads beside training: a collective of theirs
 * would meet those of the step, and a safe point of training would bind the commit to the length of a step. The file
 * system of the run is needed for the checkpoint anyway; no other connection is. All hosts must see it. Rank 0 looks at
 * the directory; on NFS the word may arrive later by the time that the client keeps attributes.
 *
 * Any kill leaves the checkpoints that are committed, and perhaps the directory, which the next start removes. */
#ifndef INGOT_TRAIN_CHECKPOINT_PARTS_H
#define INGOT_TRAIN_CHECKPOINT_PARTS_H
#include "train/checkpoint.h"

/* What rank 0 has begun; plain bytes, the same on all ranks. */
struct ckpt_begun {
    int64_t step;
    int32_t pid;
    char run_id[33], nonce[17]; /* nonce: what an earlier process tells is not of this save */
};
struct ckpt_full { /* as checkpoint_save: what becomes of older checkpoints, and whether it waits for a full disk */
    int keep;
    ckpt_may_wait_fn *may_wait;
};
status checkpoint_parts_begin(const char *run_dir, int64_t step, struct ckpt_full full,
                              struct ckpt_begun *b) WARN_UNUSED;
/* At the start of a run, on ranks above 0: whether this host sees the run directory, which rank 0 has made. */
status checkpoint_parts_reached(const char *run_dir) WARN_UNUSED;
/* On the other ranks, before rank 0 can give up: whether this host sees what it has begun. */
status checkpoint_parts_seen(const char *run_dir, const struct ckpt_begun *b) WARN_UNUSED;

/* Removes it, if that was all. */
void checkpoint_parts_drop(const char *run_dir, const struct ckpt_begun *b);

/* items [count]: those of all ranks, the same on each, with `writer`; only those of rank `me` have data. */
struct ckpt_parts;
status checkpoint_parts_open(struct ckpt_parts **p, const char *run_dir, const struct ckpt_begun *b,
                             const struct ckpt_item *items, int count, int me) WARN_UNUSED;
/* How to wait for others: STATUS_COMM after `seconds`, or when ended() says that the job ends; who(rank) names one. */
struct ckpt_waiter {
    struct ckpt_full full;
    double seconds;
    bool (*ended)(void *ctx);
    const char *(*who)(void *ctx, int rank);
    void *ctx;
};
/* A rank above 0 whose disk is full asks rank 0 by a file, full-RRRRR, to delete what is to go. On such a rank both do
 * nothing once rank 0 has given up: then that rank has the error. */
status checkpoint_parts_write(struct ckpt_parts *p, const struct ckpt_waiter *w) WARN_UNUSED;
status checkpoint_parts_tell(struct ckpt_parts *p, int64_t note, const struct ckpt_waiter *w) WARN_UNUSED;
/* On rank 0. *lowest: the minimum of the notes. Then as checkpoint_save. */
status checkpoint_parts_wait(struct ckpt_parts *p, const struct ckpt_waiter *w, int64_t *lowest) WARN_UNUSED;
status checkpoint_parts_commit(struct ckpt_parts *p, const json_t *meta, const struct ckpt_waiter *w) WARN_UNUSED;
/* On any rank: whether rank 0 has committed it, or given it up. */
bool checkpoint_parts_settled(const char *run_dir, const struct ckpt_begun *b);
/* Rank 0 gives up what is not committed: removes it. NULL is fine. */
void checkpoint_parts_close(struct ckpt_parts *p);
#endif
