#include "data/tokenizer/tekken.h"
#include "base/json_scan.h"
#include "data/text/array.h"
#include "data/text/base64.h"
#include "data/tokenizer/bpe_derive.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Files up to version 7 may leave their special tokens out; these are meant. */
static const char *const old_specials[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};
enum { OLD_COUNT = sizeof old_specials / sizeof *old_specials };
static const char *const old_versions[] = {"v1", "v2", "v3", "v7"};

struct reading {
    struct tokenizer *t;
    struct json_scan j, vocab; /* vocab.text NULL: not seen */
    json_t *config, *specials;
    int64_t special_count, token_count; /* of the model: default_vocab_size without the special ones */
    char *digits, *token;
    size_t digits_cap, token_cap;
};

/* Those of images and sound do not change how text is read. */
static const char *const keys[] = {"config", "vocab", "special_tokens",        "multimodal",
                                   "image",  "audio", "model_settings_builder"};
enum { KEY_CONFIG, KEY_VOCAB, KEY_SPECIALS, KEY_COUNT = sizeof keys / sizeof *keys };

static int key_of(struct json_text key)
{
    for (int i = 0; i < KEY_COUNT; i++)
        if (key.bytes == strlen(keys[i]) && memcmp(key.data, keys[i], key.bytes) == 0) return i;
    return -1;
}

bool tekken_is(const char *data, size_t bytes)
{
    const char *open = memchr(data, '{', bytes),
               *quote = open ? memchr(open, '"', bytes - (size_t)(open - data)) : NULL;
    if (quote == NULL) return false;
    for (const char *p = data; p < quote; p++)
        if (p != open && strchr(" \t\r\n", *p) == NULL) return false;
    size_t rest = bytes - (size_t)(++quote - data);
    const char *end = memchr(quote, '"', rest);
    return end != NULL && key_of((struct json_text){.data = quote, .bytes = (size_t)(end - quote)}) >= 0;
}

