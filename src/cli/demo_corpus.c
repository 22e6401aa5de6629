#include "cli/demo_corpus.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/demo_settings.h"
#include "data/build/build.h"
#include "data/tokenizer/tokenizer.h"
#include "observe/progress.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, NAME_MAX_BYTES = 64 };
static const char EOT[] = "<|endoftext|>";
static const double VAL_FRACTION = 0.05;
static const size_t TEXT_MAX = (size_t)1 << 31;

const char *demo_path(const struct demo_corpus *c, const char *name, char out[DEMO_PATH + 64])
{
    snprintf(out, DEMO_PATH + 64, "%s/%s", c->dir, name);
    return out;
}

/* ---- the text */

/* Removes the verse references ("Gen1:1 In the beginning..."). */
static void drop_references(char *text, size_t *bytes)
{
    char *to = text, *end = text + *bytes;
    for (char *line = text; line < end;) {
        char *stop = memchr(line, '\n', (size_t)(end - line)),
             *space = memchr(line, ' ', (size_t)(end - line));
        if (stop == NULL) stop = end - 1;
        char *from = space && space < stop ? space + 1 : line;
        memmove(to, from, (size_t)(stop + 1 - from));
        to += stop + 1 - from;
        line = stop + 1;
    }
    *bytes = (size_t)(to - text);
}

static status read_bible(struct demo_corpus *c)
{
    char path[] = "/tmp/ingot-demo-XXXXXX";
    const char *const argv[] = {"bible", "-f", "Gen1:1-Rev22:21", NULL};
    const int fd = mkstemp(path);
    if (fd < 0) return FAIL(STATUS_IO, "%s: no file can be made there", path);
    close(fd);
    status st = process_run(argv, NULL, path);
    if (st == STATUS_CONFIG)
        st = status_wrap(st, "no corpus (apt-get install bible-kjv bible-kjv-text, or give --text FILE)");
    if (st == STATUS_OK) st = io_read_file(path, TEXT_MAX, &c->text, &c->bytes);
    unlink(path);
    if (st == STATUS_OK) drop_references(c->text, &c->bytes);
    return st;
}

/* runs/demo-NAME: the file's name without directory and ending, of letters, digits, '-', '_' and '.' alone. */
static void name_dir(struct demo_corpus *c)
{
    char name[NAME_MAX_BYTES + 1];
    const char *base = strrchr(c->source, '/');
    snprintf(name, sizeof name, "%s", base ? base + 1 : c->source);
    char *dot = strrchr(name, '.');
    if (dot && dot != name) *dot = 0;
    for (char *s = name; *s; s++)
        if (!isalnum((unsigned char)*s) && strchr("-_.", *s) == NULL) *s = '_';
    snprintf(c->dir, sizeof c->dir, "runs/demo-%s", name);
}

status demo_corpus_read(struct demo_corpus *c)
{
    struct sha256 hash;
    snprintf(c->dir, sizeof c->dir, "runs/demo");
    if (c->source) {
        name_dir(c);
        TRY(io_read_file(c->source, TEXT_MAX, &c->text, &c->bytes));
        if (c->bytes < DEMO_TEXT_MIN)
            return FAIL(STATUS_DATA, "%s has %zu bytes: the demo needs a text of %d or more", c->source,
                        c->bytes, DEMO_TEXT_MIN);
    } else {
        TRY(read_bible(c));
    }
    sha256_init(&hash);
    sha256_add(&hash, c->text, c->bytes);
    sha256_hex(&hash, c->hash);
    return STATUS_OK;
}

void demo_corpus_free(struct demo_corpus *c)
{
    free(c->text);
    c->text = NULL;
}

/* ---- its files */

static status write_split(const struct demo_corpus *c, size_t *cut)
{
    char path[DEMO_PATH + 64];
    *cut = (size_t)((double)c->bytes * (1 - VAL_FRACTION));
    while (*cut < c->bytes && c->text[*cut - 1] != '\n') ++*cut;
    if (*cut == c->bytes)
        return FAIL(STATUS_DATA, "%s: its last twentieth has no line end to split at",
                    c->source ? c->source : "bible");
    TRY(io_write_file(demo_path(c, "data/train.txt", path), c->text, *cut));
    return io_write_file(demo_path(c, "data/val.txt", path), c->text + *cut, c->bytes - *cut);
}

static status train_tokenizer(const struct demo_corpus *c, size_t bytes)
{
    char path[DEMO_PATH + 64];
    struct tokenizer *t;
    const char *specials[] = {EOT};
    const double begin = clock_s();
    TRY(tokenizer_train(&t,
                        &(struct tokenizer_train_config){.pretokenizer = "llama3",
                                                         .vocab_size = demo_vocab_size(bytes),
                                                         .fewer = true,
                                                         .specials = specials,
                                                         .special_count = 1},
                        &(struct text){c->text, bytes}, 1));
    status st = tokenizer_save(t, demo_path(c, "tokenizer", path));
    log_info("tokenizer %d entries, trained in %.1f s", tokenizer_vocab_size(t), clock_s() - begin);
    tokenizer_free(t);
    return st;
}

