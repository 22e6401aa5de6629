/* ingot bench learn: runs of the variants one after another, each a process of its own, and what they learnt. */
#include "base/io.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process.h"
#include "base/text.h"
#include "bench/bench.h"
#include "observe/learn.h"
#include "spec/keys.h"
#include "train/loop.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS_MAX = 64, PATH_BYTES = 1100, TEXT_FILE_MAX = 1 << 20, LOG_MAX = 64 << 20 };

struct variant {
    char name[LEARN_NAME];
    char *text; /* its keys, cut into words; owned */
    char *keys[KEYS_MAX];
    int key_count;
};
struct learn_bench {
    const struct args *a;
    const char *out;
    int64_t seeds, last;
    bool initial, fresh, json;
    struct variant list[LEARN_VARIANTS]; /* the first: no keys */
    int count;
    struct spec spec; /* of the first */
    const char *peers[LEARN_VARIANTS];
    int peer_count;
};

/* ---- variants */

static status bad_variant(const char *text, const char *why)
{
    return FAIL(STATUS_CONFIG, "variant '%.80s': %s; one is 'NAME: section.key=value ...'", text, why);
}

/* "NAME: section.key=value ..." */
static status add_variant(struct learn_bench *b, const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
    const char *from = text + strspn(text, " \t"), *colon = strchr(from, ':');
    const size_t length = strspn(from, letters);
    if (colon == NULL || from + length != colon || length == 0 || length >= LEARN_NAME || from[0] == '.')
        return bad_variant(text, "a name of letters, digits and ._+- and a colon are missing");
    if (b->count + b->peer_count == LEARN_VARIANTS)
        return FAIL(STATUS_CONFIG, "more than %d variants and peers", LEARN_VARIANTS - 1);
    struct variant *v = &b->list[b->count];
    snprintf(v->name, sizeof v->name, "%.*s", (int)length, from);
    for (int i = 0; i < b->count; i++)
        if (strcmp(b->list[i].name, v->name) == 0) return bad_variant(text, "another one has this name");
    v->text = memory_text(colon + 1);
    b->count++;
    char *rest = v->text;
    for (char *word; (word = strtok_r(rest, " \t", &rest));) {
        if (v->key_count == KEYS_MAX || strchr(word, '=') == NULL)
            return bad_variant(text, "more than 64 keys, or a word without '='");
        v->keys[v->key_count++] = word;
    }
    return v->key_count ? STATUS_OK : bad_variant(text, "it has no keys");
}

static status add_file(struct learn_bench *b, const char *path)
{
    char *text, *rest;
    size_t bytes;
    TRY(io_read_file(path, TEXT_FILE_MAX, &text, &bytes));
    status st = STATUS_OK;
    rest = text;
    for (char *line; st == STATUS_OK && (line = strsep(&rest, "\n"));) {
        line[strcspn(line, "#\r")] = 0;
        if (line[strspn(line, " \t")]) st = add_variant(b, line);
    }
    free(text);
    return st == STATUS_OK ? st : status_wrap(st, "%s", path);
}

/* Whether a key decides the initial weights, what is read, or where a run is written. */
static bool shared(const struct key *k)
{
    static const char *const train[] = {"sequence_length", "batch_tokens", "steps", "tokens"};
    if (strcmp(k->section, "model") == 0 || strcmp(k->section, "data") == 0 ||
        strcmp(k->section, "run") == 0 || strcmp(k->section, "eval") == 0 || strcmp(k->section, "log") == 0)
        return true;
    for (size_t i = 0; i < sizeof train / sizeof train[0]; i++)
        if (strcmp(k->section, "train") == 0 && strcmp(k->name, train[i]) == 0) return true;
    return false;
}

