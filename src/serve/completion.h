/* POST /v1/completions, as OpenAI's API defines it (platform.openai.com/docs/api-reference/completions), answered by the
 * model of one checkpoint.
 *
 *     completion_parse   the request's JSON becomes a struct completion; a pure function
 *     queue_*, job_*     requests wait in a queue (job.h)
 *     engine_*           one thread holds the model and answers them one after the other (engine.h)
 *     completion_*       their JSON */
#ifndef INGOT_SERVE_COMPLETION_H
#define INGOT_SERVE_COMPLETION_H
#include "data/tokenizer/tokenizer.h"
#include "infer/score.h"
#include "serve/serve.h"
#include <jansson.h>
#include <stdbool.h>

enum {
    COMPLETION_BYTES = 1 << 20, /* of a body: 128 prompts of 1000 ids */
    COMPLETION_CHOICES = 128,   /* prompts x n */
    COMPLETION_STOPS = 4,
    COMPLETION_LIKELY = 20
};
struct completion_prompt {
    char *text;   /* NULL: ids were given */
    int32_t *ids; /* of a text set when the tokenizer has seen it */
    int64_t count;
};
struct completion {
    struct completion_prompt *prompts; /* [prompt_count] owned */
    int64_t prompt_count, n;           /* n: choices of each */
    int64_t tokens;                    /* at most; 0: with echo */
    double temperature, top_p;
    int64_t top_k, likely; /* likely: tokens beside each one; -1: no log-probabilities */
    uint64_t seed;
    bool echo, stream, usage; /* usage: a last event of a stream says how many tokens there were */
    char *stops[COMPLETION_STOPS]; /* owned */
    int stop_count;
};
/* What went wrong, in the words of the API. */
struct completion_error {
    unsigned http; /* decides `type` of the API, too */
    const char *code;
    char param[48], message[512];
};
/* Fills *e and returns false. code NULL: none; param "": none. */
bool completion_fail(struct completion_error *e, unsigned http, const char *code, const char *param,
                     const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Fields that this server cannot honour are refused, never passed over. `model`: the name that a request must give.
 * False: *e says why. Free with completion_free, also on failure. */
bool completion_parse(struct completion *c, const char *body, size_t bytes, const char *model,
                      struct completion_error *e);
void completion_free(struct completion *c);

/* ---- completion_json.c */
/* A text as it comes to be. Bytes before `safe` can be shown: they end no character and no stop sequence in the midst. */
struct choice {
    int64_t index, tokens; /* tokens: generated ones */
    char *text;
    size_t bytes, shown, safe;
    json_t *names, *nats, *likely, *offsets; /* of tokens that are not yet shown; NULL: no log-probabilities */
    int64_t offset;                          /* characters of the text */
    const char *finish;                      /* "stop", "length"; NULL: it goes on */
};
void choice_begin(struct choice *c, int64_t index, bool logprobs);
void choice_free(struct choice *c);
/* Appends a token; silent: without its text. `likely` [1 + count]: as of score_likely, NULL: a prompt's first token; read
 * with log-probabilities alone. */
void choice_add(struct choice *c, const struct tokenizer *tok, int32_t id, bool silent,
                const struct score_likely *likely, int64_t count);
/* Sets `safe`; finds a stop sequence behind byte `from`: the text is cut there, and finish is "stop". */
void choice_look(struct choice *c, const struct completion *r, size_t from);
/* What is safe and was not shown as an object of the API's list `choices`, and marks it as shown. */
json_t *choice_take(struct choice *c);

struct completion_head { char id[40]; int64_t created; const char *model; };
json_t *completion_object(const struct completion_head *h, json_t *choices /* stolen */);
json_t *completion_usage(int64_t prompt, int64_t generated);
char *completion_error_text(const struct completion_error *e); /* malloc'd */

#endif
