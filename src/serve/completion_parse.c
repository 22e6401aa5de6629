/* From a request's JSON to a struct completion. */
#include "base/json_scan.h"
#include "base/memory.h"
#include "serve/completion.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* What reads a field; `at` is the place in struct completion. */
struct parse {
    struct completion *c;
    struct completion_error *e;
    const char *field, *model;
    bool include_usage;
};

static bool bad(struct parse *p, const char *must)
{
    return completion_fail(p->e, 400, NULL, p->field, "'%s' must be %s", p->field, must);
}

static bool take_int(struct parse *p, const json_t *v, int64_t least, int64_t most, int64_t *out)
{
    char must[96];
    snprintf(must, sizeof must, "a whole number from %lld to %lld", (long long)least, (long long)most);
    if (json_is_null(v)) return true;
    if (!json_is_integer(v) || json_integer_value(v) < least || json_integer_value(v) > most)
        return bad(p, must);
    *out = json_integer_value(v);
    return true;
}

static bool take_real(struct parse *p, const json_t *v, double above, double most, double *out)
{
    char must[96];
    snprintf(must, sizeof must, "a number from %g to %g", above < 0 ? 0.0 : above, most);
    if (json_is_null(v)) return true;
    const double x = json_number_value(v);
    if (!json_is_number(v) || !(x > above && x <= most)) return bad(p, must);
    *out = x;
    return true;
}

static bool take_bool(struct parse *p, const json_t *v, bool *out)
{
    if (json_is_null(v)) return true;
    if (!json_is_boolean(v)) return bad(p, "true or false");
    *out = json_is_true(v);
    return true;
}

static bool take_ids(struct parse *p, const json_t *list, struct completion_prompt *out)
{
    const size_t n = json_array_size(list);
    if (n == 0) return bad(p, "a text, a list of texts, token ids or lists of token ids, none of them empty");
    out->ids = malloc(n * sizeof *out->ids);
    MEMORY_CHECK(out->ids, "no memory for %zu tokens of a request", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return bad(p, "of whole numbers where it holds token ids");
        out->ids[i] = (int32_t)id;
    }
    out->count = (int64_t)n;
    return true;
}

static bool take_one(struct parse *p, const json_t *v, struct completion_prompt *out)
{
    if (json_is_array(v)) return take_ids(p, v, out);
    if (!json_is_string(v)) return bad(p, "a text, a list of texts, token ids or lists of token ids");
    out->text = memory_text(json_string_value(v));
    return true;
}

static bool take_prompt(struct parse *p, const json_t *v)
{
    const json_t *first = json_array_get(v, 0);
    const bool many = json_is_array(v) && (json_is_array(first) || json_is_string(first));
    const size_t count = many ? json_array_size(v) : 1;
    if (count > COMPLETION_CHOICES) return bad(p, "at most 128 prompts");
    struct completion_prompt *all = p->c->prompts = calloc(count, sizeof *all);
    MEMORY_CHECK(all, "no memory for %zu prompts", count);
    p->c->prompt_count = (int64_t)count;
    for (size_t i = 0; i < count; i++)
        if (many && json_typeof(json_array_get(v, i)) != json_typeof(first))
            return bad(p, "a list of texts, or a list of lists of token ids");
        else if (!take_one(p, many ? json_array_get(v, i) : v, &all[i]))
            return false;
    return true;
}

static bool take_stop(struct parse *p, const json_t *v)
{
    const size_t count = json_is_array(v) ? json_array_size(v) : !json_is_null(v);
    if (count > COMPLETION_STOPS) return bad(p, "at most 4 texts");
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_is_array(v) ? json_array_get(v, i) : v);
        if (text == NULL || text[0] == 0) return bad(p, "a text or a list of texts, none of them empty");
        p->c->stops[p->c->stop_count++] = memory_text(text);
    }
    return true;
}