static status take_tree(struct reading *r, const char *key, json_t **out)
{
    struct json_text text;
    json_error_t error;
    if (*out != NULL) return FAIL(STATUS_DATA, "tekken.json has \"%s\" twice", key);
    TRY(json_scan_skip(&r->j, &text));
    *out = json_loadb(text.data, text.bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    if (*out != NULL) return STATUS_OK;
    return json_scan_fail(&r->j, (size_t)(text.data - r->j.text) + (size_t)error.position, error.text);
}

static status read_root(struct reading *r)
{
    struct json_text key, skipped;
    TRY(json_scan_open(&r->j, '{'));
    for (bool more = true;;) {
        TRY(json_scan_next(&r->j, '}', &more));
        if (!more) break;
        TRY(json_scan_key(&r->j, &key));
        int which = key_of(key);
        if (which < 0)
            return FAIL(STATUS_DATA, "tekken.json has \"%.*s\", which is not supported",
                        key.bytes < 60 ? (int)key.bytes : 60, key.data);
        if (which == KEY_CONFIG || which == KEY_SPECIALS) {
            TRY(take_tree(r, keys[which], which == KEY_CONFIG ? &r->config : &r->specials));
            continue;
        }
        if (which == KEY_VOCAB && r->vocab.text != NULL)
            return FAIL(STATUS_DATA, "tekken.json has \"vocab\" twice");
        if (which == KEY_VOCAB) r->vocab = r->j;
        TRY(json_scan_skip(&r->j, &skipped));
    }
    return json_scan_end(&r->j);
}

static status read_count(const struct reading *r, const char *key, int64_t *out)
{
    const json_t *value = json_object_get(r->config, key);
    *out = json_is_integer(value) ? json_integer_value(value) : -1;
    if (*out >= 0 && *out < TOKEN_MAX) return STATUS_OK;
    return FAIL(STATUS_DATA, "config.%s of tekken.json is not a number from 0 to %d", key, TOKEN_MAX - 1);
}

static status read_config(struct reading *r)
{
    const char *pattern = json_string_value(json_object_get(r->config, "pattern"));
    int64_t all;
    if (!json_is_object(r->config)) return FAIL(STATUS_DATA, "tekken.json has no config");
    if (pattern == NULL) return FAIL(STATUS_DATA, "config.pattern of tekken.json is not a string");
    TRY(pretokenizer_of_pattern(&r->t->pretokenizer, pattern));
    TRY(read_count(r, "default_vocab_size", &all));
    TRY(read_count(r, "default_num_special_tokens", &r->special_count));
    if (all < r->special_count)
        return FAIL(STATUS_DATA,
                    "config.default_vocab_size of tekken.json is less than the special tokens are");
    r->token_count = all - r->special_count;
    return STATUS_OK;
}

static status read_special(struct reading *r, const json_t *one)
{
    const char *text = json_string_value(json_object_get(one, "token_str"));
    const json_t *rank = json_object_get(one, "rank");
    int64_t id = json_is_integer(rank) ? json_integer_value(rank) : -1;
    if (text == NULL || text[0] == 0 || id < 0 || id >= r->special_count)
        return FAIL(
            STATUS_DATA,
            "a special token of tekken.json without token_str, or its rank is not a number from 0 to %lld",
            (long long)r->special_count - 1);
    return tokenizer_add_special(r->t, (int32_t)id, text);
}

/* Ids that the file says nothing about are <SPECIAL_ID>. */
static status add_specials(struct reading *r)
{
    size_t count = OLD_COUNT, i;
    json_t *one;
    if (r->specials != NULL) {
        if (!json_is_array(r->specials))
            return FAIL(STATUS_DATA, "special_tokens of tekken.json is not a list");
        count = json_array_size(r->specials);
        json_array_foreach(r->specials, i, one) TRY(read_special(r, one));
    } else {
        const char *version = json_string_value(json_object_get(r->config, "version"));
        bool old = false;
        for (i = 0; version != NULL && i < sizeof old_versions / sizeof *old_versions; i++)
            old |= strcmp(version, old_versions[i]) == 0;
        if (!old)
            return FAIL(STATUS_DATA, "tekken.json has no special_tokens, which files behind version v7 need");
        for (i = 0; i < OLD_COUNT && (int64_t)i < r->special_count; i++)
            TRY(tokenizer_add_special(r->t, (int32_t)i, old_specials[i]));
    }
    if ((int64_t)count > r->special_count)
        return FAIL(STATUS_DATA, "tekken.json has %zu special tokens and default_num_special_tokens %lld",
                    count, (long long)r->special_count);
    for (int64_t id = (int64_t)count; id < r->special_count; id++) {
        char text[40];
        snprintf(text, sizeof text, "<SPECIAL_%lld>", (long long)id);
        TRY(tokenizer_add_special(r->t, (int32_t)id, text));
    }
    return STATUS_OK;
}

/* {"rank": N, "token_bytes": "...", "token_str": ...} with N = `rank`. */
static status read_token(struct reading *r, int64_t rank)
{
    struct json_scan *j = &r->vocab;
    struct json_text key, value, bytes = {0};
    int64_t given = -1;
    TRY(json_scan_open(j, '{'));
    for (bool more = true;;) {
        TRY(json_scan_next(j, '}', &more));
        if (!more) break;
        TRY(json_scan_key(j, &key));
        bool is_rank = key.bytes == 4 && memcmp(key.data, "rank", 4) == 0;
        bool is_bytes = key.bytes == 11 && memcmp(key.data, "token_bytes", 11) == 0;
        if (is_rank)
            TRY(json_scan_integer(j, &given));
        else if (is_bytes)
            TRY(json_scan_string(j, &bytes));
        else
            TRY(json_scan_skip(j, &value));
    }
    if (given != rank)
        return FAIL(STATUS_DATA, "vocab[%lld] of tekken.json has another rank", (long long)rank);
    TRY(array_grow(&r->digits, &r->digits_cap, bytes.bytes + 1, 1));
    TRY(array_grow(&r->token, &r->token_cap, bytes.bytes + 1, 1));
    size_t count = bytes.data ? json_scan_unescape(bytes, r->digits) : 0;
    ptrdiff_t n = base64_read(r->digits, count, r->token);
    if (n < 0)
        return FAIL(STATUS_DATA, "vocab[%lld].token_bytes of tekken.json is not base64", (long long)rank);
    if (rank < 256 && (n != 1 || (uint8_t)r->token[0] != rank))
        return FAIL(STATUS_DATA, "vocab[%lld] of tekken.json is not the byte %lld", (long long)rank,
                    (long long)rank);
    status st =
        vocab_place(&r->t->vocab, (int32_t)(rank + r->special_count), r->token, (size_t)n, TOKEN_MODEL);
    return st == STATUS_OK ? st : status_wrap(st, "vocab[%lld] of tekken.json", (long long)rank);
}

/* The list is longer than the vocabulary: what is behind it is not used. */
static status read_vocab(struct reading *r)
{
    int64_t rank = 0;
    if (r->vocab.text == NULL) return FAIL(STATUS_DATA, "tekken.json has no vocab");
    TRY(json_scan_open(&r->vocab, '['));
    for (bool more = true; rank < r->token_count; rank++) {
        TRY(json_scan_next(&r->vocab, ']', &more));
        if (!more) break;
        TRY(read_token(r, rank));
    }
    if (rank == r->token_count) return STATUS_OK;
    return FAIL(STATUS_DATA, "tekken.json has %lld tokens; default_vocab_size without special ones is %lld",
                (long long)rank, (long long)r->token_count);
}

static status parse(struct reading *r, const char *data, size_t bytes)
{
    TRY(json_scan_begin(&r->j, data, bytes));
    r->j.zeros = true; /* token_str of the byte 0 */
    TRY(read_root(r));
    TRY(read_config(r));
    TRY(vocab_reserve(&r->t->vocab, bytes / 96, bytes / 12));
    TRY(add_specials(r));
    TRY(read_vocab(r));
    r->t->ignore_merges = true;
    return bpe_derive(r->t);
}

status tekken_parse(struct tokenizer *t, const char *data, size_t bytes)
{
    struct reading r = {.t = t};
    status st = parse(&r, data, bytes);
    json_decref(r.config);
    json_decref(r.specials);
    free(r.digits);
    free(r.token);
    return st;
}
