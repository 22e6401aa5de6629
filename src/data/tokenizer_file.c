/* Reading tokenizer.json. The format describes a pipeline of many kinds of parts; this program has one: what
 * pretokenizer.h does, byte-level BPE. Every part is therefore compared with what is
 * implemented, and anything else, also a key that is not known, is refused by name: a tokenizer that is read
 * almost right gives ids that are almost right, and nobody sees it. */
#include "data/tokenizer_file.h"
#include "base/io.h"
#include "data/alphabet.h"
#include "data/array.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_BYTES_MAX = 1 << 30 };

/* "" for anything that is not a string, so that it equals no known word. */
static const char *word_of(const json_t *value)
{
    const char *s = json_string_value(value);
    return s != NULL ? s : "";
}

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

/* `known`: names with a space before and behind each. */
static status check_keys(const json_t *object, const char *where, const char *known)
{
    if (!json_is_object(object)) return FAIL(STATUS_DATA, "%s is not an object", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char padded[64];
        int n = snprintf(padded, sizeof padded, " %s ", key);
        if (n >= (int)sizeof padded || strchr(key, ' ') != NULL || strstr(known, padded) == NULL)
            return FAIL(STATUS_DATA, "%s has \"%.60s\", which is not supported", where, key);
    }
    return STATUS_OK;
}

static status expect_flag(const json_t *object, const char *where, const char *key, bool wanted, bool absent)
{
    const json_t *value = json_object_get(object, key);
    bool have = is_absent(value) ? absent : json_is_true(value);
    if ((is_absent(value) || json_is_boolean(value)) && have == wanted) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s with %s=%s is not supported", where, key, wanted ? "false" : "true");
}

/* Post-processors add special tokens around the ids or move offsets; this program adds specials only where it
 * is told to, so those that are known to do no more than that may stand in the file. */
static status check_post_processor(const json_t *p)
{
    if (is_absent(p)) return STATUS_OK;
    const char *type = word_of(json_object_get(p, "type"));
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "TemplateProcessing") == 0) return STATUS_OK;
    if (strcmp(type, "Sequence") != 0)
        return FAIL(STATUS_DATA, "post_processor type \"%.40s\" is not supported", type);
    size_t i;
    json_t *part;
    json_array_foreach(json_object_get(p, "processors"), i, part)
    {
        type = word_of(json_object_get(part, "type"));
        if (strcmp(type, "ByteLevel") != 0 && strcmp(type, "TemplateProcessing") != 0)
            return FAIL(STATUS_DATA, "post_processor type \"%.40s\" is not supported", type);
    }
    return STATUS_OK;
}

struct item { /* a token of the file; the text belongs to the json */
    json_int_t id;
    const char *text;
    size_t bytes;
    enum token_kind kind;
};
struct items {
    struct item *data;
    size_t count, cap;
};

static status add_item(struct items *list, const json_t *id, const char *text, size_t bytes,
                       enum token_kind kind)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOKEN_MAX - 1)
        return FAIL(STATUS_DATA, "token \"%.60s\": the id is not a number from 0 to %d", text, TOKEN_MAX - 2);
    TRY(array_grow(&list->data, &list->cap, list->count + 1, sizeof *list->data));
    list->data[list->count++] = (struct item){json_integer_value(id), text, bytes, kind};
    return STATUS_OK;
}

