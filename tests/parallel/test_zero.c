/* The slots that units of ZeRO 2 and 3 pass through: of a unit at work nothing is overwritten, and what comes next is there before. On the
 * host an exchange is done when it is queued, so a slot that is filled too early shows what a GPU's would show at times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "dev/driver_int.h"
#include "parallel/zero.h"

enum { BLOCKS = 5, END = BLOCKS + 1, UNITS = END + 2 /* an extra prediction */, EXPERTS = UNITS, WITH = 3 };
struct fixture {
    struct params p;
    struct arena param, grad;
    struct mesh mesh;
    struct grad_reduce grad_reduce;
    struct side_stream side_stream;
    struct ops ops;
    struct zero zero;
};

/* One rank: its all-gather is a copy of its own data. `main`: of the step; NULL: the host. */
static void fixture_open_on(struct fixture *f, bool stays, int64_t groups, dev_stream main)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(arena_reserve(&f->param, "weights", 1 << 22), STATUS_OK);
    assert_int_equal(arena_reserve(&f->grad, "gradients", 1 << 23), STATUS_OK);
    for (int u = 0; u < UNITS; u++) {
        params_unit(&f->p);
        params_add(&f->p, ROLE_MATRIX, 0, 64, 100 + u, "unit.%d", u);
    }
    params_experts(&f->p, WITH);
    params_add(&f->p, ROLE_MATRIX, 0, 64, 300, "experts of block %d", WITH);
    f->p.zero = 3, f->p.shards = f->p.expert_shards = 1;
    params_layout(&f->p, &(struct params_layout_args){
                             .dt = DTYPE_F32, .with_grad = 1, .arenas = {&f->param, &f->grad, &f->param}});
    f->mesh =
        mesh_place(&(struct mesh_shape){.pp = 1, .dp = 1, .tp = 1, .chunks = 1, .zero = 3, .shard = 1}, 0);
    assert_int_equal(ops_cpu(&f->ops, NULL), STATUS_OK);
    grad_reduce_layout(&f->grad_reduce, &f->mesh, groups, &f->p, &f->grad);
    zero_layout(&f->zero, &f->p,
                &(struct zero_layout){.mesh = &f->mesh,
                                      .param = &f->param,
                                      .grad = &f->grad,
                                      .train = 1,
                                      .end = END,
                                      .stores = 1,
                                      .embedding_resident = stays});
    assert_int_equal(side_stream_open(&f->side_stream, main), STATUS_OK);
    assert_int_equal(zero_open(&f->zero, &(struct zero_open){.grad_reduce = &f->grad_reduce,
                                                             .ops = &f->ops,
                                                             .side_stream = &f->side_stream}),
                     STATUS_OK);
    zero_invalidate(&f->zero);
}
static void fixture_open(struct fixture *f, bool stays, int64_t groups)
{
    fixture_open_on(f, stays, groups, NULL);
}

static void fixture_close(struct fixture *f)
{
    zero_close(&f->zero);
    side_stream_close(&f->side_stream);
    params_free(&f->p);
    arena_free(&f->param);
    arena_free(&f->grad);
}

static void fill(const struct params *p, float *x, int unit, float value)
{
    for (int64_t i = 0; i < p->units[unit].count; i++) x[i] = value;
}

static void holds(const struct params *p, const float *x, int unit, float value)
{
    assert_non_null(x);
    for (int64_t i = 0; i < p->units[unit].count; i++)
        if (x[i] != value)
            fail_msg("unit %d: element %lld is %g, not %g", unit, (long long)i, (double)x[i], (double)value);
}

static void own_is(struct fixture *f, int unit, float value)
{
    fill(&f->p, (float *)f->p.weight + f->p.units[unit].begin, unit, value);
}

/* Enters a unit; `next` (-1: none) is on its way from then on: what its weights become later is not seen. */
static void enter(struct fixture *f, int unit, enum unit_use use, int next)
{
    assert_int_equal(params_unshard(&f->p, unit, use), STATUS_OK);
    if (use == UNIT_FORWARD || unit > 0) holds(&f->p, f->p.units[unit].weight, unit, (float)unit);
    for (int u = 0; u < UNITS; u++) own_is(f, u, u == next || u == unit ? -1 : (float)u);
}

