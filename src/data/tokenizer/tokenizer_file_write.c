/* Writes tokenizer.json as Hugging Face tokenizers reads it, a tokenizer_config.json with which
 * AutoTokenizer finds it, special_tokens_map.json, and for tokenizers of GPT-2's kind also the older pair
 * of files. */
#include "base/io.h"
#include "data/text/alphabet.h"
#include "data/text/array.h"
#include "data/tokenizer/tokenizer_file.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The string of a token in model.vocab. */
static json_t *letters_of(const struct vocab *v, int32_t id)
{
    struct text text = vocab_bytes(v, id);
    if (v->tokens[id].kind != TOKEN_MODEL) return json_stringn(text.data, text.bytes);
    char *letters = malloc(2 * text.bytes + 1);
    if (letters == NULL) return NULL;
    json_t *out = json_stringn(letters, alphabet_write(text.data, text.bytes, letters));
    free(letters);
    return out;
}

static bool in_model_vocab(const struct vocab *v, size_t id)
{
    return v->tokens[id].kind == TOKEN_MODEL || v->tokens[id].kind == TOKEN_RAW;
}

/* HF numbers added tokens that are missing in model.vocab from its size on, whatever ids the file gives. If
 * these differ, all of them are written to model.vocab, too. */
static bool added_ids_follow(const struct vocab *v)
{
    size_t next = 0;
    for (size_t id = 0; id < v->count; id++) next += in_model_vocab(v, id);
    for (size_t id = 0; id < v->count; id++)
        if (v->tokens[id].kind == TOKEN_ADDED && id != next++) return false;
    return true;
}

/* tokenizer.json cannot distinguish an added token from a model token with the same letters. */
static status check_contents(const struct tokenizer *t)
{
    for (size_t i = 0; i < t->added_count; i++) {
        struct text text = vocab_bytes(&t->vocab, t->added[i].id);
        char *bytes;
        TRY(array_new(&bytes, text.bytes, 1));
        ptrdiff_t count = alphabet_read(text.data, text.bytes, bytes);
        int32_t other = count < 0 ? -1 : vocab_find(&t->vocab, bytes, (size_t)count);
        free(bytes);
        if (other >= 0 && other != t->added[i].id)
            return FAIL(
                STATUS_DATA,
                "special token \"%.*s\" reads like the letters of token %d: no tokenizer.json holds both",
                (int)text.bytes, text.data, (int)other);
    }
    return STATUS_OK;
}

static json_t *vocab_json(const struct vocab *v)
{
    json_t *out = json_object();
    bool all = !added_ids_follow(v);
    for (size_t id = 0; id < v->count; id++) {
        if (!in_model_vocab(v, id) && !(all && v->tokens[id].kind == TOKEN_ADDED)) continue;
        json_t *letters = letters_of(v, (int32_t)id);
        int bad = letters == NULL ||
                  json_object_set_new(out, json_string_value(letters), json_integer((json_int_t)id));
        json_decref(letters);
        if (!bad) continue;
        json_decref(out);
        return NULL;
    }
    return out;
}

static json_t *merges_json(const struct tokenizer *t)
{
    json_t *out = json_array();
    for (size_t i = 0; i < t->merge_count; i++) {
        json_t *pair = json_pack("[o, o]", letters_of(&t->vocab, t->merges[i].left),
                                 letters_of(&t->vocab, t->merges[i].right));
        if (pair != NULL && json_array_append_new(out, pair) == 0) continue;
        json_decref(out);
        return NULL;
    }
    return out;
}

static int compare_ids(const void *a, const void *b)
{
    const struct added *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static json_t *added_json(const struct tokenizer *t, const struct added *a)
{
    struct text text = vocab_bytes(&t->vocab, a->id);
    return json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (int)a->id, "content", text.data,
                     text.bytes, "single_word", 0, "lstrip", (int)a->lstrip, "rstrip", (int)a->rstrip,
                     "normalized", (int)a->normalized, "special", (int)a->special);
}

/* In the order of ids, as HF numbers them when it reads the list. `by_id`: as the object of
 * tokenizer_config.json. */
