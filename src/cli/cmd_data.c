/* ingot data: text into shards, and a look into them. */
#include "cli/cmd_data.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "data/build.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define BUILD_USAGE                                                                                          \
    "data build INPUT... -o PREFIX --tokenizer DIR [--val-fraction X | --val-every-n N | --val-tail X]"

enum { TERMINAL_MS = 200, LINE_MS = 10000 };

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
    double s = (double)(now - m->start_ns) * 1e-9, rate = (double)p->bytes_done / s;
    char done[32], total[32], tokens[32], speed[32], eta[32], line[256];
    text_duration(eta, rate > 0 ? (double)(p->bytes_total - p->bytes_done) / rate : 0);
    snprintf(line, sizeof line, "%s of %s (%d%%), %s tokens, %s/s, ETA %s",
             text_bytes(done, (double)p->bytes_done), text_bytes(total, (double)p->bytes_total),
             (int)(100.0 * (double)p->bytes_done / (double)(p->bytes_total ? p->bytes_total : 1)),
             text_count(tokens, (double)p->tokens), text_bytes(speed, rate), eta);
    if (m->terminal)
        fprintf(stderr, "\r\033[K%s", line);
    else
        log_info("data build: %s", line);
}

struct build_flags {
    const char *out, *tokenizer, *eod, *key, *separator, *format, *on_error;
    double val_fraction, val_tail;
    int64_t val_every, shard_tokens;
    bool force, json;
};

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

static status take_words(const struct build_flags *f, struct build_config *c)
{
    static const char *const eods[] = {
#define X(value, word) [EOD_##value] = (word),
        EOD_WORDS(X)
#undef X
    };
    int eod = 0;
    while (eod < COUNT(eods) && strcmp(f->eod, eods[eod]) != 0) eod++;
    if (eod == COUNT(eods)) return FAIL(STATUS_CONFIG, "--eod %s: before, after or none is expected", f->eod);
    c->eod = (enum eod)eod;
    static const char *const formats[] = {
        [READER_AUTO] = "auto", [READER_PLAIN] = "text", [READER_JSONL] = "jsonl"};
    int format = 0;
    while (format < COUNT(formats) && strcmp(f->format, formats[format]) != 0) format++;
    if (format == COUNT(formats))
        return FAIL(STATUS_CONFIG, "--format %s: auto, text or jsonl is expected", f->format);
    c->reader.format = (enum reader_format)format;
    static const char *const separators[] = {
        [READER_FILE] = "file", [READER_BLANK] = "blank", [READER_LINE] = "line"};
    if (!f->separator[0]) return FAIL(STATUS_CONFIG, "--separator: file, blank, line or a text is expected");
    c->reader.separator = READER_TEXT;
    c->reader.separator_text = f->separator;
    for (int i = 0; i < COUNT(separators); i++)
        if (strcmp(f->separator, separators[i]) == 0) c->reader.separator = (enum reader_separator)i;
    c->skip_errors = strcmp(f->on_error, "skip") == 0;
    if (!c->skip_errors && strcmp(f->on_error, "fail") != 0)
        return FAIL(STATUS_CONFIG, "--on-error %s: fail or skip is expected", f->on_error);
    return STATUS_OK;
}

static status take_flags(const struct build_flags *f, struct build_config *c)
{
    if (!f->out || !f->tokenizer || c->input_count == 0)
        return FAIL(STATUS_CONFIG, "usage: ingot %s", BUILD_USAGE);
    if (f->shard_tokens < 1 || f->shard_tokens > INT32_MAX)
        return FAIL(STATUS_CONFIG, "--shard-tokens %lld: 1 to %d is expected", (long long)f->shard_tokens,
                    INT32_MAX);
    c->prefix = f->out;
    c->tokenizer_dir = f->tokenizer;
    c->reader.key = f->key;
    c->shard_tokens = f->shard_tokens;
    c->force = f->force;
    TRY(take_val(f, c));
    return take_words(f, c);
}

static void print_sum_text(const char *name, const char *prefix, const struct manifest_sum *s)
{
    if (s->shards == 0) return;
    char tokens[32], bytes[32];
    printf("%-6s %9s tokens  %8lld documents  %10s of text  %5.3f bytes/token  %s_%s_*.bin (%lld)\n", name,
           text_count(tokens, (double)s->tokens), (long long)s->documents,
           text_bytes(bytes, (double)s->text_bytes), (double)s->text_bytes / (double)s->tokens, prefix, name,
           (long long)s->shards);
}

static json_t *sum_json(const struct manifest_sum *s)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "shards", (json_int_t)s->shards, "tokens", (json_int_t)s->tokens,
                     "documents", (json_int_t)s->documents, "text_bytes", (json_int_t)s->text_bytes);
}