static status parse_added_token(struct tokenizer *t, struct items *list, const json_t *token,
                                const json_t *vocab, json_t *contents)
{
    TRY(check_keys(token, "an added token", " id content single_word lstrip rstrip normalized special "));
    const char *content = json_string_value(json_object_get(token, "content"));
    const json_t *id = json_object_get(token, "id");
    if (content == NULL || content[0] == 0) return FAIL(STATUS_DATA, "an added token has no content");
    char where[96];
    snprintf(where, sizeof where, "added token \"%.60s\"", content);
    TRY(expect_flag(token, where, "single_word", false, false));
    TRY(expect_flag(token, where, "lstrip", false, false));
    TRY(expect_flag(token, where, "rstrip", false, false));
    if (json_object_get(contents, content) != NULL) return FAIL(STATUS_DATA, "%s occurs twice", where);
    if (json_object_set_new(contents, content, json_true()) != 0)
        return FAIL(STATUS_FIT, "no memory for the added tokens");

    const json_t *model_id = json_object_get(vocab, content);
    if (model_id == NULL)
        TRY(add_item(list, id, content, strlen(content), TOKEN_ADDED));
    else if (!json_equal(model_id, id))
        return FAIL(STATUS_DATA, "%s has another id in model.vocab", where);
    bool special = json_is_true(json_object_get(token, "special"));
    const json_t *normalized = json_object_get(token, "normalized");
    if (!json_is_integer(id)) return FAIL(STATUS_DATA, "%s has no id", where);
    struct added added = {.id = (int32_t)json_integer_value(id),
                          .special = special,
                          .normalized = is_absent(normalized) ? !special : json_is_true(normalized)};
    TRY(array_grow(&t->added, &t->added_cap, t->added_count + 1, sizeof *t->added));
    t->added[t->added_count++] = added;
    return STATUS_OK;
}

static status parse_vocab(struct items *list, const json_t *vocab, const json_t *contents)
{
    const char *key;
    json_t *id;
    json_object_foreach((json_t *)vocab, key, id)
    {
        size_t bytes = strlen(key);
        char *letters;
        TRY(array_new(&letters, bytes, 1));
        ptrdiff_t count = alphabet_read(key, bytes, letters);
        bool same = count == (ptrdiff_t)bytes && memcmp(letters, key, bytes) == 0;
        free(letters);
        bool added = json_object_get(contents, key) != NULL;
        if (count < 0 && !added)
            return FAIL(STATUS_DATA, "token \"%.60s\" of model.vocab has characters that stand for no byte",
                        key);
        TRY(add_item(list, id, key, bytes, added && !same ? TOKEN_RAW : TOKEN_MODEL));
    }
    return STATUS_OK;
}

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static status fill_vocab(struct vocab *v, struct items *list)
{
    if (list->count != 0) qsort(list->data, list->count, sizeof *list->data, compare_items);
    for (size_t i = 0; i < list->count; i++) {
        const struct item *item = &list->data[i];
        if (i > 0 && item[-1].id == item->id)
            return FAIL(STATUS_DATA, "tokens \"%.60s\" and \"%.60s\" have the same id %lld", item[-1].text,
                        item->text, (long long)item->id);
        while (v->count < (size_t)item->id) TRY(vocab_append(v, "", 0, TOKEN_HOLE));
        char *bytes = NULL;
        ptrdiff_t count = (ptrdiff_t)item->bytes;
        if (item->kind == TOKEN_MODEL) {
            TRY(array_new(&bytes, item->bytes, 1));
            count = alphabet_read(item->text, item->bytes, bytes);
        }
        status st = vocab_append(v, bytes != NULL ? bytes : item->text, (size_t)count, item->kind);
        free(bytes);
        TRY(st);
    }
    return STATUS_OK;
}

/* The merge whose parts are letters a and b; `buffer` has room for the bytes of both. */
static status add_merge(struct tokenizer *t, const char *a, size_t a_bytes, const char *b, size_t b_bytes,
                        char *buffer)
{
    ptrdiff_t left = alphabet_read(a, a_bytes, buffer),
              right = left < 0 ? -1 : alphabet_read(b, b_bytes, buffer + left);
    struct merge m = {-1, -1, -1};
    if (left > 0 && right > 0) {
        m.left = vocab_find(&t->vocab, buffer, (size_t)left);
        m.right = vocab_find(&t->vocab, buffer + left, (size_t)right);
        m.id = vocab_find(&t->vocab, buffer, (size_t)(left + right));
    }
    if (m.left < 0 || m.right < 0 || m.id < 0)
        return FAIL(
            STATUS_DATA, "merge %zu (\"%.*s\" \"%.*s\"): its parts or its result are not in model.vocab",
            t->merge_count, (int)(a_bytes < 60 ? a_bytes : 60), a, (int)(b_bytes < 60 ? b_bytes : 60), b);
    if (t->merge_count + 2 > RANK_MAX) return FAIL(STATUS_DATA, "more than %d merges", RANK_MAX - 1);
    TRY(array_grow(&t->merges, &t->merge_cap, t->merge_count + 1, sizeof *t->merges));
    t->merges[t->merge_count++] = m;
    return STATUS_OK;
}

