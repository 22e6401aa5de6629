/* "normalizer" and "pre_tokenizer" of tokenizer.json. The format describes a pipeline of many kinds of parts;
 * every part is compared with what is implemented, and anything else, also a key that is not known, is
 * refused by its JSON path: a tokenizer that is read almost right gives ids that are almost right, and nobody
 * sees it. */
#include "data/pretokenizer.h"
#include "data/split.h"
#include <jansson.h>
#include <string.h>

/* "" for anything that is not a string, so that it equals no known word. */
static const char *word_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s != NULL ? s : "";
}

/* `known`: names with a space before and behind each. */
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

static status read_byte_level(const json_t *part, const char *path, bool use_regex)
{
    if (strcmp(word_of(part, "type"), "ByteLevel") != 0)
        return FAIL(STATUS_DATA, "%s: type \"%.40s\" is not supported", path, word_of(part, "type"));
    TRY(check_keys(part, path, " type add_prefix_space trim_offsets use_regex "));
    TRY(expect_flag(part, path, "add_prefix_space", false, true));
    return expect_flag(part, path, "use_regex", use_regex, true);
}

static status read_split(struct pretokenizer *p, const json_t *part, const char *path)
{
    if (strcmp(word_of(part, "type"), "Split") != 0)
        return FAIL(STATUS_DATA, "%s: type \"%.40s\" is not supported", path, word_of(part, "type"));
    TRY(check_keys(part, path, " type pattern behavior invert "));
    const json_t *pattern = json_object_get(part, "pattern");
    char pattern_path[96];
    snprintf(pattern_path, sizeof pattern_path, "%s.pattern", path);
    TRY(check_keys(pattern, pattern_path, " Regex String "));
    if (strcmp(word_of(part, "behavior"), "Isolated") != 0)
        return FAIL(STATUS_DATA, "%s: behavior \"%.40s\" is not supported", path, word_of(part, "behavior"));
    TRY(expect_flag(part, path, "invert", false, false));
    for (int i = 0; i < SPLIT_COUNT; i++) {
        if (strcmp(word_of(pattern, "Regex"), split_table[i].pattern) != 0) continue;
        p->row = &split_table[i];
        return STATUS_OK;
    }
    const char *kind = json_object_get(pattern, "Regex") != NULL ? "Regex" : "String";
    return FAIL(STATUS_DATA, "%s.%s: the pattern \"%.200s\" is not supported", pattern_path, kind,
                word_of(pattern, kind));
}

status pretokenizer_from_json(struct pretokenizer *p, const struct json_t *normalizer,
                              const struct json_t *pre_tokenizer)
{
    *p = (struct pretokenizer){0};
    if (normalizer != NULL && !json_is_null(normalizer))
        return FAIL(STATUS_DATA, "normalizer: type \"%.40s\" is not supported", word_of(normalizer, "type"));
    if (pre_tokenizer == NULL || json_is_null(pre_tokenizer))
        return FAIL(STATUS_DATA, "no pre_tokenizer: byte-level BPE needs one");
    if (strcmp(word_of(pre_tokenizer, "type"), "ByteLevel") == 0) {
        TRY(pretokenizer_named(p, "gpt2"));
        return read_byte_level(pre_tokenizer, "pre_tokenizer", true);
    }
    if (strcmp(word_of(pre_tokenizer, "type"), "Sequence") != 0)
        return FAIL(STATUS_DATA, "pre_tokenizer: type \"%.40s\" is not supported",
                    word_of(pre_tokenizer, "type"));
    TRY(check_keys(pre_tokenizer, "pre_tokenizer", " type pretokenizers "));
    const json_t *parts = json_object_get(pre_tokenizer, "pretokenizers");
    if (json_array_size(parts) != 2)
        return FAIL(STATUS_DATA, "pre_tokenizer.pretokenizers: only Split, ByteLevel is supported");
    TRY(read_split(p, json_array_get(parts, 0), "pre_tokenizer.pretokenizers[0]"));
    return read_byte_level(json_array_get(parts, 1), "pre_tokenizer.pretokenizers[1]", false);
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                     "use_regex", (int)use_regex);
}

status pretokenizer_to_json(const struct pretokenizer *p, struct json_t **normalizer,
                            struct json_t **pre_tokenizer)
{
    *normalizer = json_null();
    /* GPT-2's pattern is the built-in one of ByteLevel; the others need a Split before it. */
    *pre_tokenizer = strcmp(p->row->name, "gpt2") == 0
                         ? byte_level(true)
                         : json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence",
                                     "pretokenizers", "type", "Split", "pattern", "Regex", p->row->pattern,
                                     "behavior", "Isolated", "invert", 0, byte_level(false));
    if (*normalizer != NULL && *pre_tokenizer != NULL) return STATUS_OK;
    json_decref(*normalizer);
    json_decref(*pre_tokenizer);
    return FAIL(STATUS_FIT, "no memory for the pre_tokenizer");
}
