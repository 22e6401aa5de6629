/* GGUF files, byte by byte: head, keys, shapes, places and values of the fixtures of Hugging Face; types against their
 * definitions; models that have no counterpart. tools/check_gguf.py compares with llama.cpp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../temp.h"
#include "hf_fixture.h"
#include "model/gguf_int.h"
#include "plan/plan.h"

#include <math.h>

struct file {
    char *data;
    size_t bytes, at;
};
struct found { /* a tensor of a file */
    uint32_t rank, type;
    uint64_t shape[4], at;
    const char *data;
};

static const void *take(struct file *f, size_t bytes)
{
    assert_true(bytes <= f->bytes - f->at);
    f->at += bytes;
    return f->data + f->at - bytes;
}

static uint64_t take_int(struct file *f, size_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, take(f, bytes), bytes);
    return v;
}

static const char *take_text(struct file *f, size_t *bytes)
{
    *bytes = take_int(f, 8);
    return take(f, *bytes);
}

static size_t kind_bytes(uint32_t kind)
{
    return kind == GGUF_KIND_BOOL ? 1 : 4;
}

/* Passes over a value; copies it to `value` as text when the kind is simple. */
static void take_value(struct file *f, char value[256])
{
    uint32_t kind = (uint32_t)take_int(f, 4);
    size_t n = 0;
    float real;
    value[0] = 0;
    if (kind == GGUF_KIND_TEXT) {
        const char *text = take_text(f, &n);
        snprintf(value, 256, "%.*s", (int)n, text);
    } else if (kind == GGUF_KIND_LIST) {
        const uint32_t of = (uint32_t)take_int(f, 4);
        const uint64_t count = take_int(f, 8);
        for (uint64_t i = 0; i < count; i++)
            if (of == GGUF_KIND_TEXT)
                take_text(f, &n);
            else
                take(f, kind_bytes(of));
        snprintf(value, 256, "%llu", (unsigned long long)count);
    } else if (kind == GGUF_KIND_F32) {
        memcpy(&real, take(f, 4), 4);
        snprintf(value, 256, "%g", (double)real);
    } else {
        snprintf(value, 256, "%llu", (unsigned long long)take_int(f, kind_bytes(kind)));
    }
}

/* Reads head and tensors. The value of `key` goes to `value`, the tensor `name` to *t: it must be there. */
static void look(struct file *f, const char *key, char value[256], const char *name, struct found *t)
{
    char other[256];
    bool has_key = key == NULL, has_tensor = name == NULL;
    f->at = 0;
    assert_memory_equal(take(f, 4), "GGUF", 4);
    assert_int_equal(take_int(f, 4), 3);
    const uint64_t tensors = take_int(f, 8), keys = take_int(f, 8);
    for (uint64_t i = 0; i < keys; i++) {
        size_t n;
        const char *text = take_text(f, &n);
        const bool ours = key && n == strlen(key) && memcmp(text, key, n) == 0;
        take_value(f, ours ? value : other);
        has_key |= ours;
    }
    for (uint64_t i = 0; i < tensors; i++) {
        size_t n;
        struct found one = {0};
        const char *text = take_text(f, &n);
        one.rank = (uint32_t)take_int(f, 4);
        assert_in_range(one.rank, 1, 3);
        for (uint32_t k = 0; k < one.rank; k++) one.shape[k] = take_int(f, 8);
        one.type = (uint32_t)take_int(f, 4);
        one.at = take_int(f, 8);
        assert_int_equal(one.at % 32, 0);
        if (!name || n != strlen(name) || memcmp(text, name, n) != 0) continue;
        *t = one;
        has_tensor = true;
    }
    if (!has_key || !has_tensor) fail_msg("no %s, or no %s", key ? key : "-", name ? name : "-");
    const size_t begin = (f->at + 31) / 32 * 32;
    assert_true(begin <= f->bytes);
    if (name) t->data = f->data + begin + t->at;
}

struct model {
    struct decoder d;
    struct rank_state rank;
    struct activations a;
    struct memory memory;
    struct ops ops;
    struct safetensors *hf; /* its weights, as Hugging Face stores them */
    struct file file;
};

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s (%s)", status_message(), status_where());
}

