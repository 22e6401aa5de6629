/* ingot data: converts text to shards, and inspects shards. */
#include "cli/cmd_data.h"

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/inputs.h"
#include "data/build/build_val.h"
#include "train/signals.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum { TERMINAL_MS = 200, LINE_MS = 10000, BAR_COLUMNS = 24 };

struct meter {
    int64_t start_ns, next_ns;
    bool terminal;
};

static void wipe(void)
{
    fputs("\r\033[K", stderr);
}

static void show_progress(const struct build_progress *p, void *ctx)
{
    struct meter *m = ctx;
    int64_t now = clock_ns();
    if (now < m->next_ns) return;
    m->next_ns = now + (m->terminal ? TERMINAL_MS : LINE_MS) * 1000000ll;
    double s = (double)(now - m->start_ns) * 1e-9, rate = (double)(p->bytes_done - p->bytes_before) / s;
    double part = p->bytes_total ? (double)p->bytes_done / (double)p->bytes_total : 1;
    char done[32], total[32], tokens[32], per_s[32], eta[32], bar[BAR_COLUMNS + 1], line[320];
    memset(bar, '-', BAR_COLUMNS);
    memset(bar, '=', (size_t)(part * BAR_COLUMNS));
    bar[BAR_COLUMNS] = 0;
    text_duration(eta, rate > 0 ? (double)(p->bytes_total - p->bytes_done) / rate : 0);
    snprintf(line, sizeof line, "%s%s%3d%%  %s of %s  %.1f MB/s  %s tokens  %s tok/s  ETA %s",
             m->terminal ? bar : "", m->terminal ? " " : "", (int)(100 * part),
             text_bytes(done, (double)p->bytes_done), text_bytes(total, (double)p->bytes_total), rate * 1e-6,
             text_count(tokens, (double)p->tokens),
             text_count(per_s, (double)(p->tokens - p->tokens_before) / s), eta);
    if (m->terminal)
        fprintf(stderr, "\r\033[K%s", line);
    else
        log_info("data build: %s", line);
}

struct build_flags {
    const char *out, *tokenizer, *eod, *key, *separator, *input, *format, *on_error, *dedup, *dedup_report,
        *input_eod, *dtype;
    struct chat_config chat;
    double val_fraction, val_tail, sync_s;
    int64_t val_every, shard_tokens, vocab_size, eot, batch_bytes, document_bytes;
    bool force, json;
};

static bool stop_asked(void *ctx)
{
    (void)ctx;
    return signals_pending() != 0;
}

/* The place of a word in a list; -1: it is not there. */
static int word_of(const char *word, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (words[i] && strcmp(words[i], word) == 0) return i;
    return -1;
}

static status take_val(const struct build_flags *f, struct build_config *c)
{
    int given = (f->val_fraction != 0) + (f->val_every != 0) + (f->val_tail != 0);
    if (given > 1)
        return FAIL(STATUS_CONFIG, "--val-fraction, --val-every-n and --val-tail exclude each other");
    c->val = f->val_fraction != 0 ? BUILD_VAL_HASH
             : f->val_every != 0  ? BUILD_VAL_EVERY
             : f->val_tail != 0   ? BUILD_VAL_TAIL
                                  : BUILD_VAL_NONE;
    c->val_fraction = c->val == BUILD_VAL_TAIL ? f->val_tail : f->val_fraction;
    c->val_every = f->val_every;
    if (c->val == BUILD_VAL_EVERY && c->val_every < 2)
        return FAIL(STATUS_CONFIG, "--val-every-n %lld: 2 or more is expected", (long long)c->val_every);
    if ((c->val == BUILD_VAL_HASH || c->val == BUILD_VAL_TAIL) &&
        !(c->val_fraction > 0 && c->val_fraction < 1))
        return FAIL(STATUS_CONFIG, "a validation part of %g: a number between 0 and 1 is expected",
                    c->val_fraction);
    return STATUS_OK;
}

