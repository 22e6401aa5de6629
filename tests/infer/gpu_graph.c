/* Goal: on a GPU a step of generation is captured as a graph, for every mixer, and the graph computes what the same launches compute op by
 * op. Method: one trainer, so one choice of algorithms; its generator with and without the graph over the same tokens: the same bits in all
 * logits, the same tokens drawn. A batch of sequences against each sequence alone, within what the order of sums allows, and again with a
 * capacity at which keys are split over many blocks.
 *
 *     gpu_graph_infer [cpu]     cpu: on the host, to try the test itself (nothing is captured there) */
#include "base/parallel.h"
#include "gpu.h"
#include "infer/generate.h"
#include "train/trainer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 96, VOCAB = 250, PROMPT = 37, TOKENS = 48, SEQUENCES = 5, LONG = 1024 };

static int bad;
static enum device there = DEVICE_CUDA;

static void must(status st, const char *name)
{
    if (st == STATUS_OK) return;
    printf("FAIL %s: %s (%s)\n", name, status_message(), status_where());
    exit(1);
}
static void check(bool fine, const char *name, const char *what)
{
    printf("%s %s: %s\n", fine ? "ok  " : "FAIL", name, what);
    bad += !fine;
}

struct form {
    const char *name, *layers;
    bool gpt2, qk_norm, gate, engram, hrm;
    int64_t window, heads_kv, q_rank;
};

static struct spec spec_of(const struct form *f, enum precision precision)
{
    struct spec s = {0};
    struct model_spec *m = &s.model;
    model_spec_default(m);
    run_spec_default(&s.run);
    snprintf(m->layers, sizeof m->layers, "%s", f->layers);
    m->vocab_size = VOCAB, m->layer_count = 3, m->hidden_size = 128, m->ffn_size = 192,
    m->context_length = LONG;
    m->head_count = 4, m->head_count_kv = f->heads_kv ? f->heads_kv : 2, m->head_dim = 64;
    m->window = f->window, m->qk_norm = f->qk_norm, m->attention_gate = f->gate;
    if (f->gpt2)
        m->norm = NORM_LAYERNORM, m->activation = ACT_GELU, m->position = POS_LEARNED,
        m->qkv_bias = m->out_bias = m->mlp_bias = true;
    m->gdn_key_heads = 2, m->gdn_value_heads = 4, m->gdn_key_dim = m->gdn_value_dim = 32;
    m->mamba_heads = 4, m->mamba_head_dim = 64, m->mamba_groups = 2, m->mamba_state = 48;
    m->mla_kv_rank = 64, m->mla_q_rank = f->q_rank;
    m->moe_experts = m->moe_top_k = 4, m->moe_size = m->moe_shared_size = 64;
    if (f->engram) snprintf(m->engram_layers, sizeof m->engram_layers, "0,2");
    m->engram_dim = 16, m->engram_base = 300, m->engram_heads = 4;
    if (f->hrm) m->hrm_cycles = m->hrm_steps = 2, m->hrm_segments = 1, m->hrm_low_layers = 1;
    m->init_std = 0.1;
    s.run.machine_device = there;
    s.run.train_precision = precision;
    s.run.train_sequence_length = s.run.train_batch_tokens = ROWS;
    s.run.train_micro_batch = 1;
    return s;
}

static struct trainer *opened(const struct form *f, enum precision precision)
{
    const struct spec s = spec_of(f, precision);
    struct trainer *t = calloc(1, sizeof *t);
    struct plan_layout_args args = plan_args(&s, NULL);
    if (t == NULL) exit(1);
    args.use = PLAN_FORWARD;
    args.positions = LONG;
    args.micro_count = 1;
    args.docs_max = SEQUENCES;
    args.len_max = ROWS;
    must(trainer_open(t, &s, &args, NULL), f->name);
    must(trainer_init_weights(t), f->name);
    return t;
}

/* The tokens of a prompt; what follows is drawn. */
static int32_t prompt_token(int64_t sequence, int64_t t)
{
    return (int32_t)((t * 7919 + sequence * 31 + 5) % VOCAB);
}

struct trace {
    float logits[TOKENS - PROMPT + 1][SEQUENCES][VOCAB];
    int32_t tokens[TOKENS - PROMPT][SEQUENCES]; /* that were drawn, and appended */
    enum generate_mode mode;
};

