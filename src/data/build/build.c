/* The start of a build, writing in input order, and the end. For the rest see build_int.h. */
#include "data/build/build_int.h"

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/text.h"
#include "base/utf8.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SKIPS_SHOWN = 5, AHEAD = 8 /* documents, for prefetching */ };
static const double sync_s_default = 10;

/* --- writing -------------------------------------------------------------------------------------------- */

/* Counts a document that was there before, and decides whether it is dropped. */
static status look_for_duplicate(struct build *b, const struct build_piece *piece, const uint32_t *sketch)
{
    const enum build_dedup rule = b->config->dedup;
    struct manifest_duplicates *d = &b->duplicates;
    bool seen = false, like = false;
    if (b->dedup) TRY(dedup_add(b->dedup, piece->hash, &seen));
    d->documents += seen;
    d->text_bytes += seen ? piece->bytes : 0;
    if (!seen && rule == BUILD_DEDUP_NEAR) TRY(dedup_near_find(b->near, sketch, &like));
    d->near_documents += like;
    d->near_text_bytes += like ? piece->bytes : 0;
    b->dropping = like || (seen && rule != BUILD_DEDUP_REPORT);
    return b->near && !seen && !like ? dedup_near_add(b->near, piece->record, sketch) : STATUS_OK;
}

/* A piece with its ids; *sketch continues from the sketch of a full piece. */
static status write_piece(struct build *b, const struct build_piece *piece, const int32_t *ids,
                          const uint8_t *targets, bool ends, const uint32_t **sketch)
{
    if (piece->whole) {
        TRY(look_for_duplicate(b, piece, *sketch));
        if (b->near) *sketch += DEDUP_PERMUTATIONS;
    }
    if (b->dropping) return STATUS_OK;
    b->progress.tokens += piece->tokens;
    b->progress.documents += piece->begins;
    return corpus_add(b->corpus, &(struct corpus_piece){.split = piece->split,
                                                        .ids = ids,
                                                        .targets = targets,
                                                        .count = piece->tokens,
                                                        .text_bytes = piece->text_bytes,
                                                        .begins = piece->begins,
                                                        .ends = ends});
}

static bool must_stop(const struct build *b)
{
    return b->config->stop && b->config->stop(b->config->ctx);
}

static status write_parts(struct build *b, struct build_group *g)
{
    struct build_part *part;
    const uint32_t *sketch = g->out.sketches;
    while ((part = build_pipe_part(&b->pipe, g))) {
        if (part->st != STATUS_OK) return FAIL(part->st, "%s", part->message);
        TRY(write_piece(b, &part->out.pieces[0], part->out.ids, part->out.targets, part->ends, &sketch));
        build_pipe_part_written(&b->pipe, g);
        if (must_stop(b)) return STATUS_STOPPED; /* the last durable point is before this document */
    }
    return STATUS_OK;
}

static status write_group(struct build *b, struct build_group *g)
{
    build_pipe_wait(&b->pipe, g);
    if (g->st != STATUS_OK) return FAIL(g->st, "%s", g->message);
    if (g->skipped > 0 && b->skipped < SKIPS_SHOWN) log_warn("skipped: %s", g->message);
    if (g->skipped > 0 && b->tally.skipped == 0)
        snprintf(b->first_skip, sizeof b->first_skip, "%s", g->message);
    b->skipped += g->skipped;
    b->tally.skipped += g->skipped;
    b->tally.read += g->end - g->begin - g->skipped;
    b->empty += g->empty;
    if (g->part_count > 0) return write_parts(b, g);
    const int32_t *ids = g->out.ids;
    const uint8_t *targets = g->out.targets;
    const uint32_t *sketch = g->out.sketches;
    for (int64_t i = 0; i < g->out.piece_count; i++) {
        if (b->dedup && i + AHEAD < g->out.piece_count)
            dedup_prefetch(b->dedup, g->out.pieces[i + AHEAD].hash);
        TRY(write_piece(b, &g->out.pieces[i], ids, targets, true, &sketch));
        ids += g->out.pieces[i].tokens;
        if (targets) targets += g->out.pieces[i].tokens;
    }
    return STATUS_OK;
}

static bool is_due(const struct build *b)
{
    double s = b->config->sync_s;
    return s < 0 || (double)(clock_ns() - b->durable_ns) * 1e-9 >= (s > 0 ? s : sync_s_default);
}

static int word_of(const struct build_config *c, int input)
{
    return c->words ? c->words[input] : input;
}