/* The keys of a variant's run; `seed` -1: as the user gave them. malloc'd, and the two behind them. */
static char **keys_of(const struct learn_bench *b, const struct variant *v, int64_t seed, int *count)
{
    enum { OWN = 2 };
    char **keys = calloc((size_t)(b->a->key_count + v->key_count + OWN) + 1, sizeof *keys), text[64];
    MEMORY_CHECK(keys, "no memory for the keys of a run");
    *count = 0;
    for (int i = 0; i < b->a->key_count; i++) keys[(*count)++] = memory_text(b->a->keys[i]);
    for (int i = 0; i < v->key_count; i++) {
        const char *dashes = strncmp(v->keys[i], "--", 2) == 0 ? "" : "--";
        const size_t bytes = strlen(v->keys[i]) + 3;
        char *key = memory_get(bytes);
        snprintf(key, bytes, "%s%s", dashes, v->keys[i]);
        keys[(*count)++] = key;
    }
    keys[(*count)++] = memory_text("--log.every=1");
    snprintf(text, sizeof text, "--run.seed=%lld", (long long)seed);
    if (seed >= 0) keys[(*count)++] = memory_text(text);
    return keys;
}

static void keys_free(char **keys, int count)
{
    for (int i = 0; i < count; i++) free(keys[i]);
    free(keys);
}

static status load_variant(const struct learn_bench *b, const struct variant *v, int64_t seed,
                           struct spec *spec)
{
    int count;
    char **keys = keys_of(b, v, seed, &count);
    status st = spec_load(spec, b->a->word_count ? b->a->words[0] : NULL, count, keys, NULL);
    keys_free(keys, count);
    return st == STATUS_OK ? st : status_wrap(st, "variant %s", v->name);
}

/* Every variant loads, before the first run, and shares with the first what it must. */
static status check_variants(struct learn_bench *b)
{
    struct spec *spec = malloc(sizeof *spec);
    MEMORY_CHECK(spec, "no memory for a spec");
    status st = load_variant(b, &b->list[0], -1, &b->spec);
    for (int i = 1; i < b->count && st == STATUS_OK; i++) {
        st = load_variant(b, &b->list[i], -1, spec);
        for (int k = 0; k < KEY_AT_COUNT && st == STATUS_OK; k++) {
            char name[KEY_NAME];
            const struct key *key = key_row(k);
            if (shared(key) && !key_equal(key, &b->spec, spec))
                st = FAIL(
                    STATUS_CONFIG,
                    "variant %s changes %s: variants share initial weights, data and order; give this key "
                    "to all of them, outside of --variant",
                    b->list[i].name, key_full_name(name, key));
        }
    }
    free(spec);
    if (st != STATUS_OK) return st;
    const int64_t steps = spec_step_count(&b->spec);
    if (b->last == 0) b->last = steps / 2 < 200 ? steps / 2 : 200;
    if (b->last < 2 || b->last > steps)
        return FAIL(STATUS_CONFIG, "--last %lld: 2 to the run's %lld steps", (long long)b->last,
                    (long long)steps);
    return STATUS_OK;
}

/* ---- one run */

static void path_of(const struct learn_bench *b, const struct variant *v, int seed, const char *end,
                    char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/seed-%lld/%s%s", b->out, (long long)(b->spec.run.run_seed + seed), v->name,
             end);
}

/* Whether the run there was asked for in the same words; a run of others is refused, because it would be taken for this one. */
static status same_as_asked(const struct learn_bench *b, const struct variant *v, int seed, bool *there)
{
    char dir[PATH_BYTES], asked[PATH_BYTES], *before = NULL;
    struct spec *spec = malloc(sizeof *spec);
    MEMORY_CHECK(spec, "no memory for a spec");
    path_of(b, v, seed, "", dir);
    path_of(b, v, seed, ".yaml", asked);
    status st = load_variant(b, v, b->spec.run.run_seed + seed, spec);
    char *now = st == STATUS_OK ? spec_dump_text(spec) : NULL;
    free(spec);
    if (st == STATUS_OK) MEMORY_CHECK(now, "no memory for a run's keys");
    size_t bytes;
    if (st == STATUS_OK) st = io_exists(dir, there);
    if (st == STATUS_OK && *there) st = io_read_file(asked, TEXT_FILE_MAX, &before, &bytes);
    if (st == STATUS_OK && *there && strcmp(before, now) != 0)
        st = FAIL(STATUS_CONFIG, "%s is a run of other keys (%s): --fresh removes it, or take another --out",
                  dir, asked);
    if (st == STATUS_OK && !*there) st = io_write_file(asked, now, strlen(now));
    free(before);
    free(now);
    return st;
}

