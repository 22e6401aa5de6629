/* Interrupted builds: detection at the start of a build, and the state saved while it runs. */
#include "data/build/build_int.h"

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const side_files[] = {"hashes", "sketches", "journal"};

static void path_of(const struct build *b, const char *what, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s_build.%s", b->config->prefix, what);
}

/* Writes how the journal's build differs from this one to `why`; false: no difference. */
static bool differs(const struct build *b, const struct build_journal *j, char *why, size_t size)
{
    const struct manifest *rows = &j->state.rows;
    if (rows->input_count != b->inputs.count)
        return snprintf(why, size, "%d inputs, now %d", rows->input_count, b->inputs.count) > 0;
    for (int i = 0; i < b->inputs.count; i++) {
        const struct build_input *f = &b->inputs.files[i];
        if (strcmp(rows->inputs[i].path, f->name) != 0)
            return snprintf(why, size, "input %d was %s, now %s", i + 1, rows->inputs[i].path, f->name) > 0;
        if (rows->inputs[i].bytes != f->bytes || j->mtimes_ns[i] != f->mtime_ns)
            return snprintf(why, size, "%s has changed since", f->path) > 0;
    }
    size_t at = 0;
    const char *then = j->settings, *now = b->settings;
    while (then[at] && then[at] == now[at]) at++;
    if (!then[at] && !now[at]) return false;
    while (at > 0 && then[at - 1] != '\n') at--; /* a setting per line */
    return snprintf(why, size, "%.*s, now %.*s", (int)strcspn(then + at, "\n"), then + at,
                    (int)strcspn(now + at, "\n"), now + at) > 0;
}

status build_resume_clear(struct build *b)
{
    char path[PATH_MAX];
    const char *slash = strrchr(b->config->prefix, '/');
    snprintf(path, sizeof path, "%.*s", slash ? (int)(slash - b->config->prefix) + 1 : 1,
             slash ? b->config->prefix : ".");
    TRY(io_sweep(path, SWEEP_DEAD, NULL));
    /* The journal is removed last: whoever finds one also cleans up. */
    for (size_t i = 0; i < sizeof side_files / sizeof side_files[0]; i++) {
        path_of(b, side_files[i], path);
        TRY(io_remove_tree(path));
    }
    return STATUS_OK;
}

/* A journal that cannot be resumed: an error, or with --force it is removed. */
static status give_up(struct build *b, const char *why)
{
    char path[PATH_MAX];
    path_of(b, "journal", path);
    if (!b->config->force)
        return FAIL(
            STATUS_CONFIG,
            "%s: an interrupted build of this prefix cannot be gone on with (%s); --force starts anew", path,
            why);
    log_warn("an interrupted build of this prefix is given up, this one starts anew: %s", why);
    b->durable = false;
    return build_resume_clear(b);
}

static status match(struct build *b, const struct build_journal *j, struct manifest *m,
                    enum build_begin *begin)
{
    enum corpus_remains remains;
    char path[PATH_MAX];
    TRY(corpus_look(b->config->prefix, &remains));
    *begin = BUILD_GOES_ON;
    if (remains == CORPUS_PENDING) {
        *begin = BUILD_IS_DONE;
        return corpus_publish(b->config->prefix, m);
    }
    if (remains == CORPUS_PARTS || j->state.rows.count == 0) return STATUS_OK;
    if (remains == CORPUS_WHOLE) { /* all files have their names, only the journal was left */
        snprintf(path, sizeof path, "%s_manifest.json", b->config->prefix);
        *begin = BUILD_IS_DONE;
        return manifest_read(m, path);
    }
    *begin = BUILD_ANEW;
    return give_up(b, "its shards are not there");
}

status build_resume_look(struct build *b, struct build_journal *j, struct manifest *m,
                         enum build_begin *begin)
{
    char path[PATH_MAX], why[2048];
    *begin = BUILD_ANEW;
    path_of(b, "journal", path);
    enum io_kind kind;
    TRY(io_kind(path, &kind));
    if (kind == IO_NONE) return STATUS_OK;
    status st = build_journal_read(j, path);
    if (st == STATUS_DATA) {
        snprintf(why, sizeof why, "%s", status_message());
        return give_up(b, why);
    }
    TRY(st);
    st = differs(b, j, why, sizeof why) ? give_up(b, why) : match(b, j, m, begin);
    b->durable = *begin != BUILD_ANEW;
    if (*begin != BUILD_GOES_ON) build_journal_free(j);
    return st;
}

