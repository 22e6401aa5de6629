/* Pretokenizers by name, and their use. */
#include "data/tokenizer/pretokenizer.h"
#include "base/text.h"
#include "data/text/nfc.h"
#include <stdio.h>
#include <string.h>

enum { PARTS_MAX = 5, NAMES_MAX = 4 };

/* Names, the normalizer, and the stages: a row of split_table, or short patterns and the GPT-2 row after
 * Digits. */
static const struct preset {
    const char *names[NAMES_MAX]; /* the first is shown */
    bool nfc;
    const char *parts[PARTS_MAX]; /* patterns, all Isolated; "" is Digits */
    enum split_id row;            /* the last stage; SPLIT_COUNT: none */
} presets[] = {
    {{"gpt2", "r50k", "p50k"}, .row = SPLIT_GPT2},
    {{"cl100k"}, .row = SPLIT_CL100K},
    {{"o200k", "llama4"}, .row = SPLIT_O200K},
    {{"llama3"}, .row = SPLIT_LLAMA3},
    {{"qwen2", "qwen", "qwen3"}, .nfc = true, .row = SPLIT_QWEN2},
    {{"qwen3.5"}, .nfc = true, .row = SPLIT_QWEN35},
    {{"nanochat"}, .row = SPLIT_NANOCHAT},
    {{"tekken"}, .row = SPLIT_TEKKEN},
    {{"deepseek-v3"}, .row = SPLIT_DEEPSEEK3},
    {{"deepseek-coder"},
     .parts = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", ""},
     .row = SPLIT_COUNT},
    {{"starcoder"}, .parts = {""}, .row = SPLIT_GPT2},
};
enum { PRESET_COUNT = sizeof presets / sizeof *presets };

static struct pretokenizer make(const struct preset *preset)
{
    struct pretokenizer p = {.nfc = preset->nfc};
    for (int i = 0; i < PARTS_MAX && preset->parts[i] != NULL; i++)
        p.stages[p.count++].look =
            preset->parts[i][0] == 0 ? &split_shorts[SPLIT_DIGITS] : split_stage_short(preset->parts[i]);
    if (preset->row != SPLIT_COUNT) p.stages[p.count++].row = &split_table[preset->row];
    return p;
}

status pretokenizer_named(struct pretokenizer *p, const char *name)
{
    const char *names[PRESET_COUNT * NAMES_MAX];
    char all[512] = "";
    int count = 0;
    for (int i = 0; i < PRESET_COUNT; i++)
        for (int k = 0; k < NAMES_MAX && presets[i].names[k] != NULL; k++) {
            names[count] = presets[i].names[k];
            if (strcmp(name, names[count]) == 0) {
                *p = make(&presets[i]);
                return STATUS_OK;
            }
            size_t n = strlen(all);
            snprintf(all + n, sizeof all - n, "%s%s", count++ == 0 ? "" : ", ", presets[i].names[k]);
        }
    const char *near = text_nearest(name, names, count);
    return FAIL(STATUS_CONFIG, "the pretokenizer \"%.60s\" is unknown%s%s%s; known are %s", name,
                near != NULL ? " (did you mean " : "", near != NULL ? near : "", near != NULL ? "?)" : "",
                all);
}

status pretokenizer_of_pattern(struct pretokenizer *p, const char *regex)
{
    int part;
    const struct split_row *row = split_stage_row(regex, &part);
    if (row == NULL || row->parts > 1)
        return FAIL(STATUS_DATA, "the pattern \"%.300s\" is not supported", regex);
    *p = (struct pretokenizer){.count = 1, .stages = {{.row = row}}};
    return STATUS_OK;
}

const char *pretokenizer_word(int i)
{
    return i >= 0 && i < PRESET_COUNT ? presets[i].names[0] : NULL;
}

static bool same_stage(const struct split_stage *a, const struct split_stage *b)
{
    return a->row == b->row && a->look == b->look && a->behavior == b->behavior &&
           a->string_bytes == b->string_bytes && memcmp(a->string, b->string, a->string_bytes) == 0;
}

