/* One run of one op on one case: named buffers between guards, filled as a pure function of the buffer's
 * name, so that runs of different sets, and of a forward and its backward, see equal inputs.
 *
 * Guards are 0xFF bytes, NaN in every float type: a stray write is found by probe_guards, a stray read that
 * matters spoils a result.
 *
 * On a device every buffer has a twin there, guards included. A call uploads all of them, runs the op on the
 * twins, and downloads all of them; then again over other leftovers in workspace and scratch, then as a
 * captured graph: the three must leave the same bits. */
#ifndef INGOT_TESTS_OPS_PROBE_H
#define INGOT_TESTS_OPS_PROBE_H
#include "cases.h"
#include "dev/dev.h"

enum probe_kind {
    PROBE_IN,
    PROBE_OUT /* = */,
    PROBE_ACC /* += */,
    PROBE_WORK /* not compared with the oracle */,
    PROBE_KEPT /* what one call leaves for the next one */,
    PROBE_SCRATCH /* contents mean nothing before and after */
};

#define TOL_EXACT (-1.0)
struct probe_buf {
    const char *name;
    enum probe_kind kind;
    dtype dt;
    int64_t count;
    double tol;  /* absolute, in addition to some roundoffs of the value; TOL_EXACT: the same bits */
    char *block; /* owned: guard, data, guard */
    size_t block_bytes;
    void *data;
    char *twin; /* of the block, on the device; owned */
};

/* Where the op under test runs, and how. Opened by the test. */
struct probe_device {
    struct stream *stream;
    void (*set_workspace)(struct stream *s, void *workspace, size_t bytes); /* NULL: the set has none */
    char *workspace, *poison; /* device memory: what the ops share, and as many 0xFF bytes; owned */
    size_t workspace_bytes;   /* without a tail that must not be written */
    bool exact; /* no guard after the twins: a memory checker then finds reads past the end */
};
/* Workspace for sets that ask for up to `bytes`. */
status probe_device_open(struct probe_device *d, struct stream *s, size_t bytes) WARN_UNUSED;
void probe_device_close(struct probe_device *d);

struct probe {
    dtype dt;
    int shift; /* elements off a cache line where buffers begin: kernels may assume no more than an element; of
                  FP8 codes 16 elements each */
    bool zero_out;     /* outputs begin as 0 instead of noise */
    const char *nudge; /* the input moved by nudge_step along probe_direction; NULL: none */
    double nudge_step;
    int64_t expert_align; /* at least, of sorted rows: see ops.expert_align */
    bool narrow_logits; /* xent reads dt, not A: see ops.logits_dt */
    bool plain_lse;     /* a device's lse has the host's layout, and is compared */
    bool tf32;          /* GEMMs of F32 are of operands rounded to tf32 */
    const struct probe_device *device; /* NULL: the host */
    struct probe_buf bufs[48];
    int count;
    int64_t tokens;    /* of the case: sizes the workspace */
    status st;         /* of the op, on a device; on the host a failing op fails the test */
    char trouble[400]; /* on a device: errors besides the results; "" if there are none */
};

/* Unit roundoff, and the rounding error of a sum of n terms whose partial sums are about 1, with a margin for
 * another order. */
double tol_round(dtype dt);
double tol_reduce(dtype dt, int64_t n);

void *probe_in(struct probe *p, const char *name, dtype dt, int64_t count, double mean, double deviation);
int32_t *probe_ids(struct probe *p, const char *name, int64_t count,
                   int64_t bound); /* uniform in [0, bound) */
void *probe_out(struct probe *p, const char *name, enum probe_kind kind, dtype dt, int64_t count, double tol);
uint8_t *probe_out_codes(struct probe *p, const char *name, int64_t count); /* of moments; a neighbour is as good */
int32_t *probe_out_ids(struct probe *p, const char *name, int64_t count); /* =, compared exactly */
/* Aligned as an arena's memory is. */
void *probe_scratch(struct probe *p, const char *name, size_t bytes);
void *probe_kept(struct probe *p, const char *name, size_t bytes);
struct probe_buf *probe_find(struct probe *p, const char *name); /* NULL when absent */
double probe_direction(const char *name, int64_t i);
void probe_free(struct probe *p);

/* What is wrong with a run, over all its buffers. */
struct probe_diff {
    int bad;      /* buffers */
    double worst; /* error over what is allowed, of the worst element */
    char text[800];
};
void probe_diff_guards(const struct probe *p, struct probe_diff *d); /* a guard changed */
/* `got` is not `want`: inputs exactly, outputs within their tolerance. */
void probe_diff_close(const struct probe *want, const struct probe *got, struct probe_diff *d);
/* The same, failing the test. */
void probe_guards(const struct probe *p, const char *what);
void probe_close(const struct probe *want, const struct probe *got, const char *what);
/* Fails the test unless all buffers hold the same bits. */
void probe_same_bits(const struct probe *a, const struct probe *b, const char *what);

/* Calls the op with `args` (`bytes` of them) on the probe's buffers and device. */
typedef status probe_op(const struct ops *o, const void *args, dev_stream s);
void probe_call(struct probe *p, const struct ops *o, probe_op *op, const void *args, size_t bytes);
void probe_device_call(struct probe *p, const struct ops *o, probe_op *op, const void *args, size_t bytes);

/* Builds the buffers of the case into the empty `p` and runs the op once. */
void op_run(const struct ops *o, const struct op_case *c, struct probe *p);
const char *op_name(enum op_id op);
/* A field of the case's family by its name; NULL: the family has none. */
bool *case_flag(struct op_case *c, const char *name);
/* "layernorm_fwd F32 rows 3 d 7 branch in_place". */
const char *case_text(const struct op_case *c, dtype dt, char buf[256]);
#endif
