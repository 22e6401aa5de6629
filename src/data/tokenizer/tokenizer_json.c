/* Reads tokenizer.json. The format describes a pipeline of many kinds of parts; this program implements
 * one: pretokenizer.h and byte-level BPE. Every part is compared with the implemented ones; anything else,
 * including an unknown key, is an error that names it. A tokenizer that is read almost right gives ids that
 * are almost right, and nobody notices.
 *
 * The vocabulary and the merges are nearly all of the file, 9 MB of half a million strings: they are read
 * in place and once (base/json_scan.h). The small parts become trees. Hugging Face writes added_tokens
 * before model and vocab before merges; a file in another order is read in two passes. */
#include "data/tokenizer/tokenizer_json.h"
#include "base/json_scan.h"
#include "data/text/alphabet.h"
#include "data/text/array.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct extra { /* an added token */
    const char *content;
    size_t bytes;
    int64_t id; /* -1: that of model.vocab */
    bool special, normalized, lstrip, rstrip;
    bool in_vocab;
};

struct reading {
    struct tokenizer *t;
    struct json_scan j;
    json_t *parts, *model; /* the small members of the file and of "model" */
    struct extra *extras;  /* sorted by content */
    size_t extra_count, extra_cap;
    uint64_t filter[256];  /* of extras: bit bytes % 64 of the first byte */
    char *letters, *bytes; /* of one token */
    size_t letters_cap, bytes_cap;
    struct json_scan later_model, later_merges; /* text NULL: not deferred */
    bool have_added, have_vocab, have_merges;
};

static const char *word_of(const json_t *value)
{
    const char *s = json_string_value(value);
    return s != NULL ? s : ""; /* for anything else, so that it equals no known word */
}

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

static int shown(size_t bytes)
{
    return (int)(bytes < 60 ? bytes : 60);
}

/* `known`: names with a space before and after each. */
static status check_key(const char *where, const char *key, const char *known)
{
    char padded[64];
    int n = snprintf(padded, sizeof padded, " %s ", key);
    if (n < (int)sizeof padded && strchr(key, ' ') == NULL && strstr(known, padded) != NULL) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s has \"%.60s\", which is not supported", where, key);
}

static status read_flag(const json_t *object, const char *where, const char *key, bool absent, bool *value)
{
    const json_t *json = json_object_get(object, key);
    *value = is_absent(json) ? absent : json_is_true(json);
    if (is_absent(json) || json_is_boolean(json)) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: %s is not true or false", where, key);
}

static status expect_false(const json_t *object, const char *where, const char *key)
{
    bool value;
    TRY(read_flag(object, where, key, false, &value));
    return value ? FAIL(STATUS_DATA, "%s with %s=true is not supported", where, key) : STATUS_OK;
}

static bool adds_specials_alone(const char *type)
{
    static const char *const known[] = {"ByteLevel", "TemplateProcessing", "RobertaProcessing"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(type, known[i]) == 0) return true;
    return false;
}

/* Post-processors add special tokens around the ids or move offsets. ingot adds specials only on request, so
 * those known to do nothing else are accepted. */
static status check_post_processor(const json_t *p)
{
    if (is_absent(p)) return STATUS_OK;
    const char *type = word_of(json_object_get(p, "type"));
    if (adds_specials_alone(type)) return STATUS_OK;
    if (strcmp(type, "Sequence") != 0)
        return FAIL(STATUS_DATA, "post_processor type \"%.40s\" is not supported", type);
    size_t i;
    json_t *part;
    json_array_foreach(json_object_get(p, "processors"), i, part)
    {
        type = word_of(json_object_get(part, "type"));
        if (!adds_specials_alone(type))
            return FAIL(STATUS_DATA, "post_processor type \"%.40s\" is not supported", type);
    }
    return STATUS_OK;
}

/* ---- Added tokens ---- */