static void weights_of_the_next_unit_are_on_their_way(void **state)
{
    (void)state;
    for (int stays = 0; stays <= 1; stays++) {
        struct fixture f;
        fixture_open(&f, stays, 2);
        for (int u = 0; u < UNITS; u++) own_is(&f, u, (float)u);
        assert_int_equal(zero_all_gather_weights(&f.zero), STATUS_OK);
        if (stays) own_is(&f, 0, -1); /* is there from then on */
        zero_invalidate(&f.zero);
        for (int k = 0; k < 2; k++) {
            f.zero.group = k;
            for (int u = 0; u <= END; u++) enter(&f, u, UNIT_FORWARD, u < END ? u + 1 : -1);
            if (stays) { /* an MTP module comes after the end */
                enter(&f, END, UNIT_BACKWARD, BLOCKS);
                enter(&f, END + 1, UNIT_FORWARD, -1);
                enter(&f, END + 1, UNIT_BACKWARD, BLOCKS);
            }
            for (int u = BLOCKS; u > 0; u--) enter(&f, u, UNIT_BACKWARD, u > 1 || k == 0 ? u - 1 : -1);
            enter(&f, 0, UNIT_BACKWARD, k == 0 ? 0 : -1);
        }
        fixture_close(&f);
    }
}

static void a_block_that_is_left_keeps_its_gradients(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, true, 1);
    for (int u = 0; u < UNITS; u++) own_is(&f, u, (float)u);
    float *before = NULL;
    for (int u = BLOCKS; u > 0; u--) {
        assert_int_equal(params_unshard(&f.p, u, UNIT_BACKWARD), STATUS_OK);
        holds(&f.p, f.p.units[u].grad, u, 0);
        if (before) holds(&f.p, before, u, (float)(u + 1)); /* its sum may be under way */
        before = f.p.units[u].grad;
        fill(&f.p, before, u, (float)u);
        fill(&f.p, before, u + 1, (float)u); /* to the end of the place */
        assert_int_equal(params_reshard(&f.p, u), STATUS_OK);
        assert_null(f.p.units[u].grad);
    }
    fixture_close(&f);
}

/* The experts of a block, a unit of their own, are there while the block computes; their gradients are complete with those of inputs. */
static void experts_come_and_go_with_their_block(void **state)
{
    (void)state;
    for (int half = ZERO_WHOLE; half <= ZERO_INPUTS; half++) {
        struct fixture f;
        fixture_open(&f, false, 1);
        struct param_unit *experts = &f.p.units[EXPERTS];
        own_is(&f, EXPERTS, 7);
        for (int u = 0; u <= END; u++) {
            assert_int_equal(params_unshard(&f.p, u, UNIT_FORWARD), STATUS_OK);
            if (u < WITH) assert_null(experts->weight);
            if (u == WITH) holds(&f.p, experts->weight, EXPERTS, 7);
            assert_null(experts->grad);
        }
        f.zero.half = (enum zero_half)half;
        for (int u = BLOCKS; u > 0; u--) {
            assert_int_equal(params_unshard(&f.p, u, UNIT_BACKWARD), STATUS_OK);
            assert_true((experts->grad != NULL) == (u == WITH));
            if (u == WITH) holds(&f.p, experts->weight, EXPERTS, 7);
            if (u == WITH) holds(&f.p, experts->grad, EXPERTS, 0);
            assert_int_equal(params_reshard(&f.p, u), STATUS_OK);
            assert_null(experts->grad);
        }
        f.zero.half = ZERO_WEIGHTS;
        for (int u = BLOCKS; u > 0 && half == ZERO_INPUTS; u--) {
            assert_int_equal(params_unshard(&f.p, u, UNIT_BACKWARD), STATUS_OK);
            assert_null(experts->grad);
            assert_int_equal(params_reshard(&f.p, u), STATUS_OK);
        }
        fixture_close(&f);
    }
}

/* ---- captured steps. A device that runs work when it is queued, and has CUDA's rules for a graph that is captured: a stream comes to it
 * by waiting for an event of it, waits for no other events, and is waited for before the graph ends. */

struct queue {
    int graph;        /* that it is in; 0: none */
    int work, joined; /* queued; of it the graph's stream waits for */
};
struct mark {
    struct queue *of;
    int graph, work;
};
static struct {
    struct queue queues[2];
    struct mark marks[32];
    int queue_count, mark_count, graph, graph_count; /* graph: the one that is captured */
} device;