/* The word of `input` has ended: it is an error if documents were skipped and none was read. */
static status end_word(struct build *b, int input)
{
    const struct build_tally t = b->tally;
    b->tally = (struct build_tally){0};
    if (t.read > 0 || t.skipped == 0) return STATUS_OK;
    return FAIL(
        STATUS_DATA,
        "%s: none of its %lld documents can be read, and --on-error skip leaves out no whole input%s%s",
        b->config->inputs[input], (long long)t.skipped, b->first_skip[0] ? "; the first: " : "",
        b->first_skip);
}

/* *mark: the end of the input. */
static status write_slots(struct build *b, struct build_mark *mark)
{
    struct build_slot *slot;
    *mark = b->pipe.from;
    while ((slot = build_pipe_next(&b->pipe))) {
        if (slot->st != STATUS_OK) return FAIL(slot->st, "%s", slot->message);
        if (word_of(b->config, slot->after.input) != word_of(b->config, mark->input))
            TRY(end_word(b, mark->input));
        for (int64_t i = 0; i < slot->group_count; i++) {
            status st = write_group(b, &slot->groups[i]);
            if (st == STATUS_STOPPED) return FAIL(st, "stopped; the same command resumes it");
            TRY(st);
        }
        b->progress.bytes_done = slot->bytes_done;
        *mark = slot->after;
        build_pipe_release(&b->pipe);
        if (b->config->progress) b->config->progress(&b->progress, b->config->ctx);
        bool stop = must_stop(b);
        if (stop || is_due(b)) TRY(build_resume_save(b, *mark));
        if (stop) return FAIL(STATUS_STOPPED, "stopped; the same command resumes it");
    }
    return end_word(b, mark->input);
}

/* --- start ---------------------------------------------------------------------------------------------- */

/* `to` relative to directory `from`; absolute if they have only the root in common. */
static status relative_path(const char *from, const char *to, char *out, size_t size)
{
    char a[PATH_MAX], z[PATH_MAX];
    if (!realpath(from, a)) return FAIL(STATUS_IO, "%s: cannot resolve the path", from);
    if (!realpath(to, z)) return FAIL(STATUS_IO, "%s: cannot resolve the path", to);
    size_t same = 0; /* end of the common directories */
    for (size_t i = 0;; i++) {
        bool a_end = a[i] == '/' || !a[i], z_end = z[i] == '/' || !z[i];
        if (a_end && z_end) same = i;
        if (a[i] != z[i] || !a[i]) break;
    }
    size_t used = 0;
    if (same == 0) {
        used = (size_t)snprintf(out, size, "%s", z);
    } else {
        for (const char *p = a + same; *p; p++)
            if (*p == '/')
                used +=
                    (size_t)snprintf(out + (used < size ? used : size), used < size ? size - used : 0, "../");
        const char *rest = z[same] ? z + same + 1 : ".";
        used +=
            (size_t)snprintf(out + (used < size ? used : size), used < size ? size - used : 0, "%s", rest);
    }
    return used < size ? STATUS_OK : FAIL(STATUS_CONFIG, "%s: the tokenizer's path is too long", to);
}

static status open_tokenizer(struct build *b, const char *dir)
{
    const struct build_config *c = b->config;
    if (snprintf(b->tokenizer_dir, sizeof b->tokenizer_dir, "%s", dir) >= (int)sizeof b->tokenizer_dir)
        return FAIL(STATUS_CONFIG, "%.60s...: the tokenizer's path is too long", dir);
    TRY(tokenizer_load(&b->tokenizer, dir));
    b->eot = tokenizer_eot(b->tokenizer);
    if (b->eot < 0 && c->eod != EOD_NONE)
        return FAIL(STATUS_CONFIG, "%s: the tokenizer has no end-of-text token; use --eod none", dir);
    int32_t vocab = tokenizer_vocab_size(b->tokenizer);
    b->vocab_size = vocab;
    tokenizer_hash(b->tokenizer, b->tokenizer_hash);
    b->token_bytes = calloc((size_t)vocab, sizeof *b->token_bytes);
    MEMORY_CHECK(b->token_bytes, "no memory for a table of %d tokens", vocab);
    for (int32_t i = 0; i < vocab; i++)
        b->token_bytes[i] = i == b->eot ? 0 : (uint32_t)tokenizer_bytes(b->tokenizer, i).bytes;
    return STATUS_OK;
}

/* Adopts what a set of shards says about its tokenizer, if neither the user nor an earlier set has. */
static status take_set(struct build *b, const struct shard_set *set, const char *input)
{
    if (!b->tokenizer && !b->tokenizer_hash[0] && set->tokenizer_hash[0]) {
        bool there = false;
        if (set->tokenizer_dir[0]) TRY(io_exists(set->tokenizer_dir, &there));
        if (there)
            TRY(open_tokenizer(b, set->tokenizer_dir));
        else
            memcpy(b->tokenizer_hash, set->tokenizer_hash, sizeof b->tokenizer_hash);
    }
    if (b->tokenizer_hash[0] && set->tokenizer_hash[0] && strcmp(b->tokenizer_hash, set->tokenizer_hash) != 0)
        return FAIL(STATUS_CONFIG, "%s: made with another tokenizer", input);
    if (b->vocab_size == 0) b->vocab_size = set->vocab_size;
    if (b->eot < 0 && set->manifest) b->eot = set->eot;
    return STATUS_OK;
}

