#include "plan/duration.h"
#include "base/text.h"
#include "plan/assume.h"

#include <math.h>
#include <stdarg.h>

/* Seconds of the whole run; 0: it has no length. Smaller steps of a batch schedule take their share of a whole one. */
static double seconds_of(const struct spec *s, double step)
{
    if (s->run.train_steps == SPEC_ENDLESS) return 0;
    if (s->run.train_batch_schedule[0]) return step * spec_token_count(s) / (double)s->run.train_batch_tokens;
    return step * (double)spec_step_count(s);
}

void duration_print(const struct spec *s, double step, const struct plan_devices *d)
{
    char time[32], tokens[32];
    const double seconds = seconds_of(s, step), hours = seconds * d->count / 3600;
    if (seconds <= 0) return;
    const int64_t steps = spec_step_count(s);
    printf("run          %lld step%s, %s tokens: %s", (long long)steps, steps == 1 ? "" : "s",
           text_count(tokens, spec_token_count(s)), text_time(time, seconds));
    if (d->unit) printf(hours < 10 ? ", %.2g %s hours" : ", %.0f %s hours", hours, d->unit);
    printf("\n");
}

json_t *duration_json(const struct spec *s, double step, const struct plan_devices *d, const char *command)
{
    json_t *o = command ? json_pack("{s:s}", "command", command) : json_object();
    if (s->run.train_steps != SPEC_ENDLESS) {
        const int64_t steps = spec_step_count(s);
        json_object_set_new(o, "steps", json_integer(steps));
        json_object_set_new(o, "tokens", json_real(spec_token_count(s)));
    }
    if (isnan(step)) return o;
    const double seconds = seconds_of(s, step);
    json_object_set_new(o, "seconds_per_step", json_real(step));
    if (seconds <= 0) return o;
    json_object_set_new(o, "seconds", json_real(seconds));
    json_object_set_new(o, "device_hours", json_real(seconds * d->count / 3600));
    return o;
}

struct line {
    char *text;
    int used;
};

PRINTF_LIKE(2, 3) static void add(struct line *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(l->text + l->used, (size_t)(PLAN_COMMAND - l->used), fmt, args);
    va_end(args);
    l->used = l->used + n < PLAN_COMMAND ? l->used + n : PLAN_COMMAND - 1;
}

/* The keys of a mesh that the spec has otherwise. */
static void add_mesh(struct line *l, const struct run_spec *r, const struct mesh_shape *m)
{
    static const char *const schedules[] = {
#define WORD(prefix, value, word) [prefix##_##value] = (word),
        PIPELINE_WORDS(WORD)
#undef WORD
    };
    if (m->tp != r->parallel_tensor) add(l, " --parallel.tensor=%d", m->tp);
    if (m->pp != r->parallel_pipeline) add(l, " --parallel.pipeline=%d", m->pp);
    if (mesh_cp(m) != r->parallel_context) add(l, " --parallel.context=%d", mesh_cp(m));
    if (mesh_ep(m) != r->parallel_expert) add(l, " --parallel.expert=%d", mesh_ep(m));
    if (m->pp > 1 && m->schedule != (enum pipeline_kind)r->parallel_schedule)
        add(l, " --parallel.schedule=%s", schedules[m->schedule]);
    if (m->pp > 1 && m->chunks != r->parallel_chunks) add(l, " --parallel.chunks=%d", m->chunks);
    if (m->layers[0] > 0 && !r->parallel_stages[0])
        for (int i = 0; i < m->pp * m->chunks; i++) add(l, i ? ",%d" : " --parallel.stages=%d", m->layers[i]);
    if (m->zero != r->parallel_zero) add(l, " --parallel.zero=%d", m->zero);
    if (m->zero > 0 && m->shard < mesh_dp_cp(m) && m->shard != r->parallel_shard)
        add(l, " --parallel.shard=%d", m->shard);
}

const char *duration_command(char buf[PLAN_COMMAND], const struct spec *s, const struct plan_command *c,
                             const struct plan_devices *d, const struct mesh_shape *mesh, int recompute,
                             int64_t micro_batch)
{
    static const char *const policies[] = {
#define WORD(prefix, value, word) [prefix##_##value] = (word),
        RECOMPUTE_WORDS(WORD)
#undef WORD
    };
    struct line l = {.text = buf};
    if (d->count > d->host) {
        add(&l, "srun --mpi=pmix --nodes=%d --ntasks-per-node=%d", (d->count + d->host - 1) / d->host,
            d->host);
        if (d->gpu) add(&l, " --gpus-per-node=%d", d->host);
        add(&l, " ingot train");
    } else if (d->count > 1 && c->assume && c->assume->mpi > 0)
        add(&l, "mpirun -n %d ingot train", d->count);
    else if (d->count > 1)
        add(&l, "ingot launch -n %d -- train", d->count);
    else
        add(&l, "ingot train");
    add(&l, "%s", c->words);
    if (mesh) add_mesh(&l, &s->run, mesh);
    if (recompute != s->run.train_recompute) add(&l, " --train.recompute=%s", policies[recompute]);
    if (micro_batch != s->run.train_micro_batch) add(&l, " --train.micro_batch=%lld", (long long)micro_batch);
    return buf;
}

const char *duration_lacks(char buf[PLAN_WHY], const struct spec *s, const struct plan_devices *d,
                           const struct mesh_shape *mesh)
{
    if (!d->gpu) return NULL;
    if (mesh_cp(mesh) > 1 && s->run.parallel_context_kind == CONTEXT_RING)
        snprintf(buf, PLAN_WHY, "`ingot train` has parallel.context_kind: ring on CPU ranks alone so far");
    else if (mesh_check_gpu(s, mesh) != STATUS_OK || mesh_check_hosts(mesh, d->host) != STATUS_OK)
        snprintf(buf, PLAN_WHY, "%s", status_message());
    else
        return NULL;
    return buf;
}
