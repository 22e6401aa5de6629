#include "data/build/chat.h"

#include "data/text/array.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *begin, *text;
    bool strips;
} templates[] = {
    {"chatml", "", "<|im_start|>{role}\n{content}<|im_end|>\n", false},
    {"llama3", "<|begin_of_text|>", "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
     true},
    {"roles", "", "<|{role}|>\n{content}<|end|>\n", false},
};
enum { TEMPLATES = sizeof templates / sizeof templates[0], ROLE_BYTES = 64, HEAD_BYTES = 1024 };

struct chat {
    const struct chat_config *config;
    const struct tokenizer *tokenizer;
    const char *begin, *text; /* of the template; NULL: prompt and completion */
    bool strips;
    const char *role, *content; /* in `text` */
};

const char *chat_template_of(const struct chat *c)
{
    return c->text ? c->text : "";
}

/* The part of the template before {content} for a role. */
static void head_of(const struct chat *c, const char *role, char out[HEAD_BYTES])
{
    const char *rest = c->role + strlen("{role}");
    snprintf(out, HEAD_BYTES, "%.*s%s%.*s", (int)(c->role - c->text), c->text, role, (int)(c->content - rest),
             rest);
}

/* Every <|...|> of a text must be one token, as a template without its tokens would be plain text. */
static status check_tokens(const struct chat *c, const char *text)
{
    for (const char *at = text; (at = strstr(at, "<|"));) {
        const char *end = strstr(at, "|>");
        char name[HEAD_BYTES];
        if (!end) return STATUS_OK;
        snprintf(name, sizeof name, "%.*s", (int)(end + 2 - at), at);
        if (tokenizer_special(c->tokenizer, name) < 0)
            return FAIL(
                STATUS_CONFIG,
                "--template %s needs the token %s, which the tokenizer does not have; name a template of "
                "its own tokens, as in '<|user|>{role}: {content}<|end|>'",
                c->config->layout, name);
        at = end + 2;
    }
    return STATUS_OK;
}

static status open_template(struct chat *c)
{
    const char *name = c->config->layout;
    c->begin = "";
    c->text = name;
    for (int i = 0; i < TEMPLATES; i++)
        if (strcmp(name, templates[i].name) == 0) {
            c->begin = templates[i].begin;
            c->text = templates[i].text;
            c->strips = templates[i].strips;
        }
    c->role = strstr(c->text, "{role}");
    c->content = strstr(c->text, "{content}");
    if (!c->role || !c->content || c->role > c->content || strlen(c->text) > HEAD_BYTES - ROLE_BYTES)
        return FAIL(
            STATUS_CONFIG,
            "--template %s: chatml, llama3, roles, or a text with {role} and behind it {content} is expected",
            name);
    char head[HEAD_BYTES];
    head_of(c, "assistant", head);
    TRY(check_tokens(c, c->begin));
    TRY(check_tokens(c, head));
    return check_tokens(c, c->content);
}

status chat_open(struct chat **out, const struct chat_config *config, const struct tokenizer *t)
{
    *out = NULL;
    if (!config->prompt != !config->completion)
        return FAIL(STATUS_CONFIG, "--prompt KEY and --completion KEY belong together");
    if (config->messages && config->prompt)
        return FAIL(STATUS_CONFIG, "--messages excludes --prompt and --completion");
    if (!config->messages != !config->layout)
        return FAIL(STATUS_CONFIG, "--messages KEY and --template NAME belong together");
    if (!t) return FAIL(STATUS_CONFIG, "loss masks need a tokenizer: --tokenizer DIR names one");
    struct chat *c = calloc(1, sizeof *c);
    MEMORY_CHECK(c, "no memory for a template");
    c->config = config;
    c->tokenizer = t;
    status st = config->messages ? open_template(c) : STATUS_OK;
    if (st == STATUS_OK)
        *out = c;
    else
        free(c);
    return st;
}

void chat_close(struct chat *c)
{
    free(c);
}

/* --- one record ----------------------------------------------------------------------------------------- */

struct ids { /* growable */
    int32_t *ids;
    uint8_t *targets;
    size_t count, id_room, target_room;
};

static status add(struct ids *to, struct encoder *e, const char *text, size_t bytes, enum specials specials,
                  bool target)
{
    const int32_t *ids;
    int64_t count;
    TRY(encoder_encode(e, text, bytes, specials, &ids, &count));
    TRY(array_grow(&to->ids, &to->id_room, to->count + (size_t)count + 1, sizeof *to->ids));
    TRY(array_grow(&to->targets, &to->target_room, to->count + (size_t)count + 1, 1));
    if (count == 0) return STATUS_OK;
    memcpy(to->ids + to->count, ids, (size_t)count * sizeof *ids);
    memset(to->targets + to->count, target, (size_t)count);
    to->count += (size_t)count;
    return STATUS_OK;
}

static status add_text(struct ids *to, struct encoder *e, const struct reader_batch *batch, int64_t i,
                       const char *key, bool target, bool *empty)
{
    struct reader_document text;
    TRY(reader_text(batch, i, key, &text));
    *empty = text.bytes == 0;
    status st = text.bytes ? add(to, e, text.text, text.bytes, SPECIALS_AS_TEXT, target) : STATUS_OK;
    reader_document_free(&text);
    return st;
}

