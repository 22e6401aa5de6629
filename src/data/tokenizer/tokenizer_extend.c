#include "data/tokenizer/tokenizer_extend.h"

#include "base/io.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 28, PATH_BYTES = 1200 };

static status copy_file(const char *from, const char *to, const char *name)
{
    char path[PATH_BYTES], *data;
    size_t bytes;
    bool there;
    snprintf(path, sizeof path, "%.1100s/%s", from, name);
    TRY(io_exists(path, &there));
    if (!there) return STATUS_OK;
    TRY(io_read_file(path, FILE_BYTES_MAX, &data, &bytes));
    snprintf(path, sizeof path, "%.1100s/%s", to, name);
    status st = io_write_file(path, data, bytes);
    free(data);
    return st;
}

status tokenizer_copy_beside(const char *from, const char *to)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) TRY(copy_file(from, to, names[i]));
    return STATUS_OK;
}

status tokenizer_extends(const struct tokenizer *more, const struct tokenizer *t)
{
    for (int32_t i = 0; i < tokenizer_vocab_size(t); i++) {
        const struct text a = tokenizer_bytes(t, i);
        const struct text b = i < tokenizer_vocab_size(more) ? tokenizer_bytes(more, i) : (struct text){0};
        if (a.bytes != b.bytes || (a.bytes && memcmp(a.data, b.data, a.bytes) != 0))
            return FAIL(
                STATUS_CONFIG,
                "token %d is another one than in the model's tokenizer: only tokens behind its %d may be "
                "new",
                i, tokenizer_vocab_size(t));
    }
    return STATUS_OK;
}

static status add_tokens(json_t *root, const struct tokenizer *t, const char *const *texts, int count)
{
    json_t *list = json_object_get(root, "added_tokens");
    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(root, "added_tokens", list);
    }
    for (int i = 0; i < count; i++) {
        bool twice = false;
        for (int k = 0; k < i; k++) twice = twice || strcmp(texts[k], texts[i]) == 0;
        if (!texts[i][0] || twice || tokenizer_special(t, texts[i]) >= 0)
            return FAIL(STATUS_CONFIG, "--special '%s': %s", texts[i],
                        texts[i][0] ? "it is a special token already" : "a text is expected");
        json_t *row =
            json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", tokenizer_vocab_size(t) + i, "content",
                      texts[i], "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
        if (!row) return FAIL(STATUS_CONFIG, "--special '%s' is not UTF-8", texts[i]);
        json_array_append_new(list, row);
    }
    return STATUS_OK;
}

static status write_extended(const struct tokenizer *t, const char *from, const char *const *texts, int count,
                             const char *to)
{
    char path[PATH_BYTES], *data;
    size_t bytes;
    json_error_t error;
    snprintf(path, sizeof path, "%.1100s/tokenizer.json", from);
    TRY(io_read_file(path, FILE_BYTES_MAX, &data, &bytes));
    json_t *root = json_loadb(data, bytes, JSON_ALLOW_NUL, &error);
    free(data);
    if (!root) return FAIL(STATUS_DATA, "%s:%d: %s", path, error.line, error.text);
    status st = add_tokens(root, t, texts, count);
    char *text = st == STATUS_OK ? json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    TRY(st);
    MEMORY_CHECK(text, "no memory for a tokenizer.json");
    st = io_make_dirs(to);
    if (st == STATUS_OK) st = tokenizer_copy_beside(from, to);
    snprintf(path, sizeof path, "%.1100s/tokenizer.json", to);
    if (st == STATUS_OK) st = io_write_file(path, text, strlen(text));
    free(text);
    return st;
}

status tokenizer_extend(const char *from, const char *const *texts, int count, const char *to)
{
    char path[PATH_BYTES];
    struct tokenizer *t, *more = NULL;
    bool there;
    snprintf(path, sizeof path, "%.1100s/tokenizer.json", to);
    TRY(io_exists(path, &there));
    if (there) return FAIL(STATUS_CONFIG, "%s exists already; name another directory with -o", path);
    TRY(tokenizer_load(&t, from));
    status st = write_extended(t, from, texts, count, to);
    if (st == STATUS_OK) st = tokenizer_load(&more, to);
    if (st == STATUS_OK) st = tokenizer_extends(more, t);
    if (more) tokenizer_free(more);
    tokenizer_free(t);
    return st;
}
