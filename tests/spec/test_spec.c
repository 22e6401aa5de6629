/* Goal: a spec is read exactly or refused with the place and the nearest name. Method: golden messages; every word, key and range of
 * the tables; dump -> load identity on random specs. */
#include "base/rng.h"
#include "spec/keys.h"
#include "spec/spec.h"
#include "spec/spec_yaml.h"

#include <glob.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char tiny[] =
    "model: {layer_count: 2, hidden_size: 64, ffn_size: 128, head_count: 4, context_length: 128}\n"
    "train: {steps: 10}\n";

static status load(struct spec *s, const char *text, int count, char **overrides)
{
    return spec_load_text(s, "run.yaml", text, strlen(text), count, overrides, NULL);
}

static void expect_error(const char *text, const char *message)
{
    struct spec s;
    assert_int_equal(load(&s, text, 0, NULL), STATUS_CONFIG);
    assert_string_equal(status_message(), message);
}

static void expect_override_error(const char *override, const char *message)
{
    struct spec s;
    char *words[] = {(char *) override};
    assert_int_equal(load(&s, tiny, 1, words), STATUS_CONFIG);
    assert_string_equal(status_message(), message);
}

/* The tiny spec with one override, which must be refused by a check. */
static void expect_check_error(const char *override, const char *message)
{
    struct spec s;
    char *words[] = {(char *) override};
    assert_int_equal(load(&s, tiny, 1, words), STATUS_CONFIG);
    if (strcmp(status_message(), message) != 0) print_error("%s\n", override);
    assert_string_equal(status_message(), message);
}

static void mistakes_name_file_line_column_and_the_nearest_key(void **state)
{
    (void)state;
    expect_error("train:\n  steps: 1\n  warmpu_steps: 3\n",
                 "run.yaml:3:3: unknown key 'train.warmpu_steps' (did you mean 'optim.warmup_steps'?)");
    expect_error("optim: {lr: 1e-3, bta1: 0.9}",
                 "run.yaml:1:19: unknown key 'optim.bta1' (did you mean 'optim.beta1'?)");
    expect_error("train: {lr: 1e-3}", "run.yaml:1:9: unknown key 'train.lr' (did you mean 'optim.lr'?)");
    expect_error("train: {warmup: 1}",
                 "run.yaml:1:9: unknown key 'train.warmup' (did you mean 'optim.warmup_steps'?)");
    expect_error("train: {qqqqqqqqq: 1}", "run.yaml:1:9: unknown key 'train.qqqqqqqqq'");
    expect_error("trian:\n  steps: 1\n", "run.yaml:1:1: unknown section 'trian' (did you mean 'train'?)");
    expect_error("\n\nlr: 1\n", "run.yaml:3:1: unknown section 'lr' (did you mean 'optim.lr'?)");
    expect_error("model: {presets: small}",
                 "run.yaml:1:9: unknown key 'model.presets' (did you mean 'model.preset'?)");
    expect_error("model:\n  preset: smal\n",
                 "run.yaml:2:11: unknown preset 'smal'; did you mean 'small'; `ingot presets` lists them");
}

static void wrong_types_are_refused_where_they_stand(void **state)
{
    (void)state;
    expect_error("train:\n  steps: many\n",
                 "run.yaml:2:10: train.steps: 'many' is not a whole number (100, 4k, 1e6, 4Ki)");
    expect_error("train:\n  steps: 1.5\n",
                 "run.yaml:2:10: train.steps: '1.5' is not a whole number (100, 4k, 1e6, 4Ki)");
    expect_error("optim: {lr: fast}", "run.yaml:1:13: optim.lr: 'fast' is not a number");
    expect_error("optim: {lr: .nan}", "run.yaml:1:13: optim.lr: '.nan' is not a number");
    expect_error("model: {qk_norm: yes}", "run.yaml:1:18: model.qk_norm: 'yes' is not true or false");
    expect_error("train: {steps: \"10\"}",
                 "run.yaml:1:16: train.steps: \"10\" is text in quotes; write the value without them");
    expect_error("optim:\n  schedule: cosin\n", "run.yaml:2:13: optim.schedule: 'cosin' is none of cosine, "
                                                "wsd, linear, constant (did you mean 'cosine'?)");
    expect_error("train: {steps: }", "run.yaml:1:16: train.steps has no value (empty text is \"\")");
    expect_error("run: {name: ~}", "run.yaml:1:13: run.name has no value (empty text is \"\")");
    expect_error("train: {steps: [1, 2]}", "run.yaml:1:16: train.steps takes one value, not a list");
    expect_error("train: {steps: {a: 1}}", "run.yaml:1:16: train.steps takes one value, not a mapping");
    expect_error("train: 7", "run.yaml:1:8: section 'train' holds keys, not '7'");
    expect_error("hello", "run.yaml:1:1: 'hello' stands where a section (model, train, ...) belongs");
    expect_error("run: {name: \"a\\0b\"}", "run.yaml:1:13: a zero byte in text");
}