static status open_files(struct build *b, const struct build_journal *j)
{
    const struct build_config *c = b->config;
    char path[PATH_MAX];
    b->opened = true;
    TRY(corpus_open(&b->corpus, &(struct corpus_config){.prefix = c->prefix,
                                                        .format = c->format,
                                                        .vocab_size = b->vocab_size,
                                                        .token_bytes = b->token_bytes,
                                                        .shard_tokens = c->shard_tokens,
                                                        .masked = b->chat != NULL,
                                                        .force = c->force,
                                                        .from = j ? &j->state : NULL}));
    path_of(b, "hashes", path);
    if (c->dedup != BUILD_DEDUP_OFF) TRY(dedup_open(&b->dedup, path, j ? j->hashes : 0));
    path_of(b, "sketches", path);
    const bool removes = c->dedup == BUILD_DEDUP_NEAR;
    if (removes || c->near_report)
        TRY(dedup_near_open(&b->near, path, j ? j->sketches : 0,
                            removes ? DEDUP_NEAR_FIND : DEDUP_NEAR_REPORT));
    return STATUS_OK;
}

static void take(struct build *b, const struct build_journal *j)
{
    const struct manifest *rows = &j->state.rows;
    b->pipe.from = j->mark;
    b->tally = j->tally;
    b->skipped = rows->skipped;
    b->empty = rows->empty;
    b->duplicates = rows->duplicates;
    for (int i = 0; i < j->hashed; i++) b->inputs.files[i].xxh64 = rows->inputs[i].xxh64;
    b->inputs.hashed = j->hashed;
    b->inputs.read_bytes = j->bytes_done;
    b->progress.bytes_before = b->progress.bytes_done = j->bytes_done;
    for (int i = 0; i < rows->count; i++) {
        b->progress.documents += rows->shards[i].documents;
        b->progress.tokens += rows->shards[i].tokens;
    }
    b->progress.tokens_before = b->progress.tokens;
}

status build_resume_open(struct build *b, const struct build_journal *j)
{
    b->durable_ns = clock_ns();
    if (!j) return open_files(b, NULL);
    status st = open_files(b, j);
    if (st == STATUS_OK) {
        take(b, j);
        log_info("going on with an interrupted build: %lld documents, %lld tokens are there",
                 (long long)b->progress.documents, (long long)b->progress.tokens);
        return st;
    }
    if (st != STATUS_DATA) return st;
    char why[1024];
    snprintf(why, sizeof why, "%s", status_message());
    corpus_leave(&b->corpus);
    dedup_close(&b->dedup, true);
    dedup_near_close(&b->near, true);
    TRY(give_up(b, why));
    return open_files(b, NULL);
}

status build_resume_save(struct build *b, struct build_mark mark)
{
    struct build_journal j = {
        .settings = b->settings, .mark = mark, .tally = b->tally, .bytes_done = b->progress.bytes_done};
    char path[PATH_MAX];
    status st;
    path_of(b, "journal", path);
    TRY_OUT(corpus_sync(b->corpus, &j.state));
    if (b->dedup) TRY_OUT(dedup_sync(b->dedup));
    if (b->near) TRY_OUT(dedup_near_sync(b->near));
    j.hashes = b->dedup ? dedup_count(b->dedup) : 0;
    j.sketches = b->near ? dedup_near_count(b->near) : 0;
    j.mtimes_ns = calloc((size_t)b->inputs.count, sizeof *j.mtimes_ns);
    MEMORY_CHECK(j.mtimes_ns, "no memory for a journal");
    struct manifest *rows = &j.state.rows;
    rows->vocab_size = b->vocab_size;
    rows->eot = b->eot;
    rows->eod = b->config->eod;
    rows->skipped = b->skipped;
    rows->empty = b->empty;
    rows->duplicates = b->duplicates;
    j.hashed = build_inputs_hashed(&b->inputs);
    for (int i = 0; i < b->inputs.count; i++) {
        const struct build_input *f = &b->inputs.files[i];
        struct manifest_input *row = manifest_add_input(rows, f->name);
        row->bytes = f->bytes;
        row->xxh64 = i < j.hashed ? f->xxh64 : 0;
        j.mtimes_ns[i] = f->mtime_ns;
    }
    TRY_OUT(build_journal_write(&j, path));
    b->durable = true;
    b->durable_ns = clock_ns();
out:
    j.settings = NULL; /* the build's */
    build_journal_free(&j);
    return st;
}