/* Sequences [first, first + count), which draw what `forced` says (NULL: from their own logits). */
static void generated(struct trainer *t, const char *name, const struct generate_layout *layout,
                      int64_t first, const struct trace *forced, struct trace *out)
{
    struct generator g;
    int32_t tokens[SEQUENCES * PROMPT];
    const struct sampling s = {.temperature = 1, .top_p = 0.9, .seed = 3};
    must(generate_open(&g, &t->decoder, &t->acts, layout, &t->exec), name);
    for (int64_t b = 0; b < layout->sequences; b++)
        for (int64_t i = 0; i < PROMPT; i++) tokens[b * PROMPT + i] = prompt_token(first + b, i);
    must(generate_append(&g, tokens, PROMPT), name);
    for (int n = 0; n <= TOKENS - PROMPT; n++) {
        for (int64_t b = 0; b < layout->sequences; b++) {
            const float *row = (const float *)g.logits.data + b * g.logits.shape[1];
            memcpy(out->logits[n][b], row, VOCAB * sizeof *row);
            if (n == TOKENS - PROMPT) continue;
            tokens[b] = forced ? forced->tokens[n][first + b] : generate_sample(row, VOCAB, &s, (uint64_t)n);
            out->tokens[n][b] = tokens[b];
        }
        if (n < TOKENS - PROMPT) must(generate_append(&g, tokens, 1), name);
    }
    out->mode = g.mode;
    generate_close(&g);
}

/* Relative L2 distance of a sequence's logits. */
static double distance(const struct trace *want, int64_t sequence, const struct trace *got, int64_t at)
{
    double sum = 0, all = 0;
    for (int n = 0; n <= TOKENS - PROMPT; n++)
        for (int i = 0; i < VOCAB; i++) {
            const double w = (double)want->logits[n][sequence][i], d = (double)got->logits[n][at][i] - w;
            sum += d * d, all += w * w;
        }
    return sqrt(sum / all);
}

static void check_form(const struct form *f, enum precision precision)
{
    static struct trace eager, graph, one, wide;
    char what[96];
    const char *type = precision == PRECISION_BF16 ? "BF16" : "F32";
    const double bound =
        precision == PRECISION_BF16 ? 2e-2 : 1e-4; /* roundings of three layers in another order */
    struct trainer *t = opened(f, precision);
    struct generate_layout layout = {.sequences = SEQUENCES, .capacity = TOKENS, .eager = true};
    memset(&eager, 0, sizeof eager);
    memset(&graph, 0, sizeof graph);
    generated(t, f->name, &layout, 0, NULL, &eager);
    layout.eager = false;
    generated(t, f->name, &layout, 0, NULL, &graph);
    snprintf(what, sizeof what, "%s: a step is captured", type);
    check(graph.mode == (there == DEVICE_CUDA ? GENERATE_REPLAY : GENERATE_EAGER), f->name, what);
    snprintf(what, sizeof what, "%s: graph and op by op, the same bits and tokens", type);
    check(memcmp(eager.logits, graph.logits, sizeof graph.logits) == 0 &&
              memcmp(eager.tokens, graph.tokens, sizeof graph.tokens) == 0,
          f->name, what);
    double alone = 0, longer = 0;
    layout.sequences = 1;
    for (int64_t b = 0; b < SEQUENCES; b++) {
        generated(t, f->name, &layout, b, &graph, &one);
        alone = fmax(alone, distance(&one, 0, &graph, b));
    }
    layout = (struct generate_layout){.sequences = SEQUENCES, .capacity = LONG};
    generated(t, f->name, &layout, 0, &graph, &wide);
    for (int64_t b = 0; b < SEQUENCES; b++) longer = fmax(longer, distance(&graph, b, &wide, b));
    snprintf(what, sizeof what, "%s: in a batch and alone: %.2e of %.1e", type, alone, bound);
    check(alone <= bound, f->name, what);
    snprintf(what, sizeof what, "%s: with a longer cache: %.2e of %.1e", type, longer, bound);
    check(longer <= bound, f->name, what);
    trainer_close(t);
    free(t);
}

int main(int argc, char **argv)
{
    static const struct form forms[] = {
        {.name = "gqa", .layers = "gqa"},
        {.name = "gqa, one key head, norm of q and k, gate",
         .layers = "gqa",
         .heads_kv = 1,
         .qk_norm = true,
         .gate = true},
        {.name = "gpt2", .layers = "gqa", .gpt2 = true, .heads_kv = 4},
        {.name = "swa,gqa", .layers = "2*swa,1*gqa", .window = 20},
        {.name = "mla", .layers = "mla"},
        {.name = "mla with a query rank", .layers = "mla", .q_rank = 96},
        {.name = "gdn,gqa", .layers = "2*gdn,1*gqa"},
        {.name = "mamba2,gqa", .layers = "2*mamba2,1*gqa"},
        {.name = "moe", .layers = "gqa/moe"},
        {.name = "engram", .layers = "gqa", .engram = true},
        {.name = "engram beside gdn", .layers = "1*gqa,1*gdn", .engram = true},
        {.name = "hrm", .layers = "gqa", .hrm = true},
    };
    struct dev d;
    if (argc > 1 && strcmp(argv[1], "cpu") == 0) there = DEVICE_CPU;
    if (there == DEVICE_CUDA && dev_open(&d, DEV_CUDA) != STATUS_OK) {
        printf("%s\n", status_message());
        return gpu_missing();
    }
    parallel_threads_set(0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        check_form(&forms[i], PRECISION_FP32);
        check_form(&forms[i], PRECISION_BF16);
    }
    printf("%d failures\n", bad);
    return bad > 0;
}
