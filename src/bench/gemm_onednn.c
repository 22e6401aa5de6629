/* GEMMs by oneDNN, which `ingot bench gemm` compares with ingot's. No training step uses them.
 *
 * oneDNN derives the blocking, and with it the order of a sum, from the number of threads. Here it only
 * ever sees one thread: the output is partitioned into a grid of chunks that depends on the shape alone,
 * each chunk is one single-threaded primitive, and OpenMP threads process the chunks. Primitives are
 * compiled code. Each is made on first use, under a lock, and kept in a table for the life of the process;
 * the scratchpad of a thread is kept for the life of the thread. */
#include "bench/bench.h"
#if INGOT_ONEDNN
#include "base/parallel.h"
#include "ops/ops.h"

#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The key of a compiled primitive. Hashed and compared as bytes: no padding. */
struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, accum, bias, dt, cdt;
};
static_assert(sizeof(struct key) == 6 * 8 + 6 * 4, "padding would be hashed");

struct entry {
    struct key key;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, c, bias, scratch;
    size_t scratch_bytes;
    struct entry *next;
};

enum { BUCKETS = 1024 };
/* File-scope state: compiled code is shared by all op tables of the process. */
static struct {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    pthread_key_t at_thread_end; /* frees `mine` */
    struct entry *buckets[BUCKETS];
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Thread_local struct own {
    char *scratch;
    size_t scratch_bytes;
    dnnl_stream_t stream;
} mine;

static void ok(dnnl_status_t st, const char *what)
{
    CHECK(st == dnnl_success, "oneDNN: %s returned %d", what, (int)st);
}

static dnnl_data_type_t type_of(dtype dt)
{
    return dt == DTYPE_F32 ? dnnl_f32 : dnnl_bf16;
}

static void describe(dnnl_memory_desc_t *d, int64_t rows, int64_t cols, int64_t ld, bool trans, dtype dt)
{
    dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};
    ok(dnnl_memory_desc_init_by_strides(d, 2, dims, type_of(dt), strides), "memory_desc_init");
}