static status look_at_shards(struct build *b)
{
    const struct build_config *c = b->config;
    for (int i = 0; i < c->input_count; i++) {
        bool shards;
        struct shard_set set;
        TRY(build_source_is_shards(c, c->inputs[i], &shards));
        if (!shards) continue;
        TRY(build_source_set(c, c->inputs[i], &set));
        status st = take_set(b, &set, c->inputs[i]);
        shard_set_close(&set);
        TRY(st);
    }
    return STATUS_OK;
}

/* The vocabulary: the tokenizer's, or as given by the user or the shards. */
static status open_vocabulary(struct build *b)
{
    const struct build_config *c = b->config;
    b->vocab_size = c->vocab_size;
    b->eot = c->hints.eot;
    if (c->tokenizer_dir) TRY(open_tokenizer(b, c->tokenizer_dir));
    TRY(look_at_shards(b));
    if (chat_given(&c->chat)) TRY(chat_open(&b->chat, &c->chat, b->tokenizer));
    if (b->tokenizer) return STATUS_OK;
    if (b->vocab_size < 1 || b->vocab_size > (int64_t)INT32_MAX + 1)
        return FAIL(STATUS_CONFIG,
                    "--tokenizer DIR is needed, or, where all inputs are token ids, --vocab-size N");
    if (c->eod != EOD_NONE && (b->eot < 0 || b->eot >= b->vocab_size))
        return FAIL(STATUS_CONFIG,
                    "--eod needs the id of the end-of-text token, below %lld: --eot ID, or --eod none",
                    (long long)b->vocab_size);
    return STATUS_OK;
}

/* Everything but the inputs that decides on the output, one setting per line. --on-error is left out: a build
 * that a bad document ended may resume with another setting. */
static void take_settings(struct build *b)
{
    const struct build_config *c = b->config;
    const char *key = c->reader.key ? c->reader.key : "text",
               *separator = c->reader.separator_text ? c->reader.separator_text : "";
    char text[4096];
    int n = snprintf(text, sizeof text,
                     "tokenizer %s\nvocabulary %lld\neot %d\neod %d\ninput format %d\nkey %.1000s\n"
                     "separator %d %.1000s (%016llx)\nvalidation %d %.17g %lld\nshard tokens %lld\n"
                     "output format %s\ndedup %d %d\ninputs %d, of type %d, eot %d, eod %d\n",
                     b->tokenizer_hash, (long long)b->vocab_size, b->eot, (int)c->eod, (int)c->reader.format,
                     key, (int)c->reader.separator, separator,
                     (unsigned long long)XXH64(separator, strlen(separator), 0), (int)c->val, c->val_fraction,
                     (long long)c->val_every, (long long)c->shard_tokens, shard_format_word(c->format),
                     (int)c->dedup, (int)c->near_report, c->input_count, (int)c->hints.type, c->hints.eot,
                     c->hints.eod);
    if (b->chat)
        n += snprintf(
            text + n, n < (int)sizeof text ? sizeof text - (size_t)n : 0,
            "prompt %.200s completion %.200s\nmessages %.200s\ntemplate %016llx\n",
            c->chat.prompt ? c->chat.prompt : "", c->chat.completion ? c->chat.completion : "",
            c->chat.messages ? c->chat.messages : "",
            (unsigned long long)XXH64(chat_template_of(b->chat), strlen(chat_template_of(b->chat)), 0));
    CHECK(n < (int)sizeof text, "settings of %d bytes", n);
    b->settings = utf8_clean(text, strlen(text));
}

static status start(struct build *b)
{
    const struct build_config *c = b->config;
    b->progress.bytes_total = b->inputs.bytes;
    b->tail_at = b->inputs.bytes - (int64_t)(c->val_fraction * (double)b->inputs.bytes);
    b->duplicates.counted = c->dedup != BUILD_DEDUP_OFF;
    b->duplicates.removed = c->dedup == BUILD_DEDUP_EXACT || c->dedup == BUILD_DEDUP_NEAR;
    b->duplicates.near_removed = c->dedup == BUILD_DEDUP_NEAR;
    TRY(build_inputs_hash(&b->inputs, b->inputs.hashed));
    return build_pipe_start(b);
}

/* --- end ------------------------------------------------------------------------------------------------ */