static void yaml_beyond_the_subset_is_refused(void **state)
{
    (void)state;
    expect_error("train: {steps: 1, steps: 2}",
                 "run.yaml:1:19: key 'train.steps' is given twice, first in line 1");
    expect_error("train: {steps: 1}\ntrain: {clip: 1}\n", "run.yaml:2:1: section 'train' is given twice");
    expect_error(
        "train: &a {steps: 1}",
        "run.yaml:1:8: anchors (&x) and tags (!x) are not part of a spec; write the keys themselves");
    expect_error("train: {steps: !!int 1}",
                 "run.yaml:1:16: anchors (&x) and tags (!x) are not part of a spec; write the value itself");
    expect_error("train: {steps: *a}",
                 "run.yaml:1:16: aliases (*x) are not part of a spec; write the value itself");
    expect_error("train: {steps: 1}\n---\nmodel: {}\n", "run.yaml:2:1: a second document; a spec is one");
    expect_error("? {a: b}\n: 1\n", "run.yaml:1:3: a mapping stands where a word belongs");
    expect_error(
        "train:\n\tsteps: 1\n",
        "run.yaml:2:1: YAML: found character that cannot start any token while scanning for the next token");
}

static void a_file_above_the_size_cap_is_refused(void **state)
{
    (void)state;
    struct spec s;
    char *text = calloc(1, SPEC_FILE_BYTES_MAX + 1);
    assert_non_null(text);
    memset(text, '#', SPEC_FILE_BYTES_MAX + 1);
    assert_int_equal(spec_load_text(&s, "run.yaml", text, SPEC_FILE_BYTES_MAX + 1, 0, NULL, NULL),
                     STATUS_CONFIG);
    assert_string_equal(status_message(), "run.yaml: 1048577 bytes; a spec has at most 1048576");
    free(text);
}

static void text_that_does_not_fit_or_is_not_utf8_is_refused(void **state)
{
    (void)state;
    struct spec s;
    char word[SPEC_TEXT + 20] = "data.train=";
    char *words[] = {word};
    memset(word + 11, 'x', SPEC_TEXT - 1);
    assert_int_equal(load(&s, tiny, 1, words), STATUS_OK);
    assert_int_equal(strlen(s.run.data_train), SPEC_TEXT - 1);
    word[11 + SPEC_TEXT - 1] = 'x';
    assert_int_equal(load(&s, tiny, 1, words), STATUS_CONFIG);
    assert_string_equal(status_message(), "command line: data.train: 512 bytes of text, the limit is 511");
    const char *const bad[] = {"data.val=\x80", "data.val=\xC0\x80", "data.val=\xED\xA0\x80",
                               "data.val=\xF4\x90\x80\x80", "data.val=\xE2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_override_error(bad[i], "command line: data.val: the text is not UTF-8");
}

static void overrides_win_and_their_mistakes_are_named(void **state)
{
    (void)state;
    struct spec s;
    char *words[] = {"--train.steps=20", "optim.lr=0.5", "--train.steps=4k", "--model.tied_embeddings=false",
                     "--run.name=a=b"};
    assert_int_equal(load(&s, tiny, 5, words), STATUS_OK);
    assert_int_equal(s.run.train_steps, 4000);
    assert_true(s.run.optim_lr == 0.5);
    assert_false(s.model.tied_embeddings);
    assert_string_equal(s.run.run_name, "a=b");
    expect_override_error("--train.steps",
                          "command line: '--train.steps' has no value; write --section.key=value");
    expect_override_error("--trian.steps=1",
                          "command line: unknown key 'trian.steps' (did you mean 'train.steps'?)");
    expect_override_error("--lr=1", "command line: 'lr' is not section.key (did you mean 'optim.lr'?)");
    expect_override_error("--train.lr=1", "command line: unknown key 'train.lr' (did you mean 'optim.lr'?)");
    expect_override_error("--train.micro_batch=x",
                          "command line: train.micro_batch: 'x' is not a whole number (100, 4k) or auto");
    expect_override_error(
        "--model.preset=nan0",
        "command line: unknown preset 'nan0'; did you mean 'nano'; `ingot presets` lists them");
}

static void the_length_on_the_command_line_replaces_the_files(void **state)
{
    (void)state;
    struct spec s;
    char *tokens[] = {"--train.tokens=1000"};
    assert_int_equal(load(&s, tiny, 1, tokens), STATUS_OK);
    assert_int_equal(s.run.train_steps, 0);
    assert_int_equal(spec_step_count(&s), 8); /* 1000 tokens in steps of 128, rounded up */
    char *both[] = {"--train.tokens=1000", "--train.steps=3"};
    assert_int_equal(load(&s, tiny, 2, both), STATUS_CONFIG);
    expect_error("model: {preset: nano}\ntrain: {steps: 1, tokens: 5}",
                 "run.yaml: train.steps and train.tokens are both given; the length of a run is one of them");
    expect_error("model: {preset: nano}",
                 "run.yaml: the length of the run is not given; set train.steps or train.tokens");
}

static void a_preset_comes_first_and_keys_beside_it_win(void **state)
{
    (void)state;
    struct spec s;
    assert_int_equal(load(&s, "model: {head_count: 16, preset: 7b}\ntrain: {steps: 1}", 0, NULL), STATUS_OK);
    assert_int_equal(s.model.layer_count, 32);
    assert_int_equal(s.model.head_count, 16);
    assert_int_equal(s.model.head_count_kv, 16); /* follows from the file's head_count */
    char *words[] = {"--model.preset=13b"};
    assert_int_equal(load(&s, "model: {head_count: 16, preset: 7b}\ntrain: {steps: 1}", 1, words), STATUS_OK);
    assert_int_equal(s.model.layer_count, 40);
    assert_int_equal(s.model.head_count, 16);
}

static void every_value_knows_where_it_came_from(void **state)
{
    (void)state;
    struct spec s;
    struct spec_origin *origin;
    const char text[] = "model:\n  preset: small\n  layer_count: 3\ntrain: {tokens: 1M, batch_tokens: 4Ki}\n";
    char *words[] = {"--optim.lr=1e-3"};
    assert_int_equal(spec_load_text(&s, "conf/my.run.yaml", text, sizeof text - 1, 1, words, &origin),
                     STATUS_OK);
    char *out = NULL;
    size_t bytes;
    FILE *f = open_memstream(&out, &bytes);
    spec_dump(&s, origin, f);
    fclose(f);
    static const char *const lines[] = {
        "  layer_count: 3                         # from conf/my.run.yaml:3:16\n",
        "  hidden_size: 768                       # from preset small\n",
        "  batch_tokens: 4096                     # from conf/my.run.yaml:4:35\n",
        "  lr: 0.001                              # from command line\n",
        "  beta1: 0.9                             # from default\n",
        "  name: \"my.run\"                         # from derived\n",
        "  dir: \"runs/my.run\"                     # from derived\n",
        "  sequence_length: 2048                  # from derived\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!strstr(out, lines[i])) fail_msg("missing: %s", lines[i]);
    free(out);
    out = spec_dump_json(&s, origin);
    assert_non_null(strstr(out, "\"lr\": {\"value\": 0.001, \"from\": \"command line\"}"));
    free(out);
    spec_origin_free(origin);
}

static void every_word_of_every_list_is_read_and_written(void **state)
{
    (void)state;
    char value[KEY_FORMAT], why[SPEC_TEXT];
    int words = 0;
    struct spec s = {0};
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        for (int w = 0; w < k->word_count; w++, words++) {
            assert_true(key_set(k, &s, k->words[w], why));
            assert_int_equal(*(int *)((char *)&s + k->offset), w);
            assert_string_equal(key_format(k, &s, KEY_YAML, value), k->words[w]);
        }
    }
    assert_true(words > 20); /* the lists were walked */
    assert_true(key_set(key_row(KEY_AT_model_rope_scaling), &s, "yarn", why));
    assert_int_equal(s.model.rope_scaling, SCALING_YARN);
    assert_true(key_set(key_row(KEY_AT_data_packing), &s, "documents", why));
    assert_int_equal(s.run.data_packing, PACKING_DOCUMENTS);
}

static void every_default_lies_in_its_range_or_must_be_given(void **state)
{
    (void)state;
    struct spec s = {0};
    char why[SPEC_TEXT];
    model_spec_default(&s.model);
    run_spec_default(&s.run);
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        bool required =
            k->type == KEY_INT && strcmp(k->section, "model") == 0 && strncmp(k->range, "[1,", 3) == 0;
        assert_int_equal(key_in_range(k, &s, why), !required);
    }
    assert_int_equal(model_spec_check(&s.model), STATUS_CONFIG);
    assert_string_equal(status_message(),
                        "model.layer_count is not given; set it or start from a preset (model.preset)");
}

