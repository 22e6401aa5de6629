/* Choices and answers as the API's JSON. */
#include "base/memory.h"
#include "serve/completion.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t characters(const char *text, size_t bytes)
{
    int64_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

void choice_begin(struct choice *c, int64_t index, bool logprobs)
{
    *c = (struct choice){.index = index};
    if (!logprobs) return;
    c->names = json_array();
    c->nats = json_array();
    c->likely = json_array();
    c->offsets = json_array();
}

void choice_free(struct choice *c)
{
    json_decref(c->names);
    json_decref(c->nats);
    json_decref(c->likely);
    json_decref(c->offsets);
    free(c->text);
    *c = (struct choice){0};
}

/* A token's text; bytes that are no UTF-8 as OpenAI writes them: "bytes:\xe2\x80". malloc'd. */
static char *token_name(const struct tokenizer *tok, int32_t id)
{
    const struct text t = tokenizer_bytes(tok, id);
    char *name = NULL;
    size_t bytes;
    FILE *f = memory_stream(&name, &bytes);
    if (utf8_valid(t.data, t.bytes) == t.bytes && (t.bytes == 0 || memchr(t.data, 0, t.bytes) == NULL)) {
        fwrite(t.data, 1, t.bytes, f);
    } else {
        fputs("bytes:", f);
        for (size_t i = 0; i < t.bytes; i++) fprintf(f, "\\x%02x", (unsigned char)t.data[i]);
    }
    memory_stream_close(f);
    return name;
}

/* JSON has no infinity; the API's floor is -9999. */
static json_t *nats_json(double nats)
{
    return json_real(nats > -9999 ? nats : -9999);
}

static void add_logprobs(struct choice *c, const struct tokenizer *tok, int32_t id,
                         const struct score_likely *likely, int64_t count)
{
    char *name = token_name(tok, id);
    json_array_append_new(c->names, json_string(name));
    free(name);
    json_array_append_new(c->offsets, json_integer(c->offset));
    json_array_append_new(c->nats, likely ? nats_json(likely[0].nats) : json_null());
    json_t *top = likely && count > 0 ? json_object() : json_null();
    for (int64_t i = 1; likely && i <= count; i++) {
        name = token_name(tok, likely[i].id);
        if (json_object_get(top, name) == NULL) json_object_set_new(top, name, nats_json(likely[i].nats));
        free(name);
    }
    json_array_append_new(c->likely, top);
}

void choice_add(struct choice *c, const struct tokenizer *tok, int32_t id, bool silent,
                const struct score_likely *likely, int64_t count)
{
    const struct text t = silent ? (struct text){"", 0} : tokenizer_bytes(tok, id);
    if (c->names) add_logprobs(c, tok, id, likely, count);
    c->text = realloc(c->text, c->bytes + t.bytes + 1);
    MEMORY_CHECK(c->text, "no memory for %zu bytes of a completion", c->bytes + t.bytes);
    memcpy(c->text + c->bytes, t.data, t.bytes);
    c->bytes += t.bytes;
    c->text[c->bytes] = 0;
    c->offset += characters(t.data, t.bytes);
}

/* Bytes at the end that may begin a character. */
static size_t open_character(const char *text, size_t bytes)
{
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        const unsigned char b = (unsigned char)text[bytes - back];
        const size_t length = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : b >= 0xc0 ? 2 : 1;
        if (length > 1) return length > back ? back : 0;
        if (b < 0x80) return 0;
    }
    return 0;
}

/* Bytes at the end with which a stop sequence may begin. */
static size_t open_stop(const struct choice *c, const char *stop, size_t from)
{
    const size_t n = strlen(stop);
    for (size_t k = n - 1; k > 0; k--)
        if (c->bytes - from >= k && memcmp(c->text + c->bytes - k, stop, k) == 0) return k;
    return 0;
}

/* Ends the text, with the tokens that begin behind. */
static void cut_at(struct choice *c, size_t bytes)
{
    const int64_t end = characters(c->text, bytes);
    c->text[bytes] = 0;
    c->bytes = bytes;
    for (size_t i = json_array_size(c->offsets); i > 0; i--) {
        if (json_integer_value(json_array_get(c->offsets, i - 1)) < end) break;
        json_array_remove(c->offsets, i - 1);
        json_array_remove(c->names, i - 1);
        json_array_remove(c->nats, i - 1);
        json_array_remove(c->likely, i - 1);
    }
}

void choice_look(struct choice *c, const struct completion *r, size_t from)
{
    size_t held = c->bytes ? open_character(c->text, c->bytes) : 0, cut = c->bytes;
    for (int i = 0; i < r->stop_count; i++) {
        const size_t n = strlen(r->stops[i]), open = open_stop(c, r->stops[i], from);
        if (open > held) held = open;
        for (size_t at = from; at + n <= cut; at++) /* the text may hold zero bytes */
            if (memcmp(c->text + at, r->stops[i], n) == 0) {
                cut = at;
                c->finish = "stop";
            }
    }
    if (cut < c->bytes) cut_at(c, cut);
    if (c->finish) held = 0;
    if (c->safe < c->bytes - held) c->safe = c->bytes - held;
    if (c->safe > c->bytes) c->safe = c->bytes;
}

json_t *choice_take(struct choice *c)
{
    for (size_t i = c->shown; i < c->safe; i++)
        if (c->text[i] == 0)
            c->text[i] = (char)0xff; /* JSON's library ends a text at 0: U+FFFD in its place */
    char *text = utf8_clean(c->text ? c->text + c->shown : "", c->safe - c->shown);
    json_t *o = json_pack("{s:s, s:I}", "text", text, "index", (json_int_t)c->index);
    free(text);
    c->shown = c->safe;
    json_object_set_new(o, "logprobs", json_null());
    if (c->names) {
        json_object_set_new(o, "logprobs",
                            json_pack("{s:o, s:o, s:o, s:o}", "tokens", c->names, "token_logprobs", c->nats,
                                      "top_logprobs", c->likely, "text_offset", c->offsets));
        c->names = json_array();
        c->nats = json_array();
        c->likely = json_array();
        c->offsets = json_array();
    }
    json_object_set_new(o, "finish_reason", c->finish ? json_string(c->finish) : json_null());
    return o;
}

json_t *completion_object(const struct completion_head *h, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", h->id, "object", "text_completion", "created",
                     (json_int_t)h->created, "model", h->model, "choices", choices);
}

json_t *completion_usage(int64_t prompt, int64_t generated)
{
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)generated, "total_tokens", (json_int_t)(prompt + generated));
}

bool completion_fail(struct completion_error *e, unsigned http, const char *code, const char *param,
                     const char *fmt, ...)
{
    va_list args;
    e->http = http;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param);
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return false;
}

char *completion_error_text(const struct completion_error *e)
{
    char *message = utf8_clean(e->message, strlen(e->message)),
         *param = utf8_clean(e->param, strlen(e->param));
    const char *type = e->http == 401   ? "authentication_error"
                       : e->http == 429 ? "rate_limit_error"
                       : e->http >= 500 ? "server_error"
                                        : "invalid_request_error";
    json_t *o = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", message, "type", type, "param",
                          param[0] ? param : NULL, "code", e->code);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    MEMORY_CHECK(text, "no memory for an error");
    json_decref(o);
    free(message);
    free(param);
    return text;
}