static status check_parts(const struct build *b)
{
    struct manifest_sum train = corpus_sum(b->corpus, CORPUS_TRAIN), val = corpus_sum(b->corpus, CORPUS_VAL);
    if (train.tokens == 0)
        return FAIL(STATUS_DATA,
                    val.tokens > 0
                        ? "no text for training: all documents fell into the validation part; choose a "
                          "smaller part (%lld documents skipped)"
                        : "the input is empty: no text for training in it (%lld documents skipped)",
                    (long long)b->skipped);
    if (val.tokens == 0 && b->config->val != BUILD_VAL_NONE)
        return FAIL(
            STATUS_DATA,
            "none of %lld documents fell into the validation part; choose a larger part, --val-tail or "
            "--val-every-n, or give more documents",
            (long long)train.documents);
    return STATUS_OK;
}

static void take_report(const struct manifest *m, struct build_report *report)
{
    report->skipped = m->skipped;
    report->empty = m->empty;
    report->duplicates = m->duplicates;
    report->train = manifest_split(m, "train");
    report->val = manifest_split(m, "val");
}

static status finish(struct build *b, struct build_report *report)
{
    const struct build_config *c = b->config;
    if (c->near_report) TRY(dedup_near_report(b->near, &report->near));
    struct manifest m = {.vocab_size = b->vocab_size,
                         .eot = b->eot,
                         .eod = c->eod,
                         .skipped = b->skipped,
                         .empty = b->empty,
                         .duplicates = b->duplicates};
    memcpy(m.tokenizer_hash, b->tokenizer_hash, sizeof m.tokenizer_hash);
    const char *slash = strrchr(c->prefix, '/');
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - c->prefix) + 1 : 1, slash ? c->prefix : ".");
    if (b->tokenizer) TRY(relative_path(dir, b->tokenizer_dir, m.tokenizer_dir, sizeof m.tokenizer_dir));
    for (int i = 0; i < b->inputs.count; i++) {
        struct manifest_input *row = manifest_add_input(&m, b->inputs.files[i].name);
        row->bytes = b->inputs.files[i].bytes;
        row->xxh64 = b->inputs.files[i].xxh64;
    }
    status st = corpus_commit(&b->corpus, &m);
    take_report(&m, report);
    manifest_free(&m);
    return st;
}

static status run(struct build *b, struct build_report *report)
{
    struct build_journal j = {0};
    struct manifest done = {0};
    struct build_mark mark;
    enum build_begin begin;
    status st;
    TRY_OUT(build_resume_look(b, &j, &done, &begin));
    if (begin == BUILD_IS_DONE) {
        take_report(&done, report);
        manifest_free(&done);
        return build_resume_clear(b);
    }
    TRY_OUT(build_resume_open(b, begin == BUILD_GOES_ON ? &j : NULL));
    TRY_OUT(start(b));
    TRY_OUT(write_slots(b, &mark));
    build_pipe_stop(&b->pipe);
    TRY_OUT(check_parts(b));
    TRY_OUT(build_inputs_finish(&b->inputs));
    /* From here on a failure loses no work: the corpus is built and only needs to be published. */
    TRY_OUT(build_resume_save(b, mark));
    TRY_OUT(finish(b, report));
    st = build_resume_clear(b);
out:
    build_journal_free(&j);
    return st;
}

static void build_free(struct build *b, status st)
{
    char why[2048];
    snprintf(why, sizeof why, "%s", status_message());
    build_pipe_stop(&b->pipe);
    build_inputs_close(&b->inputs);
    if (b->durable)
        corpus_leave(&b->corpus);
    else
        corpus_abandon(&b->corpus);
    dedup_close(&b->dedup, st != STATUS_OK && b->durable);
    dedup_near_close(&b->near, st != STATUS_OK && b->durable);
    if (st != STATUS_OK && b->opened && !b->durable && build_resume_clear(b) != STATUS_OK)
        log_warn("%s", status_message());
    build_journal_unlock(b->config->prefix, &b->lock);
    free(b->settings);
    free(b->token_bytes);
    chat_close(b->chat);
    if (b->tokenizer) tokenizer_free(b->tokenizer);
    if (st != STATUS_OK && strcmp(why, status_message()) != 0) (void)FAIL(st, "%s", why);
}

status build_run(const struct build_config *config, struct build_report *report)
{
    struct build b = {.config = config, .lock = -1};
    *report = (struct build_report){0};
    CHECK(config->input_count > 0, "no input");
    status st;
    TRY_OUT(open_vocabulary(&b));
    TRY_OUT(build_inputs_open(&b.inputs, config));
    take_settings(&b);
    TRY_OUT(build_journal_lock(config->prefix, &b.lock));
    st = run(&b, report);
out:
    build_free(&b, st);
    return st;
}