static const char *dir_of(const char *name)
{
    static char dir[600];
    snprintf(dir, sizeof dir, "%s/tests/fixtures/hf/%s", hf_source_dir(), name);
    return dir;
}

static void model_open(struct model *m, const struct model_spec *spec)
{
    memset(m, 0, sizeof *m);
    ok(ops_cpu(&m->ops, NULL));
    ok(decoder_init(&m->d, spec, NULL));
    ok(plan_reserve(&m->memory, &m->d, &m->rank, &m->a,
                    &(struct plan_layout_args){.use = PLAN_TRAIN,
                                               .ops = &m->ops,
                                               .dt = DTYPE_F32,
                                               .optim = OPTIM_ADAMW,
                                               .tokens = 8,
                                               .positions = 8}));
}

static void fixture_open(struct model *m, const char *name)
{
    struct model_spec spec;
    ok(hf_config_read(&spec, dir_of(name)));
    model_open(m, &spec);
    ok(hf_weights_read(&m->d, dir_of(name)));
    ok(safetensors_open(&m->hf, dir_of(name)));
}

static status export_as(struct model *m, enum gguf_type type, const struct tokenizer *tok)
{
    const struct gguf_source s = {.d = &m->d,
                                  .tokenizer = tok,
                                  .bos = -1,
                                  .eos = tok ? tokenizer_eot(tok) : -1,
                                  .name = "test",
                                  .type = type};
    free(m->file.data);
    m->file = (struct file){0};
    TRY(gguf_write(&s, temp_path("m.gguf")));
    return io_read_file(temp_path("m.gguf"), 1 << 24, &m->file.data, &m->file.bytes);
}

static void model_close(struct model *m)
{
    free(m->file.data);
    if (m->hf) safetensors_close(m->hf);
    activations_fini(&m->a);
    decoder_fini(&m->d);
    memory_free(&m->memory);
}

static float f32_at(const char *data, int64_t i)
{
    float v;
    memcpy(&v, data + 4 * i, 4);
    return v;
}

enum order { AS_IS, TRANSPOSED, INTERLEAVED };
/* A matrix in f32 is that of Hugging Face's file, in `order`; `head` rows are one head. */
static void assert_matrix(struct model *m, const char *name, const char *theirs, enum order order,
                          int64_t head)
{
    struct found t;
    char value[256];
    const struct safetensor *h = safetensors_find(m->hf, theirs);
    assert_non_null(h);
    look(&m->file, NULL, value, name, &t);
    const int64_t rows = h->shape[order == TRANSPOSED], columns = h->shape[order != TRANSPOSED];
    assert_int_equal(t.rank, 2);
    assert_int_equal(t.shape[0], columns);
    assert_int_equal(t.shape[1], rows);
    assert_int_equal(t.type, GGUF_F32);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            int64_t from = r;
            if (order == INTERLEAVED) from = r / head * head + r % 2 * (head / 2) + r % head / 2;
            const int64_t at = order == TRANSPOSED ? c * rows + r : from * columns + c;
            if (f32_at(t.data, r * columns + c) != f32_at(h->data, at))
                fail_msg("%s [%lld, %lld]", name, (long long)r, (long long)c);
        }
}

static void assert_key(struct model *m, const char *key, const char *want)
{
    char value[256];
    look(&m->file, key, value, NULL, NULL);
    assert_string_equal(value, want);
}

