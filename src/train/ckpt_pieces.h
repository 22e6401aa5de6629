/* ckpt_pieces: tensors that several ranks have stored, each the piece that it holds. A piece is a vector in the file of
 * its rank; its runs say where its elements are in the tensor. The pieces of a tensor cover it exactly once. */
#ifndef INGOT_TRAIN_CKPT_PIECES_H
#define INGOT_TRAIN_CKPT_PIECES_H
#include "train/ckpt_manifest.h"

/* `times` stretches of `length` elements; the first is at element `begin` of the tensor, each other `stride` behind the
 * one before it. A column slice of a matrix is one run. */
struct ckpt_run {
    int64_t begin, length, stride, times;
};
enum { CKPT_RUNS_MAX = 1 << 20, CKPT_STRETCHES_MAX = 1 << 30 };
struct ckpt_piece {
    char of[128]; /* the tensor's name, rank and shape */
    int rank;
    int64_t shape[4];
    int run_count;
    struct ckpt_run runs[]; /* ascending */
};

/* Collects stretches, in ascending order, and merges them into runs. */
struct ckpt_run_list {
    struct ckpt_run *runs;
    int count, room;
};
status ckpt_runs_add(struct ckpt_run_list *l, int64_t begin, int64_t length) WARN_UNUSED;
void ckpt_runs_free(struct ckpt_run_list *l);

/* Whether the runs are ascending, do not overlap and are within `elements`; *sum: how many elements they have. */
bool ckpt_runs_valid(const struct ckpt_run *runs, int count, int64_t elements, int64_t *sum);

/* Calls `visit` for each stretch of the elements [begin, end) of a piece, in order: `at` in the piece, `to` in the
 * tensor, `count` elements. Ends early when visit returns true, and returns that. */
typedef bool ckpt_stretch_fn(void *ctx, int64_t at, int64_t to, int64_t count);
bool ckpt_piece_walk(const struct ckpt_piece *p, int64_t begin, int64_t end, ckpt_stretch_fn *visit, void *ctx);

/* Fills m->whole, the tensors as a reader sees them, in the order in which they begin in the files. STATUS_CKPT:
 * pieces differ in what tensor they are of, overlap, or leave a gap; a name is used twice. */
status ckpt_pieces_index(struct ckpt_manifest *m, const char *what) WARN_UNUSED;
#endif