/* Two documents, of which every second one is held out: the split is the one of the text files. */
static status build_shards(const struct demo_corpus *c)
{
    char train[DEMO_PATH + 64], val[DEMO_PATH + 64], prefix[DEMO_PATH + 64], tokenizer[DEMO_PATH + 64];
    const char *const inputs[] = {demo_path(c, "data/train.txt", train), demo_path(c, "data/val.txt", val)};
    struct build_report report;
    TRY(build_run(&(struct build_config){.inputs = inputs,
                                         .input_count = 2,
                                         .prefix = demo_path(c, "data/corpus", prefix),
                                         .tokenizer_dir = demo_path(c, "tokenizer", tokenizer),
                                         .reader = {.key = "text"},
                                         .val = BUILD_VAL_EVERY,
                                         .val_every = 2,
                                         .eod = EOD_AFTER,
                                         .shard_tokens = 100000000,
                                         .force = true},
                  &report));
    log_info("shards    %lld tokens to train on, %lld held out", (long long)report.train.tokens,
             (long long)report.val.tokens);
    return STATUS_OK;
}

/* ---- demo.json */

static status write_record(const struct demo_corpus *c)
{
    char path[DEMO_PATH + 64];
    json_t *j = json_pack("{s:s, s:i, s:s, s:s, s:f}", "format", "ingot demo", "version", VERSION, "text",
                          c->source ? c->source : "bible-kjv", "sha256", c->hash, "minutes", c->minutes);
    char *text = j ? json_dumps(j, JSON_INDENT(1)) : NULL;
    json_decref(j);
    if (text == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %s", demo_path(c, "demo.json", path));
    status st = io_write_file(demo_path(c, "demo.json", path), text, strlen(text));
    free(text);
    return st;
}

/* Whether DIR has a demo; it must be of this text and of these minutes. */
static status check_record(struct demo_corpus *c, bool *found)
{
    char path[DEMO_PATH + 64];
    json_error_t why;
    bool begun;
    TRY(io_exists(demo_path(c, "demo.json", path), found));
    TRY(io_exists(demo_path(c, "config.yaml", path), &begun));
    if (!*found && begun) return FAIL(STATUS_CONFIG, "%s is of an older ingot: --fresh begins again", c->dir);
    if (!*found) return STATUS_OK;
    json_t *j = json_load_file(demo_path(c, "demo.json", path), 0, &why);
    const char *hash = json_string_value(json_object_get(j, "sha256"));
    const double minutes = json_number_value(json_object_get(j, "minutes"));
    status st = STATUS_OK;
    if (hash == NULL)
        st = FAIL(STATUS_DATA, "%s/demo.json: %s; --fresh begins again", c->dir,
                  j ? "it names no text" : why.text);
    else if (strcmp(hash, c->hash) != 0)
        st = FAIL(STATUS_CONFIG,
                  "%s is of another text than %s is now: --fresh begins again, or rename the file", c->dir,
                  c->source ? c->source : "the Bible");
    else if (begun && c->minutes > 0 && fabs(c->minutes - minutes) > 1e-9) /* 0: the choice of the device */
        st = FAIL(STATUS_CONFIG,
                  "%s was begun %s--minutes %.4g: --fresh trains again; without --minutes it goes on", c->dir,
                  minutes > 0 ? "with " : "without ", minutes > 0 ? minutes : c->minutes);
    json_decref(j);
    return st;
}

status demo_corpus_prepare(struct demo_corpus *c)
{
    char path[DEMO_PATH + 64];
    bool found;
    size_t cut;
    TRY(check_record(c, &found));
    if (found) return STATUS_OK;
    TRY(io_make_dirs(demo_path(c, "data", path)));
    log_info("text      %s, %zu bytes; the last %.0f %% are held out",
             c->source ? c->source : "King James Bible", c->bytes, 100 * VAL_FRACTION);
    TRY(write_split(c, &cut));
    progress_begin(WORK_OTHER, "training the tokenizer", 0);
    status st = train_tokenizer(c, cut);
    progress_end();
    if (st != STATUS_OK && c->source) return status_wrap(st, "%s", c->source);
    TRY(st);
    progress_begin(WORK_OTHER, "writing shards", 0);
    st = build_shards(c);
    progress_end();
    TRY(st);
    return write_record(c);
}

status demo_packed_bpb(const struct demo_corpus *c, const char *program, double *bpb)
{
    struct stat in, out;
    char val[DEMO_PATH + 64], packed[DEMO_PATH + 64];
    const char *const argv[] = {program, "-9", "-c", NULL};
    demo_path(c, "data/val.txt", val);
    TRY(process_run(argv, val, demo_path(c, "data/val.packed", packed)));
    if (stat(val, &in) != 0 || stat(packed, &out) != 0 || in.st_size == 0)
        return FAIL(STATUS_IO, "%s: the packed validation text is missing", packed);
    *bpb = 8 * (double)out.st_size / (double)in.st_size;
    return STATUS_OK;
}