static status queue_open(struct stream *s)
{
    assert_true(device.queue_count < 2);
    s->queue = &device.queues[device.queue_count++];
    return STATUS_OK;
}
static void queue_close(struct stream *s)
{
    s->queue = NULL;
}
static status queue_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    memmove(to, from, bytes);
    ((struct queue *)s->queue)->work++;
    return STATUS_OK;
}
static status queue_zero(struct stream *s, void *to, size_t bytes)
{
    memset(to, 0, bytes);
    ((struct queue *)s->queue)->work++;
    return STATUS_OK;
}
static status mark_open(struct event *e, bool timed)
{
    (void)timed;
    assert_true(device.mark_count < 32);
    e->mark = &device.marks[device.mark_count++];
    return STATUS_OK;
}
static void mark_close(struct event *e)
{
    e->mark = NULL;
}
static status mark_record(struct stream *s, struct event *e)
{
    struct queue *q = s->queue;
    *(struct mark *)e->mark = (struct mark){q, q->graph, q->work};
    return STATUS_OK;
}
static status queue_wait(struct stream *s, const struct event *e)
{
    struct queue *q = s->queue;
    const struct mark *m = e->mark;
    if (q->graph ? m->graph != q->graph : m->graph && m->graph != device.graph)
        return FAIL(STATUS_DEVICE, "a wait for an event that is not of the graph");
    q->graph = m->graph;
    q->work++;
    if (m->of) m->of->joined = m->work;
    return STATUS_OK;
}
static status graph_begin(struct stream *s)
{
    assert_int_equal(device.graph, 0);
    device.graph = ((struct queue *)s->queue)->graph = ++device.graph_count;
    return STATUS_OK;
}
static status graph_end(struct stream *s, struct graph *g, bool keep)
{
    bool alone = true;
    (void)g, (void)keep;
    for (int i = 0; i < 2; i++) {
        struct queue *q = &device.queues[i];
        if (q != s->queue && q->graph == device.graph && q->joined != q->work) alone = false;
        q->graph = 0;
    }
    device.graph = 0;
    return alone ? STATUS_OK : FAIL(STATUS_DEVICE, "the graph ends before a stream that is in it");
}
static const struct dev_driver driver = {.stream_open = queue_open,
                                         .stream_close = queue_close,
                                         .copy = queue_copy,
                                         .zero = queue_zero,
                                         .event_open = mark_open,
                                         .event_close = mark_close,
                                         .event_record = mark_record,
                                         .stream_wait = queue_wait,
                                         .graph_begin = graph_begin,
                                         .graph_end = graph_end};

static void passes(struct fixture *f)
{
    zero_invalidate(&f->zero);
    for (int u = 0; u <= END; u++) assert_int_equal(params_unshard(&f->p, u, UNIT_FORWARD), STATUS_OK);
    for (int u = END; u >= 0; u--) {
        assert_int_equal(params_unshard(&f->p, u, UNIT_BACKWARD), STATUS_OK);
        assert_int_equal(params_reshard(&f->p, u), STATUS_OK);
    }
    assert_int_equal(zero_end(&f->zero), STATUS_OK);
}

/* One graph, or, where the host looks at the gradients in between (train.on_spike=skip), two. */
static void a_step_and_its_update_are_captured(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        const struct dev dev = {.kind = DEV_CUDA, .driver = &driver};
        struct stream main;
        struct graph g;
        struct fixture f;
        memset(&device, 0, sizeof device);
        assert_int_equal(dev_stream_open(&dev, &main), STATUS_OK);
        fixture_open_on(&f, way % 2, 1, &main);
        assert_int_equal(zero_all_gather_weights(&f.zero), STATUS_OK);
        passes(&f);
        assert_int_equal(zero_all_gather_weights(&f.zero), STATUS_OK);
        assert_int_equal(dev_graph_begin(&main), STATUS_OK);
        passes(&f);
        if (way >= 2) assert_int_equal(dev_graph_end(&main, &g, true), STATUS_OK);
        if (way >= 2) assert_int_equal(dev_graph_begin(&main), STATUS_OK);
        assert_int_equal(zero_all_gather_weights(&f.zero), STATUS_OK);
        assert_int_equal(dev_graph_end(&main, &g, true), STATUS_OK);
        fixture_close(&f);
        dev_stream_close(&main);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_of_the_next_unit_are_on_their_way),
                                       cmocka_unit_test(a_block_that_is_left_keeps_its_gradients),
                                       cmocka_unit_test(experts_come_and_go_with_their_block),
                                       cmocka_unit_test(a_step_and_its_update_are_captured)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