static void weights_and_keys_are_those_of_the_model(void **state)
{
    (void)state;
    struct model m;
    fixture_open(&m, "llama");
    ok(export_as(&m, GGUF_F32, NULL));
    assert_key(&m, "general.architecture", "llama");
    assert_key(&m, "general.file_type", "0");
    assert_key(&m, "llama.attention.head_count_kv", "2");
    assert_key(&m, "llama.rope.dimension_count", "8");
    assert_key(&m, "llama.attention.layer_norm_rms_epsilon", "1e-05");
    assert_key(&m, "tokenizer.ggml.model", "no_vocab");
    assert_matrix(&m, "token_embd.weight", "model.embed_tokens.weight", AS_IS, 0);
    assert_matrix(&m, "output.weight", "lm_head.weight", AS_IS, 0);
    assert_matrix(&m, "blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", INTERLEAVED, 8);
    assert_matrix(&m, "blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight", INTERLEAVED, 8);
    assert_matrix(&m, "blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight", AS_IS, 0);
    assert_matrix(&m, "blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight", AS_IS, 0);
    assert_matrix(&m, "blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight", AS_IS, 0);
    model_close(&m);
    fixture_open(&m, "qwen3");
    ok(export_as(&m, GGUF_F32, NULL));
    assert_key(&m, "qwen3.attention.key_length", "16");
    assert_matrix(&m, "blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", AS_IS, 0);
    model_close(&m);
    fixture_open(&m, "gpt2");
    ok(export_as(&m, GGUF_F32, NULL));
    assert_key(&m, "gpt2.attention.layer_norm_epsilon", "1e-05");
    assert_matrix(&m, "blk.1.attn_qkv.weight", "transformer.h.1.attn.c_attn.weight", TRANSPOSED, 0);
    assert_matrix(&m, "position_embd.weight", "transformer.wpe.weight", AS_IS, 0);
    model_close(&m);
}

/* What llama3 divides frequency i by: 1, the factor, or between them, by its wavelength. */
static double llama3_divisor(const struct model_spec *m, double wavelength)
{
    const double turns = (double)m->rope_original / wavelength;
    if (turns > m->rope_high_freq) return 1;
    if (turns < m->rope_low_freq) return m->rope_factor;
    const double mix = (turns - m->rope_low_freq) / (m->rope_high_freq - m->rope_low_freq);
    return 1 / ((1 - mix) / m->rope_factor + mix);
}

static void llama3_gives_its_frequencies(void **state)
{
    (void)state;
    struct model m;
    struct found t;
    char value[256];
    fixture_open(&m, "llama_llama3");
    ok(export_as(&m, GGUF_F16, NULL));
    look(&m.file, "general.file_type", value, "rope_freqs.weight", &t);
    assert_string_equal(value, "1");
    const int64_t half = m.d.blocks[0].mixer.attn.head_dim / 2;
    assert_int_equal(t.shape[0], half);
    for (int64_t i = 0; i < half; i++) {
        const double wavelength = 6.283185307179586 * pow(m.d.spec.rope_theta, (double)i / (double)half);
        assert_true(fabs((double)f32_at(t.data, i) - llama3_divisor(&m.d.spec, wavelength)) < 1e-5);
    }
    assert_true((double)f32_at(t.data, half - 1) == m.d.spec.rope_factor);
    look(&m.file, NULL, value, "blk.0.attn_q.weight", &t);
    assert_int_equal(t.type, GGUF_F16);
    look(&m.file, NULL, value, "blk.0.attn_norm.weight", &t);
    assert_int_equal(t.type, GGUF_F32);
    model_close(&m);
}

/* The rotation of llama.cpp's ggml_rope_ext by these keys, as its rope_yarn and rope_yarn_corr_dims compute it: angle per
 * position of pair i, and the factor on cos and sin. */
static double ggml_yarn(const struct model_spec *m, int64_t i, double attn_factor, double *factor)
{
    const double dims = (double)m->hidden_size / (double)m->head_count, scale = 1 / m->rope_factor,
                 original = (double)m->rope_original, base = m->rope_theta;
    double at[2];
    for (int k = 0; k < 2; k++) {
        const double beta = k ? 1 : 32;
        at[k] = dims * log(original / (beta * 2 * 3.14159265358979323846)) / (2 * log(base));
    }
    const double low = fmax(0, floor(at[0])), high = fmin(dims - 1, ceil(at[1]));
    const double y = ((double)i - low) / fmax(0.001, high - low), mix = 1 - fmin(1, fmax(0, y));
    const double extrapolated = pow(base, -2 * (double)i / dims);
    *factor = attn_factor * (1 + 0.1 * log(1 / scale));
    return scale * extrapolated * (1 - mix) + extrapolated * mix;
}