static void values_outside_their_range_are_refused_where_they_stand(void **state)
{
    (void)state;
    expect_error("optim:\n  beta1: 1\n", "run.yaml:2:10: optim.beta1: 1 is outside [0, 1)");
    expect_error("optim:\n  lr: 0\n", "run.yaml:2:7: optim.lr: 0 is outside (0, 100]");
    expect_error("model:\n  window: -1\n", "run.yaml:2:11: model.window: -1 is outside [0, 1e8]");
    expect_check_error("--train.micro_batch=-1", "command line: train.micro_batch: -1 is outside [0, 1e6]");
    expect_check_error("--train.micro_batch=auto",
                       "run.yaml: train.micro_batch=auto needs train.batch_tokens: the tokens of a step that "
                       "micro-batches share");
    expect_check_error("--run.seed=-1", "command line: run.seed: -1 is outside [0, inf]");
}

static void what_latent_attention_needs_is_said(void **state)
{
    (void)state;
    struct spec s;
    char *odd[] = {"model.layers=mla", "model.mla_kv_rank=8", "model.mla_rope_dim=3"};
    assert_int_equal(load(&s, tiny, 3, odd), STATUS_CONFIG);
    assert_string_equal(status_message(),
                        "run.yaml: model.mla_rope_dim 3 is odd; rope rotates pairs of elements");
    char *tails[] = {"model.layers=mla", "model.mla_kv_rank=8", "model.position=learned"};
    assert_int_equal(load(&s, tiny, 3, tails), STATUS_CONFIG);
    assert_string_equal(
        status_message(),
        "run.yaml: model.layers names mla, whose keys have rotated tails: model.position must be rope");
}