static struct entry *entry_new(const struct key *key)
{
    struct entry *e = calloc(1, sizeof *e);
    MEMORY_CHECK(e != NULL, "no memory for a GEMM's code");
    e->key = *key;
    describe(&e->a, key->m, key->k, key->lda, key->trans_a, (dtype)key->dt);
    describe(&e->b, key->k, key->n, key->ldb, key->trans_b, (dtype)key->dt);
    describe(&e->c, key->m, key->n, key->ldc, false, (dtype)key->cdt);
    describe(&e->bias, 1, key->n, key->n, false, (dtype)key->dt);
    dnnl_matmul_desc_t op;
    ok(dnnl_matmul_desc_init(&op, &e->a, &e->b, key->bias ? &e->bias : NULL, &e->c), "matmul_desc_init");
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t post;
    ok(dnnl_primitive_attr_create(&attr), "attr_create");
    ok(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad_mode");
    ok(dnnl_post_ops_create(&post), "post_ops_create");
    if (key->accum) ok(dnnl_post_ops_append_sum(post, 1.0f), "append_sum");
    ok(dnnl_primitive_attr_set_post_ops(attr, post), "set_post_ops");
    dnnl_primitive_desc_t pd;
    ok(dnnl_primitive_desc_create(&pd, &op, attr, cache.engine, NULL), "primitive_desc_create");
    ok(dnnl_primitive_create(&e->primitive, pd), "primitive_create");
    e->scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    e->scratch_bytes = dnnl_memory_desc_get_size(&e->scratch);
    ok(dnnl_primitive_desc_destroy(pd), "primitive_desc_destroy");
    ok(dnnl_post_ops_destroy(post), "post_ops_destroy");
    ok(dnnl_primitive_attr_destroy(attr), "attr_destroy");
    return e;
}

/* Teams shrink, and their threads exit. */
static void own_free(void *at)
{
    struct own *o = at;
    free(o->scratch);
    ok(dnnl_stream_destroy(o->stream), "stream_destroy");
    *o = (struct own){0};
}

static void engine_open(void)
{
    ok(dnnl_engine_create(&cache.engine, dnnl_cpu, 0), "engine_create");
    CHECK(pthread_key_create(&cache.at_thread_end, own_free) == 0, "no thread key is left");
}

static const struct entry *entry_get(const struct key *key)
{
    struct entry **at = &cache.buckets[XXH3_64bits(key, sizeof *key) % BUCKETS];
    pthread_mutex_lock(&cache.lock);
    if (!cache.engine) engine_open();
    struct entry *e = *at;
    while (e && memcmp(&e->key, key, sizeof *key) != 0) e = e->next;
    if (!e) {
        e = entry_new(key);
        e->next = *at;
        *at = e;
    }
    pthread_mutex_unlock(&cache.lock);
    return e;
}

static void *scratch_get(size_t bytes)
{
    if (!mine.stream) {
        ok(dnnl_stream_create(&mine.stream, cache.engine, dnnl_stream_default_flags), "stream_create");
        MEMORY_CHECK(pthread_setspecific(cache.at_thread_end, &mine) == 0, "no memory for a thread's key");
    }
    if (bytes > mine.scratch_bytes) {
        free(mine.scratch);
        mine.scratch = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        MEMORY_CHECK(mine.scratch != NULL, "no memory for %zu bytes of scratch in a GEMM", bytes);
        mine.scratch_bytes = bytes;
    }
    return mine.scratch;
}

static dnnl_memory_t memory_at(const dnnl_memory_desc_t *d, const void *p)
{
    dnnl_memory_t m;
    ok(dnnl_memory_create(&m, d, cache.engine, (void *)p), "memory_create");
    return m;
}

static void entry_run(const struct entry *e, const void *a, const void *b, const void *bias, void *c)
{
    enum { ARGS_MAX = 5 };
    dnnl_exec_arg_t args[ARGS_MAX] = {{DNNL_ARG_SRC, memory_at(&e->a, a)},
                                      {DNNL_ARG_WEIGHTS, memory_at(&e->b, b)},
                                      {DNNL_ARG_DST, memory_at(&e->c, c)}};
    int count = 3;
    if (bias) args[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, memory_at(&e->bias, bias)};
    void *scratch = scratch_get(e->scratch_bytes);
    if (e->scratch_bytes)
        args[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, memory_at(&e->scratch, scratch)};
    ok(dnnl_primitive_execute(e->primitive, mine.stream, count, args), "primitive_execute");
    ok(dnnl_stream_wait(mine.stream), "stream_wait");
    for (int i = 0; i < count; i++) ok(dnnl_memory_destroy(args[i].memory), "memory_destroy");
}

static const char *at(const void *p, int64_t index, dtype dt)
{
    return (const char *)p + index * (int64_t)dtype_bytes(dt);
}

static status gemm_run(const struct gemm_args *g, dev_stream s)
{
    (void)s;
    CHECK(g->a.dt == DTYPE_F32 || g->a.dt == DTYPE_BF16, "the fast set has no GEMMs in %s",
          dtype_name(g->a.dt));
    CHECK(g->cdt == g->a.dt || g->cdt == DTYPE_F32, "a GEMM of %s into %s", dtype_name(g->a.dt),
          dtype_name(g->cdt));
    CHECK(g->accum == ACCUM_STORE || g->cdt == DTYPE_F32, "accumulation in %s", dtype_name(g->cdt));
    CHECK(g->m >= 0 && g->n >= 0 && g->k >= 1, "GEMM of %ld x %ld x %ld", (long)g->m, (long)g->n, (long)g->k);
    enum { GRAIN_M = 256, GRAIN_N = 384 };
    int64_t rows = chunk_count(g->m, GRAIN_M), cols = chunk_count(g->n, GRAIN_N);
    PARALLEL_CHUNKS(chunk, rows * cols)
    {
        struct span i = chunk_span(chunk / cols, g->m, GRAIN_M), j = chunk_span(chunk % cols, g->n, GRAIN_N);
        struct key key = {.m = i.end - i.begin,
                          .n = j.end - j.begin,
                          .k = g->k,
                          .lda = g->a.trans ? g->m : g->k,
                          .ldb = g->b.trans ? g->k : g->n,
                          .ldc = g->n,
                          .trans_a = g->a.trans,
                          .trans_b = g->b.trans,
                          .accum = (int32_t)g->accum,
                          .bias = gemm_bias(g) != NULL,
                          .dt = (int32_t)g->a.dt,
                          .cdt = (int32_t)g->cdt};
        int threads = omp_get_max_threads();
        omp_set_num_threads(1);
        entry_run(entry_get(&key), at(g->a.data, g->a.trans ? i.begin : i.begin * g->k, g->a.dt),
                  at(g->b.data, g->b.trans ? j.begin * g->k : j.begin, g->a.dt),
                  gemm_bias(g) ? at(gemm_bias(g), j.begin, g->a.dt) : NULL,
                  (char *)g->c + (i.begin * g->n + j.begin) * (int64_t)dtype_bytes(g->cdt));
        omp_set_num_threads(threads);
    }
    return STATUS_OK;
}

bool gemm_onednn_has(dtype dt)
{
    return dt == DTYPE_F32 ||
           (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

void gemm_onednn(struct ops *o)
{
    o->gemm = gemm_run;
}
#else
bool gemm_onednn_has(dtype dt)
{
    (void)dt;
    return false;
}

void gemm_onednn(struct ops *o)
{
    (void)o;
}
#endif