static void yarn_is_what_llama_cpp_computes_from_its_keys(void **state)
{
    (void)state;
    for (int given = 0; given < 2; given++) {
        struct model m;
        struct model_spec spec;
        char value[256];
        double inv[64], factor = 0;
        ok(hf_config_read(&spec, dir_of("llama_yarn")));
        if (given) spec.rope_attention_factor = 1.25;
        model_open(&m, &spec);
        ok(export_as(&m, GGUF_F32, NULL));
        assert_key(&m, "llama.rope.scaling.type", "yarn");
        assert_key(&m, "llama.rope.scaling.factor", "4");
        assert_key(&m, "llama.rope.scaling.original_context_length", "16");
        double attn_factor = 1;
        if (given) {
            look(&m.file, "llama.rope.scaling.attn_factor", value, NULL, NULL);
            attn_factor = strtod(value, NULL);
        } else {
            assert_null(memmem(m.file.data, m.file.bytes, "attn_factor", 11));
        }
        const int64_t half = m.d.blocks[0].mixer.attn.head_dim / 2;
        const double ours = rope_frequencies(&m.d.spec, inv, half);
        for (int64_t i = 0; i < half; i++)
            assert_true(fabs(inv[i] - ggml_yarn(&m.d.spec, i, attn_factor, &factor)) < 1e-12);
        assert_true(fabs(ours - factor) < 1e-5); /* a key has an f32, printed with few digits */
        model_close(&m);
        spec.rope_beta_fast = 16;
        model_open(&m, &spec);
        assert_int_equal(export_as(&m, GGUF_F32, NULL), STATUS_CONFIG);
        assert_non_null(strstr(status_message(), "rope_beta_fast: 16"));
        model_close(&m);
    }
}

/* All layers are mixtures; gate, up and down of each expert lie one behind the other. */
static void experts_are_one_tensor_of_each_kind(void **state)
{
    (void)state;
    struct model m;
    struct model_spec spec;
    struct found t;
    char value[256];
    ok(hf_config_read(&spec, dir_of("qwen3_moe")));
    model_open(&m, &spec);
    assert_int_equal(export_as(&m, GGUF_F32, NULL), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "layer 1 (mlp)"));
    model_close(&m);
    snprintf(spec.layers, sizeof spec.layers, "gqa/moe");
    model_open(&m, &spec);
    const int up = params_find(&m.d.params, "layers.2.moe.experts.up.weight"),
              down = params_find(&m.d.params, "layers.2.moe.experts.down.weight");
    const int64_t size = spec.moe_size, width = spec.hidden_size, experts = spec.moe_experts;
    float *ups = params_master(&m.d.params, up), *downs = params_master(&m.d.params, down);
    for (int64_t i = 0; i < 2 * experts * size * width; i++) ups[i] = (float)i;
    for (int64_t i = 0; i < experts * size * width; i++) downs[i] = -(float)i;
    ok(export_as(&m, GGUF_F32, NULL));
    assert_key(&m, "qwen3moe.expert_feed_forward_length", "20");
    static const char *const names[] = {"blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight"};
    for (int which = 0; which < 2; which++) {
        look(&m.file, NULL, value, names[which], &t);
        assert_int_equal(t.rank, 3);
        assert_int_equal(t.shape[0], width);
        assert_int_equal(t.shape[1], size);
        assert_int_equal(t.shape[2], experts);
        for (int64_t e = 0; e < experts; e++)
            for (int64_t i = 0; i < size * width; i++)
                assert_true(f32_at(t.data, e * size * width + i) ==
                            (float)((2 * e + which) * size * width + i));
    }
    look(&m.file, NULL, value, "blk.2.ffn_down_exps.weight", &t);
    assert_int_equal(t.shape[0], size);
    for (int64_t i = 0; i < experts * size * width; i++) assert_true(f32_at(t.data, i) == -(float)i);
    look(&m.file, NULL, value, "blk.2.ffn_gate_inp.weight", &t);
    model_close(&m);
}

