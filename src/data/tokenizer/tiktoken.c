#include "data/tokenizer/tiktoken.h"
#include "data/text/array.h"
#include "data/text/base64.h"
#include "data/tokenizer/bpe_derive.h"
#define XXH_INLINE_ALL
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Special tokens: one text, or `count` of them, "TEXTn|>" for n from `from`; ids count up from `id`. */
struct special_row {
    int32_t id;
    const char *text;
    int from, count;
};

struct family {
    const char *name;
    size_t bytes;
    XXH128_hash_t hash; /* low half, high half */
    const char *pretokenizer;
    const struct special_row *specials; /* terminated by a text of NULL */
};

static const struct special_row r50k[] = {{50256, "<|endoftext|>", 0, 0}, {0}};
static const struct special_row cl100k[] = {
    {100257, "<|endoftext|>", 0, 0},  {100258, "<|fim_prefix|>", 0, 0},  {100259, "<|fim_middle|>", 0, 0},
    {100260, "<|fim_suffix|>", 0, 0}, {100276, "<|endofprompt|>", 0, 0}, {0}};
static const struct special_row o200k[] = {
    {199999, "<|endoftext|>", 0, 0}, {200018, "<|endofprompt|>", 0, 0}, {0}};
static const struct special_row llama3[] = {{128000, "<|begin_of_text|>", 0, 0},
                                            {128001, "<|end_of_text|>", 0, 0},
                                            {128002, "<|reserved_special_token_", 0, 2},
                                            {128004, "<|finetune_right_pad_id|>", 0, 0},
                                            {128005, "<|step_id|>", 0, 0},
                                            {128006, "<|start_header_id|>", 0, 0},
                                            {128007, "<|end_header_id|>", 0, 0},
                                            {128008, "<|eom_id|>", 0, 0},
                                            {128009, "<|eot_id|>", 0, 0},
                                            {128010, "<|python_tag|>", 0, 0},
                                            {128011, "<|image|>", 0, 0},
                                            {128012, "<|reserved_special_token_", 2, 244},
                                            {0}};
static const struct special_row llama4[] = {{200000, "<|begin_of_text|>", 0, 0},
                                            {200001, "<|end_of_text|>", 0, 0},
                                            {200002, "<|fim_prefix|>", 0, 0},
                                            {200003, "<|fim_middle|>", 0, 0},
                                            {200004, "<|fim_suffix|>", 0, 0},
                                            {200005, "<|header_start|>", 0, 0},
                                            {200006, "<|header_end|>", 0, 0},
                                            {200007, "<|eom|>", 0, 0},
                                            {200008, "<|eot|>", 0, 0},
                                            {200009, "<|step|>", 0, 0},
                                            {200010, "<|text_post_train_reserved_special_token_", 0, 6},
                                            {200016, "<|python_start|>", 0, 0},
                                            {200017, "<|python_end|>", 0, 0},
                                            {200018, "<|finetune_right_pad|>", 0, 0},
                                            {200019, "<|text_post_train_reserved_special_token_", 8, 61},
                                            {200080, "<|image_start|>", 0, 0},
                                            {200081, "<|image_end|>", 0, 0},
                                            {200082, "<|vision_reserved_special_token_", 0, 2},
                                            {200084, "<|tile_x_separator|>", 0, 0},
                                            {200085, "<|tile_y_separator|>", 0, 0},
                                            {200086, "<|vision_reserved_special_token_", 2, 4},
                                            {200090, "<|image|>", 0, 0},
                                            {200091, "<|vision_reserved_special_token_", 6, 1},
                                            {200092, "<|patch|>", 0, 0},
                                            {200093, "<|vision_reserved_special_token_", 7, 1041},
                                            {201134, "<|reasoning_reserved_special_token_", 0, 8},
                                            {201142, "<|reasoning_thinking_start|>", 0, 0},
                                            {201143, "<|reasoning_thinking_end|>", 0, 0},
                                            {201144, "<|reserved_special_token_", 0, 904},
                                            {0}};
static const struct special_row qwen[] = {{151643, "<|endoftext|>", 0, 0},
                                          {151644, "<|im_start|>", 0, 0},
                                          {151645, "<|im_end|>", 0, 0},
                                          {151646, "<|extra_", 0, 205},
                                          {0}};
/* Those of languages follow; their number depends on the model, and is not in the file. */
static const struct special_row whisper[] = {
    {50257, "<|endoftext|>", 0, 0}, {50258, "<|startoftranscript|>", 0, 0}, {0}};