static status parse_merge(struct tokenizer *t, const json_t *merge)
{
    const char *a, *b;
    size_t a_bytes, b_bytes;
    if (json_is_string(merge)) { /* "a b" */
        const char *space = strchr(a = json_string_value(merge), ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL)
            return FAIL(STATUS_DATA, "merge %zu is not two words: \"%.60s\"", t->merge_count, a);
        a_bytes = (size_t)(space - a);
        b = space + 1;
        b_bytes = strlen(b);
    } else { /* ["a", "b"] */
        a = json_string_value(json_array_get(merge, 0));
        b = json_string_value(json_array_get(merge, 1));
        if (json_array_size(merge) != 2 || a == NULL || b == NULL)
            return FAIL(STATUS_DATA, "merge %zu is not a pair of strings", t->merge_count);
        a_bytes = strlen(a);
        b_bytes = strlen(b);
    }
    char *buffer;
    TRY(array_new(&buffer, a_bytes + b_bytes, 1));
    status st = add_merge(t, a, a_bytes, b, b_bytes, buffer);
    free(buffer);
    return st;
}

static status build(struct tokenizer *t, const json_t *vocab, const json_t *merges, const json_t *added)
{
    struct items list = {0};
    json_t *contents = json_object(), *value;
    size_t i;
    status st = STATUS_OK;
    if (!json_is_object(vocab))
        st = FAIL(STATUS_DATA, "model.vocab is not an object");
    else if (!json_is_array(merges))
        st = FAIL(STATUS_DATA, "model.merges is not a list");
    else if (!is_absent(added) && !json_is_array(added))
        st = FAIL(STATUS_DATA, "added_tokens is not a list");
    if (st != STATUS_OK) goto out;
    json_array_foreach(added, i, value) TRY_OUT(parse_added_token(t, &list, value, vocab, contents));
    TRY_OUT(parse_vocab(&list, vocab, contents));
    TRY_OUT(fill_vocab(&t->vocab, &list));
    json_array_foreach(merges, i, value) TRY_OUT(parse_merge(t, value));
out:
    json_decref(contents);
    free(list.data);
    return st;
}