static json_t *all_added_json(const struct tokenizer *t, bool by_id)
{
    struct added *sorted;
    if (array_new(&sorted, t->added_count, sizeof *sorted) != STATUS_OK) return NULL;
    if (t->added_count != 0) memcpy(sorted, t->added, t->added_count * sizeof *sorted);
    qsort(sorted, t->added_count, sizeof *sorted, compare_ids);
    json_t *out = by_id ? json_object() : json_array();
    for (size_t i = 0; i < t->added_count && out != NULL; i++) {
        json_t *one = added_json(t, &sorted[i]);
        char key[16];
        snprintf(key, sizeof key, "%d", (int)sorted[i].id);
        if (by_id && one != NULL) json_object_del(one, "id");
        if (one != NULL &&
            (by_id ? json_object_set_new(out, key, one) : json_array_append_new(out, one)) == 0)
            continue;
        json_decref(out);
        out = NULL;
    }
    free(sorted);
    return out;
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                     "use_regex", (int)use_regex);
}

static json_t *tokenizer_json(const struct tokenizer *t)
{
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", (int)t->ignore_merges, "vocab",
                              vocab_json(&t->vocab), "merges", merges_json(t));
    json_t *normalizer = NULL, *pre_tokenizer = NULL;
    if (pretokenizer_to_json(&t->pretokenizer, &normalizer, &pre_tokenizer) != STATUS_OK) {
        json_decref(model);
        return NULL;
    }
    return json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:n, s:o, s:o}", "version", "1.0", "truncation",
                     "padding", "added_tokens", all_added_json(t, false), "normalizer", normalizer,
                     "pre_tokenizer", pre_tokenizer, "post_processor", "decoder", byte_level(true), "model",
                     model);
}

/* bos_token and eos_token, if known. */
static json_t *ends_json(const struct tokenizer *t, json_t *out)
{
    int32_t eot = tokenizer_eot(t), begin = tokenizer_special(t, "<|begin_of_text|>");
    if (begin < 0) begin = tokenizer_special(t, "<s>");
    if (out == NULL || eot < 0) return out;
    struct text bos = vocab_bytes(&t->vocab, begin >= 0 ? begin : eot), eos = vocab_bytes(&t->vocab, eot);
    json_object_set_new(out, "bos_token", json_stringn(bos.data, bos.bytes));
    json_object_set_new(out, "eos_token", json_stringn(eos.data, eos.bytes));
    return out;
}

static json_t *config_json(const struct tokenizer *t)
{
    json_t *out =
        json_pack("{s:s, s:b, s:o}", "tokenizer_class", "PreTrainedTokenizerFast",
                  "clean_up_tokenization_spaces", 0, "added_tokens_decoder", all_added_json(t, true));
    return ends_json(t, out);
}

static status write_file(const char *dir, const char *name, const char *text)
{
    char path[1100];
    if (text == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory to write %s", name);
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return FAIL(STATUS_DATA, "the path %.60s... is too long", dir);
    return io_write_file(path, text, strlen(text));
}

static status write_json(const char *dir, const char *name, json_t *json /* taken */, size_t flags)
{
    char *text = json != NULL ? json_dumps(json, flags) : NULL;
    json_decref(json);
    status st = write_file(dir, name, text);
    free(text);
    return st;
}

static status write_merges_txt(const struct tokenizer *t, const char *dir)
{
    static const char version[] = "#version: 0.2\n";
    char *text = NULL;
    size_t used = sizeof version - 1, cap = 0;
    TRY(array_grow(&text, &cap, used + 1, 1));
    memcpy(text, version, used + 1);
    for (size_t i = 0; i < t->merge_count; i++) {
        struct text a = vocab_bytes(&t->vocab, t->merges[i].left),
                    b = vocab_bytes(&t->vocab, t->merges[i].right);
        status st = array_grow(&text, &cap, used + 2 * (a.bytes + b.bytes) + 3, 1);
        if (st != STATUS_OK) {
            free(text);
            return st;
        }
        used += alphabet_write(a.data, a.bytes, text + used);
        text[used++] = ' ';
        used += alphabet_write(b.data, b.bytes, text + used);
        text[used++] = '\n';
        text[used] = 0;
    }
    status st = write_file(dir, "merges.txt", text);
    free(text);
    return st;
}

status tokenizer_file_write(const struct tokenizer *t, const char *dir)
{
    const char *name = pretokenizer_name(&t->pretokenizer);
    TRY(check_contents(t));
    TRY(write_json(dir, "tokenizer_config.json", config_json(t), JSON_INDENT(2)));
    TRY(write_json(dir, "special_tokens_map.json", ends_json(t, json_object()), JSON_INDENT(2)));
    if (name != NULL && strcmp(name, "gpt2") == 0 && !t->ignore_merges) {
        TRY(write_json(dir, "vocab.json", vocab_json(&t->vocab), JSON_COMPACT));
        TRY(write_merges_txt(t, dir));
    }
    return write_json(dir, "tokenizer.json", tokenizer_json(t), JSON_COMPACT);
}
