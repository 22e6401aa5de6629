/* Benchmarks of language models, with the prompts, the preprocessing and the metrics of lm-evaluation-harness 0.4.9: without
 * examples in the prompt (0-shot). The files are the published ones, JSONL or CSV; docs/FORMATS.md lists them.
 *
 *     harness_read      the file's rows become pairs of context and continuation
 *     harness_encode    pairs become tokens, cut from the left to the model's positions
 *     score             infer/score.h
 *     harness_judge     log-likelihoods become metrics */
#ifndef INGOT_HARNESS_HARNESS_H
#define INGOT_HARNESS_HARNESS_H
#include "data/tokenizer/tokenizer.h"
#include "infer/score.h"

/* CHOICE: the most likely of several continuations is the answer. CLOZE: the last word of a text. TEXT: whole texts. */
enum harness_kind { HARNESS_CHOICE, HARNESS_CLOZE, HARNESS_TEXT };

struct harness_pair {
    char *context, *continuation; /* UTF-8, owned. A context of "": the text begins behind the prefix token */
    int64_t length;               /* characters of the choice, which acc_norm divides by */
};
struct harness_item {
    int64_t line;        /* of the file, from 1 */
    char *group;         /* subject, domain; NULL: none. owned */
    int gold;            /* the right pair, from 0 */
    int64_t first_pair, pairs;
    int64_t words, bytes; /* TEXT: of the text */
    int64_t first_request, requests;
};
struct harness_format;
struct harness_task {
    const struct harness_format *format;
    char *name, *path; /* owned */
    struct harness_item *items;
    struct harness_pair *pair;
    int64_t item_count, pair_count, cut; /* cut: contexts that lost their beginning */
    size_t item_room, pair_room;
    /* of harness_encode: */
    struct score_request *requests;
    int32_t *tokens;
    double *each;
    int64_t request_count, token_count;
    size_t request_room, token_room;
};

/* Names of the formats, by index; NULL after the last. */
const char *harness_format_name(int i);
/* Reads the first `limit` rows (0: all) of a file in the format NAME; a directory: of all its .csv and .jsonl files.
 * STATUS_CONFIG: no such format. STATUS_DATA: FILE:LINE is not of that format. Free with harness_free, also on failure. */
status harness_read(struct harness_task *t, const char *name, const char *path, int64_t limit) WARN_UNUSED;
void harness_free(struct harness_task *t);

struct harness_encoding {
    const struct tokenizer *tokenizer;
    int32_t prefix;    /* before a text without a context; -1: none */
    int64_t positions; /* of the model */
    bool each;         /* keep the log-probability of every token */
};
/* STATUS_DATA: a continuation without tokens, or with more than the model has positions. */
status harness_encode(struct harness_task *t, const struct harness_encoding *e) WARN_UNUSED;
/* Tokens of the longest forward. */
int64_t harness_longest(const struct harness_task *t);

struct harness_metric {
    const char *name;
    double value, stderr_; /* stderr_ NaN: none */
};
enum { HARNESS_METRICS = 3 };
struct harness_result {
    int64_t items;
    int count;
    struct harness_metric metrics[HARNESS_METRICS];
};
/* Of the items of a group; NULL: of all. */
void harness_judge(const struct harness_task *t, const char *group, struct harness_result *r);
/* The name of the i-th group in the order of the file; NULL after the last. */
const char *harness_group(const struct harness_task *t, int i);

/* One item: what `--samples` writes. */
struct harness_verdict {
    double acc, acc_norm; /* 0 or 1; NaN where the format has none */
    double loglik;        /* CLOZE, TEXT: the sum */
};
struct harness_verdict harness_item_judge(const struct harness_task *t, const struct harness_item *item);
enum harness_kind harness_kind_of(const struct harness_task *t);
#endif