static const char *const impossible[][2] = {
    {"model.head_count=3",
     "model.hidden_size 64 is not a multiple of model.head_count 3; set model.head_dim"},
    {"model.head_count_kv=3", "model.head_count 4 is not a multiple of model.head_count_kv 3"},
    {"model.head_count_kv=8", "model.head_count 4 is not a multiple of model.head_count_kv 8"},
    {"model.head_dim=15", "model.head_dim 15 is odd; rope rotates pairs of elements"},
    {"model.rope_fraction=0.2",
     "model.rope_fraction 0.2 of head_dim 16 is 3 elements; rope needs an even number, at least 2"},
    {"model.rope_factor=2", "model.rope_factor 2 does nothing without model.rope_scaling"},
    {"model.rope_scaling=yarn",
     "model.rope_scaling yarn needs model.rope_original, the context length before extension"},
    {"model.rope_scaling=llama3",
     "model.rope_scaling llama3 needs model.rope_original, the context length before extension"},
    {"model.window=129", "model.window 129 is larger than model.context_length 128; 0 is full attention"},
    {"model.window_layers=", "model.window_layers '': write all, or indices and ranges such as 0-3,8"},
    {"model.window_layers=0,", "model.window_layers '0,': write all, or indices and ranges such as 0-3,8"},
    {"model.window_layers=1-0", "model.window_layers '1-0': write all, or indices and ranges such as 0-3,8"},
    {"model.window_layers=0-9", "model.window_layers '0-9': there is no layer 9, the last is 1"},
    {"model.layers=", "model.layers: '' is no mixer; there are gqa, swa, gdn, mla, mamba2"},
    {"model.layers=gqa,ssm", "model.layers: 'ssm' is no mixer; there are gqa, swa, gdn, mla, mamba2"},
    {"model.layers=gqa/dense", "model.layers: 'dense' is no feed-forward part; there are mlp, moe"},
    {"model.layers=0*gqa", "model.layers: write a count as 3*gqa, from 1 to 99999, not '0*gqa'"},
    {"model.layers=3gqa", "model.layers: write a count as 3*gqa, from 1 to 99999, not '3gqa'"},
    {"model.layers=gqa gqa",
     "model.layers: 'gqa' is neither a comma and a layer nor the end; write it as 3*swa,1*gqa"},
    {"model.layers=gqa;gqa;gqa",
     "model.layers: a second ';'; layers that come once stand before the only one"},
    {"model.layers=2*gqa;gqa", "model.layers: 2 layers before the ';', model.layer_count is 2"},
    {"model.layers=swa,gqa", "model.layers names swa: model.window must say how many tokens it sees"},
    {"model.layers=gdn", "model.layers names gdn: set model.gdn_key_heads and model.gdn_value_heads"},
    {"model.layers=gqa,mla", "model.layers names mla: set model.mla_kv_rank"},
    {"model.engram_layers=0", "model.engram_layers names layers: set model.engram_dim and model.engram_base"},
    {"model.engram_layers=9", "model.engram_layers '9': there is no layer 9, the last is 1"},
    {"model.engram_layers=x", "model.engram_layers 'x': write all, or indices and ranges such as 0-3,8"},
    {"model.layers=mamba2", "model.layers names mamba2: set model.mamba_heads"},
    {"model.ffn_size=0", "model.ffn_size is not given; set it or start from a preset (model.preset)"},
    {"model.moe_experts=8", "model.moe_experts does nothing where model.layers names no moe, as in gqa/moe"},
    {"model.layers=gqa/moe",
     "model.layers names moe: set model.moe_experts, model.moe_top_k and model.moe_size"},
    {"train.sequence_length=256", "train.sequence_length 256 is longer than model.context_length 128"},
    {"train.batch_tokens=200",
     "train.batch_tokens 200 is not a multiple of micro_batch x sequence_length = 1 x 128 = 128; 256 is"},
    {"optim.warmup_steps=11", "optim.warmup_steps 11 is longer than the run of 10 steps"},
    {"fp8.warmup=5", "fp8.warmup 5 does nothing without train.precision: fp8"},
    {"fp8.exclude=*.qkv.weight", "fp8.exclude \"*.qkv.weight\" does nothing without train.precision: fp8"},
    {"run.name=a/b", "run.name 'a/b' must be one directory name; run.dir takes a path"},
};
static void combinations_that_cannot_work_are_refused_in_one_line(void **state)
{
    (void)state;
    char want[256];
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++) {
        snprintf(want, sizeof want, "run.yaml: %s", impossible[i][1]);
        expect_check_error(impossible[i][0], want);
    }
    struct spec s;
    char *learned[] = {"model.position=learned", "model.rope_scaling=linear"};
    assert_int_equal(load(&s, tiny, 2, learned), STATUS_CONFIG);
    assert_string_equal(status_message(),
                        "run.yaml: model.rope_scaling needs model.position: rope, not learned");
    char *wsd[] = {"optim.schedule=wsd", "optim.warmup_steps=9"};
    assert_int_equal(load(&s, tiny, 2, wsd), STATUS_CONFIG);
    char *bands[] = {"model.rope_scaling=llama3", "model.rope_original=64", "model.rope_low_freq=4"};
    assert_int_equal(load(&s, tiny, 3, bands), STATUS_CONFIG);
    char *codes[] = {"optim.state=int8", "model.engram_layers=0", "model.engram_dim=16",
                     "model.engram_base=50"};
    assert_int_equal(load(&s, tiny, 4, codes), STATUS_CONFIG);
    assert_string_equal(status_message(),
                        "run.yaml: optim.state int8 does not go with model.engram_layers, whose "
                        "tables move row by row; use optim.state: bf16");
    char *sliced[] = {"optim.state=int8", "parallel.tensor=2"};
    assert_int_equal(load(&s, tiny, 2, sliced), STATUS_CONFIG);
    assert_string_equal(
        status_message(),
        "run.yaml: optim.state int8 does not go with parallel.tensor 2; use optim.state: bf16");
    char *alone[] = {"optim.master=none", "train.precision=fp32"};
    assert_int_equal(load(&s, tiny, 2, alone), STATUS_CONFIG);
    assert_string_equal(
        status_message(),
        "run.yaml: optim.master none needs train.precision: bf16, fp8, mxfp8 or nvfp4; else weights "
        "are their own masters");
    char *matrices[] = {"optim.master=none", "train.precision=bf16", "optim.name=muon"};
    assert_int_equal(load(&s, tiny, 3, matrices), STATUS_CONFIG);
    assert_string_equal(status_message(),
                        "run.yaml: optim.master none goes with adamw and lion; optim.name muon needs fp32");
    char *offload[] = {"memory.offload_optimizer=true", "machine.device=cpu"};
    assert_int_equal(load(&s, tiny, 2, offload), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "needs a GPU"));
    offload[1] = "optim.name=lion";
    assert_int_equal(load(&s, tiny, 2, offload), STATUS_OK);
    char *betas[] = {"model.rope_scaling=yarn", "model.rope_original=64", "model.rope_beta_slow=32"};
    assert_int_equal(load(&s, tiny, 3, betas), STATUS_CONFIG);
}