static void the_tokenizer_goes_along_or_is_refused(void **state)
{
    (void)state;
    struct model m;
    struct tokenizer *tok;
    struct text doc = {"the quick brown fox and the lazy dog and the rest", 49};
    const char *specials[] = {"<|endoftext|>"};
    struct tokenizer_train_config c = {
        .pretokenizer = "llama3", .vocab_size = 261, .specials = specials, .special_count = 1};
    ok(tokenizer_train(&tok, &c, &doc, 1));
    fixture_open(&m, "llama");
    m.d.spec.vocab_size = 260;
    assert_int_equal(export_as(&m, GGUF_F32, tok), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "261 ids, the model 260"));
    tokenizer_free(tok);
    c.vocab_size = 259; /* 256 bytes, two merges, the end of text */
    ok(tokenizer_train(&tok, &c, &doc, 1));
    ok(export_as(&m, GGUF_F32, tok));
    assert_key(&m, "tokenizer.ggml.model", "gpt2");
    assert_key(&m, "tokenizer.ggml.pre", "llama-bpe");
    assert_key(&m, "tokenizer.ggml.tokens", "260");
    assert_key(&m, "tokenizer.ggml.merges", "2");
    assert_key(&m, "tokenizer.ggml.eos_token_id", "258");
    assert_non_null(memmem(m.file.data, m.file.bytes, "\x0d\0\0\0\0\0\0\0<|endoftext|>", 21));
    assert_non_null(memmem(m.file.data, m.file.bytes, "[PAD259]", 8));
    assert_non_null(memmem(m.file.data, m.file.bytes, "\xc4\xa0", 2)); /* the letter of a blank */
    tokenizer_free(tok);
    c.pretokenizer = "nanochat";
    ok(tokenizer_train(&tok, &c, &doc, 1));
    assert_int_equal(export_as(&m, GGUF_F32, tok), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "nanochat"));
    tokenizer_free(tok);
    model_close(&m);
}

/* A message of a protocol buffer, as SentencePiece writes it. */
struct proto {
    char data[512];
    size_t bytes;
};
static void put_bytes(struct proto *p, int number, const void *data, size_t bytes)
{
    assert_true(bytes < 128 && number < 16);
    p->data[p->bytes++] = (char)(number << 3 | 2);
    p->data[p->bytes++] = (char)bytes;
    memcpy(p->data + p->bytes, data, bytes);
    p->bytes += bytes;
}
static void put_number(struct proto *p, int number, int value)
{
    assert_true(value < 128);
    const int key = number << 3;
    if (key > 127) p->data[p->bytes++] = (char)((key & 127) | 128);
    p->data[p->bytes++] = (char)(key > 127 ? key >> 7 : key);
    p->data[p->bytes++] = (char)value;
}
static void put_piece(struct proto *p, const char *text, float score, int type)
{
    struct proto piece = {.bytes = 0};
    put_bytes(&piece, 1, text, strlen(text));
    piece.data[piece.bytes++] = 2 << 3 | 5;
    memcpy(piece.data + piece.bytes, &score, 4);
    piece.bytes += 4;
    if (type != SP_NORMAL) put_number(&piece, 3, type);
    put_bytes(p, 1, piece.data, piece.bytes);
}

/* Five pieces, and settings of trainer and normalizer. */
static void pieces_of(struct sentencepiece *sp, int model, int removes_blanks)
{
    struct proto all = {.bytes = 0}, trainer = {.bytes = 0}, normalizer = {.bytes = 0};
    put_piece(&all, "<unk>", 0, SP_UNKNOWN);
    put_piece(&all, "<s>", 0, SP_CONTROL);
    put_piece(&all, "</s>", 0, SP_CONTROL);
    put_piece(&all, "<0x00>", 0, SP_BYTE);
    put_piece(&all, "\xe2\x96\x81the", -7.5f, SP_NORMAL);
    put_number(&trainer, 3, model);
    put_number(&trainer, 41, 1);
    put_number(&normalizer, 4, removes_blanks);
    put_bytes(&all, 2, trainer.data, trainer.bytes);
    put_bytes(&all, 3, normalizer.data, normalizer.bytes);
    char *copy = malloc(all.bytes);
    assert_non_null(copy);
    memcpy(copy, all.data, all.bytes);
    ok(sentencepiece_parse(sp, "test", copy, all.bytes));
}

static status export_pieces(struct model *m, const struct sentencepiece *sp)
{
    struct gguf_head h = {0};
    status st = gguf_put_tokenizer(&h, &(struct gguf_source){.d = &m->d, .pieces = sp, .bos = -1, .eos = -1});
    if (st == STATUS_OK) {
        static const float score = -7.5f;
        assert_non_null(memmem(h.data, h.bytes, "\xe2\x96\x81the", 6));
        assert_non_null(memmem(h.data, h.bytes, &score, 4));
        assert_non_null(memmem(h.data, h.bytes, "[PAD5]", 6));
        assert_non_null(memmem(h.data, h.bytes, "tokenizer.ggml.add_space_prefix", 31));
    }
    free(h.data);
    return st;
}

