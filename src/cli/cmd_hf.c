/* ingot ckpt import, export.
 *
 * Import reads the complete model before it writes anything. The checkpoint is written last and makes the
 * directory a run. Export writes into HF_DIR.tmp-PID and renames it; HF_DIR is complete or absent.
 *
 * Tokenizer files are copied unchanged in both directions. ingot uses only a part of their contents (it
 * ignores a chat template and special tokens that a tokenizer prepends); the next user of the model needs
 * all of it. */
#include "base/io.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "data/tokenizer/tokenizer_extend.h"
#include "model/gguf.h"
#include "model/hf.h"
#include "model/safetensors.h"
#include "observe/card.h"
#include "ops/precision.h"
#include "train/data_identity.h"
#include "train/restore.h"
#include "train/runlock.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, TOKENIZER_BYTES_MAX = 1 << 28 };

/* What a continued run begins with where the program's default is meant for a run from nothing. */
enum { IMPORT_STEPS = 1000, IMPORT_SEQUENCE_MAX = 2048 };
static const double IMPORT_LR = 2e-5; /* a pre-trained model forgets at the rates it was begun with */

/* One source and -o. */
static status take_source(const struct args *a, const char **source, const char *out)
{
    TRY(args_words(a, out && out[0] ? 1 : 2, 1)); /* without -o: the usage line */
    *source = a->words[0];
    return STATUS_OK;
}

/* Behind the flags of --help. */
static void print_families(const char *what)
{
    printf("\n%s, by model_type of config.json:", what);
    for (int i = 0; hf_family_name(i); i++) printf("%s %s", i ? "," : "", hf_family_name(i));
    printf("\n(docs/FORMATS.md says what each can hold)\n");
}

/* ---- tokenizer ---- */

static status copy_tokenizer(const struct tokenizer *tok, const char *from, const char *to)
{
    char path[PATH_BYTES + 64], *data;
    size_t bytes;
    bool there;
    TRY(io_make_dirs(to));
    snprintf(path, sizeof path, "%s/tokenizer.json", from);
    TRY(io_exists(path, &there));
    if (!there) return tokenizer_save(tok, to); /* vocab.json with merges.txt */
    TRY(tokenizer_copy_beside(from, to));
    TRY(io_read_file(path, TOKENIZER_BYTES_MAX, &data, &bytes));
    snprintf(path, sizeof path, "%s/tokenizer.json", to);
    status st = io_write_file(path, data, bytes);
    free(data);
    return st;
}

/* The tokenizer beside the weights; *tok NULL and a notice when there is none that ingot reads exactly. */
static status load_beside(struct tokenizer **tok, const char *dir)
{
    static const char *const kinds[] = {"tokenizer.json", "vocab.json", "tokenizer.model"};
    bool any = false;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char path[PATH_BYTES + 64];
        snprintf(path, sizeof path, "%s/%s", dir, kinds[i]);
        if (!any) TRY(io_exists(path, &any));
    }
    *tok = NULL;
    status st = any ? tokenizer_load(tok, dir) : STATUS_OK;
    if (st == STATUS_DATA)
        log_warn("imported without a tokenizer: %s; data.tokenizer=DIR can name another", status_message());
    else if (!any)
        log_warn("imported without a tokenizer: %s has none; data.tokenizer=DIR can name one", dir);
    return st == STATUS_DATA ? STATUS_OK : st;
}

/* ---- import ---- */

static status refuse_run(const char *run)
{
    bool held;
    TRY(restore_holds_run(run, &held));
    if (held) return FAIL(STATUS_CKPT, "%s already holds a run; name another directory with -o", run);
    return STATUS_OK;
}

/* The type of the largest tensor decides: masks and rotary tables beside it may be of another. A number of
 * layers that the files cannot hold is refused here, before anything is made for each of them. */
static status stored_precision(const char *dir, int64_t layers, int *precision)
{
    struct safetensors *s;
    int64_t largest = -1;
    TRY(safetensors_open(&s, dir));
    status st = STATUS_OK;
    if (layers > safetensors_count(s))
        st = FAIL(STATUS_CKPT, "%s: config.json has %lld layers, the weights are %d tensors", dir,
                  (long long)layers, safetensors_count(s));
    for (int i = 0; i < safetensors_count(s); i++) {
        const struct safetensor *t = safetensors_item(s, i);
        if (t->bytes <= largest) continue;
        largest = t->bytes;
        *precision = (int)precision_of_weights(t->dt);
    }
    safetensors_close(s);
    return st;
}