static int eod_of(const char *word)
{
    static const char *const eods[] = {
#define X(value, word) [EOD_##value] = (word),
        EOD_WORDS(X)
#undef X
    };
    return word_of(word, eods, COUNT(eods));
}

/* Where nothing else is said, a model of answers learns where they end. */
static status take_eod(const struct build_flags *f, struct build_config *c)
{
    const bool chat = chat_given(&f->chat);
    const char *word = f->eod ? f->eod : chat ? "after" : "before";
    const int eod = eod_of(word);
    if (eod < 0) return FAIL(STATUS_CONFIG, "--eod %s: before, after or none is expected", word);
    if (f->chat.prompt && eod != EOD_AFTER)
        log_warn("--eod %s: no position learns where a completion ends; --eod after has a token for it",
                 word);
    if (chat && strcmp(f->dedup, "near") == 0)
        return FAIL(STATUS_CONFIG,
                    "--dedup near compares texts, not prompts or messages; --dedup exact removes equal ones");
    if (chat && f->key)
        return FAIL(STATUS_CONFIG, "--key excludes --prompt and --messages, which name their keys");
    c->eod = (enum eod)eod;
    c->chat = f->chat;
    return STATUS_OK;
}

static status take_words(const struct build_flags *f, struct build_config *c)
{
    TRY(take_eod(f, c));
    static const char *const inputs[] = {[READER_AUTO] = "auto",
                                         [READER_PLAIN] = "text",
                                         [READER_JSONL] = "jsonl",
                                         [READER_PARQUET] = "parquet"};
    int input = word_of(f->input, inputs, COUNT(inputs));
    if (input < 0)
        return FAIL(STATUS_CONFIG, "--input %s: auto, text, jsonl or parquet is expected", f->input);
    c->reader.format = (enum reader_format)input;
    static const char *const separators[] = {
        [READER_FILE] = "file", [READER_BLANK] = "blank", [READER_LINE] = "line"};
    if (!f->separator[0]) return FAIL(STATUS_CONFIG, "--separator: file, blank, line or a text is expected");
    c->reader.separator = READER_TEXT;
    c->reader.separator_text = f->separator;
    for (int i = 0; i < COUNT(separators); i++)
        if (strcmp(f->separator, separators[i]) == 0) c->reader.separator = (enum reader_separator)i;
    c->skip_errors = strcmp(f->on_error, "skip") == 0;
    if (!c->skip_errors && strcmp(f->on_error, "stop") != 0 && strcmp(f->on_error, "fail") != 0)
        return FAIL(STATUS_CONFIG, "--on-error %s: stop or skip is expected", f->on_error);
    return STATUS_OK;
}