static status read_pair(const struct chat *c, struct encoder *e, const struct reader_batch *batch, int64_t i,
                        struct ids *to)
{
    bool empty;
    TRY(add_text(to, e, batch, i, c->config->prompt, false, &empty));
    TRY(add_text(to, e, batch, i, c->config->completion, true, &empty));
    if (empty) to->count = 0;
    return STATUS_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The tail of an assistant's message is a target up to its first special token, which ends the turn. */
static status add_tail(const struct chat *c, struct encoder *e, struct ids *to, bool target)
{
    const char *tail = c->content + strlen("{content}");
    const size_t from = to->count;
    TRY(add(to, e, tail, strlen(tail), SPECIALS_PARSE, target));
    bool ended = false;
    for (size_t i = from; i < to->count; i++) {
        if (ended) to->targets[i] = 0;
        ended = ended || tokenizer_added(c->tokenizer, to->ids[i]);
    }
    return STATUS_OK;
}

static bool is_role(const char *role)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    return role && *role && strlen(role) < ROLE_BYTES && strspn(role, letters) == strlen(role);
}

static status add_message(const struct chat *c, struct encoder *e, const struct reader_batch *batch,
                          int64_t i, const json_t *message, struct ids *to, bool *answered)
{
    char head[HEAD_BYTES];
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    if (!is_role(role)) return reader_fail(batch, i, "a message without a \"role\" of letters");
    if (!json_is_string(content))
        return reader_fail(batch, i, "a message without a \"content\" that is text");
    const char *text = json_string_value(content);
    size_t bytes = json_string_length(content);
    while (c->strips && bytes > 0 && is_blank(text[bytes - 1])) bytes--;
    while (c->strips && bytes > 0 && is_blank(*text)) text++, bytes--;
    const bool target = strcmp(role, "assistant") == 0;
    *answered = *answered || target;
    head_of(c, role, head);
    if (check_tokens(c, head) != STATUS_OK)
        return reader_fail(batch, i, "a role for which the tokenizer has no token of the template");
    TRY(add(to, e, head, strlen(head), SPECIALS_PARSE, false));
    TRY(add(to, e, text, bytes, SPECIALS_AS_TEXT, target));
    return add_tail(c, e, to, target);
}

/* The list under a key, "a.b" for b inside a, unless a name is the whole key. */
static const json_t *under(const json_t *o, const char *key)
{
    const json_t *whole = json_object_get(o, key);
    const char *dot = strchr(key, '.');
    char name[256];
    if (whole || !dot || dot - key >= (ptrdiff_t)sizeof name) return whole;
    snprintf(name, sizeof name, "%.*s", (int)(dot - key), key);
    const json_t *inner = json_object_get(o, name);
    return inner ? under(inner, dot + 1) : NULL;
}

static status read_messages(const struct chat *c, struct encoder *e, const struct reader_batch *batch,
                            int64_t i, struct ids *to)
{
    const struct reader_record *r = &batch->records[i];
    char what[512];
    json_error_t error;
    json_t *root = json_loadb(batch->data + r->at, r->bytes, JSON_ALLOW_NUL, &error);
    if (!root) {
        snprintf(what, sizeof what, "not JSON: %s", error.text);
        return reader_fail(batch, i, what);
    }
    const json_t *list = under(root, c->config->messages);
    status st = STATUS_OK;
    bool answered = false;
    if (!json_is_array(list)) {
        snprintf(what, sizeof what, "no list of messages under '%.200s'; --messages names its key",
                 c->config->messages);
        st = reader_fail(batch, i, what);
    }
    const size_t count = st == STATUS_OK ? json_array_size(list) : 0;
    if (count > 0 && *c->begin) st = add(to, e, c->begin, strlen(c->begin), SPECIALS_PARSE, false);
    for (size_t k = 0; k < count && st == STATUS_OK; k++)
        st = add_message(c, e, batch, i, json_array_get(list, k), to, &answered);
    if (st == STATUS_OK && count > 0 && !answered)
        st = reader_fail(batch, i, "no message of the role \"assistant\": nothing in it is a target");
    json_decref(root);
    return st;
}

status chat_read(const struct chat *c, struct encoder *e, const struct reader_batch *batch, int64_t i,
                 struct reader_document *d)
{
    struct ids to = {0};
    *d = (struct reader_document){0};
    if (batch->format != READER_JSONL || batch->id_bytes)
        return FAIL(STATUS_DATA, "%s: prompts and messages are read from JSONL alone", batch->path);
    status st = c->text ? read_messages(c, e, batch, i, &to) : read_pair(c, e, batch, i, &to);
    if (st == STATUS_OK && to.count > 0) {
        const size_t bytes = to.count * sizeof *to.ids;
        st = array_grow(&to.ids, &to.id_room, to.count + to.count / sizeof *to.ids + 1, sizeof *to.ids);
        if (st == STATUS_OK) memcpy(to.ids + to.count, to.targets, to.count);
        if (st == STATUS_OK)
            *d = (struct reader_document){.bytes = bytes,
                                          .ids = to.ids,
                                          .id_count = (int64_t)to.count,
                                          .targets = (const uint8_t *)(to.ids + to.count),
                                          .owner = to.ids};
    }
    free(to.targets);
    if (st != STATUS_OK || to.count == 0) free(to.ids);
    return st;
}