static const struct family families[] = {
    {"r50k_base", 835554, {0x3cb2fbe95939bd2d, 0xaa5ef69a716d8a56}, "gpt2", r50k},
    {"p50k_base", 836186, {0xf2d3fa62565e6e17, 0x1bfe2eadd49e9688}, "gpt2", r50k},
    {"cl100k_base", 1681126, {0xaa5d7bf38900641a, 0x7cdb781bb5d59657}, "cl100k", cl100k},
    {"o200k_base", 3613922, {0x72a095e82ca109d6, 0xdee5d4ced09a2db6}, "o200k", o200k},
    {"Llama-3", 2183982, {0xe7339703bb9e9d7b, 0x22e6ee98364f2a1f}, "llama3", llama3},
    {"Llama-4", 3622230, {0xd2fc82dae9636e64, 0xfd1ec8f19c117ba2}, "o200k", llama4},
    {"Qwen", 2561218, {0x9f288efcb5368aab, 0xd68162fbd6d3acb3}, "qwen2", qwen},
    {"Whisper", 816730, {0x1c63ea4c10c5dc75, 0xa64a36f4cf1226b6}, "gpt2", whisper},
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

struct line {
    const char *digits;
    size_t digit_count, bytes; /* bytes: of the line with its end */
    int64_t id;
};

/* Parses the line at data; false if it is invalid. An empty line has no digits. */
static bool read_line(const char *data, size_t bytes, struct line *line)
{
    const char *end = memchr(data, '\n', bytes);
    size_t n = end != NULL ? (size_t)(end - data) : bytes;
    *line = (struct line){.digits = data, .bytes = n + (end != NULL)};
    if (n > 0 && data[n - 1] == '\r') n--;
    if (n == 0) return true;
    const char *space = memchr(data, ' ', n);
    if (space == NULL) return false;
    line->digit_count = (size_t)(space - data);
    size_t at = line->digit_count + 1;
    if (at == n || n - at > 9) return false;
    for (; at < n; at++) {
        if (data[at] < '0' || data[at] > '9') return false;
        line->id = 10 * line->id + (data[at] - '0');
    }
    return line->digit_count != 0;
}

bool tiktoken_is(const char *data, size_t bytes)
{
    struct line line;
    char out[64];
    return read_line(data, bytes, &line) && line.digit_count != 0 && line.digit_count <= 64 &&
           base64_read(line.digits, line.digit_count, out) > 0;
}

static status read_tokens(struct tokenizer *t, const char *data, size_t bytes)
{
    char *token = NULL;
    size_t cap = 0, number = 1;
    struct line line;
    status st = STATUS_OK;
    TRY_OUT(vocab_reserve(&t->vocab, bytes / 16, bytes / 2));
    for (size_t at = 0; at < bytes; at += line.bytes, number++) {
        bool good = read_line(data + at, bytes - at, &line);
        if (good && line.digit_count == 0) continue;
        if (good && line.digit_count == 1 && line.digits[0] == '=') continue; /* no bytes: no text has it */
        ptrdiff_t count = -1;
        if (good) {
            TRY_OUT(array_grow(&token, &cap, line.digit_count, 1));
            count = base64_read(line.digits, line.digit_count, token);
        }
        if (count < 0)
            st = FAIL(STATUS_DATA, "line %zu: base64, a space and a rank are expected", number);
        else if (line.id >= TOKEN_MAX - 1)
            st = FAIL(STATUS_DATA, "line %zu: ranks end at %d", number, TOKEN_MAX - 2);
        else {
            st = vocab_place(&t->vocab, (int32_t)line.id, token, (size_t)count, TOKEN_MODEL);
            if (st == STATUS_DATA) st = status_wrap(st, "line %zu", number);
        }
        if (st != STATUS_OK) break;
    }
out:
    free(token);
    return st;
}

static status add_specials(struct tokenizer *t, const struct special_row *s)
{
    for (; s->text != NULL; s++) {
        if (s->count == 0) TRY(tokenizer_add_special(t, s->id, s->text));
        for (int i = 0; i < s->count; i++) {
            char text[80];
            snprintf(text, sizeof text, "%s%d|>", s->text, s->from + i);
            TRY(tokenizer_add_special(t, s->id + i, text));
        }
    }
    return STATUS_OK;
}

static const struct family *find_family(const char *data, size_t bytes)
{
    for (int i = 0; i < FAMILY_COUNT; i++)
        if (families[i].bytes == bytes && XXH128_isEqual(families[i].hash, XXH3_128bits(data, bytes)))
            return &families[i];
    return NULL;
}

/* True: two names are of equivalent pretokenizers. */
static status check_same(const struct family *family, const char *name)
{
    struct pretokenizer given, own;
    char texts[2][PRETOKENIZER_TEXT_BYTES];
    TRY(pretokenizer_named(&given, name));
    TRY(pretokenizer_named(&own, family->pretokenizer));
    pretokenizer_text(&given, texts[0], sizeof texts[0]);
    pretokenizer_text(&own, texts[1], sizeof texts[1]);
    if (strcmp(texts[0], texts[1]) == 0) return STATUS_OK;
    return FAIL(STATUS_CONFIG, "--pattern %s: this is the file of %s, whose pattern is %s", name,
                family->name, family->pretokenizer);
}

status tiktoken_parse(struct tokenizer *t, const char *data, size_t bytes, const char *pretokenizer)
{
    const struct family *family = find_family(data, bytes);
    if (family == NULL && pretokenizer == NULL)
        return FAIL(STATUS_DATA, "a rank file that is not known: name its pattern, as in "
                                 "`ingot tokenizer import FILE DIR --pattern cl100k`");
    if (family != NULL && pretokenizer != NULL) TRY(check_same(family, pretokenizer));
    TRY(pretokenizer_named(&t->pretokenizer, family != NULL ? family->pretokenizer : pretokenizer));
    TRY(read_tokens(t, data, bytes));
    if (family != NULL) TRY(add_specials(t, family->specials));
    t->ignore_merges = true; /* a piece that is a token is that token: tiktoken's first rule */
    return bpe_derive(t);
}
