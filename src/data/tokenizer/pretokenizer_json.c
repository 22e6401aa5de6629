/* "normalizer" and "pre_tokenizer" of tokenizer.json. The format describes a pipeline of many kinds of
 * parts. Every part is compared with the implemented ones; anything else, including an unknown key, is an
 * error with its JSON path. A tokenizer that is read almost right gives ids that are almost right, and
 * nobody notices. */
#include "data/tokenizer/pretokenizer.h"
#include <jansson.h>
#include <string.h>

enum { PATH_BYTES = 128, DEPTH_MAX = 4 };

static const char *const behaviors[SPLIT_BEHAVIOR_COUNT] = {
#define X(name, text) text,
    SPLIT_BEHAVIORS(X)
#undef X
};

/* "" for anything but a string, so that it equals no known word. */
static const char *word_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s != NULL ? s : "";
}

/* `known`: names with a space before and after each. */
static status check_keys(const json_t *object, const char *path, const char *known)
{
    if (!json_is_object(object)) return FAIL(STATUS_DATA, "%s is not an object", path);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char padded[64];
        int n = snprintf(padded, sizeof padded, " %s ", key);
        if (n >= (int)sizeof padded || strchr(key, ' ') != NULL || strstr(known, padded) == NULL)
            return FAIL(STATUS_DATA, "%s has \"%.60s\", which is not supported", path, key);
    }
    return STATUS_OK;
}

static status expect_flag(const json_t *object, const char *path, const char *key, bool wanted, bool absent)
{
    const json_t *value = json_object_get(object, key);
    bool is_absent = value == NULL || json_is_null(value), have = is_absent ? absent : json_is_true(value);
    if ((is_absent || json_is_boolean(value)) && have == wanted) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: %s=%s is not supported", path, key, wanted ? "false" : "true");
}

/* What was read: the stages, and the pattern that each came from; at the end DeepSeek-V3's three become one. */
struct reading {
    struct pretokenizer *p;
    int part[PRETOKENIZER_STAGES_MAX]; /* the pattern of stages[i].row */
    bool byte_level;                   /* seen: it maps bytes to letters, so nothing may follow */
};

static status add_stage(struct reading *r, const char *path, struct split_stage s, int part)
{
    if (r->p->count == PRETOKENIZER_STAGES_MAX)
        return FAIL(STATUS_DATA, "%s: more than %d stages are not supported", path, PRETOKENIZER_STAGES_MAX);
    r->part[r->p->count] = part;
    r->p->stages[r->p->count++] = s;
    return STATUS_OK;
}

static status read_byte_level(struct reading *r, const json_t *part, const char *path)
{
    TRY(check_keys(part, path, " type add_prefix_space trim_offsets use_regex "));
    TRY(expect_flag(part, path, "add_prefix_space", false, true));
    const json_t *regex = json_object_get(part, "use_regex");
    if (regex != NULL && !json_is_boolean(regex))
        return FAIL(STATUS_DATA, "%s.use_regex is not true or false", path);
    r->byte_level = true;
    if (json_is_false(regex)) return STATUS_OK;
    return add_stage(r, path, (struct split_stage){.row = &split_table[SPLIT_GPT2]}, 0);
}

/* `otherwise`: for a part without the key. With invert, matches and the text between them swap roles, and so
 * do the two ways to merge; Isolated and Contiguous stay. */
static status read_behavior(const json_t *part, const char *path, bool invert, const char *otherwise,
                            enum split_behavior *out)
{
    const char *word = json_object_get(part, "behavior") != NULL ? word_of(part, "behavior") : otherwise;
    for (int i = 0; i < SPLIT_BEHAVIOR_COUNT; i++) {
        if (strcmp(word, behaviors[i]) != 0) continue;
        *out = (enum split_behavior)i;
        if (invert && i == SPLIT_BEHAVIOR_PREVIOUS) *out = SPLIT_BEHAVIOR_NEXT;
        if (invert && i == SPLIT_BEHAVIOR_NEXT) *out = SPLIT_BEHAVIOR_PREVIOUS;
        return STATUS_OK;
    }
    return FAIL(STATUS_DATA, "%s.behavior: \"%.40s\" is not supported", path, word);
}

static status read_regex(struct reading *r, const json_t *part, const char *path, const char *regex,
                         bool invert)
{
    struct split_stage s = {0};
    int which = 0;
    s.row = split_stage_row(regex, &which);
    bool three = s.row != NULL && s.row->parts > 1;
    if (three && which < 2) s.row = NULL; /* they are short patterns, too */
    if (s.row == NULL) s.look = split_stage_short(regex);
    if (s.row == NULL && s.look == NULL)
        return FAIL(STATUS_DATA, "%s.pattern.Regex: the pattern \"%.300s\" is not supported", path, regex);
    /* A row matches the whole text, so there is nothing between matches to remove. */
    if (s.row != NULL && !three && invert && strcmp(word_of(part, "behavior"), "Removed") == 0)
        return add_stage(r, path, s, 0);
    TRY(read_behavior(part, path, invert, "", &s.behavior));
    if (s.row != NULL && s.behavior != SPLIT_BEHAVIOR_ISOLATED)
        return FAIL(STATUS_DATA, "%s.behavior: \"%.40s\" with this pattern is not supported", path,
                    word_of(part, "behavior"));
    return add_stage(r, path, s, which);
}

