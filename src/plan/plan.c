#include "model/param_count.h"
#include "ops/precision.h"
#include "plan/plan.h"
#include "base/text.h"
#include "spec/layer_traits.h"
#include "spec/ramp.h"
#include "optim/muon.h"
#include "optim/optim.h"
#include "parallel/fp8.h"
#include "parallel/pipeline_schedule.h"
#include "plan/grad_overlay.h"
#include "plan/past_errors.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

struct feed_shape plan_feed(const struct plan_layout_args *args)
{
    return (struct feed_shape){.micro_count = args->micro_count ? args->micro_count : 1,
                               .rows = args->tokens,
                               .docs_max = args->docs_max ? args->docs_max : args->tokens,
                               .documents = args->documents,
                               .context = args->mesh ? mesh_cp(&args->mesh->shape) : 1};
}

/* Rejects what a GPU's kernels do not support, before a device is used. */
static status check_gpu(const struct model_spec *m)
{
#define WORD(prefix, value, word)                                                                            \
    if (model_mixer_count(m, prefix##_##value) > 0 && mixer_traits(prefix##_##value)->check_gpu)             \
        TRY(mixer_traits(prefix##_##value)->check_gpu(m));
    MIXER_WORDS(WORD)
#undef WORD
    return STATUS_OK;
}

struct comm_memory plan_comm_memory(const struct mesh_shape *shape, const struct comm_job *job,
                                    enum dev_kind kind, size_t message, int depth)
{
    return comm_memory(&(struct comm_memory_args){.job = *job,
                                                  .devices = kind == DEV_CUDA,
                                                  .groups = mesh_groups(shape),
                                                  .mailbox_bytes = message,
                                                  .mailbox_depth = depth,
                                                  .mailbox_ranks = shape->pp});
}

/* A pipeline rank keeps activations of several micro-batches, each for one chunk of layers. */
static status count_sets(const struct plan_layout_args *args, struct layout *l, int *depth)
{
    struct pipeline_schedule s;
    const struct mesh *mesh = args->mesh;
    l->sets = args->sets, l->stores = args->stores;
    if (mesh == NULL || mesh->shape.pp == 1 || args->use != PLAN_TRAIN || args->sets > 0) return STATUS_OK;
    status st = pipeline_schedule_build(&s, mesh->shape.schedule, mesh->shape.pp,
                                        args->micro_count ? args->micro_count : 1, mesh->shape.chunks);
    l->sets = s.rank[mesh->pp_rank].slots;
    l->stores = s.rank[mesh->pp_rank].stores;
    if (st == STATUS_OK) st = pipeline_schedule_depth(&s, depth);
    pipeline_schedule_free(&s);
    return st;
}

/* Counts communication buffers, if the ranks of the mesh exist. */
static void count_room(struct memory *m, const struct decoder *d, const struct plan_layout_args *args,
                       int depth)
{
    const struct mesh *mesh = args->mesh;
    m->kind = args->kind;
    if (mesh == NULL || mesh->world == NULL) return;
    struct comm_job job = comm_job(mesh->world);
    job.mail_by_nccl = comm_mail_by_nccl(mesh->pp);
    const size_t rows = (size_t)args->tokens / (size_t)mesh->shape.tp;
    m->comm = plan_comm_memory(&mesh->shape, &job, args->kind,
                               rows * (size_t)d->spec.hidden_size * dtype_bytes(args->dt), depth);
}

static void layout_rank_state(struct rank_state *rank, struct memory *m, struct decoder *d, int stores,
                              const struct plan_layout_args *args)
{
    const bool train = args->use == PLAN_TRAIN;
    rank_state_layout(rank, &d->params,
                      &(struct rank_state_layout){.mesh = args->mesh,
                                                  .train = train,
                                                  .muon = train && args->optim == OPTIM_MUON,
                                                  .gradient_groups = args->gradient_groups,
                                                  .verify = args->verify,
                                                  .table_reads = args->tokens * model_engram_rows(&d->spec),
                                                  .step_micros = args->step_micros,
                                                  .end = (int)d->spec.layer_count + 1,
                                                  .stores = stores,
                                                  .embedding_resident = d->spec.tied_embeddings ||
                                                                        d->spec.mtp_depth > 0 || d->hrm,
                                                  .param = &m->param,
                                                  .grad = &m->grad,
                                                  .optim = &m->optim,
                                                  .scratch = &m->scratch});
}

static int ranks_of(const struct mesh *mesh)
{
    return mesh ? mesh_ranks(&mesh->shape) : 1;
}

status plan_layout(struct memory *m, struct decoder *d, struct rank_state *rank, struct activations *a,
                   const struct plan_layout_args *args)
{
    bool train = args->use == PLAN_TRAIN;
    const enum recipe recipe = train ? args->recipe : RECIPE_PLAIN;
    if (args->kind == DEV_CUDA) TRY(check_gpu(&d->spec));
    struct ops cpu;
    ops_oracle(&cpu);
    struct layout l = {.n = args->tokens,
                       .cp_size = args->mesh ? mesh_cp(&args->mesh->shape) : 1,
                       .context_kind = args->mesh ? args->mesh->shape.context_kind : CONTEXT_ALL_GATHER,
                       .docs_max = args->docs_max ? args->docs_max : args->tokens,
                       .len_max = args->len_max ? args->len_max : args->tokens,
                       .ops = args->ops ? args->ops : &cpu,
                       .dt = args->dt,
                       .recipe = recipe,
                       .mode = train ? LAYOUT_TRAIN : LAYOUT_FORWARD,
                       .recompute = args->recompute,
                       .sparse = train && args->sparse,
                       .z_loss = train && args->z_loss,
                       .act = &m->act,
                       .scratch = &m->scratch};
    int depth = 0;
    TRY(count_sets(args, &l, &depth));
    count_room(m, d, args, depth);
    struct feed_shape feed = plan_feed(args);
    if (args->offload && args->kind != DEV_CUDA)
        return FAIL(STATUS_CONFIG,
                    "memory.offload_optimizer needs a GPU, and this run is on the CPU, where all "
                    "of the state is in host memory already: leave it out");
    arena_take(&m->input, feed_bytes(args->kind, &feed), "batch");
    if (train && args->optim == OPTIM_MUON) TRY(muon_claim(&d->params));
    d->params.sparse = train && args->sparse;
    d->params.masterless = train && args->masterless;
    d->params.recipe = recipe;
    if (recipe == RECIPE_CURRENT && d->params.current.count == 0) d->params.current = args->current;
    if (recipe != RECIPE_PLAIN) TRY(fp8_claim(&d->params, args->fp8_exclude));
    d->params.overlaid = train && args->overlay;
    TRY(decoder_layout_params(
        d, &(struct decoder_layout_args){.dt = args->dt,
                                         .moment_dt = optim_moment_dt(args->state),
                                         .with_grad = train,
                                         .moments = train ? optim_moments(args->optim) : 0,
                                         .positions = args->positions,
                                         .stream = args->stream,
                                         .arenas = {.param = &m->param,
                                                    .grad = &m->grad,
                                                    .optim = &m->optim,
                                                    .host = train && args->offload ? &m->host : NULL}}));
    if (recipe == RECIPE_FP8) fp8_layout(&d->params, ranks_of(args->mesh), &m->param);
    if (recipe == RECIPE_CURRENT) current_layout(&d->params, args->tokens, &m->scratch);
    layout_rank_state(rank, m, d, l.stores, args);
    if (args->state_alone) return STATUS_OK;
    TRY(activations_layout(a, d, &l));
    if (d->params.overlaid) grad_overlay_layout(d, a, &m->act);
    return STATUS_OK;
}

/* A decoder whose parameters were laid out by a counting pass can be laid out again. */
static void forget_counting(struct decoder *d, struct activations *a)
{
    struct params *p = &d->params;
    p->weight = p->master = p->grad = NULL;
    p->master_residual = NULL;
    p->m = p->v = NULL;
    p->m_scale = p->v_scale = NULL;
    p->work = NULL;
    p->chunks = p->balance = NULL;
    activations_fini(a);
}

static void name_arenas(struct memory *m)
{
    *m = (struct memory){0};
#define X(field, category, text) m->field.name = category;
    MEMORY_LIST(X)
#undef X
    m->host.name = "host optimizer";
}

static double read_number(const char *path)
{
    FILE *f = fopen(path, "r");
    char text[64] = "";
    if (f == NULL) return 0;
    char *got = fgets(text, sizeof text, f);
    fclose(f);
    return got ? strtod(text, NULL) : 0; /* "max" reads as 0: no limit */
}

double plan_host_bytes(void)
{
    const double physical = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double limit = read_number("/sys/fs/cgroup/memory.max");
    return limit > 0 && limit < physical ? limit : physical;
}

/* Ranks on this host. */
static int ranks_here(const struct mesh *mesh)
{
    return mesh ? comm_job(mesh->world).here : 1;
}

/* What helps a run that does not fit: nothing that is done already. */
static const char *fit_advice(const struct memory *m, double have, const struct plan_layout_args *args)
{
    const bool trains = args->use == PLAN_TRAIN;
    if (trains && (double)(m->param.peak + m->grad.peak + m->optim.peak) > have)
        return m->kind == DEV_CUDA
                   ? "weights, gradients and moments alone are more than that: take a smaller model, more "
                     "GPUs "
                     "with parallel.zero (`ingot plan --machine 8xH100`), optim.state=int8 or "
                     "memory.offload_optimizer=true"
                   : "weights, gradients and moments alone are more than that: take a smaller model, "
                     "optim.state=int8, or more machines with parallel.zero (`ingot plan --machine 8xH100`)";
    if (args->tokens > args->positions)
        return args->recompute == RECOMPUTE_FULL
                   ? "lower train.micro_batch; `ingot plan` shows what takes it"
                   : "lower train.micro_batch, or use train.recompute=selective or full; `ingot plan` shows "
                     "what "
                     "takes it";
    return args->recompute == RECOMPUTE_FULL
               ? "one sequence at once is too much: shorten train.sequence_length, or take a smaller model"
               : "one sequence at once is too much: use train.recompute=full, shorten train.sequence_length, "
                 "or "
                 "take a smaller model";
}

/* `have`: memory of the device; `host`: of its host; 0: unknown. */
static status check_fit(const struct memory *m, double have, double host, const struct plan_layout_args *args)
{
    char a[32], b[32];
    if (host > 0 && (double)m->host.peak > host)
        return FAIL(STATUS_OUT_OF_MEMORY,
                    "memory.offload_optimizer needs %s of the host's memory, which has %s for a rank: use "
                    "optim.state: bf16 or int8, or optim.name: lion",
                    text_bytes(a, (double)m->host.peak), text_bytes(b, host));
    if (have <= 0 || (double)memory_peak(m) <= have) return STATUS_OK;
    return FAIL(STATUS_OUT_OF_MEMORY, "the run needs %s, the machine has %s: %s",
                text_bytes(a, (double)memory_peak(m)), text_bytes(b, have), fit_advice(m, have, args));
}

status plan_reserve(struct memory *m, struct decoder *d, struct rank_state *rank, struct activations *a,
                    const struct plan_layout_args *args)
{
    struct memory count;
    name_arenas(&count);
    name_arenas(m);
    TRY(plan_layout(&count, d, rank, a, args));
    forget_counting(d, a);
    TRY(check_fit(&count, args->bytes_max, plan_host_bytes() / ranks_here(args->mesh), args));
    const struct dev host = {.kind = DEV_CPU}, *dev = args->stream ? args->stream->dev : &host;
#define X(field, category, text) TRY(dev_arena_reserve(dev, &m->field, category, count.field.peak));
    MEMORY_LIST(X)
#undef X
    TRY(dev_pinned_arena(dev, &m->host, m->host.name, count.host.peak));
    TRY(plan_layout(m, d, rank, a, args));
    CHECK(m->host.peak == count.host.peak, "%s: planned %zu bytes, laid out %zu", m->host.name,
          count.host.peak, m->host.peak);
    m->host.sealed = true;
#define X(field, category, text)                                                                             \
    CHECK(m->field.peak == count.field.peak, "%s: planned %zu bytes, laid out %zu", category,                \
          count.field.peak, m->field.peak);                                                                  \
    m->field.sealed = true;
    MEMORY_LIST(X)
#undef X
    return STATUS_OK;
}

void memory_free(struct memory *m)
{
#define X(field, category, text) arena_free(&m->field);
    MEMORY_LIST(X)
#undef X
    arena_free(&m->host);
}

size_t memory_peak(const struct memory *m)
{
    size_t sum = memory_communication(m);
#define X(field, category, text) sum += m->field.peak;
    MEMORY_LIST(X)
#undef X
    return sum;
}

int64_t plan_micro_count(const struct spec *s)
{
    return s->run.train_batch_tokens / (s->run.train_micro_batch * s->run.train_sequence_length);
}

double plan_bytes(const struct spec *s, const struct dev *dev, const struct mesh *mesh)
{
    /* CUDA's libraries load kernels at first use: about 0.4 GiB for cuBLASLt and cuDNN on an H200. */
    const double libraries = 512 * 1048576.0;
    if (s->run.machine_memory_gib > 0) return s->run.machine_memory_gib * 1073741824.0;
    if (dev->kind == DEV_CUDA) return dev->bytes_free ? (double)dev->bytes_free - libraries : 0;
    return plan_host_bytes() / ranks_here(mesh);
}

/* What a copy of the state takes in host memory while a checkpoint is written (ckpt.async). */
static double snapshot_bytes(const struct memory *m, const struct params *p)
{
    const bool whole = p->dt != DTYPE_BF16 && p->zero < 3; /* weights that are their own masters */
    if (m->host.peak > 0) return (double)m->host.peak;     /* masters and moments */
    return (double)(whole ? p->total : p->own) * sizeof(float) + (double)m->optim.peak;
}

/* The two copies of it that `ingot launch` holds (ckpt.memory_every). */
static double copies_bytes(const struct spec *s, const struct memory *m, const struct params *p)
{
    return s->run.ckpt_memory_every > 0 ? 2 * snapshot_bytes(m, p) : 0;
}

/* `have`: memory of the device. */
static status check_copies(const struct spec *s, const struct memory *m, const struct params *p, double have)
{
    const bool cpu = m->kind == DEV_CPU;
    const double copies = copies_bytes(s, m, p), run = (double)(cpu ? memory_peak(m) : m->host.peak),
                 host = cpu ? have : plan_host_bytes();
    char a[32], b[32], c[32];
    if (copies + run <= host || copies == 0) return STATUS_OK;
    return FAIL(
        STATUS_OUT_OF_MEMORY,
        "ckpt.memory_every: two copies of the state take %s, with the run %s of the host's %s: leave it "
        "out, or take optim.state=int8",
        text_bytes(a, copies), text_bytes(b, copies + run), text_bytes(c, host));
}

static int64_t dp_ranks(const struct mesh *mesh)
{
    return mesh ? mesh->shape.dp : 1;
}

struct plan_layout_args plan_args(const struct spec *s, const struct mesh *mesh)
{
    int64_t t = s->run.train_sequence_length, sequences = s->run.train_micro_batch;
    const struct ramp length = ramp_sequence(&s->run);
    const bool packed = s->run.data_packing != PACKING_STREAM, documents = packed || length.count > 1;
    const int64_t pieces =
        packed ? t : (t - 1) / ramp_least(&length) + 1; /* documents of a sequence, at most */
    CHECK(sequences > 0, "the plan of a run whose train.micro_batch is not known yet");
    const int64_t micros = plan_micro_count(s) / dp_ranks(mesh), cp = mesh ? mesh_cp(&mesh->shape) : 1;
    return (struct plan_layout_args){
        .use = PLAN_TRAIN,
        .dt = precision_of((enum precision)s->run.train_precision).act,
        .recipe = precision_recipe(&s->run),
        .current = precision_current(&s->run),
        .fp8_exclude = s->run.fp8_exclude,
        .recompute = (enum recompute)s->run.train_recompute,
        .optim = (enum optim)s->run.optim_name,
        .state = (enum optim_state)s->run.optim_state,
        .masterless = s->run.optim_master == OPTIM_MASTER_NONE,
        .tokens = sequences * t / cp,
        .positions = t,
        .documents = documents,
        .docs_max = documents ? sequences * pieces / cp
                    : cp > 1  ? 2 * sequences
                              : sequences,
        .len_max = t / cp,
        .micro_count = (int)micros,
        .mesh = mesh,
        .gradient_groups = s->run.train_gradient_groups,
        .sparse = spec_tables_sparse(s),
        .step_micros = plan_micro_count(s),
        .z_loss = s->run.train_z_loss > 0,
        .offload = s->run.memory_offload_optimizer,
        .verify = s->run.train_verify > 0,
        .overlay = overlay_apart(&s->model, mesh ? &mesh->shape : NULL, micros) == NULL};
}

status plan_check_gpu(const struct spec *s, const struct dev *dev)
{
    const enum precision precision = (enum precision)s->run.train_precision;
    if (!precision_needs_fp8(precision) || dev->kind != DEV_CUDA || dev->sm == 0 || dev->sm >= 89)
        return STATUS_OK;
    return FAIL(STATUS_DEVICE,
                "train.precision %s: %s (sm_%d) has no FP8 tensor cores, which begin with sm_89; use "
                "train.precision: bf16",
                precision_name(precision), dev->name, dev->sm);
}

enum dev_kind plan_device(const struct spec *s)
{
    static const enum dev_kind kinds[] = {
        [DEVICE_AUTO] = DEV_AUTO, [DEVICE_CPU] = DEV_CPU, [DEVICE_CUDA] = DEV_CUDA};
    return kinds[s->run.machine_device];
}

struct choose_ops plan_ops(const struct spec *s, const char *isa)
{
    static const enum choose_attention backends[] = {[ATTENTION_AUTO] = CHOOSE_ATTENTION_AUTO,
                                                     [ATTENTION_CUDNN] = CHOOSE_ATTENTION_CUDNN,
                                                     [ATTENTION_OWN] = CHOOSE_ATTENTION_OWN,
                                                     [ATTENTION_REFERENCE] = CHOOSE_ATTENTION_REFERENCE};
    return (struct choose_ops){.isa = isa,
                               .tf32 = precision_of((enum precision)s->run.train_precision).tf32,
                               .attention = backends[s->run.attention_backend],
                               .attention_atomic = !s->run.attention_deterministic};
}

/* Bytes of a run with `sequences` in a micro-batch. */
static status bytes_with(const struct spec *s, int64_t sequences, const struct plan_layout_args *given,
                         double *bytes)
{
    struct spec copy = *s;
    struct decoder d;
    struct rank_state rank;
    struct activations a = {0};
    struct memory m;
    name_arenas(&m);
    copy.run.train_micro_batch = sequences;
    struct plan_layout_args args = plan_args(&copy, given->mesh);
    args.ops = given->ops, args.kind = given->kind;
    TRY(decoder_init(&d, &copy.model, given->mesh));
    status st = plan_layout(&m, &d, &rank, &a, &args);
    *bytes = (double)memory_peak(&m);
    activations_fini(&a);
    decoder_fini(&d);
    return st;
}

/* Pipeline stages need different amounts of memory and devices differ, so the smallest result of all ranks
 * fits everywhere. */
static status least_of(const struct mesh *mesh, int64_t mine, int64_t *least)
{
    int64_t all[COMM_RANKS_MAX] = {mine};
    TRY(comm_all_gather(mesh ? mesh->world : NULL, "micro-batch", &mine, all, sizeof mine, NULL));
    *least = mine;
    for (int r = 0; mesh && r < comm_ranks(mesh->world); r++)
        if (all[r] < *least) *least = all[r];
    return STATUS_OK;
}

status plan_micro_batch(struct spec *s, const struct ops *ops, const struct dev *dev, const struct mesh *mesh)
{
    const struct plan_layout_args given = {.ops = ops, .kind = dev->kind, .mesh = mesh};
    const int64_t shares = s->run.train_gradient_groups ? s->run.train_gradient_groups : dp_ranks(mesh);
    if (s->run.train_micro_batch > 0) return STATUS_OK;
    const struct ramp batch = ramp_batch(&s->run);
    const int64_t step = ramp_unit(&batch) / s->run.train_sequence_length;
    /* With one sequence per micro-batch there are most of them. */
    TRY(grad_reduce_check(s->run.train_gradient_groups, step, (int)dp_ranks(mesh),
                          mesh && mesh->shape.zero >= 2 ? GRAD_REDUCE_FIRST : GRAD_REDUCE_LAST));
    double have = plan_bytes(s, dev, mesh), bytes = 0;
    for (int64_t n = step; n > 0; n--) {
        if (step % (n * shares) != 0 || n * s->run.train_sequence_length >= INT32_MAX) continue;
        TRY(bytes_with(s, n, &given, &bytes));
        if (have > 0 && bytes > have) continue;
        return least_of(mesh, n, &s->run.train_micro_batch);
    }
    char a[32], b[32];
    return FAIL(
        STATUS_OUT_OF_MEMORY,
        "one sequence of %lld tokens needs %s, the device has %s: shorten train.sequence_length, or use "
        "train.recompute=full; `ingot plan` shows what takes it",
        (long long)s->run.train_sequence_length, text_bytes(a, bytes), text_bytes(b, have));
}

struct flops plan_layer_flops(const struct model_spec *m, int64_t i, int64_t sequence_length)
{
    const double d = (double)m->hidden_size;
    const struct layer_spec l = model_layer(m, i);
    struct flops r = {0};
    if (model_layer_engram(m, i)) r.engram += 4 * d * (double)(model_engram_rows(m) * m->engram_dim);
    struct layer_gemm gemms[LAYER_GEMMS_MAX];
    const int mixer = mixer_traits(l.mixer)->gemms(m, gemms, 0),
              all = ffn_traits(l.ffn)->gemms(m, gemms, mixer);
    for (int k = 0; k < all; k++) {
        const double flops = 2 * gemms[k].copies * (double)gemms[k].in * (double)gemms[k].out;
        *(k >= mixer ? &r.mlp : k == mixer - 1 ? &r.out : &r.qkv) += flops;
    }
    r.scores += mixer_traits(l.mixer)->core_flops(m, i, sequence_length);
    return r;
}

/* `layer`: factor on a layer; `head`: factor on everything behind the layers. */
struct times {
    double (*layer)(const struct model_spec *m, int64_t i);
    double head;
};
static struct flops flops_times(const struct model_spec *m, int64_t sequence_length, struct times times)
{
    const double d = (double)m->hidden_size, depth = (double)m->mtp_depth;
    struct flops r = {.head = times.head * (1 + depth) * 2 * d * (double)m->vocab_size,
                      .mtp = times.head * depth * 4 * d * d};
    for (int64_t i = 0; i < m->layer_count + m->mtp_depth; i++) {
        const struct flops f = plan_layer_flops(m, i, sequence_length);
#define X(name, text) r.name += times.layer(m, i) * f.name;
        FLOP_LIST(X)
#undef X
    }
    return r;
}

static double forward_times(const struct model_spec *m, int64_t layer)
{
    return (double)model_visits(m, layer);
}

double plan_training_times(const struct model_spec *m, int64_t layer)
{
    const int64_t visits = model_visits(m, layer), segments = model_segments(m);
    /* Forward passes that only decide on halting: model/hrm.h. */
    const int64_t looks = m->hrm_halt ? visits / segments * (segments + 1) : 0;
    return (double)(visits + looks + 2 * segments);
}

struct flops plan_flops(const struct model_spec *m, int64_t sequence_length)
{
    return flops_times(m, sequence_length, (struct times){.layer = forward_times, .head = 1});
}

struct flops plan_training_flops(const struct model_spec *m, int64_t sequence_length)
{
    const double losses = (double)model_segments(m);
    return flops_times(m, sequence_length, (struct times){.layer = plan_training_times, .head = 3 * losses});
}

static double flops_sum(struct flops f)
{
    double sum = 0;
#define X(name, text) sum += f.name;
    FLOP_LIST(X)
#undef X
    return sum;
}

double plan_model_flops(const struct model_spec *m, int64_t sequence_length)
{
    return flops_sum(plan_training_flops(m, sequence_length));
}

struct machine_text {
    const char *name;
    double bytes; /* 0: unknown */
};

static int64_t active_count(const struct spec *s)
{
    return model_active_count(&s->model, s->model.vocab_size);
}

static void print_time(const struct spec *s, const struct plan_outlook *o, enum dev_kind kind)
{
    char time[32], command[PLAN_COMMAND];
    const struct plan_devices one = {.count = 1, .host = 1, .unit = kind == DEV_CUDA ? "GPU" : NULL};
    if (isnan(o->step)) {
        printf("\ntime         not known: %s\n", o->why);
    } else {
        printf("\ntime         %s per step, predicted from %s\n", text_time(time, o->step), o->from);
        past_errors_print(o->command.past, o->machine, kind == DEV_CUDA, o->step);
        duration_print(s, o->step, &one);
    }
    printf("start        %s\n", duration_command(command, s, &o->command, &one, NULL, s->run.train_recompute,
                                                 s->run.train_micro_batch));
}

static int64_t fp8_codes_bytes(const struct params *p)
{
    return p->derived[DERIVED_F8].bytes + p->derived[DERIVED_F8_T].bytes;
}

static void print_text(const struct spec *s, const struct memory *m, const struct decoder *d,
                       const struct machine_text *machine)
{
    char a[32], b[32];
    double have = machine->bytes;
    int64_t t = s->run.train_sequence_length, micro = plan_micro_count(s);
    printf("model        %s parameters (%lld), %lld layers, width %lld\n",
           text_count(a, (double)d->params.param_count), (long long)d->params.param_count,
           (long long)s->model.layer_count, (long long)s->model.hidden_size);
    if (model_ffn_count(&s->model, FFN_MOE) > 0)
        printf("active       %s parameters (%lld) per token\n", text_count(a, (double)active_count(s)),
               (long long)active_count(s));
    printf("step         %lld x %lld sequences of %lld tokens = %lld tokens\n", (long long)micro,
           (long long)s->run.train_micro_batch, (long long)t,
           (long long)(micro * s->run.train_micro_batch * t));
    printf("\nmemory\n");
#define X(field, category, text)                                                                             \
    printf("  %-12s %12s   %s\n", category, text_bytes(a, (double)m->field.peak), text);
    MEMORY_LIST(X)
#undef X
    if (have > 0)
        printf("  %-12s %12s   of %s on %s: %s\n", "sum", text_bytes(a, (double)memory_peak(m)),
               text_bytes(b, have), machine->name, (double)memory_peak(m) <= have ? "fits" : "does not fit");
    else
        printf("  %-12s %12s   on %s; machine.memory_gib tells its memory\n", "sum",
               text_bytes(a, (double)memory_peak(m)), machine->name);
    if (m->host.peak > 0)
        printf("  %-12s %12s   in host memory, not in the sum: master weights, moments "
               "(memory.offload_optimizer)\n",
               "host", text_bytes(a, (double)m->host.peak));
    if (fp8_codes_bytes(&d->params) > 0)
        printf("  %s of parameters are FP8 codes of %d weights, and their transposes\n",
               text_bytes(a, (double)fp8_codes_bytes(&d->params)), d->params.fp8.count);
    if (s->run.ckpt_async)
        printf("  %-12s %12s   in host memory, not in the sum: a copy of the state while it is saved "
               "(ckpt.async)\n",
               "checkpoint", text_bytes(a, snapshot_bytes(m, &d->params)));
    if (copies_bytes(s, m, &d->params) > 0)
        printf("  %-12s %12s   in host memory, not in the sum: two copies of the state for a start after a "
               "failure (ckpt.memory_every)\n",
               "copies", text_bytes(a, copies_bytes(s, m, &d->params)));
    printf("  largest scratch: %s\n", m->scratch.peak_what ? m->scratch.peak_what : "none");
    const char *apart = overlay_apart(&s->model, NULL, micro);
    if (apart)
        printf("  gradients have memory of their own: %s\n", apart);
    else
        printf("  %s of gradients lie among the activations, where those of blocks behind were\n",
               text_bytes(a, (double)grad_overlay_bytes(&d->params)));
    struct flops f = plan_flops(&s->model, t);
    double sum = flops_sum(f);
    printf("\nFLOPs per token (forward)\n");
#define X(field, text)                                                                                       \
    if (f.field > 0) printf("  %-28s %12s  %5.1f %%\n", text, text_count(a, f.field), 100 * f.field / sum);
    FLOP_LIST(X)
#undef X
    printf("  %-28s %12s\n", "forward", text_count(a, sum));
    printf("  %-28s %12s\n", s->model.hrm_cycles ? "training (one-step gradient)" : "training (3 x forward)",
           text_count(a, plan_model_flops(&s->model, t)));
}

static void print_json(const struct spec *s, const struct memory *m, const struct decoder *d, double have,
                       const struct plan_outlook *o)
{
    char command[PLAN_COMMAND];
    const struct plan_devices one = {.count = 1, .host = 1};
    json_t *memory = json_object(), *parts = json_object();
#define X(field, category, text)                                                                             \
    json_object_set_new(memory, category, json_integer((json_int_t)m->field.peak));
    MEMORY_LIST(X)
#undef X
    struct flops f = plan_flops(&s->model, s->run.train_sequence_length);
#define X(field, text) json_object_set_new(parts, #field, json_real(f.field));
    FLOP_LIST(X)
#undef X
    json_t *root = json_pack(
        "{s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:f, s:b, s:I, s:I, s:o, s:f}", "parameters",
        (json_int_t)d->params.param_count, "parameters_active", (json_int_t)active_count(s), "memory_bytes",
        memory, "memory_bytes_sum", (json_int_t)memory_peak(m), "gradients_overlaid_bytes",
        (json_int_t)grad_overlay_bytes(&d->params), "host_bytes", (json_int_t)m->host.peak, "snapshot_bytes",
        s->run.ckpt_async ? (json_int_t)snapshot_bytes(m, &d->params) : 0, "machine_bytes", have, "fits",
        have <= 0 || (double)memory_peak(m) <= have, "micro_batch", (json_int_t)s->run.train_micro_batch,
        "micro_batches", (json_int_t)plan_micro_count(s), "flops_forward_per_token", parts,
        "flops_training_per_token", plan_model_flops(&s->model, s->run.train_sequence_length));
    if (copies_bytes(s, m, &d->params) > 0)
        json_object_set_new(root, "memory_copies_bytes",
                            json_integer((json_int_t)copies_bytes(s, m, &d->params)));
    if (fp8_codes_bytes(&d->params) > 0)
        json_object_set_new(root, "fp8_codes_bytes", json_integer((json_int_t)fp8_codes_bytes(&d->params)));
    duration_command(command, s, &o->command, &one, NULL, s->run.train_recompute, s->run.train_micro_batch);
    json_object_set_new(root, "run", duration_json(s, o->step, &one, command));
    json_t *past =
        isnan(o->step) ? NULL : past_errors_json(o->command.past, o->machine, m->kind == DEV_CUDA, o->step);
    if (past) json_object_set_new(root, "past", past);
    json_dumpf(root, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(root);
}

/* The device of the plan. A GPU need not be present; then its memory is unknown unless machine.memory_gib is
 * set. */
static status planned_device(const struct spec *s, struct dev *dev)
{
    enum dev_kind kind = plan_device(s);
    status st = dev_open(dev, kind);
    if (st == STATUS_DEVICE && kind == DEV_CUDA) {
        *dev = (struct dev){.kind = DEV_CUDA, .name = "a GPU that is not here"};
        return STATUS_OK;
    }
    return st;
}

/* On a mesh, memory differs from device to device. */
static status check_alone(const struct spec *s)
{
    const long long ranks = s->run.parallel_tensor * s->run.parallel_pipeline * s->run.parallel_context;
    if (ranks == 1 && s->run.parallel_zero == 0 && s->run.parallel_expert == 1) return STATUS_OK;
    return FAIL(
        STATUS_CONFIG,
        "parallel.tensor, pipeline, context, expert or zero are set: a plan for several devices needs "
        "--machine, such "
        "as --machine %lldxcpu or --machine 8xH200",
        ranks > 1 ? ranks : 2);
}

/* `outlook` NULL: nothing is printed. */
static status plan_whole(const struct spec *spec, const struct plan_outlook *outlook, int json,
                         struct plan_need *need)
{
    struct spec s = *spec;
    struct decoder d;
    struct rank_state rank;
    struct activations a = {0};
    struct memory m;
    struct dev dev;
    struct ops ops;
    struct choose_ops choice = plan_ops(&s, NULL);
    name_arenas(&m);
    TRY(check_alone(&s));
    TRY(planned_device(&s, &dev));
    TRY(plan_check_gpu(&s, &dev));
    choice.sm = dev.sm;
    TRY(choose_open(&ops, dev.kind, NULL, &choice));
    TRY(plan_micro_batch(&s, &ops, &dev, NULL));
    TRY(grad_reduce_check(s.run.train_gradient_groups, plan_micro_count(&s), 1, GRAD_REDUCE_LAST));
    struct plan_layout_args args = plan_args(&s, NULL);
    args.ops = &ops, args.kind = dev.kind;
    TRY(decoder_init(&d, &s.model, NULL));
    status st = plan_layout(&m, &d, &rank, &a, &args);
    double have = plan_bytes(&s, &dev, NULL);
    if (st == STATUS_OK) {
        *need = (struct plan_need){.bytes = (double)memory_peak(&m), .have = have, .kind = dev.kind};
        if (outlook && json)
            print_json(&s, &m, &d, have, outlook);
        else if (outlook)
            print_text(&s, &m, &d, &(struct machine_text){.name = dev.name, .bytes = have});
        if (outlook && !json && (have <= 0 || (double)memory_peak(&m) <= have))
            print_time(&s, outlook, dev.kind);
        st = check_fit(&m, have, dev.bytes_total > 0 ? plan_host_bytes() : 0, &args);
        if (st == STATUS_OK) st = check_copies(&s, &m, &d.params, have);
    }
    activations_fini(&a);
    decoder_fini(&d);
    dev_close(&dev);
    return st;
}

status plan_print(const struct spec *spec, const struct plan_outlook *outlook, int json)
{
    struct plan_need need;
    return plan_whole(spec, outlook, json, &need);
}

status plan_need_of(const struct spec *spec, struct plan_need *need)
{
    *need = (struct plan_need){.have = 0};
    return plan_whole(spec, NULL, 0, need);
}