/* How the run there ended. */
static status exit_code(const char *dir, int *code)
{
    char path[PATH_BYTES + 16], *text = NULL;
    size_t bytes;
    bool there;
    *code = -1;
    snprintf(path, sizeof path, "%s/exit.json", dir);
    TRY(io_exists(path, &there));
    if (!there) return STATUS_OK;
    TRY(io_read_file(path, TEXT_FILE_MAX, &text, &bytes));
    const char *at = strstr(text, "\"code\":");
    if (at) *code = (int)strtol(at + strlen("\"code\":"), NULL, 10);
    free(text);
    return STATUS_OK;
}

/* The last line of a log, without "error: ", in `line`; "" when there is none. */
static void last_line(const char *path, char line[SPEC_TEXT])
{
    char *text;
    size_t bytes;
    line[0] = 0;
    if (io_read_file(path, LOG_MAX, &text, &bytes) != STATUS_OK) return;
    while (bytes > 0 && text[bytes - 1] == '\n') text[--bytes] = 0;
    const char *end = strrchr(text, '\n'), *from = end ? end + 1 : text;
    if (strncmp(from, "error: ", 7) == 0) from += 7;
    snprintf(line, SPEC_TEXT, "%s", from);
    free(text);
}

static status run_process(const struct learn_bench *b, const struct variant *v, int seed, const char *dir)
{
    char place[PATH_BYTES + 16], log[PATH_BYTES], line[SPEC_TEXT];
    int count, code, n = 0;
    char **keys = keys_of(b, v, b->spec.run.run_seed + seed, &count);
    const char **argv = calloc((size_t)count + 8, sizeof *argv);
    MEMORY_CHECK(argv, "no memory for a command line");
    path_of(b, v, seed, ".log", log);
    snprintf(place, sizeof place, "--run.dir=%s", dir);
    argv[n++] = "/proc/self/exe";
    argv[n++] = "train";
    if (b->a->word_count) argv[n++] = b->a->words[0];
    for (int i = 0; i < count; i++) argv[n++] = keys[i];
    argv[n++] = place;
    argv[n++] = "--resume";
    log_info("%-9s seed %lld", v->name, (long long)(b->spec.run.run_seed + seed));
    status st = process_log(argv, log, &code);
    free(argv);
    keys_free(keys, count);
    TRY(st);
    if (code == STATUS_OK || (code == STATUS_NUMERIC && v != &b->list[0])) return STATUS_OK;
    if (code == STATUS_STOPPED)
        return FAIL(STATUS_STOPPED, "%s was saved and stopped; the same command goes on", dir);
    last_line(log, line);
    return FAIL(code > 128 ? STATUS_INTERNAL : (status)code,
                "variant %s ends with exit code %d: %s; its log: %s", v->name, code, line, log);
}

static status run_variant(const struct learn_bench *b, const struct variant *v, int seed)
{
    char dir[PATH_BYTES], parent[PATH_BYTES];
    bool there;
    int code;
    path_of(b, v, seed, "", dir);
    if (b->fresh) TRY(io_remove_tree(dir));
    TRY(io_make_dirs(text_parent(parent, sizeof parent, dir)));
    TRY(same_as_asked(b, v, seed, &there));
    TRY(exit_code(dir, &code));
    if (there && (code == STATUS_OK || (code == STATUS_NUMERIC && v != &b->list[0]))) {
        log_info("%-9s seed %lld: done before", v->name, (long long)(b->spec.run.run_seed + seed));
        return STATUS_OK;
    }
    return run_process(b, v, seed, dir);
}

/* ---- initial weights */

static status write_initial(struct learn_bench *b)
{
    char dir[PATH_BYTES];
    struct trainer t;
    struct data_sources data;
    bool there;
    struct spec *spec = &b->spec;
    snprintf(dir, sizeof dir, "%s/initial", b->out);
    if (b->fresh) TRY(io_remove_tree(dir));
    TRY(io_exists(dir, &there));
    if (there) return FAIL(STATUS_CONFIG, "%s is there: --fresh removes it, or take another --out", dir);
    TRY(data_sources_open(&data, &spec->run));
    status st = loop_resolve_vocab(spec, &data);
    data_sources_close(&data);
    TRY(st);
    if (snprintf(spec->run.run_dir, sizeof spec->run.run_dir, "%s", dir) >= (int)sizeof spec->run.run_dir)
        return FAIL(STATUS_CONFIG, "the path %.40s... is too long", dir);
    TRY(io_make_dirs(dir));
    TRY(trainer_open_weights(&t, spec));
    st = trainer_init_weights(&t);
    if (st == STATUS_OK) st = trainer_write_config(spec, dir);
    if (st == STATUS_OK) st = trainer_save(&t, dir);
    trainer_close(&t);
    if (st == STATUS_OK) printf("%s\n", dir);
    return st;
}