static status read_split(struct reading *r, const json_t *part, const char *path)
{
    TRY(check_keys(part, path, " type pattern behavior invert "));
    const json_t *pattern = json_object_get(part, "pattern"), *invert = json_object_get(part, "invert");
    char pattern_path[PATH_BYTES];
    snprintf(pattern_path, sizeof pattern_path, "%s.pattern", path);
    TRY(check_keys(pattern, pattern_path, " Regex String "));
    if (json_object_size(pattern) != 1)
        return FAIL(STATUS_DATA, "%s must have one of Regex, String", pattern_path);
    if (!json_is_boolean(invert)) return FAIL(STATUS_DATA, "%s.invert is not true or false", path);
    if (json_object_get(pattern, "Regex") != NULL)
        return read_regex(r, part, path, word_of(pattern, "Regex"), json_is_true(invert));
    const char *string = word_of(pattern, "String");
    size_t bytes = strlen(string);
    struct split_stage s = {.string_bytes = (uint8_t)bytes};
    if (bytes == 0 || bytes > SPLIT_STRING_MAX)
        return FAIL(STATUS_DATA, "%s.String: only strings of 1 to %d bytes are supported", pattern_path,
                    SPLIT_STRING_MAX);
    memcpy(s.string, string, bytes);
    TRY(read_behavior(part, path, json_is_true(invert), "", &s.behavior));
    return add_stage(r, path, s, 0);
}

static status read_digits(struct reading *r, const json_t *part, const char *path)
{
    const json_t *individual = json_object_get(part, "individual_digits");
    TRY(check_keys(part, path, " type individual_digits "));
    if (individual != NULL && !json_is_boolean(individual))
        return FAIL(STATUS_DATA, "%s.individual_digits is not true or false", path);
    return add_stage(r, path,
                     (struct split_stage){.look = &split_shorts[SPLIT_DIGITS],
                                          .behavior = json_is_true(individual) ? SPLIT_BEHAVIOR_ISOLATED
                                                                               : SPLIT_BEHAVIOR_CONTIGUOUS},
                     0);
}

static status read_punctuation(struct reading *r, const json_t *part, const char *path)
{
    struct split_stage s = {.look = &split_shorts[SPLIT_PUNCTUATION]};
    TRY(check_keys(part, path, " type behavior "));
    TRY(read_behavior(part, path, false, "Isolated", &s.behavior));
    return add_stage(r, path, s, 0);
}

static status read_part(struct reading *r, const json_t *part, const char *path, int depth)
{
    const char *type = word_of(part, "type");
    if (r->byte_level) return FAIL(STATUS_DATA, "%s: a part behind ByteLevel is not supported", path);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(r, part, path);
    if (strcmp(type, "Split") == 0) return read_split(r, part, path);
    if (strcmp(type, "Digits") == 0) return read_digits(r, part, path);
    if (strcmp(type, "Punctuation") == 0) return read_punctuation(r, part, path);
    if (strcmp(type, "Sequence") != 0 || depth == DEPTH_MAX)
        return FAIL(STATUS_DATA, "%s: type \"%.40s\" is not supported", path, type);
    TRY(check_keys(part, path, " type pretokenizers "));
    const json_t *parts = json_object_get(part, "pretokenizers"), *item;
    size_t i;
    if (!json_is_array(parts)) return FAIL(STATUS_DATA, "%s.pretokenizers is not a list", path);
    json_array_foreach(parts, i, item)
    {
        char item_path[PATH_BYTES];
        snprintf(item_path, sizeof item_path, "%s.pretokenizers[%zu]", path, i);
        TRY(read_part(r, item, item_path, depth + 1));
    }
    return STATUS_OK;
}

/* DeepSeek-V3: its third pattern is recognized after the first two; one scanner does all three. */
static status join_parts(struct reading *r)
{
    struct pretokenizer *p = r->p;
    const struct split_row *row = &split_table[SPLIT_DEEPSEEK3];
    int count = 0;
    for (int i = 0; i < p->count; i++) {
        if (p->stages[i].row == row && r->part[i] == 2) {
            bool behind = count >= 2;
            for (int k = 0; behind && k < 2; k++) {
                const struct split_stage *s = &p->stages[count - 2 + k];
                behind = s->look != NULL && s->look == split_stage_short(row->patterns[k]) &&
                         s->behavior == SPLIT_BEHAVIOR_ISOLATED;
            }
            if (!behind)
                return FAIL(
                    STATUS_DATA,
                    "pre_tokenizer: the pattern \"%.40s...\" is supported only behind \"%s\" and \"%s\"",
                    row->patterns[2], row->patterns[0], row->patterns[1]);
            count -= 2;
        }
        p->stages[count++] = p->stages[i];
    }
    p->count = count;
    return STATUS_OK;
}