const char *pretokenizer_name(const struct pretokenizer *p)
{
    for (int i = 0; i < PRESET_COUNT; i++) {
        struct pretokenizer known = make(&presets[i]);
        bool same = p->nfc == known.nfc && p->count == known.count;
        for (int k = 0; same && k < p->count; k++) same = same_stage(&p->stages[k], &known.stages[k]);
        if (same) return presets[i].names[0];
    }
    return NULL;
}

/* One line per stage; a stage that is a pattern and Isolated is only the pattern. */
size_t pretokenizer_text(const struct pretokenizer *p, char *out, size_t cap)
{
    static const char *const behaviors[] = {
#define X(name, text) text,
        SPLIT_BEHAVIORS(X)
#undef X
    };
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(n < cap ? out + n : NULL, n < cap ? cap - n : 0, __VA_ARGS__)
    if (cap > 0) out[0] = 0;
    if (p->nfc) ADD("NFC\n");
    for (int i = 0; i < p->count; i++) {
        const struct split_stage *s = &p->stages[i];
        if (i > 0) ADD("\n");
        for (int k = 0; s->row != NULL && k < s->row->parts; k++)
            ADD("%s%s", k > 0 ? "\n" : "", s->row->patterns[k]);
        if (s->look != NULL)
            ADD("%s", s->look->pattern != NULL                      ? s->look->pattern
                      : s->look == &split_shorts[SPLIT_PUNCTUATION] ? "Punctuation"
                                                                    : "Digits");
        if (s->row == NULL && s->look == NULL) ADD("String");
        for (int k = 0; k < s->string_bytes; k++) ADD(" %02x", s->string[k]);
        if (s->behavior != SPLIT_BEHAVIOR_ISOLATED) ADD(" %s", behaviors[s->behavior]);
    }
#undef ADD
    return n;
}

status pretokenizer_normalize(const struct pretokenizer *p, const char *text, size_t bytes,
                              struct pretokenizer_room *room, const char **out, size_t *out_bytes)
{
    *out = text;
    *out_bytes = bytes;
    return p->nfc ? nfc_normalize(text, bytes, &room->data, &room->cap, out, out_bytes) : STATUS_OK;
}

int pretokenizer_scan(const struct pretokenizer *p, struct pretokenizer_cursor *c, size_t *ends, int max)
{
    int count = 0;
    if (p->count == 1 && p->stages[0].row != NULL) {
        count = p->stages[0].row->scan(c->text, c->at, c->bytes, ends, max);
        if (count > 0) c->at = ends[count - 1];
        return count;
    }
    while (c->at < c->bytes && count < max) {
        size_t end = c->bytes;
        for (int i = 0; i < p->count; end = c->ends[i++])
            if (c->ends[i] <= c->at) c->ends[i] = split_stage_end(&p->stages[i], c->text, c->at, end);
        ends[count++] = c->at = end;
    }
    return count;
}

/* The positions of split_cut end pieces for every row, also for a row after stages whose matches cannot span
 * such a position; stages after the row only split its pieces. The first two patterns of DeepSeek-Coder
 * qualify: line ends are alone, and no letter has white space after it. */
size_t pretokenizer_cut(const struct pretokenizer *p, const char *text, size_t bytes, size_t want)
{
    bool safe = p->count >= 2 && p->stages[0].look == split_stage_short("[\\r\\n]") &&
                p->stages[1].look == split_stage_short("\\s?\\p{L}+") &&
                p->stages[0].behavior == SPLIT_BEHAVIOR_ISOLATED &&
                p->stages[1].behavior == SPLIT_BEHAVIOR_ISOLATED;
    for (int i = 0; i < p->count && !safe; i++) {
        const struct split_stage *s = &p->stages[i];
        safe = s->row != NULL;
        if (safe) break;
        if (s->look == NULL || s->look->spaced || s->behavior == SPLIT_BEHAVIOR_PREVIOUS ||
            s->behavior == SPLIT_BEHAVIOR_NEXT)
            break;
    }
    return safe ? split_cut(text, bytes, want) : bytes;
}
