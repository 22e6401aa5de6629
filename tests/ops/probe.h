/* One run of one op on one case: named buffers between guards, filled as a pure function of the buffer's
 * name, so that runs of different sets, and of a forward and its backward, see equal inputs.
 *
 * Guards are 0xFF bytes, NaN in every float type: a stray write is found by probe_guards, a stray read that
 * matters spoils a result. */
#ifndef INGOT_TESTS_OPS_PROBE_H
#define INGOT_TESTS_OPS_PROBE_H
#include "cases.h"

enum probe_kind { PROBE_IN, PROBE_OUT /* = */, PROBE_ACC /* += */, PROBE_WORK /* not compared */ };

#define TOL_EXACT (-1.0)
struct probe_buf {
    const char *name;
    enum probe_kind kind;
    dtype dt;
    int64_t count;
    double tol;  /* absolute, beside some roundoffs of the value itself; TOL_EXACT: the same bits */
    char *block; /* owned: guard, data, guard */
    void *data;
};

struct probe {
    dtype dt;
    int shift; /* elements off a cache line where buffers begin: kernels may assume no more than an element */
    bool zero_out;     /* outputs begin as 0 instead of noise */
    const char *nudge; /* the input moved by nudge_step along probe_direction; NULL: none */
    double nudge_step;
    struct probe_buf bufs[20];
    int count;
};

/* Unit roundoff, and the rounding error of a sum of n terms of which partial sums are about 1, with room for
 * another order. */
double tol_round(dtype dt);
double tol_reduce(dtype dt, int64_t n);

void *probe_in(struct probe *p, const char *name, dtype dt, int64_t count, double mean, double deviation);
int32_t *probe_ids(struct probe *p, const char *name, int64_t count,
                   int64_t bound); /* uniform in [0, bound) */
void *probe_out(struct probe *p, const char *name, enum probe_kind kind, dtype dt, int64_t count, double tol);
struct probe_buf *probe_find(struct probe *p, const char *name); /* NULL when absent */
double probe_direction(const char *name, int64_t i);
void probe_free(struct probe *p);

/* Fails the test when a guard changed. */
void probe_guards(const struct probe *p, const char *what);
/* Fails the test unless `got` is `want`: inputs exactly, outputs within their tolerance. */
void probe_close(const struct probe *want, const struct probe *got, const char *what);
/* Fails the test unless all buffers hold the same bits. */
void probe_same_bits(const struct probe *a, const struct probe *b, const char *what);

/* Builds the buffers of the case into the empty `p` and runs the op once. */
void op_run(const struct ops *o, const struct op_case *c, struct probe *p);
const char *op_name(enum op_id op);
/* "layernorm_fwd F32 rows 3 d 7 ... flags 0x20". */
const char *case_text(const struct op_case *c, dtype dt, char buf[256]);
#endif