static status read_normalizer(struct pretokenizer *p, const json_t *part, const char *path, int depth)
{
    const char *type = word_of(part, "type");
    if (strcmp(type, "NFC") == 0) {
        p->nfc = true;
        return check_keys(part, path, " type ");
    }
    if (strcmp(type, "Sequence") != 0 || depth == DEPTH_MAX)
        return FAIL(STATUS_DATA, "%s: type \"%.40s\" is not supported", path, type);
    TRY(check_keys(part, path, " type normalizers "));
    const json_t *parts = json_object_get(part, "normalizers"), *item;
    size_t i;
    if (!json_is_array(parts)) return FAIL(STATUS_DATA, "%s.normalizers is not a list", path);
    json_array_foreach(parts, i, item)
    {
        char item_path[PATH_BYTES];
        snprintf(item_path, sizeof item_path, "%s.normalizers[%zu]", path, i);
        TRY(read_normalizer(p, item, item_path, depth + 1));
    }
    return STATUS_OK;
}

status pretokenizer_from_json(struct pretokenizer *p, const struct json_t *normalizer,
                              const struct json_t *pre_tokenizer)
{
    struct reading r = {.p = p};
    *p = (struct pretokenizer){0};
    if (normalizer != NULL && !json_is_null(normalizer)) TRY(read_normalizer(p, normalizer, "normalizer", 0));
    if (pre_tokenizer == NULL || json_is_null(pre_tokenizer))
        return FAIL(STATUS_DATA, "no pre_tokenizer: byte-level BPE needs one");
    TRY(read_part(&r, pre_tokenizer, "pre_tokenizer", 0));
    if (!r.byte_level) return FAIL(STATUS_DATA, "pre_tokenizer: without ByteLevel it is not supported");
    return join_parts(&r);
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                     "use_regex", (int)use_regex);
}

static json_t *split_json(const char *kind, const char *pattern, size_t bytes, enum split_behavior behavior)
{
    return json_pack("{s:s, s:{s:s%}, s:s, s:b}", "type", "Split", "pattern", kind, pattern, bytes,
                     "behavior", behaviors[behavior], "invert", 0);
}

static int append_stage(json_t *parts, const struct split_stage *s)
{
    int bad = 0;
    if (s->look == &split_shorts[SPLIT_DIGITS])
        return json_array_append_new(parts, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits",
                                                      s->behavior == SPLIT_BEHAVIOR_ISOLATED));
    if (s->look == &split_shorts[SPLIT_PUNCTUATION])
        return json_array_append_new(
            parts, json_pack("{s:s, s:s}", "type", "Punctuation", "behavior", behaviors[s->behavior]));
    if (s->look != NULL)
        return json_array_append_new(
            parts, split_json("Regex", s->look->pattern, strlen(s->look->pattern), s->behavior));
    if (s->row == NULL)
        return json_array_append_new(
            parts, split_json("String", (const char *)s->string, s->string_bytes, s->behavior));
    for (int k = 0; k < s->row->parts; k++) {
        const char *pattern = s->row->patterns[k];
        bad |= json_array_append_new(parts, split_json("Regex", pattern, strlen(pattern), s->behavior));
    }
    return bad;
}

status pretokenizer_to_json(const struct pretokenizer *p, struct json_t **normalizer,
                            struct json_t **pre_tokenizer)
{
    json_t *parts = json_array();
    int bad = parts == NULL, last = p->count - 1;
    /* GPT-2's pattern is the built-in one of ByteLevel; the others need a Split before it. */
    bool built_in = last >= 0 && p->stages[last].row == &split_table[SPLIT_GPT2];
    for (int i = 0; !bad && i < p->count - built_in; i++) bad = append_stage(parts, &p->stages[i]);
    if (!bad) bad = json_array_append_new(parts, byte_level(built_in));
    *normalizer = p->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    *pre_tokenizer = bad ? NULL
                     : json_array_size(parts) == 1
                         ? json_incref(json_array_get(parts, 0))
                         : json_pack("{s:s, s:O}", "type", "Sequence", "pretokenizers", parts);
    json_decref(parts);
    if (*normalizer != NULL && *pre_tokenizer != NULL) return STATUS_OK;
    json_decref(*normalizer);
    json_decref(*pre_tokenizer);
    return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the pre_tokenizer");
}