static status parse_model(struct tokenizer *t, const json_t *m, const json_t *added)
{
    TRY(check_keys(m, "model",
                   " type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                   "byte_fallback ignore_merges vocab merges "));
    const json_t *type = json_object_get(m, "type"); /* old files have none: then the merges tell */
    if (type != NULL && strcmp(word_of(type), "BPE") != 0)
        return FAIL(STATUS_DATA, "model type \"%.40s\" is not supported", word_of(type));
    static const char *const must_be_empty[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                                "end_of_word_suffix"};
    for (int i = 0; i < 4; i++) {
        const json_t *value = json_object_get(m, must_be_empty[i]);
        if (!is_absent(value) && !(json_is_string(value) && json_string_length(value) == 0))
            return FAIL(STATUS_DATA, "model with %s is not supported", must_be_empty[i]);
    }
    TRY(expect_flag(m, "model", "fuse_unk", false, false));
    TRY(expect_flag(m, "model", "byte_fallback", false, false));
    const json_t *ignore = json_object_get(m, "ignore_merges");
    if (!is_absent(ignore) && !json_is_boolean(ignore))
        return FAIL(STATUS_DATA, "model: ignore_merges is not true or false");
    t->ignore_merges = json_is_true(ignore);
    return build(t, json_object_get(m, "vocab"), json_object_get(m, "merges"), added);
}

static status parse_root(struct tokenizer *t, const json_t *root)
{
    TRY(check_keys(
        root, "tokenizer.json",
        " version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model "));
    static const char *const must_be_null[] = {"truncation", "padding"};
    for (int i = 0; i < 2; i++) {
        const json_t *part = json_object_get(root, must_be_null[i]);
        const char *type = word_of(json_object_get(part, "type"));
        if (!is_absent(part))
            return FAIL(STATUS_DATA, "%s%s%.40s is not supported", must_be_null[i], type[0] ? " type " : "",
                        type);
    }
    TRY(pretokenizer_from_json(&t->pretokenizer, json_object_get(root, "normalizer"),
                               json_object_get(root, "pre_tokenizer")));
    TRY(check_post_processor(json_object_get(root, "post_processor")));
    const char *decoder = word_of(json_object_get(json_object_get(root, "decoder"), "type"));
    if (strcmp(decoder, "ByteLevel") != 0)
        return FAIL(STATUS_DATA, "decoder type \"%.40s\" is not supported", decoder);
    return parse_model(t, json_object_get(root, "model"), json_object_get(root, "added_tokens"));
}

static status load_json(const char *data, size_t bytes, json_t **out)
{
    json_error_t error;
    *out = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, &error);
    if (*out != NULL) return STATUS_OK;
    return FAIL(STATUS_DATA, "line %d, column %d: %s", error.line, error.column, error.text);
}

status tokenizer_file_parse(struct tokenizer *t, const char *json, size_t bytes)
{
    json_t *root = NULL;
    status st = load_json(json, bytes, &root);
    if (st == STATUS_OK) st = parse_root(t, root);
    json_decref(root);
    return st;
}

/* One merge per line; a first line "#version: 0.2" is none. */
static status read_merges_txt(const char *path, json_t **out)
{
    char *data = NULL;
    size_t bytes = 0;
    *out = json_array();
    TRY(io_read_file(path, FILE_BYTES_MAX, &data, &bytes));
    status st = STATUS_OK;
    for (char *line = data, *end; st == STATUS_OK && line < data + bytes; line = end + 1) {
        end = memchr(line, '\n', (size_t)(data + bytes - line));
        if (end == NULL) end = data + bytes;
        size_t n = (size_t)(end - line);
        if (n > 0 && line[n - 1] == '\r') n--;
        if (n == 0 || (line == data && n >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        if (json_array_append_new(*out, json_stringn(line, n)) != 0)
            st = FAIL(STATUS_DATA, "merges.txt: line after merge %zu is not UTF-8", json_array_size(*out));
    }
    free(data);
    return st;
}

/* The older form, GPT-2's: it has no list of added tokens, so the end of text is known by its name. */
static status read_pair(struct tokenizer *t, const char *vocab_path, const char *merges_path)
{
    char *data = NULL;
    size_t bytes = 0;
    json_t *vocab = NULL, *merges = NULL, *added = NULL, *id;
    status st = io_read_file(vocab_path, FILE_BYTES_MAX, &data, &bytes);
    if (st == STATUS_OK) st = load_json(data, bytes, &vocab);
    if (st == STATUS_OK) st = read_merges_txt(merges_path, &merges);
    if (st == STATUS_OK && (id = json_object_get(vocab, "<|endoftext|>")) != NULL)
        added = json_pack("[{s:O, s:s, s:b, s:b}]", "id", id, "content", "<|endoftext|>", "special", 1,
                          "normalized", 0);
    if (st == STATUS_OK) st = pretokenizer_named(&t->pretokenizer, "gpt2");
    if (st == STATUS_OK) st = build(t, vocab, merges, added);
    json_decref(vocab);
    json_decref(merges);
    json_decref(added);
    free(data);
    return st;
}

status tokenizer_file_read(struct tokenizer *t, const char *path)
{
    struct stat info;
    char json_path[1100], vocab_path[1100], merges_path[1100];
    if (strlen(path) > 1023) return FAIL(STATUS_DATA, "the path is too long");
    bool is_dir = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    snprintf(json_path, sizeof json_path, "%s%s", path, is_dir ? "/tokenizer.json" : "");
    snprintf(vocab_path, sizeof vocab_path, "%s/vocab.json", path);
    snprintf(merges_path, sizeof merges_path, "%s/merges.txt", path);
    if (is_dir && !io_exists(json_path)) {
        if (io_exists(vocab_path) && io_exists(merges_path)) return read_pair(t, vocab_path, merges_path);
        return FAIL(STATUS_DATA, "the directory has neither tokenizer.json nor vocab.json with merges.txt");
    }
    char *data = NULL;
    size_t bytes = 0;
    TRY(io_read_file(json_path, FILE_BYTES_MAX, &data, &bytes));
    status st = tokenizer_file_parse(t, data, bytes);
    free(data);
    return st;
}