static char *dump(const struct spec *s)
{
    char *out = NULL;
    size_t bytes;
    FILE *f = open_memstream(&out, &bytes);
    spec_dump(s, NULL, f);
    fclose(f);
    return out;
}

/* A run whose config.yaml holds keys of FP8 goes on in bf16 with one option, and what it writes then is sound. */
static void a_precision_of_the_command_line_drops_the_files_section_fp8(void **state)
{
    (void)state;
    char text[1024];
    char *bf16[] = {"train.precision=bf16"}, *both[] = {"train.precision=bf16", "fp8.margin=2"},
         *fp8[] = {"train.precision=fp8", "optim.master=none"};
    struct spec s, again;
    snprintf(text, sizeof text, "%sfp8: {warmup: 5, wgrad: bf16}\n", tiny);
    assert_int_equal(load(&s, text, 0, NULL), STATUS_CONFIG);
    assert_string_equal(status_message(),
                        "run.yaml: fp8.wgrad bf16 does nothing without train.precision: fp8");
    assert_int_equal(load(&s, text, 2, fp8), STATUS_OK);
    assert_int_equal(s.run.fp8_warmup, 5);
    assert_int_equal(s.run.fp8_wgrad, FP8_WGRAD_BF16);
    assert_int_equal(load(&s, text, 1, bf16), STATUS_OK);
    assert_int_equal(s.run.fp8_warmup, 20);
    assert_int_equal(s.run.fp8_wgrad, FP8_WGRAD_FP8);
    char *kept = dump(&s);
    assert_int_equal(spec_load_text(&again, "config.yaml", kept, strlen(kept), 0, NULL, NULL), STATUS_OK);
    free(kept);
    assert_int_equal(load(&s, text, 2, both), STATUS_CONFIG);
    assert_string_equal(status_message(), "run.yaml: fp8.margin 2 does nothing without train.precision: fp8");
}

static void norms_around_0_and_gates_are_refused_where_they_do_nothing(void **state)
{
    (void)state;
    struct spec s;
    char *centered[] = {"model.norm=layernorm", "model.norm_zero_centered=true"};
    assert_int_equal(load(&s, tiny, 2, centered), STATUS_CONFIG);
    assert_string_equal(status_message(),
                        "run.yaml: model.norm_zero_centered is for model.norm: rmsnorm alone");
    char *gate[] = {"model.layers=gdn", "model.gdn_key_heads=2", "model.gdn_value_heads=2",
                    "model.attention_gate=true"};
    assert_int_equal(load(&s, tiny, 4, gate), STATUS_CONFIG);
    assert_string_equal(status_message(),
                        "run.yaml: model.attention_gate: model.layers names neither gqa nor swa");
}

static void mixtures_of_experts_that_cannot_work_are_refused_in_one_line(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"model.moe_top_k=9", "model.moe_top_k 9 is more than model.moe_experts 8"},
        {"model.moe_groups=3", "model.moe_experts 8 is not a multiple of model.moe_groups 3"},
        {"model.moe_groups_kept=0",
         "model.moe_groups needs model.moe_groups_kept, the groups that a token's experts come from"},
        {"model.moe_groups_kept=5", "model.moe_groups_kept 5 is more than model.moe_groups 4"},
        {"model.moe_top_k=5", "model.moe_top_k 5 is more than the 4 experts of 2 groups"},
        {"model.moe_shared_gate=true", "model.moe_shared_gate needs a shared expert: model.moe_shared_size"},
        {"model.activation=gelu", "model.layers names moe: experts are swiglu, set model.activation: swiglu"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct spec s;
        char want[256], *with[] = {"model.layers=gqa/moe", "model.moe_experts=8", "model.moe_top_k=2",
                                   "model.moe_size=16",    "model.moe_groups=4",  "model.moe_groups_kept=2",
                                   "model.ffn_size=0",     (char *)cases[i][0]};
        const int count = sizeof with / sizeof with[0];
        assert_int_equal(load(&s, tiny, count - 1, with), STATUS_OK);
        assert_int_equal(load(&s, tiny, count, with), STATUS_CONFIG);
        snprintf(want, sizeof want, "run.yaml: %s", cases[i][1]);
        assert_string_equal(status_message(), want);
    }
    expect_check_error("--model.moe_capacity=-1",
                       "command line: model.moe_capacity: -1 is outside [0, 1000]");
}