/* 0 or absent: penalties and biases of the API that this server has not. */
static bool is_idle(const json_t *v)
{
    return json_is_null(v) || (json_is_number(v) && json_number_value(v) == 0) || json_is_false(v) ||
           (json_is_object(v) && json_object_size(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

static bool take_stream_options(struct parse *p, json_t *v)
{
    const char *key;
    json_t *value;
    if (json_is_null(v)) return true;
    if (!json_is_object(v)) return bad(p, "an object");
    json_object_foreach(
        v, key, value) if (strcmp(key, "include_usage") != 0 ||
                           !take_bool(p, value,
                                      &p->include_usage)) return bad(p, "{\"include_usage\": true or false}");
    return true;
}

static bool take_logprobs(struct parse *p, const json_t *v)
{
    if (json_is_false(v)) return true;
    return take_int(p, v, 0, COMPLETION_LIKELY, &p->c->likely);
}

static bool take_model(struct parse *p, const json_t *v)
{
    const char *name = json_string_value(v);
    if (name == NULL) return bad(p, "a text");
    if (strcmp(name, p->model) == 0) return true;
    return completion_fail(p->e, 404, "model_not_found", "model",
                           "the model '%.100s' does not exist here: this server has '%.200s'", name,
                           p->model);
}

static bool take_field(struct parse *p, const char *key, json_t *v)
{
    static const char *const without[] = {"presence_penalty", "frequency_penalty", "logit_bias", "suffix"};
    struct completion *c = p->c;
    int64_t seed = -1, best = 0;
#define IS(name) (strcmp(key, name) == 0)
    if (IS("model")) return take_model(p, v);
    if (IS("prompt")) return take_prompt(p, v);
    if (IS("max_tokens")) return take_int(p, v, 0, INT32_MAX, &c->tokens);
    if (IS("temperature")) return take_real(p, v, -1e-300, 100, &c->temperature);
    if (IS("top_p")) return take_real(p, v, 1e-12, 1, &c->top_p);
    if (IS("top_k")) return take_int(p, v, 0, INT32_MAX, &c->top_k);
    if (IS("n")) return take_int(p, v, 1, COMPLETION_CHOICES, &c->n);
    if (IS("best_of")) /* more than n would be drawn and dropped */
        return take_int(p, v, 1, COMPLETION_CHOICES, &best) &&
               (best <= 1 || bad(p, "1: this server shows all that it draws, see 'n'"));
    if (IS("logprobs")) return take_logprobs(p, v);
    if (IS("echo")) return take_bool(p, v, &c->echo);
    if (IS("stream")) return take_bool(p, v, &c->stream);
    if (IS("stream_options")) return take_stream_options(p, v);
    if (IS("stop")) return take_stop(p, v);
    if (IS("user")) return json_is_string(v) || json_is_null(v) || bad(p, "a text");
    if (IS("seed")) {
        if (!take_int(p, v, INT64_MIN, INT64_MAX, &seed)) return false;
        if (!json_is_null(v)) c->seed = (uint64_t)seed;
        return true;
    }
#undef IS
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++)
        if (strcmp(key, without[i]) == 0)
            return is_idle(v) || bad(p, "left out: this server does not have it");
    return completion_fail(p->e, 400, NULL, p->field, "'%s' is no field of a completion", p->field);
}

static bool check(struct parse *p)
{
    const struct completion *c = p->c;
    p->field = "prompt";
    if (c->prompt_count == 0) return bad(p, "given");
    p->field = "n";
    if (c->n * c->prompt_count > COMPLETION_CHOICES) return bad(p, "at most 128 with all prompts together");
    p->field = "max_tokens";
    if (c->tokens == 0 && !c->echo) return bad(p, "at least 1 without echo");
    p->field = "stream_options";
    return !p->include_usage || c->stream || bad(p, "left out without stream");
}

/* Strict JSON of little depth: what a tree may be made of. */
static bool sound(const char *body, size_t bytes, struct completion_error *e)
{
    struct json_scan j;
    struct json_text all;
    status st = json_scan_begin(&j, body, bytes);
    if (st == STATUS_OK) st = json_scan_skip(&j, &all);
    if (st == STATUS_OK) st = json_scan_end(&j);
    if (st == STATUS_OK && all.data[0] == '{') return true;
    return completion_fail(e, 400, NULL, "", "the body is no JSON object%s%.200s", st ? ": " : "",
                           st ? status_message() : "");
}

bool completion_parse(struct completion *c, const char *body, size_t bytes, const char *model,
                      struct completion_error *e)
{
    struct parse p = {.c = c, .e = e, .model = model};
    json_error_t error;
    const char *key;
    json_t *value;
    bool ok = true, named = false;
    *c = (struct completion){.n = 1, .tokens = 16, .temperature = 1, .top_p = 1, .likely = -1};
    if (!sound(body, bytes, e)) return false;
    if (getrandom(&c->seed, sizeof c->seed, 0) != (ssize_t)sizeof c->seed)
        return completion_fail(e, 500, NULL, "", "no random numbers: %s", strerror(errno));
    json_t *root = json_loadb(body, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) return completion_fail(e, 400, NULL, "", "the body's JSON: %s", error.text);
    json_object_foreach(root, key, value)
    {
        char field[40];
        snprintf(field, sizeof field, "%.39s", key);
        p.field = field;
        named = named || strcmp(key, "model") == 0;
        ok = take_field(&p, key, value);
        if (!ok) break;
    }
    json_decref(root);
    p.field = "model";
    if (ok && !named) ok = bad(&p, "given");
    c->usage = p.include_usage;
    return ok && check(&p);
}

void completion_free(struct completion *c)
{
    for (int64_t i = 0; i < c->prompt_count; i++) {
        free(c->prompts[i].text);
        free(c->prompts[i].ids);
    }
    for (int i = 0; i < c->stop_count; i++) free(c->stops[i]);
    free(c->prompts);
    *c = (struct completion){0};
}