/* ---- results */

static void put(FILE *out, const char *name, double v)
{
    if (isfinite(v))
        fprintf(out, ", \"%s\": %.9g", name, v);
    else
        fprintf(out, ", \"%s\": null", name);
}

static void put_line(FILE *out, const struct learn_variant *v, const struct learn_row *r, int64_t last)
{
    fprintf(out,
            "{\"variant\": \"%s\", \"seeds\": %d, \"state\": \"%s\", \"steps\": %lld, \"last\": %lld, "
            "\"same\": %s",
            v->name, v->seeds, r->state, (long long)r->steps, (long long)last, r->same ? "true" : "false");
    put(out, "loss", r->loss);
    put(out, "minus", r->minus);
    put(out, "std_err", r->error);
    put(out, "std_err_seeds", r->error_seeds);
    put(out, "held_out", r->held_out);
    put(out, "held_out_minus", r->held_out_minus);
    put(out, "held_out_std_err_seeds", r->held_out_error);
    put(out, "tokens_per_s", r->tokens_per_s);
    put(out, "train_s", r->train_s);
    put(out, "joules", r->joules);
    put(out, "reach_tokens", r->reach_tokens);
    put(out, "reach_s", r->reach_s);
    fprintf(out, "}\n");
}

static const char *shown(char buf[32], const char *format, double v)
{
    snprintf(buf, 32, format, v);
    return isfinite(v) ? buf : "-";
}

static void print_table(const struct learn_bench *b, const struct learn_variant *v,
                        const struct learn_row *rows, int count)
{
    char cell[10][32];
    printf("%-16s %9s %10s %9s %9s %9s %10s %9s %9s %9s %9s %9s\n", "variant", "loss", "- base", "std err",
           "seeds", "held-out", "- base", "tokens/s", "seconds", "joules", "reach tok", "reach s");
    for (int i = 0; i < count; i++) {
        const struct learn_row *r = &rows[i];
        printf("%-16s %9s %10s %9s %9s %9s %10s %9s %9s %9s %9s %9s", v[i].name,
               shown(cell[0], "%.5f", r->loss), shown(cell[1], "%+.5f", r->minus),
               shown(cell[2], "%.5f", r->error), shown(cell[3], "%.5f", r->error_seeds),
               shown(cell[4], "%.5f", r->held_out), shown(cell[5], "%+.5f", r->held_out_minus),
               isfinite(r->tokens_per_s) ? text_count(cell[6], r->tokens_per_s) : "-",
               shown(cell[7], "%.4g", r->train_s), shown(cell[8], "%.4g", r->joules),
               isfinite(r->reach_tokens) ? text_count(cell[9], r->reach_tokens) : "-",
               shown((char[32]){0}, "%.4g", r->reach_s));
        if (strcmp(r->state, "finished") != 0) printf("  %s", r->state);
        if (r->same) printf("  the same losses");
        printf("\n");
    }
    printf("losses: means of the last %lld steps of %lld %s; %s/learn.html\n", (long long)b->last,
           (long long)b->seeds, b->seeds == 1 ? "seed" : "seeds", b->out);
}