static void stacks_and_passes_of_hierarchical_reasoning_are_checked(void **state)
{
    (void)state;
    static const struct {
        int64_t low, steps, segments, extra;
        const char *message;
    } rows[] = {{0, 2, 1, 0, NULL},
                {15, 2, 3, 0, NULL},
                {16, 2, 1, 0, "model.hrm_low_layers 16 of model.layer_count 16: "},
                {0, 0, 1, 0, "model.hrm_cycles needs model.hrm_steps"},
                {0, 2, 1, 1, "model.mtp_depth 1: "},
                {0, 2, 1, -1, "model.hrm_halt needs model.hrm_segments of at least 2"},
                {0, 2, 2, -1, NULL},
                {0, 100, 64, 0, "model.hrm_segments x hrm_cycles x (hrm_steps + 1) = 12928 passes"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_spec m;
        assert_int_equal(preset_find("small", &m), STATUS_OK);
        m.hrm_cycles = 2, m.hrm_low_layers = rows[i].low, m.hrm_steps = rows[i].steps,
        m.hrm_segments = rows[i].segments, m.mtp_depth = rows[i].extra > 0, m.hrm_halt = rows[i].extra < 0;
        assert_int_equal(model_spec_check(&m), rows[i].message ? STATUS_CONFIG : STATUS_OK);
        if (rows[i].message) assert_non_null(strstr(status_message(), rows[i].message));
    }
}

static void window_layers_name_the_layers_that_use_the_window(void **state)
{
    (void)state;
    struct model_spec m;
    assert_int_equal(preset_find("small", &m), STATUS_OK);
    assert_false(model_layer_window(&m, 0));
    m.window = 16;
    assert_true(model_layer_window(&m, 0));
    snprintf(m.window_layers, sizeof m.window_layers, "0-2,5,14-15");
    assert_int_equal(model_spec_check(&m), STATUS_OK);
    for (int64_t i = 0; i < 16; i++) assert_int_equal(model_layer_window(&m, i), i <= 2 || i == 5 || i >= 14);
}

static void the_pattern_names_every_layer(void **state)
{
    (void)state;
    struct model_spec m;
    assert_int_equal(preset_find("small", &m), STATUS_OK);
    assert_int_equal(model_mixer_count(&m, MIXER_GQA), 16);
    m.window = 16;
    snprintf(m.layers, sizeof m.layers, "3*swa, 1*gqa/mlp");
    assert_int_equal(model_spec_check(&m), STATUS_OK);
    for (int64_t i = 0; i < 16; i++) {
        assert_int_equal(model_layer(&m, i).mixer, i % 4 == 3 ? MIXER_GQA : MIXER_SWA);
        assert_int_equal(model_layer_window(&m, i), i % 4 != 3);
    }
    snprintf(m.layers, sizeof m.layers, "2 * gqa ; swa , gqa"); /* the last round is cut short */
    assert_int_equal(model_spec_check(&m), STATUS_OK);
    for (int64_t i = 0; i < 16; i++)
        assert_int_equal(model_layer(&m, i).mixer, i >= 2 && i % 2 == 0 ? MIXER_SWA : MIXER_GQA);
    assert_int_equal(model_mixer_count(&m, MIXER_SWA), 7);
    assert_int_equal(model_ffn_count(&m, FFN_MLP), 16);
    snprintf(m.window_layers, sizeof m.window_layers, "0-3");
    assert_int_equal(model_spec_check(&m), STATUS_CONFIG);
}

/* Counts are taken from the pattern as a whole: of every length and cut, they are the sums over its layers. */
static void counts_are_sums_over_layers(void **state)
{
    (void)state;
    static const char *const patterns[] = {"gqa", "2*gqa/moe;swa,gqa", "5*gdn/mlp;2*gqa/moe,mla,3*swa"};
    for (int k = 0; k < 3 * 60; k++) {
        int64_t swa = 0, moe = 0;
        struct model_spec m;
        model_spec_default(&m);
        m.layer_count = 1 + k / 3 % 20, m.mtp_depth = k / 60;
        snprintf(m.layers, sizeof m.layers, "%s", patterns[k % 3]);
        for (int i = 0; i < m.layer_count + m.mtp_depth; i++) {
            swa += model_layer(&m, i).mixer == MIXER_SWA, moe += model_layer(&m, i).ffn == FFN_MOE;
        }
        assert_int_equal(model_mixer_count(&m, MIXER_SWA), swa);
        assert_int_equal(model_ffn_count(&m, FFN_MOE), moe);
    }
}

/* A value inside the row's range, with awkward digits and characters. */
static void random_value(const struct key *k, struct spec *s, uint64_t sample, uint64_t row)
{
    char text[SPEC_TEXT] = "", why[SPEC_TEXT];
    static const char *const pieces[] = {
        "a", " ",  "#", ": ",           "\"",           "\\",       "'", "\n",   "\t", "\x01", "\x7f",
        "é", "漢", "😀", "\xE2\x80\xA8", "\xEF\xBB\xBF", "\xC2\x85", "~", "null", "%",  "---"};
    double low = 0, high = 1e6;
    char *end;
    if (k->range[0]) low = strtod(k->range + 1, &end), high = strtod(end + 1, NULL);
    if (high > 1e15) high = 1e15;
    switch (k->type) {
    case KEY_AUTO: /* only the word: what it requires is another test */
    case KEY_INT:
        snprintf(text, sizeof text, "%.0f", low + rng_uniform(1, RNG_TEST, sample, row) * (high - low));
        break;
    case KEY_REAL:
        snprintf(text, sizeof text, "%.17g",
                 low + (0.001 + 0.99 * rng_uniform(1, RNG_TEST, sample, row)) * (high - low));
        break;
    case KEY_BOOL:
        snprintf(text, sizeof text, "%s", rng_uniform(1, RNG_TEST, sample, row) < 0.5 ? "true" : "false");
        break;
    case KEY_ENUM:
        snprintf(text, sizeof text, "%s",
                 k->words[(int)(rng_uniform(1, RNG_TEST, sample, row) * k->word_count)]);
        break;
    case KEY_TEXT:
    case KEY_SOURCES:
        for (uint64_t n = (uint64_t)(rng_uniform(1, RNG_TEST, sample, row) * 20); n > 0; n--)
            strncat(text, pieces[rng_at(n, RNG_TEST, sample, row).u[0] % (sizeof pieces / sizeof pieces[0])],
                    8);
        break;
    }
    if (!key_set(k, s, text, why)) fail_msg("%s.%s = %s: %s", k->section, k->name, text, why);
    if (!key_in_range(k, s, why)) fail_msg("%s.%s = %s: %s", k->section, k->name, text, why);
}

static void a_dump_reads_back_to_the_same_values(void **state)
{
    (void)state;
    for (uint64_t sample = 0; sample < 300; sample++) {
        struct spec s = {0};
        for (int i = 0; i < KEY_AT_COUNT; i++) random_value(key_row(i), &s, sample, (uint64_t)i);
        struct spec_place places[KEY_AT_COUNT] = {0};
        struct spec_layer layer = {.place = places};
        char *text = dump(&s);
        if (spec_yaml_parse(&layer, "dump", text, strlen(text)) != STATUS_OK)
            fail_msg("%s\n%s", status_message(), text);
        assert_int_equal(spec_diff(&s, &layer.spec, stderr), 0);
        assert_int_equal(spec_frozen_hash(&s), spec_frozen_hash(&layer.spec));
        for (int i = 0; i < KEY_AT_COUNT; i++) assert_true(places[i].line > 0);
        free(text);
    }
}

static void a_resolved_spec_loads_to_itself(void **state)
{
    (void)state;
    for (int i = 0; i < preset_count(); i++) {
        struct spec first, second;
        char word[64];
        snprintf(word, sizeof word, "model.preset=%s", preset_name(i));
        char *words[] = {word, "train.tokens=1B", "run.name=x", "train.batch_tokens=0",
                         "log.sample_prompt=In the \"beginning\"\n"};
        assert_int_equal(spec_load(&first, NULL, 5, words, NULL), STATUS_OK);
        char *text = dump(&first);
        assert_int_equal(spec_load_text(&second, "other.yaml", text, strlen(text), 0, NULL, NULL), STATUS_OK);
        assert_int_equal(spec_diff(&first, &second, stderr), 0);
        free(text);
    }
}

static void the_resume_hash_covers_the_frozen_keys_and_no_others(void **state)
{
    (void)state;
    struct spec s;
    assert_int_equal(load(&s, tiny, 0, NULL), STATUS_OK);
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        struct spec other = s;
        char *bytes = (char *)&other + k->offset;
        if (k->type == KEY_REAL)
            *(double *)(void *)bytes += 1;
        else
            bytes[0] = (char)(bytes[0] ^ 1);
        assert_int_equal(spec_frozen_hash(&other) != spec_frozen_hash(&s), k->resume == KEY_FROZEN);
    }
}

