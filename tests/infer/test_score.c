/* Goal: log-likelihoods of packed requests are those of each alone. Method: requests of many lengths, more than a batch holds, against the
 * logits of a forward of one text, in models with attention, states and experts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/score.h"
#include "model/init.h"
#include "plan/plan.h"

enum { ROWS = 40, VOCAB = 50, REQUESTS = 9, LONGEST = ROWS + 1 };
static const int lengths[REQUESTS] = {3, 41, 2, 17, 17, 9, 30, 5, 12},
                 firsts[REQUESTS] = {1, 30, 1, 16, 1, 4, 29, 2, 11};

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s (%s)", status_message(), status_where());
}

struct model {
    struct decoder d;
    struct rank_state rank;
    struct activations a;
    struct memory m;
    struct ops ops;
    struct feed feed;
    struct exec run;
};

static void open_model(struct model *m, const struct model_spec *spec)
{
    const struct plan_layout_args args = {.use = PLAN_FORWARD,
                                          .ops = &m->ops,
                                          .dt = DTYPE_F32,
                                          .optim = OPTIM_ADAMW,
                                          .tokens = ROWS,
                                          .docs_max = ROWS,
                                          .documents = true,
                                          .positions = 64};
    const struct feed_shape shape = plan_feed(&args);
    static const struct dev host = {.kind = DEV_CPU};
    memset(m, 0, sizeof *m);
    ok(ops_cpu(&m->ops, NULL));
    ok(decoder_init(&m->d, spec, NULL));
    ok(plan_reserve(&m->m, &m->d, &m->rank, &m->a, &args));
    ok(feed_open(&m->feed, &host, NULL, &shape, NULL));
    m->run = (struct exec){.ops = &m->ops, .params = &m->d.params, .scalars = m->feed.scalars};
    ok(init_weights(&m->d, &m->run, 5));
}

static void close_model(struct model *m)
{
    feed_close(&m->feed);
    activations_fini(&m->a);
    decoder_fini(&m->d);
    memory_free(&m->m);
}

static float logits[ROWS][VOCAB];

/* The request alone, from its logits. */
static void expect(struct model *m, const struct score_request *q, const double *each)
{
    int32_t positions[ROWS], cu[2] = {0, (int32_t)q->count - 1};
    for (int i = 0; i < ROWS; i++) positions[i] = i;
    const struct batch b = {.rows = q->count - 1,
                            .docs = 1,
                            .len_max = q->count - 1,
                            .tokens = q->tokens,
                            .positions = positions,
                            .cu_seqlens = cu};
    struct tensor all = {.data = logits, .dt = DTYPE_F32, .rank = 2, .shape = {q->count - 1, VOCAB}};
    ok(decoder_fwd(&m->d, &m->a, &b, &m->run));
    ok(head_logits(&m->d.head, m->a.y, all, &m->run));
    double sum = 0;
    bool greedy = true;
    for (int64_t i = q->first; i < q->count; i++) {
        const float *row = logits[i - 1];
        double total = 0;
        int best = 0;
        for (int k = 0; k < VOCAB; k++) {
            total += exp((double)row[k]);
            if (row[k] > row[best]) best = k;
        }
        const double nats = (double)row[q->tokens[i]] - log(total);
        if (!(fabs(nats - each[i - q->first]) < 2e-5))
            fail_msg("token %lld of %lld: %g, alone %g", (long long)i, (long long)q->count,
                     each[i - q->first], nats);
        sum += nats;
        greedy = greedy && best == q->tokens[i];
    }
    if (!(fabs(sum - q->loglik) < 1e-4)) fail_msg("sum %g, alone %g", q->loglik, sum);
    assert_int_equal(greedy, q->greedy);
}

/* The alternatives at each place, and what follows the last token: from the logits of the request alone, which `expect` left.
 * Logits of the two forwards differ by roundoff, as in `expect`. */
static void expect_likely(struct model *m, const struct score_request *q)
{
    for (int64_t i = q->first; i < q->count; i++) {
        const struct score_likely *l = q->likely + (i - q->first) * (1 + q->likely_count);
        struct score_likely alone[VOCAB];
        score_likely(logits[i - 1], VOCAB, q->tokens[i], alone, q->likely_count);
        assert_int_equal(l[0].id, q->tokens[i]);
        assert_true(fabs(l[0].nats - q->each[i - q->first]) < 2e-5);
        for (int64_t k = 1; k <= q->likely_count; k++) {
            assert_true(fabs(l[k].nats - alone[k].nats) < 2e-5);
            assert_true(k == 1 || l[k].nats <= l[k - 1].nats);
        }
        assert_true(l[1].nats >= l[0].nats || q->likely_count == 0);
    }
    if (q->next == NULL) return;
    int32_t tokens[LONGEST + 1];
    double last;
    memcpy(tokens, q->tokens, (size_t)q->count * sizeof *tokens);
    tokens[q->count] = 7;
    struct score_request longer = {.tokens = tokens, .count = q->count + 1, .first = q->count, .each = &last};
    const struct scorer s = {&m->d, &m->a, &m->feed, &m->run, ROWS};
    struct score_likely it;
    ok(score(&s, &longer, 1, NULL));
    score_likely(q->next, VOCAB, 7, &it, 0);
    assert_true(fabs(it.nats - last) < 2e-5);
}