static int compare_contents(const void *a, const void *b)
{
    const struct extra *x = a, *y = b;
    int order = memcmp(x->content, y->content, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static status sort_extras(struct reading *r)
{
    r->have_added = true;
    if (r->extra_count != 0) qsort(r->extras, r->extra_count, sizeof *r->extras, compare_contents);
    for (size_t i = 0; i < r->extra_count; i++) {
        const struct extra *x = &r->extras[i];
        if (i > 0 && compare_contents(x - 1, x) == 0)
            return FAIL(STATUS_DATA, "added token \"%.60s\" occurs twice", x->content);
        r->filter[(uint8_t)x->content[0]] |= UINT64_C(1) << x->bytes % 64;
    }
    return STATUS_OK;
}

static struct extra *find_extra(const struct reading *r, const char *content, size_t bytes)
{
    if (bytes == 0 || (r->filter[(uint8_t)content[0]] >> bytes % 64 & 1) == 0) return NULL;
    struct extra want = {.content = content, .bytes = bytes};
    return bsearch(&want, r->extras, r->extra_count, sizeof want, compare_contents);
}

static status check_id(const char *text, size_t bytes, int64_t id)
{
    if (id >= 0 && id < TOKEN_MAX - 1) return STATUS_OK;
    return FAIL(STATUS_DATA, "token \"%.*s\": the id is not a number from 0 to %d", shown(bytes), text,
                TOKEN_MAX - 2);
}

static status read_extra(struct reading *r, json_t *token)
{
    const char *key;
    json_t *value;
    if (!json_is_object(token)) return FAIL(STATUS_DATA, "an added token is not an object");
    json_object_foreach(token, key, value)
        TRY(check_key("an added token", key, " id content single_word lstrip rstrip normalized special "));
    const char *content = json_string_value(json_object_get(token, "content"));
    const json_t *id = json_object_get(token, "id");
    if (content == NULL || content[0] == 0) return FAIL(STATUS_DATA, "an added token has no content");
    struct extra x = {.content = content, .bytes = strlen(content)};
    char where[96];
    snprintf(where, sizeof where, "added token \"%.60s\"", content);
    TRY(expect_false(token, where, "single_word"));
    TRY(read_flag(token, where, "lstrip", false, &x.lstrip));
    TRY(read_flag(token, where, "rstrip", false, &x.rstrip));
    TRY(read_flag(token, where, "special", false, &x.special));
    TRY(read_flag(token, where, "normalized", !x.special, &x.normalized));
    x.id = json_is_integer(id) ? json_integer_value(id) : -1;
    TRY(check_id(content, x.bytes, x.id));
    TRY(array_grow(&r->extras, &r->extra_cap, r->extra_count + 1, sizeof *r->extras));
    r->extras[r->extra_count++] = x;
    return STATUS_OK;
}

static status read_extras(struct reading *r, const json_t *list)
{
    size_t i;
    json_t *token;
    if (!is_absent(list) && !json_is_array(list)) return FAIL(STATUS_DATA, "added_tokens is not a list");
    json_array_foreach(list, i, token) TRY(read_extra(r, token));
    return sort_extras(r);
}

/* The tokens that model.vocab lacks, and the list for the encoder. */
static status place_extras(struct reading *r)
{
    struct tokenizer *t = r->t;
    for (size_t i = 0; i < r->extra_count; i++) {
        const struct extra *x = &r->extras[i];
        if (x->id < 0) continue;
        if (!x->in_vocab) TRY(vocab_place(&t->vocab, (int32_t)x->id, x->content, x->bytes, TOKEN_ADDED));
        TRY(array_grow(&t->added, &t->added_cap, t->added_count + 1, sizeof *t->added));
        t->added[t->added_count++] = (struct added){.id = (int32_t)x->id,
                                                    .special = x->special,
                                                    .normalized = x->normalized,
                                                    .lstrip = x->lstrip,
                                                    .rstrip = x->rstrip};
    }
    return STATUS_OK;
}

/* ---- Vocabulary and merges ---- */

static status add_token(struct reading *r, struct json_text key, int64_t id)
{
    const char *letters = key.data;
    size_t count = key.bytes;
    TRY(array_grow(&r->bytes, &r->bytes_cap, key.bytes + 1, 1));
    if (key.escaped) {
        TRY(array_grow(&r->letters, &r->letters_cap, key.bytes + 1, 1));
        count = json_scan_unescape(key, r->letters);
        letters = r->letters;
    }
    TRY(check_id(letters, count, id));
    if (count == 0) return STATUS_OK; /* Whisper's has one: no text has it, its id stays a hole */
    ptrdiff_t bytes = alphabet_read(letters, count, r->bytes);
    struct extra *x = find_extra(r, letters, count);
    if (bytes < 0 && x == NULL)
        return FAIL(STATUS_DATA, "token \"%.*s\" of model.vocab has characters that stand for no byte",
                    shown(count), letters);
    if (x != NULL) {
        if (x->id < 0) x->id = id;
        if (x->id != id)
            return FAIL(STATUS_DATA, "added token \"%.60s\" has another id in model.vocab", x->content);
        x->in_vocab = true;
        bool same = bytes == (ptrdiff_t)count && memcmp(letters, r->bytes, count) == 0;
        if (!same) return vocab_place(&r->t->vocab, (int32_t)id, letters, count, TOKEN_RAW);
    }
    return vocab_place(&r->t->vocab, (int32_t)id, r->bytes, (size_t)bytes, TOKEN_MODEL);
}

static status read_vocab(struct reading *r)
{
    struct json_text key;
    if (json_scan_peek(&r->j) != '{') return FAIL(STATUS_DATA, "model.vocab is not an object");
    TRY(json_scan_open(&r->j, '{'));
    for (bool more = true;;) {
        int64_t id;
        TRY(json_scan_next(&r->j, '}', &more));
        if (!more) break;
        TRY(json_scan_key(&r->j, &key));
        if (json_scan_integer(&r->j, &id) != STATUS_OK) return check_id(key.data, key.bytes, -1);
        TRY(add_token(r, key, id));
    }
    r->have_vocab = true;
    return STATUS_OK;
}

/* The merge whose parts have the letters a and b. */
static status add_merge(struct reading *r, const char *a, size_t a_count, const char *b, size_t b_count)
{
    struct tokenizer *t = r->t;
    TRY(array_grow(&r->bytes, &r->bytes_cap, a_count + b_count + 1, 1));
    ptrdiff_t left = alphabet_read(a, a_count, r->bytes),
              right = left < 0 ? -1 : alphabet_read(b, b_count, r->bytes + left);
    struct merge m = {-1, -1, -1};
    if (left > 0 && right > 0) {
        size_t bytes = (size_t)(left + right);
        m.left = vocab_find(&t->vocab, r->bytes, (size_t)left);
        m.right = vocab_find(&t->vocab, r->bytes + left, (size_t)right);
        /* Usually the result is the token after that of the last merge. */
        int32_t next = t->merge_count != 0 ? t->merges[t->merge_count - 1].id + 1 : 256;
        if ((size_t)next < t->vocab.count && t->vocab.tokens[next].kind == TOKEN_MODEL) {
            struct text text = vocab_bytes(&t->vocab, next);
            if (text.bytes == bytes && memcmp(text.data, r->bytes, bytes) == 0) m.id = next;
        }
        if (m.id < 0) m.id = vocab_find(&t->vocab, r->bytes, bytes);
    }
    if (m.left < 0 || m.right < 0 || m.id < 0)
        return FAIL(STATUS_DATA,
                    "merge %zu (\"%.*s\" \"%.*s\"): its parts or its result are not in model.vocab",
                    t->merge_count, shown(a_count), a, shown(b_count), b);
    if (t->merge_count + 2 > RANK_MAX) return FAIL(STATUS_DATA, "more than %d merges", RANK_MAX - 1);
    TRY(array_grow(&t->merges, &t->merge_cap, t->merge_count + 1, sizeof *t->merges));
    t->merges[t->merge_count++] = m;
    return STATUS_OK;
}

static status add_merge_line(struct reading *r, const char *line, size_t count)
{
    const char *space = memchr(line, ' ', count);
    size_t a = space != NULL ? (size_t)(space - line) : 0, b = space != NULL ? count - a - 1 : 0;
    if (space == NULL || memchr(space + 1, ' ', b) != NULL)
        return FAIL(STATUS_DATA, "merge %zu is not two words: \"%.*s\"", r->t->merge_count, shown(count),
                    line);
    return add_merge(r, line, a, space + 1, b);
}

/* A string of the merges; if it has escapes, it is decoded to *room. */
static status plain_string(struct reading *r, struct json_text *s, char **room, size_t *cap)
{
    TRY(json_scan_string(&r->j, s));
    if (!s->escaped) return STATUS_OK;
    TRY(array_grow(room, cap, s->bytes + 1, 1));
    s->bytes = json_scan_unescape(*s, *room);
    s->data = *room;
    return STATUS_OK;
}

/* ["a", "b"], after the bracket. */
static status read_merge_pair(struct reading *r, struct json_text part[2], char *rooms[2], size_t caps[2])
{
    bool more;
    for (int i = 0; i < 3; i++) {
        TRY(json_scan_next(&r->j, ']', &more));
        if (more != (i < 2) || (more && json_scan_peek(&r->j) != '"'))
            return FAIL(STATUS_DATA, "merge %zu is not a pair of strings", r->t->merge_count);
        if (more) TRY(plain_string(r, &part[i], &rooms[i], &caps[i]));
    }
    return add_merge(r, part[0].data, part[0].bytes, part[1].data, part[1].bytes);
}

static status read_merges(struct reading *r)
{
    char *rooms[2] = {NULL, NULL};
    size_t caps[2] = {0, 0};
    struct json_text part[2];
    status st = STATUS_OK;
    if (json_scan_peek(&r->j) != '[') return FAIL(STATUS_DATA, "model.merges is not a list");
    TRY(json_scan_open(&r->j, '['));
    for (bool more = true;;) {
        TRY_OUT(json_scan_next(&r->j, ']', &more));
        if (!more) break;
        if (json_scan_peek(&r->j) == '[') {
            TRY_OUT(json_scan_open(&r->j, '['));
            TRY_OUT(read_merge_pair(r, part, rooms, caps));
        } else {
            TRY_OUT(plain_string(r, &part[0], &rooms[0], &caps[0]));
            TRY_OUT(add_merge_line(r, part[0].data, part[0].bytes));
        }
    }
    r->have_merges = true;
out:
    free(rooms[0]);
    free(rooms[1]);
    return st;
}

/* ---- The file ---- */

/* The next value as a tree under `key` of `object`. */
static status take_tree(struct reading *r, json_t *object, const char *key)
{
    struct json_text text;
    json_error_t error;
    TRY(json_scan_skip(&r->j, &text));
    json_t *value = json_loadb(text.data, text.bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    if (value == NULL)
        return json_scan_fail(&r->j, (size_t)(text.data - r->j.text) + (size_t)error.position, error.text);
    return json_object_set_new(object, key, value) == 0
               ? STATUS_OK
               : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the tokenizer");
}

/* The next key as a C string: must be one of `known` and not yet in `object`, where it is entered with null. */
static status take_key(struct reading *r, json_t *object, const char *where, const char *known, char out[64])
{
    struct json_text key;
    TRY(json_scan_key(&r->j, &key));
    TRY(array_grow(&r->letters, &r->letters_cap, key.bytes + 1, 1));
    size_t n = json_scan_unescape(key, r->letters);
    r->letters[n] = 0;
    TRY(check_key(where, r->letters, known));
    if (json_object_get(object, r->letters) != NULL)
        return FAIL(STATUS_DATA, "%s has \"%s\" twice", where, r->letters);
    memcpy(out, r->letters, n + 1);
    return json_object_set_new(object, out, json_null()) == 0
               ? STATUS_OK
               : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the tokenizer");
}

/* As soon as it is known: other types have other keys, too. */
static status check_type(const struct reading *r)
{
    const json_t *type = json_object_get(r->model, "type"); /* old files have none */
    if (type == NULL || strcmp(word_of(type), "BPE") == 0) return STATUS_OK;
    return FAIL(
        STATUS_DATA,
        "this is a tokenizer of type %.40s, which is not supported; ingot reads byte-level BPE, as GPT-2, "
        "Llama 3 and Qwen have, and learns one: ingot tokenizer train",
        word_of(type));
}

static status check_model(struct reading *r)
{
    const json_t *m = r->model;
    TRY(check_type(r));
    static const char *const must_be_empty[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                                "end_of_word_suffix"};
    for (int i = 0; i < 4; i++) {
        const json_t *value = json_object_get(m, must_be_empty[i]);
        if (!is_absent(value) && !(json_is_string(value) && json_string_length(value) == 0))
            return FAIL(STATUS_DATA, "model with %s is not supported", must_be_empty[i]);
    }
    TRY(expect_false(m, "model", "fuse_unk"));
    TRY(expect_false(m, "model", "byte_fallback"));
    return read_flag(m, "model", "ignore_merges", false, &r->t->ignore_merges);
}

static status read_model(struct reading *r)
{
    struct json_text skipped;
    char key[64];
    if (json_scan_peek(&r->j) != '{') return FAIL(STATUS_DATA, "model is not an object");
    TRY(json_scan_open(&r->j, '{'));
    for (bool more = true;;) {
        TRY(json_scan_next(&r->j, '}', &more));
        if (!more) break;
        TRY(take_key(r, r->model, "model",
                     " type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                     "byte_fallback ignore_merges vocab merges ",
                     key));
        if (strcmp(key, "vocab") == 0) {
            TRY(check_model(r)); /* other types have other vocabularies */
            TRY(read_vocab(r));
        } else if (strcmp(key, "merges") != 0) {
            TRY(take_tree(r, r->model, key));
            TRY(check_type(r));
        } else if (r->have_vocab) {
            TRY(read_merges(r));
        } else {
            r->later_merges = r->j;
            TRY(json_scan_skip(&r->j, &skipped));
        }
    }
    TRY(check_model(r));
    if (!r->have_vocab) return FAIL(STATUS_DATA, "model.vocab is not an object");
    if (r->later_merges.text != NULL) {
        struct json_scan here = r->j;
        r->j = r->later_merges;
        TRY(read_merges(r));
        r->j = here;
    }
    return r->have_merges ? STATUS_OK : FAIL(STATUS_DATA, "model.merges is not a list");
}

static status check_parts(struct reading *r)
{
    static const char *const must_be_null[] = {"truncation", "padding"};
    for (int i = 0; i < 2; i++)
        if (!is_absent(json_object_get(r->parts, must_be_null[i])))
            return FAIL(STATUS_DATA, "%s is not supported", must_be_null[i]);
    TRY(pretokenizer_from_json(&r->t->pretokenizer, json_object_get(r->parts, "normalizer"),
                               json_object_get(r->parts, "pre_tokenizer")));
    TRY(check_post_processor(json_object_get(r->parts, "post_processor")));
    const char *decoder = word_of(json_object_get(json_object_get(r->parts, "decoder"), "type"));
    if (strcmp(decoder, "ByteLevel") != 0)
        return FAIL(STATUS_DATA, "decoder type \"%.40s\" is not supported", decoder);
    return STATUS_OK;
}

static status read_root(struct reading *r)
{
    struct json_text skipped;
    char key[64];
    TRY(json_scan_open(&r->j, '{'));
    for (bool more = true;;) {
        TRY(json_scan_next(&r->j, '}', &more));
        if (!more) break;
        TRY(take_key(r, r->parts, "tokenizer.json",
                     " version truncation padding added_tokens normalizer pre_tokenizer post_processor "
                     "decoder model ",
                     key));
        if (strcmp(key, "model") != 0) {
            TRY(take_tree(r, r->parts, key));
            if (strcmp(key, "added_tokens") == 0) TRY(read_extras(r, json_object_get(r->parts, key)));
        } else if (r->have_added) {
            TRY(read_model(r));
        } else {
            r->later_model = r->j;
            TRY(json_scan_skip(&r->j, &skipped));
        }
    }
    TRY(json_scan_end(&r->j));
    TRY(check_parts(r));
    if (r->later_model.text != NULL) {
        r->j = r->later_model;
        TRY(read_model(r));
    }
    if (!r->have_vocab) return FAIL(STATUS_DATA, "tokenizer.json has no model");
    return place_extras(r);
}

static status reading_open(struct reading *r, struct tokenizer *t, const char *json, size_t bytes)
{
    *r = (struct reading){.t = t, .parts = json_object(), .model = json_object()};
    if (r->parts == NULL || r->model == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the tokenizer");
    TRY(json_scan_begin(&r->j, json, bytes));
    /* A token has 8 bytes on average and occurs at least twice in the file, so the buffer never moves. */
    return vocab_reserve(&t->vocab, bytes / 64, bytes / 8);
}

static void reading_close(struct reading *r)
{
    json_decref(r->parts);
    json_decref(r->model);
    free(r->extras);
    free(r->letters);
    free(r->bytes);
}

status tokenizer_json_parse(struct tokenizer *t, const char *json, size_t bytes)
{
    struct reading r;
    status st = reading_open(&r, t, json, bytes);
    if (st == STATUS_OK) st = read_root(&r);
    reading_close(&r);
    return st;
}

/* One merge per line; a first line "#version: 0.2" is skipped. */
static status read_merge_lines(struct reading *r, struct text merges)
{
    for (size_t at = 0, end; at < merges.bytes; at = end + 1) {
        const char *line = merges.data + at, *stop = memchr(line, '\n', merges.bytes - at);
        size_t n = stop != NULL ? (size_t)(stop - line) : merges.bytes - at;
        end = at + n;
        if (n > 0 && line[n - 1] == '\r') n--;
        if (n == 0 || (at == 0 && n >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        TRY(add_merge_line(r, line, n));
    }
    return STATUS_OK;
}

status tokenizer_json_parse_pair(struct tokenizer *t, struct text vocab, struct text merges, const char *end)
{
    struct reading r;
    size_t valid = utf8_valid(merges.data, merges.bytes);
    if (valid != merges.bytes)
        return FAIL(STATUS_DATA, "the file of merges: invalid UTF-8 at byte offset %zu", valid);
    status st = reading_open(&r, t, vocab.data, vocab.bytes);
    if (st == STATUS_OK && end != NULL) {
        st = array_grow(&r.extras, &r.extra_cap, 1, sizeof *r.extras);
        if (st == STATUS_OK)
            r.extras[r.extra_count++] =
                (struct extra){.content = end, .bytes = strlen(end), .id = -1, .special = true};
    }
    if (st == STATUS_OK) st = sort_extras(&r);
    if (st == STATUS_OK) st = read_vocab(&r);
    if (st == STATUS_OK) st = json_scan_end(&r.j);
    if (st == STATUS_OK) st = read_merge_lines(&r, merges);
    if (st == STATUS_OK) st = place_extras(&r);
    reading_close(&r);
    return st;
}