static status write_lines(const struct learn_bench *b, const struct learn_variant *v,
                          const struct learn_row *rows, int count)
{
    char path[PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    FILE *out = memory_stream(&text, &bytes);
    for (int i = 0; i < count; i++) put_line(out, &v[i], &rows[i], b->last);
    memory_stream_close(out);
    snprintf(path, sizeof path, "%s/learn.jsonl", b->out);
    status st = io_write_file(path, text, bytes);
    if (b->json) fputs(text, stdout);
    free(text);
    return st;
}

static void peer_of(struct learn_variant *v, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && dir[from - 1] != '/') from--;
    snprintf(v->name, sizeof v->name, "%.*s", (int)(n - from), dir + from);
    for (char *c = v->name; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ') *c = '?';
    v->dirs[0] = dir;
    v->seeds = 1;
}

static status results(const struct learn_bench *b)
{
    struct learn_variant *v = calloc(LEARN_VARIANTS, sizeof *v);
    struct learn_row rows[LEARN_VARIANTS];
    const int count = b->count + b->peer_count;
    char page[PATH_BYTES];
    MEMORY_CHECK(v, "no memory for a table");
    for (int i = 0; i < b->count; i++) {
        snprintf(v[i].name, sizeof v[i].name, "%s", b->list[i].name);
        v[i].seeds = (int)b->seeds;
        for (int s = 0; s < b->seeds; s++) {
            char path[PATH_BYTES];
            path_of(b, &b->list[i], s, "", path);
            v[i].dirs[s] = memory_text(path);
        }
    }
    for (int i = 0; i < b->peer_count; i++) peer_of(&v[b->count + i], b->peers[i]);
    snprintf(page, sizeof page, "%s/learn.html", b->out);
    status st = learn_compare(v, count, b->last, rows, page);
    if (st == STATUS_OK) st = write_lines(b, v, rows, count);
    if (st == STATUS_OK && !b->json) print_table(b, v, rows, count);
    for (int i = 0; i < b->count; i++)
        for (int s = 0; s < b->seeds; s++) free((char *)(uintptr_t)v[i].dirs[s]);
    free(v);
    return st;
}

/* ---- */

static status run_all(struct learn_bench *b, const struct flag_list *variants, const char *file,
                      const struct flag_list *peers)
{
    bool there;
    snprintf(b->list[0].name, LEARN_NAME, "base");
    b->count = 1;
    for (int i = 0; i < peers->count; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/metrics.jsonl", peers->items[i]);
        TRY(io_exists(path, &there));
        if (!there) return FAIL(STATUS_DATA, "--peer %s: it has no metrics.jsonl", peers->items[i]);
        if (b->peer_count == LEARN_VARIANTS - 1)
            return FAIL(STATUS_CONFIG, "more than %d variants and peers", LEARN_VARIANTS - 1);
        b->peers[b->peer_count++] = peers->items[i];
    }
    for (int i = 0; i < variants->count; i++) TRY(add_variant(b, variants->items[i]));
    if (file) TRY(add_file(b, file));
    TRY(check_variants(b));
    if (b->initial) return write_initial(b);
    for (int s = 0; s < b->seeds; s++)
        for (int i = 0; i < b->count; i++) TRY(run_variant(b, &b->list[i], s));
    return results(b);
}

status bench_learn(struct args *a)
{
    struct flag_list *lists = calloc(2, sizeof *lists);
    struct learn_bench *b = calloc(1, sizeof *b);
    MEMORY_CHECK(lists && b, "no memory for a description");
    const char *file = NULL;
    *b = (struct learn_bench){.a = a, .out = "runs/learn", .seeds = 1};
    const struct flag flags[] = {
        FLAG("variant", &lists[0]), FLAG("variants", &file), FLAG("seeds", &b->seeds),
        FLAG("last", &b->last),     FLAG("peer", &lists[1]), FLAG("initial", &b->initial),
        FLAG("fresh", &b->fresh),   FLAG("out", &b->out),    FLAG("json", &b->json)};
    status st = args_parse(a, flags, (int)(sizeof flags / sizeof flags[0]));
    if (st == STATUS_OK && !a->help) {
        st = args_words(a, 0, 1);
        if (st == STATUS_OK && (b->seeds < 1 || b->seeds > LEARN_SEEDS))
            st = FAIL(STATUS_CONFIG, "--seeds %lld: 1 to %d", (long long)b->seeds, LEARN_SEEDS);
        if (st == STATUS_OK && strlen(b->out) > 400) st = FAIL(STATUS_CONFIG, "--out: the path is too long");
        if (st == STATUS_OK) st = run_all(b, &lists[0], file, &lists[1]);
    }
    for (int i = 0; i < b->count; i++) free(b->list[i].text);
    free(b);
    free(lists);
    return st;
}
