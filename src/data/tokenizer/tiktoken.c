#include "data/tokenizer/tiktoken.h"
#include "data/text/array.h"
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

static const struct family families[] = {
    {"r50k_base", 835554, {0x3cb2fbe95939bd2d, 0xaa5ef69a716d8a56}, "gpt2", r50k},
    {"p50k_base", 836186, {0xf2d3fa62565e6e17, 0x1bfe2eadd49e9688}, "gpt2", r50k},
    {"cl100k_base", 1681126, {0xaa5d7bf38900641a, 0x7cdb781bb5d59657}, "cl100k", cl100k},
    {"o200k_base", 3613922, {0x72a095e82ca109d6, 0xdee5d4ced09a2db6}, "o200k", o200k},
    {"Llama-3", 2183982, {0xe7339703bb9e9d7b, 0x22e6ee98364f2a1f}, "llama3", llama3},
    {"Llama-4", 3622230, {0xd2fc82dae9636e64, 0xfd1ec8f19c117ba2}, "o200k", llama4},
    {"Qwen", 2561218, {0x9f288efcb5368aab, 0xd68162fbd6d3acb3}, "qwen2", qwen},
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

/* Value of each digit of base64, + 1; 0: none. */
static const uint8_t digit_value[256] = {
    ['A'] = 1,  ['B'] = 2,  ['C'] = 3,  ['D'] = 4,  ['E'] = 5,  ['F'] = 6,  ['G'] = 7,  ['H'] = 8,
    ['I'] = 9,  ['J'] = 10, ['K'] = 11, ['L'] = 12, ['M'] = 13, ['N'] = 14, ['O'] = 15, ['P'] = 16,
    ['Q'] = 17, ['R'] = 18, ['S'] = 19, ['T'] = 20, ['U'] = 21, ['V'] = 22, ['W'] = 23, ['X'] = 24,
    ['Y'] = 25, ['Z'] = 26, ['a'] = 27, ['b'] = 28, ['c'] = 29, ['d'] = 30, ['e'] = 31, ['f'] = 32,
    ['g'] = 33, ['h'] = 34, ['i'] = 35, ['j'] = 36, ['k'] = 37, ['l'] = 38, ['m'] = 39, ['n'] = 40,
    ['o'] = 41, ['p'] = 42, ['q'] = 43, ['r'] = 44, ['s'] = 45, ['t'] = 46, ['u'] = 47, ['v'] = 48,
    ['w'] = 49, ['x'] = 50, ['y'] = 51, ['z'] = 52, ['0'] = 53, ['1'] = 54, ['2'] = 55, ['3'] = 56,
    ['4'] = 57, ['5'] = 58, ['6'] = 59, ['7'] = 60, ['8'] = 61, ['9'] = 62, ['+'] = 63, ['/'] = 64,
};

/* Decodes whole groups of 4 digits; returns bytes written, or -1. */
static ptrdiff_t decode_base64(const char *digits, size_t count, char *out)
{
    ptrdiff_t n = 0;
    if (count == 0 || count % 4 != 0) return -1;
    for (size_t at = 0; at < count; at += 4) {
        int pad =
            at + 4 < count ? 0 : (digits[at + 3] == '=') + (digits[at + 3] == '=' && digits[at + 2] == '=');
        uint32_t group = 0;
        for (int i = 0; i < 4; i++) {
            uint32_t value = i < 4 - pad ? digit_value[(uint8_t)digits[at + (size_t)i]] : 1;
            if (value == 0) return -1;
            group = group << 6 | (value - 1);
        }
        if ((group & ((1u << 8 * pad) - 1)) != 0) return -1; /* unused bits */
        for (int i = 0; i < 3 - pad; i++) out[n++] = (char)(group >> (16 - 8 * i));
    }
    return n;
}

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
           decode_base64(line.digits, line.digit_count, out) > 0;
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
        ptrdiff_t count = -1;
        if (good) {
            TRY_OUT(array_grow(&token, &cap, line.digit_count, 1));
            count = decode_base64(line.digits, line.digit_count, token);
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

static status add_special(struct tokenizer *t, int32_t id, const char *text)
{
    TRY(vocab_place(&t->vocab, id, text, strlen(text), TOKEN_ADDED));
    TRY(array_grow(&t->added, &t->added_cap, t->added_count + 1, sizeof *t->added));
    t->added[t->added_count++] = (struct added){.id = id, .special = true};
    return STATUS_OK;
}

static status add_specials(struct tokenizer *t, const struct special_row *s)
{
    for (; s->text != NULL; s++) {
        if (s->count == 0) TRY(add_special(t, s->id, s->text));
        for (int i = 0; i < s->count; i++) {
            char text[80];
            snprintf(text, sizeof text, "%s%d|>", s->text, s->from + i);
            TRY(add_special(t, s->id + i, text));
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