/* The model of DIR with the settings of a run that goes on from it, overrides on top. */
static status import_spec(struct spec *spec, const char *dir, const char *run, const char *tokenizer_dir,
                          struct hf_vocab *vocab, int override_count, char **overrides)
{
    struct spec s = {0};
    for (int i = 0; i < override_count; i++)
        if (strncmp(overrides[i], "--model.", 8) == 0)
            return FAIL(STATUS_CONFIG, "%s: the model is what config.json says", overrides[i]);
    TRY(hf_config_read(&s.model, dir));
    vocab->stored = s.model.vocab_size;
    if (vocab->end > s.model.vocab_size) s.model.vocab_size = vocab->end;
    run_spec_default(&s.run);
    TRY(stored_precision(dir, s.model.layer_count, &s.run.train_precision));
    s.run.train_steps = IMPORT_STEPS;
    s.run.optim_lr = IMPORT_LR;
    s.run.train_sequence_length =
        s.model.context_length < IMPORT_SEQUENCE_MAX ? s.model.context_length : IMPORT_SEQUENCE_MAX;
    snprintf(s.run.run_dir, sizeof s.run.run_dir, "%s", run);
    snprintf(s.run.data_tokenizer, sizeof s.run.data_tokenizer, "%s", tokenizer_dir);
    char *text = spec_dump_text(&s);
    if (text == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the configuration");
    status st = spec_load_text(spec, dir, text, strlen(text), override_count, overrides, NULL);
    free(text);
    return st;
}

/* Everything is in memory; the checkpoint comes last. */
static status write_run(struct trainer *t, const struct tokenizer *tok, const char *tok_from, const char *run,
                        const char *tokenizer_dir)
{
    int lock = -1;
    bool there;
    TRY(io_exists(run, &there));
    TRY(io_make_dirs(run));
    status st = runlock_take(run, &lock);
    if (st == STATUS_OK) st = refuse_run(run); /* again, now that nobody else can begin one */
    if (st == STATUS_OK && tok) st = copy_tokenizer(tok, tok_from, tokenizer_dir);
    if (st == STATUS_OK) st = trainer_write_config(&t->spec, run);
    if (st == STATUS_OK) st = trainer_save(t, run);
    runlock_release(&lock);
    if (st == STATUS_OK || there) return st;
    char reason[PATH_BYTES];
    snprintf(reason, sizeof reason, "%s", status_message());
    if (io_remove_tree(run) != STATUS_OK) log_warn("%s", status_message());
    return FAIL(st, "%s", reason);
}

static void print_import(const struct trainer *t, const char *run, const char *tokenizer_dir, bool json)
{
    const char *precision = precision_name((enum precision)t->spec.run.train_precision);
    const long long parameters = (long long)t->decoder.params.param_count;
    if (!json) {
        printf("run=%s parameters=%lld precision=%s tokenizer=%s\n", run, parameters, precision,
               tokenizer_dir[0] ? tokenizer_dir : "none");
        log_info("next: ingot generate %s --prompt TEXT, or ingot train %s --resume --data.train=SHARDS", run,
                 run);
        return;
    }
    json_t *o = json_pack("{s:s, s:I, s:s}", "run", run, "parameters", (json_int_t)parameters, "precision",
                          precision);
    if (tokenizer_dir[0]) json_object_set_new(o, "tokenizer", json_string(tokenizer_dir));
    print_json(o);
}

struct import {
    const char *from, *run;
    const char *tok_dir;   /* where the tokenizer is */
    struct tokenizer *tok; /* NULL: none */
    struct hf_vocab vocab; /* end 0: the vocabulary of the model */
    bool json;
};

/* --tokenizer DIR: the model's tokenizer with more tokens, whose rows of embedding and head are made. */
static status take_tokenizer(struct import *im, const char *dir)
{
    struct tokenizer *more = NULL;
    struct model_spec m;
    TRY(hf_config_read(&m, im->from));
    TRY(tokenizer_load(&more, dir));
    status st = im->tok ? tokenizer_extends(more, im->tok) : STATUS_OK;
    if (st != STATUS_OK) {
        tokenizer_free(more);
        return status_wrap(st, "--tokenizer %s", dir);
    }
    const int64_t size = im->tok ? tokenizer_vocab_size(im->tok) : m.vocab_size;
    im->vocab.known = size < m.vocab_size ? size : m.vocab_size;
    im->vocab.end = tokenizer_vocab_size(more);
    if (im->tok) tokenizer_free(im->tok);
    im->tok = more;
    im->tok_dir = dir;
    if (im->vocab.end <= im->vocab.known) im->vocab.end = 0;
    return STATUS_OK;
}

static status import_model(struct import *im, int override_count, char **overrides)
{
    const char *from = im->from, *run = im->run;
    const struct tokenizer *tok = im->tok;
    char tokenizer_dir[SPEC_TEXT] = "";
    struct spec spec;
    struct trainer t;
    if (tok) snprintf(tokenizer_dir, sizeof tokenizer_dir, "%s/tokenizer", run);
    TRY(import_spec(&spec, from, run, tokenizer_dir, &im->vocab, override_count, overrides));
    if (tok && tokenizer_vocab_size(tok) > spec.model.vocab_size)
        log_warn("the tokenizer has %d ids, the model %lld: the ids beyond are refused where they occur",
                 (int)tokenizer_vocab_size(tok), (long long)spec.model.vocab_size);
    TRY(trainer_open_weights(&t, &spec));
    if (im->vocab.end > 0)
        log_info("vocabulary %lld ids, %lld of them new: their rows begin as the mean of the others",
                 (long long)spec.model.vocab_size, (long long)(im->vocab.end - im->vocab.known));
    status st = hf_weights_read_extended(&t.decoder, from, im->vocab.end > 0 ? &im->vocab : NULL);
    if (st == STATUS_OK && t.decoder.token_map.data)
        st = tok ? trainer_fold(&t, tok)
                 : FAIL(STATUS_CKPT,
                        "%s: engram_fold needs the tokenizer that the model was trained with, and "
                        "there is none beside the weights",
                        from);
    t.data = data_identity_of_tokenizer(tok);
    if (st == STATUS_OK) st = write_run(&t, tok, im->tok_dir, run, tokenizer_dir);
    if (st == STATUS_OK) print_import(&t, run, tokenizer_dir, im->json);
    trainer_close(&t);
    return st;
}

status cmd_ckpt_import(struct args *a)
{
    struct import im = {0};
    const char *tokenizer = NULL;
    const struct flag flags[] = {FLAG("out", &im.run), FLAG("tokenizer", &tokenizer), FLAG("json", &im.json)};
    TRY(args_parse(a, flags, 3));
    if (a->help) print_families("reads these models");
    if (a->help) return STATUS_OK;
    TRY(take_source(a, &im.from, im.run));
    if (strlen(im.run) > SPEC_TEXT - 32) return FAIL(STATUS_CONFIG, "the path %.40s... is too long", im.run);
    TRY(refuse_run(im.run));
    TRY(load_beside(&im.tok, im.from));
    im.tok_dir = im.from;
    status st = tokenizer ? take_tokenizer(&im, tokenizer) : STATUS_OK;
    if (st == STATUS_OK) st = import_model(&im, a->key_count, a->keys);
    tokenizer_free(im.tok);
    return st;
}

/* ---- export ---- */

static status write_generation_config(const char *dir, struct tokenizer_ends ends)
{
    char path[PATH_BYTES + 64];
    json_t *j = json_pack("{s:b}", "_from_model_config", 1);
    if (ends.bos >= 0) json_object_set_new(j, "bos_token_id", json_integer(ends.bos));
    if (ends.eos >= 0) json_object_set_new(j, "eos_token_id", json_integer(ends.eos));
    char *text = json_dumps(j, JSON_INDENT(2));
    json_decref(j);
    if (text == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for generation_config.json");
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    status st = io_write_file(path, text, strlen(text));
    free(text);
    return st;
}

struct export
{
    const char *from, *to;
    dtype dt;
    int64_t shard_bytes;
    bool accept;           /* another tokenizer than the checkpoint's */
    const char *tokenizer; /* a tokenizer.model for GGUF; NULL: the run's tokenizer */
};

/* The run's tokenizer and its directory; *tok NULL and a notice when it names none. */
static status load_tokenizer(const struct trainer *t, struct tokenizer **tok, struct tokenizer_place *place,
                             struct tokenizer_ends *ends)
{
    *tok = NULL;
    *ends = (struct tokenizer_ends){-1, -1};
    if (restore_tokenizer_place(&t->spec, place) != STATUS_OK) {
        log_warn("exported without a tokenizer: the run names none");
        return STATUS_OK;
    }
    status st = restore_tokenizer(t, place, tok);
    if (st != STATUS_OK)
        return status_wrap(st, "the run's tokenizer (--data.tokenizer=DIR names another, "
                               "--data.tokenizer= none)");
    *ends = tokenizer_ends_of(*tok, place->dir);
    return st;
}

static status write_card(const struct trainer *t, const struct export *e, const char *dir)
{
    const struct model_spec *m = &t->spec.model;
    const char *family = "", *name = strrchr(e->to, '/');
    TRY(hf_family(m, &family));
    return card_write(&(struct card){.run = e->from,
                                     .name = name ? name + 1 : e->to,
                                     .family = family,
                                     .dtype = e->dt == DTYPE_F8_E4M3
                                                  ? "fp8, in blocks of 128 x 128 with a scale each"
                                              : e->dt == DTYPE_BF16 ? "bf16"
                                                                    : "fp32",
                                     .step = t->step,
                                     .tokens = t->tokens,
                                     .parameters = (double)t->decoder.params.param_count,
                                     .layers = m->layer_count,
                                     .width = m->hidden_size,
                                     .heads = m->head_count,
                                     .context = m->context_length,
                                     .vocabulary = m->vocab_size},
                      dir);
}

/* config.json last: what lacks it is no model. */
static status write_model(const struct trainer *t, const struct export *e, const char *dir)
{
    struct tokenizer_place place;
    struct tokenizer *tok;
    struct tokenizer_ends ends;
    TRY(hf_weights_write(&t->decoder, dir, e->dt, e->shard_bytes));
    TRY(load_tokenizer(t, &tok, &place, &ends));
    status st = tok ? copy_tokenizer(tok, place.dir, dir) : STATUS_OK;
    tokenizer_free(tok);
    TRY(st);
    TRY(write_generation_config(dir, ends));
    TRY(write_card(t, e, dir));
    if (e->dt == DTYPE_F8_E4M3) return hf_config_write_fp8(&t->decoder, dir, ends.bos, ends.eos);
    return hf_config_write(&t->spec.model, dir, e->dt, ends.bos, ends.eos);
}

/* A name may be taken by an empty directory alone. */
static status check_free(const char *dir)
{
    enum io_kind kind;
    struct io_list names = {0};
    TRY(io_kind(dir, &kind));
    if (kind == IO_NONE) return STATUS_OK;
    if (kind == IO_DIR) TRY(io_list(dir, &names));
    bool taken = kind != IO_DIR || names.count > 0;
    io_list_free(&names);
    if (taken) return FAIL(STATUS_CKPT, "%s exists already; name another directory with -o", dir);
    return STATUS_OK;
}

static status export_model(const struct trainer *t, const struct export *e)
{
    char to[PATH_BYTES], temp[PATH_BYTES + 32], reason[PATH_BYTES];
    struct export named = *e;
    if (snprintf(to, sizeof to, "%s", e->to) >= (int)sizeof to)
        return FAIL(STATUS_CONFIG, "the path %.40s... is too long", e->to);
    for (size_t n = strlen(to); n > 1 && to[n - 1] == '/';) to[--n] = 0;
    TRY(check_free(to));
    snprintf(temp, sizeof temp, "%s.tmp-%ld", to, (long)getpid());
    TRY(io_make_dirs(temp));
    named.to = to;
    status st = write_model(t, &named, temp);
    if (st == STATUS_OK) st = io_rename_dir(temp, to);
    if (st == STATUS_OK) return st;
    snprintf(reason, sizeof reason, "%s", status_message());
    if (io_remove_tree(temp) != STATUS_OK) log_warn("%s", status_message());
    return FAIL(st, "%s", reason);
}

/* A model that transformers cannot load is no failure, but nobody should find out later. */
static status tell_family(const struct model_spec *m, const char **family)
{
    char nearest[128];
    TRY(hf_family(m, family));
    if (strcmp(*family, "ingot") != 0) return STATUS_OK;
    hf_nearest(m, nearest);
    log_warn(
        "no family of transformers holds this model (%s): written as model_type ingot, which ingot reads",
        nearest);
    return STATUS_OK;
}

/* ---- GGUF */

/* `pieces`: a tokenizer.model in place of the run's tokenizer; NULL: none. */
static status export_gguf(const struct trainer *t, const char *path, enum gguf_type type,
                          const struct sentencepiece *pieces)
{
    struct tokenizer_place place;
    struct tokenizer *tok = NULL;
    struct tokenizer_ends ends = {-1, -1};
    const char *slash = strrchr(path, '/');
    if (pieces == NULL) TRY(load_tokenizer(t, &tok, &place, &ends));
    status st = gguf_write(&(struct gguf_source){.d = &t->decoder,
                                                 .tokenizer = tok,
                                                 .pieces = pieces,
                                                 .bos = ends.bos,
                                                 .eos = ends.eos,
                                                 .name = slash ? slash + 1 : path,
                                                 .type = type},
                           path);
    tokenizer_free(tok);
    return st;
}

static void print_export(const struct trainer *t, const struct export *e, const char *type, const char *dt,
                         bool json)
{
    if (json)
        print_json(json_pack("{s:s, s:s, s:I, s:I, s:s}", "model", e->to, "type", type, "step",
                             (json_int_t)t->step, "parameters", (json_int_t)t->decoder.params.param_count,
                             "dtype", dt));
    else
        printf("model=%s type=%s step=%lld parameters=%lld dtype=%s\n", e->to, type, (long long)t->step,
               (long long)t->decoder.params.param_count, dt);
}

static status open_run(struct trainer *t, const struct args *a, const struct export *e)
{
    return restore_open(t, e->from,
                        &(struct restore_options){
                            .override_count = a->key_count, .overrides = a->keys, .accept_data = e->accept});
}

static status run_gguf(const struct args *a, const struct export *e, const char *dt, bool json)
{
    const int type = gguf_type_find(strcmp(dt, "fp32") == 0 ? "f32" : dt);
    if (type < 0) return FAIL(STATUS_CONFIG, "--dtype of GGUF is f32, f16, bf16 or q8_0, not '%s'", dt);
    bool there;
    TRY(io_exists(e->to, &there));
    if (there) return FAIL(STATUS_CKPT, "%s exists already; name another file with -o", e->to);
    struct trainer t;
    struct sentencepiece pieces = {0};
    const char *arch = "";
    if (e->tokenizer) TRY(sentencepiece_read(&pieces, e->tokenizer));
    status st = open_run(&t, a, e);
    if (st != STATUS_OK) {
        sentencepiece_free(&pieces);
        return st;
    }
    st = gguf_architecture(&t.decoder, &arch);
    if (st == STATUS_OK) st = export_gguf(&t, e->to, (enum gguf_type)type, e->tokenizer ? &pieces : NULL);
    sentencepiece_free(&pieces);
    if (st == STATUS_OK) print_export(&t, e, arch, gguf_type_word((enum gguf_type)type), json);
    trainer_close(&t);
    return st;
}

static status run_hf(const struct args *a, struct export *e, const char *dt, double shard_gib, bool json)
{
    if (strcmp(dt, "bf16") != 0 && strcmp(dt, "fp32") != 0 && strcmp(dt, "fp8") != 0)
        return FAIL(STATUS_CONFIG,
                    "--dtype is bf16, fp32 or fp8, not '%s'; --format gguf has f16 and q8_0, too", dt);
    if (!(shard_gib > 0 && shard_gib <= 1e6)) return FAIL(STATUS_CONFIG, "--shard-gib is in (0, 1e6]");
    e->dt = strcmp(dt, "bf16") == 0 ? DTYPE_BF16 : strcmp(dt, "fp8") == 0 ? DTYPE_F8_E4M3 : DTYPE_F32;
    e->shard_bytes = (int64_t)(shard_gib * 0x1p30);
    struct trainer t;
    const char *family = "";
    TRY(check_free(e->to));
    TRY(open_run(&t, a, e));
    status st = export_model(&t, e);
    if (st == STATUS_OK) st = tell_family(&t.spec.model, &family);
    if (st == STATUS_OK) print_export(&t, e, family, dt, json);
    trainer_close(&t);
    return st;
}

status cmd_ckpt_export(struct args *a)
{
    struct export e = {0};
    const char *type = "fp32", *format = "hf";
    double shard_gib = 5;
    bool json = false;
    const struct flag flags[] = {FLAG("out", &e.to),
                                 FLAG("accept-data-change", &e.accept),
                                 FLAG("format", &format),
                                 FLAG("dtype", &type),
                                 FLAG("shard-gib", &shard_gib),
                                 FLAG("json", &json),
                                 FLAG("tokenizer", &e.tokenizer)};
    TRY(args_parse(a, flags, 7));
    if (a->help)
        print_families("writes the first of these that holds the model exactly (ingot: no other does)");
    if (a->help) return STATUS_OK;
    TRY(take_source(a, &e.from, e.to));
    if (strcmp(format, "gguf") == 0) return run_gguf(a, &e, type, json);
    if (strcmp(format, "hf") != 0) return FAIL(STATUS_CONFIG, "--format is hf or gguf, not '%s'", format);
    if (e.tokenizer) return FAIL(STATUS_CONFIG, "--tokenizer is for --format gguf");
    return run_hf(a, &e, type, shard_gib, json);
}