static void json_is_what_a_json_parser_expects(void **state)
{
    (void)state;
    for (uint64_t sample = 0; sample < 100; sample++) {
        struct spec s = {0};
        for (int i = 0; i < KEY_AT_COUNT; i++) random_value(key_row(i), &s, sample, (uint64_t)i);
        char *text = spec_dump_json(&s, NULL);
        json_error_t error;
        json_t *all = json_loads(text, JSON_REJECT_DUPLICATES, &error);
        if (!all) fail_msg("%s\n%s", error.text, text);
        for (int i = 0; i < KEY_AT_COUNT; i++) {
            const struct key *k = key_row(i);
            const void *at = (const char *)&s + k->offset;
            const json_t *v = json_object_get(json_object_get(all, k->section), k->name);
            assert_non_null(v);
            switch (k->type) {
            case KEY_AUTO:
                assert_true(json_is_string(v) ? *(const int64_t *)at == 0
                                              : json_integer_value(v) == *(const int64_t *)at);
                break;
            case KEY_INT: assert_true(json_integer_value(v) == *(const int64_t *)at); break;
            case KEY_REAL: assert_true(json_number_value(v) == *(const double *)at); break;
            case KEY_BOOL: assert_true(json_is_true(v) == *(const bool *)at); break;
            case KEY_SOURCES:
            case KEY_TEXT: assert_string_equal(json_string_value(v), at); break;
            case KEY_ENUM: assert_string_equal(json_string_value(v), k->words[*(const int *)at]); break;
            }
        }
        json_decref(all);
        free(text);
    }
}

static void a_resolved_config_can_be_renamed_but_not_given_a_preset(void **state)
{
    (void)state;
    struct spec first, second;
    assert_int_equal(load(&first, tiny, 0, NULL), STATUS_OK);
    assert_string_equal(first.run.run_dir, "runs/run");
    char *text = dump(&first);
    char *name[] = {"--run.name=b"};
    assert_int_equal(load(&second, text, 1, name), STATUS_OK);
    assert_string_equal(second.run.run_dir, "runs/b");
    char *preset[] = {"--model.preset=small"};
    assert_int_equal(load(&second, text, 1, preset), STATUS_CONFIG);
    assert_string_equal(
        status_message(),
        "command line: model.preset=small changes nothing, because all its keys are set again");
    free(text);
}

