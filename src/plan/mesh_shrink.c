#include "plan/mesh_shrink.h"
#include "parallel/grad_reduce.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The spec for a smaller mesh, and how many ranks it has. */
struct smaller {
    struct spec spec;
    int ranks;
};

static int64_t micro_count(const struct run_spec *r)
{
    const int64_t micro = r->train_micro_batch > 0 ? r->train_micro_batch : 1; /* auto: as many as can be */
    return r->train_batch_tokens / r->train_sequence_length / micro;
}

/* Into how many groups the job of all ranks sums its micro-batches. */
static int64_t groups_of_all(const struct run_spec *r, int ranks)
{
    const int64_t dp = ranks / (r->parallel_tensor * r->parallel_pipeline * r->parallel_context);
    if (r->train_gradient_groups > 0) return r->train_gradient_groups;
    return r->parallel_zero >= 2 ? micro_count(r) : dp;
}

static void set_mesh(struct run_spec *r, int tp, int pp, int dp)
{
    if (pp != r->parallel_pipeline) r->parallel_stages[0] = 0;
    if (pp == 1) r->parallel_chunks = 1, r->parallel_schedule = PIPELINE_1F1B;
    r->parallel_tensor = tp;
    r->parallel_pipeline = pp;
    if (r->parallel_shard == 0) return;
    while (dp * r->parallel_context % r->parallel_shard != 0) r->parallel_shard--;
}

/* Whether the mesh of m->spec is possible. Sets its gradient_groups: those of all ranks if they fit it. */
static status check(struct smaller *m, int64_t groups, struct mesh_shrink *out)
{
    struct run_spec *r = &m->spec.run;
    const int64_t asked = r->train_gradient_groups, micros = micro_count(r);
    TRY(mesh_shape(&m->spec, m->ranks, &out->shape));
    const bool first = out->shape.zero >= 2;
    if (first) return grad_reduce_check(asked, micros, out->shape.dp, GRAD_REDUCE_FIRST);
    if (asked == 0 && groups == out->shape.dp) groups = 0; /* one per rank */
    r->train_gradient_groups = groups;
    const status st = grad_reduce_check(groups, micros, out->shape.dp, GRAD_REDUCE_LAST);
    if (st == STATUS_OK || asked > 0) return st; /* who asks for groups asks for bits */
    out->same_bits = false;
    r->train_gradient_groups = 0;
    return grad_reduce_check(0, micros, out->shape.dp, GRAD_REDUCE_LAST);
}

static void add_key(struct mesh_shrink *m, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_key(struct mesh_shrink *m, const char *fmt, ...)
{
    CHECK(m->key_count < MESH_SHRINK_KEYS, "%d keys", m->key_count);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(m->keys[m->key_count++], sizeof m->keys[0], fmt, ap);
    va_end(ap);
}

static void list_keys(struct mesh_shrink *m, const struct run_spec *from, const struct run_spec *to)
{
#define NUMBER(field, name)                                                                                  \
    if (from->field != to->field) add_key(m, "--" name "=%lld", (long long)to->field);
    NUMBER(parallel_tensor, "parallel.tensor")
    NUMBER(parallel_pipeline, "parallel.pipeline")
    NUMBER(parallel_chunks, "parallel.chunks")
    NUMBER(parallel_shard, "parallel.shard")
    NUMBER(train_gradient_groups, "train.gradient_groups")
#undef NUMBER
    if (from->parallel_schedule != to->parallel_schedule) add_key(m, "--parallel.schedule=1f1b");
    if (strcmp(from->parallel_stages, to->parallel_stages) != 0) add_key(m, "--parallel.stages=");
}

static status try_mesh(const struct spec *s, int ranks, const struct mesh_shape *want,
                       struct mesh_shrink *out)
{
    struct smaller m = {.spec = *s, .ranks = mesh_ranks(want)};
    *out = (struct mesh_shrink){.ranks = m.ranks, .same_bits = want->tp == s->run.parallel_tensor};
    set_mesh(&m.spec.run, want->tp, want->pp, want->dp);
    TRY(check(&m, groups_of_all(&s->run, ranks), out));
    list_keys(out, &s->run, &m.spec.run);
    return STATUS_OK;
}

status mesh_shrink(const struct spec *s, int ranks, int least, int most, struct mesh_shrink *out)
{
    const struct run_spec *r = &s->run;
    char why[512] = "";
    for (int tp = (int)r->parallel_tensor; tp > 0; tp--) {
        for (int pp = (int)r->parallel_pipeline; pp > 0; pp--) {
            if (r->parallel_tensor % tp != 0 || r->parallel_pipeline % pp != 0) continue;
            struct mesh_shape want = {.tp = tp, .pp = pp, .cp = (int)r->parallel_context, .dp = 1};
            const int each = mesh_ranks(&want);
            for (want.dp = most / each; want.dp > 0 && want.dp * each >= least; want.dp--) {
                const status st = try_mesh(s, ranks, &want, out);
                if (st != STATUS_CONFIG) return st;
                if (why[0] == 0) snprintf(why, sizeof why, "%s", status_message());
            }
        }
    }
    return FAIL(STATUS_CONFIG, "no mesh of %d to %d ranks is possible%s%s", least, most, why[0] ? ": " : "",
                why);
}