static status take_output(const struct build_flags *f, struct build_config *c)
{
    if (f->eot < -1 || f->eot > INT32_MAX)
        return FAIL(STATUS_CONFIG, "--eot %lld: the id of a token is expected", (long long)f->eot);
    static const char *const formats[] = {
        [SHARD_LLMC] = "llmc", [SHARD_MEGATRON] = "megatron", [SHARD_NPY] = "npy"};
    /* ingot's own shards are llm.c's, with a manifest and indexes beside them; the other formats get these
     * too */
    int format = strcmp(f->format, "ingot") == 0 ? SHARD_LLMC : word_of(f->format, formats, COUNT(formats));
    if (format < 0)
        return FAIL(STATUS_CONFIG,
                    "--format %s: ingot, llmc, megatron or npy is expected (--input names what is read)",
                    f->format);
    c->format = (enum shard_format)format;
    static const char *const dedups[] = {[BUILD_DEDUP_REPORT] = "report",
                                         [BUILD_DEDUP_EXACT] = "exact",
                                         [BUILD_DEDUP_NEAR] = "near",
                                         [BUILD_DEDUP_OFF] = "off"};
    int dedup = word_of(f->dedup, dedups, COUNT(dedups));
    if (dedup < 0) return FAIL(STATUS_CONFIG, "--dedup %s: report, exact, near or off is expected", f->dedup);
    c->dedup = (enum build_dedup)dedup;
    c->near_report = strcmp(f->dedup_report, "near") == 0;
    if (!c->near_report && strcmp(f->dedup_report, "exact") != 0)
        return FAIL(STATUS_CONFIG, "--dedup-report %s: exact or near is expected", f->dedup_report);
    c->hints = (struct shard_hints){.eot = (int32_t)f->eot, .eod = EOD_AUTO};
    if (f->input_eod && (c->hints.eod = eod_of(f->input_eod)) < 0)
        return FAIL(STATUS_CONFIG, "--input-eod %s: before, after or none is expected", f->input_eod);
    if (f->dtype && (c->hints.type = shard_type_find(f->dtype)) == SHARD_TYPE_UNKNOWN)
        return FAIL(STATUS_CONFIG, "--dtype %s: uint16, uint32, int32, ... is expected", f->dtype);
    c->vocab_size = f->vocab_size;
    if (f->batch_bytes < 0 || f->batch_bytes > 1 << 30)
        return FAIL(STATUS_CONFIG, "--batch-bytes %lld: at most 1 GiB is expected",
                    (long long)f->batch_bytes);
    c->reader.batch_bytes = (size_t)f->batch_bytes;
    if (f->document_bytes < 1 || f->document_bytes > READER_DOCUMENT_BYTES_MAX)
        return FAIL(STATUS_CONFIG, "--max-document-bytes %lld: 1 to %d is expected",
                    (long long)f->document_bytes, READER_DOCUMENT_BYTES_MAX);
    c->reader.document_bytes_max = (size_t)f->document_bytes;
    c->sync_s = f->sync_s > 0 ? f->sync_s : -1;
    c->stop = stop_asked;
    return STATUS_OK;
}

static status take_flags(const struct build_flags *f, struct build_config *c)
{
    if (f->shard_tokens < 1 || f->shard_tokens > INT32_MAX)
        return FAIL(STATUS_CONFIG, "--shard-tokens %lld: 1 to %d is expected", (long long)f->shard_tokens,
                    INT32_MAX);
    c->prefix = f->out;
    c->tokenizer_dir = f->tokenizer;
    c->reader.key = f->key ? f->key : "text";
    c->shard_tokens = f->shard_tokens;
    c->force = f->force;
    TRY(take_val(f, c));
    TRY(take_words(f, c));
    return take_output(f, c);
}

static void print_sum_text(const char *name, const char *prefix, const char *suffix,
                           const struct manifest_sum *s)
{
    if (s->shards == 0) return;
    char tokens[32], bytes[32];
    printf("%-6s %9s tokens  %8lld documents  %10s of text  %5.3f bytes/token  %s_%s_*%s (%lld)\n", name,
           text_count(tokens, (double)s->tokens), (long long)s->documents,
           text_bytes(bytes, (double)s->text_bytes), (double)s->text_bytes / (double)s->tokens, prefix, name,
           suffix, (long long)s->shards);
}

static json_t *sum_json(const struct manifest_sum *s)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "shards", (json_int_t)s->shards, "tokens", (json_int_t)s->tokens,
                     "documents", (json_int_t)s->documents, "text_bytes", (json_int_t)s->text_bytes);
}

static json_t *near_json(const struct dedup_near_report *r)
{
    json_t *examples = json_array();
    for (int i = 0; i < r->example_count; i++)
        json_array_append_new(examples,
                              json_pack("{s:I, s:I, s:f}", "document", (json_int_t)r->examples[i].b, "like",
                                        (json_int_t)r->examples[i].a, "jaccard", r->examples[i].similarity));
    return json_pack("{s:I, s:I, s:f, s:I, s:o}", "documents", (json_int_t)r->documents, "near",
                     (json_int_t)r->near, "threshold", r->threshold, "pairs_compared", (json_int_t)r->pairs,
                     "examples", examples);
}