static void a_strange_path_does_not_spoil_the_dump(void **state)
{
    (void)state;
    static const char *const paths[][2] = {{"a\nb.yaml", "a?b"},
                                           {"caf\xE9.yaml", "caf?"},
                                           {"caf\xC3\xA9.yaml", "caf\xC3\xA9"},
                                           {"\xEF\xBB\xBF.yaml", "???"}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct spec s, again;
        struct spec_origin *origin;
        assert_int_equal(spec_load_text(&s, paths[i][0], tiny, sizeof tiny - 1, 0, NULL, &origin), STATUS_OK);
        assert_string_equal(s.run.run_name, paths[i][1]);
        char *out = NULL;
        size_t bytes;
        FILE *f = open_memstream(&out, &bytes);
        spec_dump(&s, origin, f);
        fclose(f);
        assert_int_equal(load(&again, out, 0, NULL), STATUS_OK);
        assert_int_equal(spec_diff(&s, &again, stderr), 0);
        free(out);
        spec_origin_free(origin);
    }
}

static void a_diff_names_the_keys_that_differ(void **state)
{
    (void)state;
    struct spec a, b;
    assert_int_equal(load(&a, tiny, 0, NULL), STATUS_OK);
    b = a;
    b.run.optim_lr = 0.5;
    b.model.hidden_size = 128;
    char *out = NULL;
    size_t bytes;
    FILE *f = open_memstream(&out, &bytes);
    assert_int_equal(spec_diff(&a, &b, f), 2);
    b.run.log_every = a.run.log_every + 1; /* a resumed run does not announce it */
    assert_int_equal(spec_diff(&a, &b, stderr), 3);
    assert_int_equal(spec_diff_announced(&a, &b, stderr), 2);
    fclose(f);
    assert_string_equal(
        out, "model.hidden_size: 64 -> 128 (fixed once a run has begun)\noptim.lr: 0.0003 -> 0.5\n");
    free(out);
}

static void empty_files_and_empty_sections_are_fine(void **state)
{
    (void)state;
    struct spec s;
    char *words[] = {"model.preset=nano", "train.steps=1"};
    static const char *const texts[] = {"", "# nothing\n", "---\n", "train:\n  # steps: 5\nmodel: {}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(load(&s, texts[i], 2, words), STATUS_OK);
    assert_int_equal(s.run.train_steps, 1);
    assert_int_equal(spec_load(&s, "there/is/no/such.yaml", 0, NULL, NULL), STATUS_IO);
}

static void every_example_loads(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob(TEST_SOURCE_DIR "/examples/*.yaml", 0, NULL, &found), 0);
    assert_int_equal(glob(TEST_SOURCE_DIR "/examples/*/run.yaml", GLOB_APPEND, NULL, &found), 0);
    assert_true(found.gl_pathc >= 7);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct spec s;
        if (spec_load(&s, found.gl_pathv[i], 0, NULL, NULL) != STATUS_OK) fail_msg("%s", status_message());
    }
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_name_file_line_column_and_the_nearest_key),
        cmocka_unit_test(wrong_types_are_refused_where_they_stand),
        cmocka_unit_test(yaml_beyond_the_subset_is_refused),
        cmocka_unit_test(a_file_above_the_size_cap_is_refused),
        cmocka_unit_test(text_that_does_not_fit_or_is_not_utf8_is_refused),
        cmocka_unit_test(overrides_win_and_their_mistakes_are_named),
        cmocka_unit_test(the_length_on_the_command_line_replaces_the_files),
        cmocka_unit_test(a_preset_comes_first_and_keys_beside_it_win),
        cmocka_unit_test(every_value_knows_where_it_came_from),
        cmocka_unit_test(every_word_of_every_list_is_read_and_written),
        cmocka_unit_test(every_default_lies_in_its_range_or_must_be_given),
        cmocka_unit_test(values_outside_their_range_are_refused_where_they_stand),
        cmocka_unit_test(what_latent_attention_needs_is_said),
        cmocka_unit_test(combinations_that_cannot_work_are_refused_in_one_line),
        cmocka_unit_test(a_precision_of_the_command_line_drops_the_files_section_fp8),
        cmocka_unit_test(norms_around_0_and_gates_are_refused_where_they_do_nothing),
        cmocka_unit_test(mixtures_of_experts_that_cannot_work_are_refused_in_one_line),
        cmocka_unit_test(stacks_and_passes_of_hierarchical_reasoning_are_checked),
        cmocka_unit_test(window_layers_name_the_layers_that_use_the_window),
        cmocka_unit_test(the_pattern_names_every_layer),
        cmocka_unit_test(counts_are_sums_over_layers),
        cmocka_unit_test(a_dump_reads_back_to_the_same_values),
        cmocka_unit_test(a_resolved_spec_loads_to_itself),
        cmocka_unit_test(the_resume_hash_covers_the_frozen_keys_and_no_others),
        cmocka_unit_test(json_is_what_a_json_parser_expects),
        cmocka_unit_test(a_resolved_config_can_be_renamed_but_not_given_a_preset),
        cmocka_unit_test(a_strange_path_does_not_spoil_the_dump),
        cmocka_unit_test(a_diff_names_the_keys_that_differ),
        cmocka_unit_test(empty_files_and_empty_sections_are_fine),
        cmocka_unit_test(every_example_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