static int calls;
static status count_calls(void *ctx, int64_t done, int64_t count)
{
    calls++;
    return done > count ? STATUS_DATA : *(status *)ctx;
}

static void check_model(const struct model_spec *spec)
{
    static int32_t tokens[REQUESTS][LONGEST];
    static double each[REQUESTS][LONGEST];
    struct score_request q[REQUESTS];
    struct model m;
    status stop = STATUS_OK;
    open_model(&m, spec);
    for (int i = 0; i < REQUESTS; i++) {
        for (int t = 0; t < lengths[i]; t++) tokens[i][t] = (t * 7 + i * 11 + 3) % VOCAB;
        q[i] = (struct score_request){
            .tokens = tokens[i], .count = lengths[i], .first = firsts[i], .each = each[i]};
    }
    const struct scorer s = {&m.d, &m.a, &m.feed, &m.run, ROWS};
    ok(score(&s, q, REQUESTS, NULL));
    /* the most likely continuation is known to be it */
    expect(&m, &q[0], each[0]);
    int best = 0;
    for (int k = 0; k < VOCAB; k++)
        if (logits[1][k] > logits[1][best]) best = k;
    tokens[0][2] = best;
    q[0].first = 2;
    const struct score_tick tick = {count_calls, &stop};
    calls = 0;
    ok(score(&s, q, REQUESTS, &tick));
    assert_true(q[0].greedy && calls > 2);
    for (int i = 0; i < REQUESTS; i++) expect(&m, &q[i], each[i]);
    /* with alternatives, and the logits behind those that leave room for a row more */
    static struct score_likely likely[REQUESTS][LONGEST * 4];
    static float next[REQUESTS][VOCAB];
    for (int i = 0; i < REQUESTS; i++) {
        q[i].likely = likely[i];
        q[i].likely_count = i % 4;
        q[i].next = i % 2 == 0 ? next[i] : NULL;
    }
    ok(score(&s, q, REQUESTS, NULL));
    for (int i = 0; i < REQUESTS; i++) {
        expect(&m, &q[i], each[i]);
        expect_likely(&m, &q[i]);
    }
    struct score_request bare = {.tokens = tokens[2], .count = 1, .first = 1, .next = next[0]};
    ok(score(&s, &bare, 1, NULL));
    int32_t pair[2] = {tokens[2][0], 9};
    double nats;
    struct score_likely it;
    struct score_request two = {.tokens = pair, .count = 2, .first = 1, .each = &nats};
    ok(score(&s, &two, 1, NULL));
    score_likely(next[0], VOCAB, 9, &it, 0);
    assert_true(fabs(it.nats - nats) < 2e-5);
    stop = STATUS_STOPPED;
    assert_int_equal(score(&s, q, REQUESTS, &tick), STATUS_STOPPED);
    tokens[1][0] = VOCAB;
    assert_int_equal(score(&s, q, REQUESTS, NULL), STATUS_DATA);
    close_model(&m);
}

static void packed_requests_score_as_alone(void **state)
{
    (void)state;
    struct model_spec s;
    model_spec_default(&s);
    s.vocab_size = VOCAB, s.layer_count = 3, s.hidden_size = 32, s.ffn_size = 48, s.head_count = 4;
    s.head_count_kv = 2, s.head_dim = 8, s.context_length = 64, s.init_std = 0.2;
    check_model(&s);
    struct model_spec f = s;
    f.position = POS_LEARNED, f.norm = NORM_LAYERNORM;
    check_model(&f);
    f = s;
    f.gdn_key_heads = 2, f.gdn_value_heads = 4, f.gdn_key_dim = 8, f.gdn_value_dim = 8;
    snprintf(f.layers, sizeof f.layers, "2*gdn,1*gqa");
    check_model(&f);
    f = s;
    f.moe_experts = 4, f.moe_top_k = 2, f.moe_size = 16;
    snprintf(f.layers, sizeof f.layers, "gqa,2*gqa/moe");
    check_model(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_requests_score_as_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