static json_t *duplicates_json(const struct manifest_duplicates *d)
{
    json_t *o = json_pack("{s:I, s:I, s:b}", "documents", (json_int_t)d->documents, "text_bytes",
                          (json_int_t)d->text_bytes, "removed", d->removed);
    if (!o || !d->near_removed) return o;
    json_object_set_new(o, "near_documents", json_integer(d->near_documents));
    json_object_set_new(o, "near_text_bytes", json_integer(d->near_text_bytes));
    return o;
}

static void print_json(const struct build_flags *f, const struct build_config *c,
                       const struct build_report *r, double seconds)
{
    json_t *o =
        json_pack("{s:s, s:f, s:I, s:I, s:o, s:o*, s:o, s:o}", "prefix", f->out, "seconds", seconds,
                  "skipped", (json_int_t)r->skipped, "empty", (json_int_t)r->empty, "duplicates",
                  duplicates_json(&r->duplicates), "near", c->near_report ? near_json(&r->near) : NULL,
                  "train", sum_json(&r->train), "val", sum_json(&r->val));
    if (o) json_dumpf(o, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(o);
    puts("");
}

static void print_duplicates(const struct build_report *r, const struct build_config *c)
{
    char bytes[32];
    const struct manifest_duplicates *d = &r->duplicates;
    if (d->counted)
        printf("duplicates: %lld documents with a text that was there before (%s)%s\n",
               (long long)d->documents, text_bytes(bytes, (double)d->text_bytes),
               d->documents == 0 ? ""
               : d->removed      ? ", left out"
                                 : "; --dedup exact leaves them out");
    if (d->near_removed)
        printf("near duplicates: %lld documents that are like one before them (%s), left out\n",
               (long long)d->near_documents, text_bytes(bytes, (double)d->near_text_bytes));
    const struct dedup_near_report *n = &r->near;
    if (!c->near_report) return;
    printf("near duplicates: %lld of %lld documents are like one before them (estimated Jaccard of 5-word "
           "shingles at least %.1f)\n",
           (long long)n->near, (long long)n->documents, n->threshold);
    for (int i = 0; i < n->example_count; i++)
        printf("  document %lld is like document %lld: %.2f\n", (long long)n->examples[i].b,
               (long long)n->examples[i].a, n->examples[i].similarity);
}

static void print_report(const struct build_flags *f, const struct build_config *c,
                         const struct build_report *r, double seconds)
{
    if (f->json) return print_json(f, c, r, seconds);
    const char *suffix = shard_suffix(c->format, 0);
    print_sum_text("train", f->out, suffix, &r->train);
    print_sum_text("val", f->out, suffix, &r->val);
    print_duplicates(r, c);
    char speed[32], time[32];
    printf("%s_manifest.json written in %s (%s/s)\n", f->out, text_duration(time, seconds),
           text_bytes(speed, (double)(r->train.text_bytes + r->val.text_bytes) / seconds));
}

/* What a part chosen by a hash may leave out in a small corpus, another choice gives. */
static void choose_val(struct build_config *c)
{
    int64_t documents;
    char part[64];
    build_val_choose(c, &documents);
    if (documents == 0 || c->val == BUILD_VAL_HASH) return;
    if (c->val == BUILD_VAL_TAIL)
        snprintf(part, sizeof part, "the last %g %% of the text (--val-tail %g)", 100 * c->val_fraction,
                 c->val_fraction);
    else
        snprintf(part, sizeof part, "the last one (--val-every-n %lld)", (long long)c->val_every);
    log_info("validation: a hash of the text puts none of %lld documents into a part of %g; it is %s",
             (long long)documents, c->val_fraction, part);
}

/* The directory of a prefix, made if it is missing. */
static status directory_of(const char *prefix, char dir[PATH_MAX])
{
    const char *slash = strrchr(prefix, '/');
    if (snprintf(dir, PATH_MAX, "%.*s", slash ? (int)(slash - prefix) + 1 : 1, slash ? prefix : ".") >=
        PATH_MAX)
        return FAIL(STATUS_CONFIG, "the path %.40s... is too long", prefix);
    return io_make_dirs(dir);
}

/* What standard input said is gone after a kill: no journal is written that could only be refused. */
static void build_once(struct build_config *c)
{
    c->sync_s = 1e9;
    c->stop = NULL;
}

static status run_build(const struct build_flags *f, const struct inputs *in)
{
    struct meter meter = {.start_ns = clock_ns(), .terminal = isatty(STDERR_FILENO)};
    meter.next_ns = meter.start_ns + (meter.terminal ? TERMINAL_MS : LINE_MS) * 1000000ll;
    struct build_config c = {.inputs = (const char *const *)in->paths,
                             .input_count = in->count,
                             .words = in->words,
                             .progress = show_progress,
                             .ctx = &meter};
    TRY(take_flags(f, &c));
    choose_val(&c);
    if (in->standard)
        build_once(&c);
    else
        signals_catch();
    struct build_report r;
    if (meter.terminal) log_before_line_set(wipe);
    status st = build_run(&c, &r);
    log_before_line_set(NULL);
    if (meter.terminal) wipe();
    TRY(st);
    if (r.skipped > 0) log_warn("%lld documents could not be read and were left out", (long long)r.skipped);
    if (r.empty > 0) log_info("%lld documents are empty or null and were passed over", (long long)r.empty);
    if (c.val == BUILD_VAL_NONE) log_info("no validation part; --val-fraction 0.05 makes one");
    print_report(f, &c, &r, (double)(clock_ns() - meter.start_ns) * 1e-9);
    return STATUS_OK;
}

static status run_inputs(const struct build_flags *f, char **words, int count, struct inputs *in)
{
    char spool[PATH_MAX] = "";
    for (int i = 0; i < count; i++)
        if (strcmp(words[i], "-") == 0) TRY(directory_of(f->out, spool));
    TRY(inputs_expand(in, words, count, spool, f->dtype != NULL));
    return run_build(f, in);
}

status cmd_data_build(struct args *a)
{
    struct build_flags f = {.separator = "file",
                            .document_bytes = READER_DOCUMENT_BYTES_MAX,
                            .input = "auto",
                            .format = "ingot",
                            .on_error = "stop",
                            .dedup = "report",
                            .dedup_report = "exact",
                            .eot = -1,
                            .sync_s = 10,
                            .shard_tokens = 100000000};
    const struct flag flags[] = {FLAG("out", &f.out),
                                 FLAG("tokenizer", &f.tokenizer),
                                 FLAG("val-fraction", &f.val_fraction),
                                 FLAG("val-every-n", &f.val_every),
                                 FLAG("val-tail", &f.val_tail),
                                 FLAG("eod", &f.eod),
                                 FLAG("shard-tokens", &f.shard_tokens),
                                 FLAG("format", &f.format),
                                 FLAG("input", &f.input),
                                 FLAG("key", &f.key),
                                 FLAG("prompt", &f.chat.prompt),
                                 FLAG("completion", &f.chat.completion),
                                 FLAG("messages", &f.chat.messages),
                                 FLAG("template", &f.chat.layout),
                                 FLAG("separator", &f.separator),
                                 FLAG("on-error", &f.on_error),
                                 FLAG("dedup", &f.dedup),
                                 FLAG("dedup-report", &f.dedup_report),
                                 FLAG("vocab-size", &f.vocab_size),
                                 FLAG("eot", &f.eot),
                                 FLAG("input-eod", &f.input_eod),
                                 FLAG("dtype", &f.dtype),
                                 FLAG("sync-seconds", &f.sync_s),
                                 FLAG("batch-bytes", &f.batch_bytes),
                                 FLAG("max-document-bytes", &f.document_bytes),
                                 FLAG("force", &f.force),
                                 FLAG("json", &f.json)};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, f.out ? 1 : INT_MAX, INT_MAX));
    struct inputs in = {0};
    status st = run_inputs(&f, a->words, a->word_count, &in);
    inputs_free(&in);
    return st;
}