static void pieces_go_along_or_are_refused(void **state)
{
    (void)state;
    struct model m;
    struct sentencepiece sp;
    fixture_open(&m, "llama");
    pieces_of(&sp, SP_BPE, 0);
    assert_int_equal(sp.count, 5);
    assert_int_equal(sp.bos, 1);
    assert_int_equal(sp.eos, 2);
    assert_int_equal(sp.pieces[3].type, SP_BYTE);
    assert_true(sp.dummy_prefix && sp.pieces[4].score == -7.5f);
    ok(export_pieces(&m, &sp));
    sp.count = (int32_t)m.d.spec.vocab_size + 1;
    assert_int_equal(export_pieces(&m, &sp), STATUS_CONFIG);
    sentencepiece_free(&sp);
    pieces_of(&sp, SP_UNIGRAM, 0);
    assert_int_equal(export_pieces(&m, &sp), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "of type unigram"));
    sentencepiece_free(&sp);
    pieces_of(&sp, SP_BPE, 1);
    assert_int_equal(export_pieces(&m, &sp), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "removes blanks"));
    sentencepiece_free(&sp);
    model_close(&m);
}

static void what_has_no_counterpart_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *name, *what;
    } cases[] = {{"qwen3_next", "layer 0 (gdn)"},
                 {"deepseek_v3", "layer 0 (mla)"},
                 {"qwen2", "layer 1 (swa)"},
                 {"mistral", "layer 0 (a window of 7 tokens)"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model m;
        fixture_open(&m, cases[i].name);
        assert_int_equal(export_as(&m, GGUF_F32, NULL), STATUS_CONFIG);
        if (!strstr(status_message(), cases[i].what)) fail_msg("%s: %s", cases[i].name, status_message());
        model_close(&m);
    }
}

static void values_are_rounded_as_their_types_say(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) { /* every f16, and the middle to the next: the even one */
        const float v = f16_to_f32((uint16_t)h), next = h == 0x7bff ? 65536 : f16_to_f32((uint16_t)(h + 1));
        assert_int_equal(f16_from_f32(v), h);
        assert_int_equal(f16_from_f32(-v), h | 0x8000);
        assert_int_equal(f16_from_f32((v + next) / 2), h + (h & 1));
        assert_int_equal(f16_from_f32(nextafterf((v + next) / 2, 0)), h);
    }
    float in[64];
    uint8_t out[68];
    for (int i = 0; i < 64; i++) in[i] = i < 32 ? (float)(i - 20) * 0.37f : 0;
    assert_int_equal(gguf_type_bytes(GGUF_Q8_0, 64), 68);
    assert_true(gguf_encode(GGUF_Q8_0, in, 64, out));
    const float scale = f16_to_f32((uint16_t)(out[0] | out[1] << 8));
    assert_true(fabsf(scale - 20 * 0.37f / 127) < 1e-4f);
    assert_int_equal((int8_t)out[2], -127);
    for (int i = 0; i < 32; i++) assert_true(fabsf((float)(int8_t)out[2 + i] * scale - in[i]) < 0.6f * scale);
    for (int i = 34; i < 68; i++) assert_int_equal(out[i], 0);
    in[5] = 70000;
    assert_false(gguf_encode(GGUF_F16, in, 32, out));
    assert_true(gguf_encode(GGUF_BF16, in, 32, out));
    in[5] = NAN;
    assert_false(gguf_encode(GGUF_BF16, in, 32, out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_and_keys_are_those_of_the_model),
        cmocka_unit_test(llama3_gives_its_frequencies),
        cmocka_unit_test(yarn_is_what_llama_cpp_computes_from_its_keys),
        cmocka_unit_test(experts_are_one_tensor_of_each_kind),
        cmocka_unit_test(the_tokenizer_goes_along_or_is_refused),
        cmocka_unit_test(pieces_go_along_or_are_refused),
        cmocka_unit_test(what_has_no_counterpart_is_named),
        cmocka_unit_test(values_are_rounded_as_their_types_say),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