static void print_report(const struct build_flags *f, const struct build_report *r, double seconds)
{
    if (f->json) {
        json_t *o = json_pack("{s:s, s:f, s:I, s:o, s:o}", "prefix", f->out, "seconds", seconds, "skipped",
                              (json_int_t)r->skipped, "train", sum_json(&r->train), "val", sum_json(&r->val));
        if (o) json_dumpf(o, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
        json_decref(o);
        puts("");
        return;
    }
    print_sum_text("train", f->out, &r->train);
    print_sum_text("val", f->out, &r->val);
    char speed[32], time[32];
    printf("%s_manifest.json written in %s (%s/s)\n", f->out, text_duration(time, seconds),
           text_bytes(speed, (double)(r->train.text_bytes + r->val.text_bytes) / seconds));
}

static status data_build(int argc, char **argv)
{
    struct build_flags f = {.eod = "before",
                            .key = "text",
                            .separator = "file",
                            .format = "auto",
                            .on_error = "fail",
                            .shard_tokens = 100000000};
    const struct flag flags[] = {
        {"out", FLAG_TEXT, &f.out, "-o PREFIX: writes PREFIX_train_000000.bin, ..., PREFIX_manifest.json"},
        {"tokenizer", FLAG_TEXT, &f.tokenizer, "directory with tokenizer.json"},
        {"val-fraction", FLAG_REAL, &f.val_fraction,
         "validation: this part of the documents, chosen by a hash of the text"},
        {"val-every-n", FLAG_INT, &f.val_every, "validation: every n-th document"},
        {"val-tail", FLAG_REAL, &f.val_tail,
         "validation: the documents in this last part of the input; a lone text is divided at a line"},
        {"eod", FLAG_TEXT, &f.eod,
         "end-of-text token before (default, as llm.c) | after each document | none"},
        {"shard-tokens", FLAG_INT, &f.shard_tokens, "tokens per shard; default 100M"},
        {"format", FLAG_TEXT, &f.format, "auto (default: by the file's name) | text | jsonl"},
        {"key", FLAG_TEXT, &f.key, "key of the text in .jsonl; default text"},
        {"separator", FLAG_TEXT, &f.separator,
         "documents of plain text: file (default) | blank | line | any other text"},
        {"on-error", FLAG_TEXT, &f.on_error, "documents that cannot be read: fail (default) | skip, counted"},
        {"force", FLAG_SWITCH, &f.force, "replace shards that have this prefix"},
        {"json", FLAG_SWITCH, &f.json, "the result as one JSON object"},
    };
    int help;
    TRY(flags_parse(BUILD_USAGE, flags, COUNT(flags), &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    struct meter meter = {.start_ns = clock_ns(), .terminal = isatty(STDERR_FILENO)};
    meter.next_ns = meter.start_ns + (meter.terminal ? TERMINAL_MS : LINE_MS) * 1000000ll;
    struct build_config c = {
        .inputs = (const char *const *)argv, .input_count = argc, .progress = show_progress, .ctx = &meter};
    TRY(take_flags(&f, &c));
    struct build_report r;
    if (meter.terminal) log_before_line_set(wipe);
    status st = build_run(&c, &r);
    log_before_line_set(NULL);
    if (meter.terminal) wipe();
    TRY(st);
    if (r.skipped > 0) log_warn("%lld documents could not be read and were left out", (long long)r.skipped);
    if (c.val == BUILD_VAL_NONE) log_info("no validation part; --val-fraction 0.05 makes one");
    print_report(&f, &r, (double)(clock_ns() - meter.start_ns) * 1e-9);
    return STATUS_OK;
}

status cmd_data(int argc, char **argv)
{
    static const struct {
        const char *name;
        status (*run)(int argc, char **argv);
    } verbs[] = {{"build", data_build}, {"inspect", cmd_data_inspect}, {"verify", cmd_data_verify}};
    const char *names[COUNT(verbs)];
    for (int i = 0; i < COUNT(verbs); i++) {
        names[i] = verbs[i].name;
        if (argc > 0 && strcmp(argv[0], verbs[i].name) == 0) return verbs[i].run(argc - 1, argv + 1);
    }
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        puts("usage: ingot data build | inspect | verify   (each explains itself with --help)");
        return STATUS_OK;
    }
    const char *near = argc > 0 ? text_nearest(argv[0], names, COUNT(verbs)) : NULL;
    return FAIL(STATUS_CONFIG, "%s%singot data build, inspect or verify is expected%s%s%s",
                argc > 0 ? argv[0] : "", argc > 0 ? ": " : "", near ? "; did you mean '" : "",
                near ? near : "", near ? "'?" : "");
}
