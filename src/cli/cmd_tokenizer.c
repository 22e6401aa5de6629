/* ingot tokenizer: trains a tokenizer on text, and shows what a tokenizer does. */
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "base/utf8_repair.h"
#include "cli/cli.h"
#include "cli/inputs.h"
#include "cli/print_json.h"
#include "data/text/alphabet.h"
#include "data/text/array.h"
#include "data/read/reader.h"
#include "data/tokenizer/tokenizer_extend.h"
#include "observe/progress.h"
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* All documents of all inputs, in memory: training looks at them more than once. */
struct documents {
    char *blob;
    size_t bytes, bytes_cap;
    struct text *items; /* data is set when the blob has stopped moving */
    size_t count, count_cap;
};

static status add_document(struct documents *d, const struct reader_document *doc)
{
    TRY(array_grow(&d->items, &d->count_cap, d->count + 1, sizeof *d->items));
    TRY(array_grow(&d->blob, &d->bytes_cap, d->bytes + doc->bytes, 1));
    memcpy(d->blob + d->bytes, doc->text, doc->bytes);
    d->items[d->count++].bytes = doc->bytes;
    d->bytes += doc->bytes;
    return STATUS_OK;
}

static status add_file(struct documents *d, const char *path, const char *key)
{
    struct reader *r = NULL;
    struct reader_batch batch;
    bool more = true;
    status st = reader_open(&r, path, &(struct reader_config){.key = key});
    if (st != STATUS_OK) return st;
    while (st == STATUS_OK) {
        st = reader_next(r, &batch, &more);
        if (!more) break;
        for (int64_t i = 0; st == STATUS_OK && i < batch.count; i++) {
            struct reader_document doc;
            st = reader_text(&batch, i, key, &doc);
            if (st != STATUS_OK) break;
            st = add_document(d, &doc);
            reader_document_free(&doc);
        }
    }
    reader_close(r);
    return st;
}

static status read_documents(struct documents *d, int count, char *const *paths, const char *key)
{
    for (int i = 0; i < count; i++) TRY(add_file(d, paths[i], key));
    size_t at = 0;
    for (size_t i = 0; i < d->count; at += d->items[i++].bytes) d->items[i].data = d->blob + at;
    return STATUS_OK;
}

/* Where it is, and what it is. */
static void print_saved(const struct tokenizer *t, const char *dir, bool json)
{
    char hash[65], path[4096];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    tokenizer_hash(t, hash);
    if (json)
        print_json(json_pack("{s:s, s:I, s:s}", "tokenizer", path, "vocab_size",
                             (json_int_t)tokenizer_vocab_size(t), "sha256", hash));
    else
        puts(path);
}

static status train_and_save(const struct tokenizer_train_config *config, const struct documents *docs,
                             const char *out, bool json)
{
    char bytes[32], rate[32];
    struct tokenizer *t;
    double start = clock_s();
    log_info("training on %s in %zu documents", text_bytes(bytes, (double)docs->bytes), docs->count);
    progress_start();
    progress_begin(WORK_OTHER, "training the tokenizer", 0);
    status trained = tokenizer_train(&t, config, docs->items, (int64_t)docs->count);
    progress_end();
    progress_stop();
    TRY(trained);
    double seconds = clock_s() - start;
    log_info("%d tokens in %.1f s (%s/s)", (int)tokenizer_vocab_size(t), seconds,
             text_bytes(rate, (double)docs->bytes / seconds));
    status st = tokenizer_save(t, out);
    if (st == STATUS_OK) print_saved(t, out, json);
    tokenizer_free(t);
    return st;
}

status cmd_tokenizer_train(struct args *a)
{
    const char *out = NULL, *split = "llama3", *key = NULL;
    struct flag_list specials = {.count = 0};
    int64_t vocab_size = 32000;
    bool json = false;
    const struct flag flags[] = {FLAG("out", &out),     FLAG("vocab-size", &vocab_size),
                                 FLAG("split", &split), FLAG("special", &specials),
                                 FLAG("key", &key),     FLAG("json", &json)};
    struct tokenizer_train_config config = {.specials = specials.items};
    struct documents docs = {0};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, out ? 1 : INT_MAX, INT_MAX));
    if (vocab_size < 256 || vocab_size > INT32_MAX)
        return FAIL(STATUS_CONFIG, "--vocab-size %lld: it begins at 256", (long long)vocab_size);
    if (specials.count == 0) specials.items[specials.count++] = "<|endoftext|>";
    config.special_count = specials.count;
    config.pretokenizer = split;
    config.vocab_size = (int32_t)vocab_size;
    struct inputs in = {0};
    status st = inputs_expand(&in, a->words, a->word_count, "/tmp", false);
    if (st == STATUS_OK) st = read_documents(&docs, in.count, in.paths, key);
    if (st == STATUS_OK && docs.bytes == 0)
        st = FAIL(STATUS_DATA, "the input is empty: %d file%s without text; take more text", in.count,
                  in.count == 1 ? "" : "s");
    inputs_free(&in);
    if (st == STATUS_OK) st = train_and_save(&config, &docs, out, json);
    free(docs.items);
    free(docs.blob);
    return st;
}

/* All of a file; NULL or "-" is standard input. Free *data. */
static status read_all(const char *path, char **data, size_t *bytes)
{
    bool standard = path == NULL || strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rb");
    size_t cap = 0, n = 1;
    status st = STATUS_OK;
    *data = NULL;
    *bytes = 0;
    if (f == NULL) return FAIL(status_of_errno(errno), "%s cannot be opened: %s", path, strerror(errno));
    while (st == STATUS_OK && n != 0) {
        st = array_grow(data, &cap, *bytes + (1 << 20), 1);
        if (st == STATUS_OK) *bytes += n = fread(*data + *bytes, 1, cap - *bytes - 1, f);
    }
    if (st == STATUS_OK && ferror(f))
        st = FAIL(STATUS_IO, "%s: error while reading", standard ? "standard input" : path);
    if (!standard) fclose(f);
    if (st == STATUS_OK) (*data)[*bytes] = 0;
    return st;
}

/* One token per line with the letters that tokenizer.json writes for its bytes. */
static status print_tokens(const struct tokenizer *t, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        struct text text = tokenizer_bytes(t, ids[i]);
        char *letters;
        TRY(array_new(&letters, 2 * text.bytes + 1, 1));
        alphabet_write(text.data, text.bytes, letters);
        printf("%d\t%s\n", (int)ids[i], letters);
        free(letters);
    }
    return STATUS_OK;
}

static void print_ids(const int32_t *ids, int64_t count, const char *between)
{
    for (int64_t i = 0; i < count; i++) printf("%s%d", i != 0 ? between : "", (int)ids[i]);
}

enum form { FORM_TOKENS, FORM_IDS, FORM_JSON };

static status encode_text(const struct tokenizer *t, const char *text, size_t bytes, enum specials specials,
                          enum form form)
{
    struct encoder *e;
    const int32_t *ids;
    int64_t count;
    char rate[32];
    TRY(encoder_open(&e, t));
    double start = clock_s();
    status st = encoder_encode(e, text, bytes, specials, &ids, &count);
    double seconds = clock_s() - start;
    if (st == STATUS_OK) {
        if (form == FORM_TOKENS)
            st = print_tokens(t, ids, count);
        else if (form == FORM_IDS)
            print_ids(ids, count, " ");
        else {
            printf("{\"bytes\": %zu, \"count\": %lld, \"ids\": [", bytes, (long long)count);
            print_ids(ids, count, ", ");
            printf("]}");
        }
        if (form != FORM_TOKENS) printf("\n");
        log_info("%zu bytes, %lld tokens, %.3f bytes per token, %s/s", bytes, (long long)count,
                 count != 0 ? (double)bytes / (double)count : 0.0,
                 text_bytes(rate, seconds > 0 ? (double)bytes / seconds : 0));
    }
    encoder_close(e);
    return st;
}

/* Errors name the line, too; what was repaired is said. */
static status make_valid(const char *path, enum utf8_invalid how, char **text, size_t *bytes)
{
    size_t valid = utf8_valid(*text, *bytes), line = 1, out_bytes;
    char *out;
    int64_t repaired;
    if (valid == *bytes) return STATUS_OK;
    for (size_t i = 0; i < valid; i++) line += (*text)[i] == '\n';
    if (how == UTF8_ERROR)
        return FAIL(STATUS_DATA,
                    "%s:%zu: invalid UTF-8 (byte %zu of the file); --on-invalid=replace or skip go on", path,
                    line, valid);
    TRY(utf8_repair(*text, *bytes, how, &out, &out_bytes, &repaired));
    log_warn("%s: %lld invalid sequences %s, the first in line %zu (byte %zu)", path, (long long)repaired,
             how == UTF8_SKIP ? "left out" : "replaced by U+FFFD", line, valid);
    free(*text);
    *text = out;
    *bytes = out_bytes;
    return STATUS_OK;
}

static status parse_invalid(const char *word, enum utf8_invalid *how)
{
    static const char *const words[] = {"error", "replace", "skip"};
    for (int i = 0; i < COUNT(words); i++)
        if (strcmp(word, words[i]) == 0) {
            *how = (enum utf8_invalid)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_CONFIG, "--on-invalid %s: error, replace or skip is expected", word);
}

static status copy_text(const char *from, char **text, size_t *bytes)
{
    *bytes = strlen(from);
    *text = strdup(from);
    return *text ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the text");
}

/* A file, standard input, or the text itself: what no file is called and has a blank in it. */
static status read_words(const char *word, char **text, size_t *bytes, const char **name)
{
    const bool standard = strcmp(word, "-") == 0;
    bool there = true;
    if (!standard) TRY(io_exists(word, &there));
    if (!there) {
        if (strpbrk(word, " \t\n")) return copy_text(word, text, bytes);
        return FAIL(STATUS_IO, "%s: no such file; --text %s encodes the word itself", word, word);
    }
    *name = standard ? "stdin" : word;
    return read_all(word, text, bytes);
}

status cmd_tokenizer_encode(struct args *a)
{
    bool ids = false, json = false, specials = false;
    const char *on_invalid = "error", *given = NULL;
    enum utf8_invalid how = UTF8_ERROR;
    const struct flag flags[] = {FLAG("ids", &ids), FLAG("json", &json), FLAG("specials", &specials),
                                 FLAG("on-invalid", &on_invalid), FLAG("text", &given)};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, given ? 1 : 2));
    TRY(parse_invalid(on_invalid, &how));
    struct tokenizer *t;
    char *text = NULL;
    const char *name = "the text";
    size_t bytes;
    TRY(tokenizer_load(&t, a->words[0]));
    status st = given ? copy_text(given, &text, &bytes)
                      : read_words(a->word_count == 2 ? a->words[1] : "-", &text, &bytes, &name);
    if (st == STATUS_OK) st = make_valid(name, how, &text, &bytes);
    if (st == STATUS_OK)
        st = encode_text(t, text, bytes, specials ? SPECIALS_PARSE : SPECIALS_AS_TEXT,
                         json  ? FORM_JSON
                         : ids ? FORM_IDS
                               : FORM_TOKENS);
    free(text);
    tokenizer_free(t);
    return st;
}

/* Numbers between white space, commas and brackets, so that a JSON list can be pasted, too; or what `encode` prints: an id, a tab and
 * letters in each line; or its JSON object. */
static status parse_ids(char *text, int32_t **ids, size_t *count)
{
    static const char between[] = " \r\n,[]";
    size_t cap = 0;
    char *list = text[strspn(text, between)] == '{' ? strstr(text, "\"ids\": [") : NULL;
    *ids = NULL;
    *count = 0;
    if (list) {
        text = list + strlen("\"ids\": [");
        text[strcspn(text, "]")] = 0;
    }
    for (char *at = text + strspn(text, between), *end; *at != 0; at = end + strspn(end, between)) {
        size_t n = strcspn(at, " \t\r\n,[]");
        long value = strtol(at, &end, 10);
        if (end != at + n || value < 0 || value > INT32_MAX)
            return FAIL(STATUS_DATA, "'%.*s' is not an id", (int)(n < 40 ? n : 40), at);
        TRY(array_grow(ids, &cap, *count + 1, sizeof **ids));
        (*ids)[(*count)++] = (int32_t)value;
        if (*end == '\t') end += strcspn(end, "\n");
    }
    return STATUS_OK;
}

status cmd_tokenizer_decode(struct args *a)
{
    bool json = false;
    const struct flag flags[] = {FLAG("json", &json)};
    TRY(args_parse(a, flags, 1));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 2));
    const int argc = a->word_count;
    char **argv = a->words;
    struct tokenizer *t;
    char *in = NULL, *out = NULL;
    int32_t *ids = NULL;
    size_t bytes = 0, count = 0;
    TRY(tokenizer_load(&t, argv[0]));
    status st = read_all(argc == 2 ? argv[1] : NULL, &in, &bytes);
    if (st == STATUS_OK) st = parse_ids(in, &ids, &count);
    if (st == STATUS_OK) st = tokenizer_decode(t, ids, (int64_t)count, &out, &bytes);
    if (st == STATUS_OK && json) {
        json_t *text = json_stringn(out ? out : "", bytes); /* NULL: the bytes are no UTF-8 */
        print_json(json_pack("{s:I, s:I, s:o}", "count", (json_int_t)count, "bytes", (json_int_t)bytes,
                             "text", text ? text : json_null()));
    } else if (st == STATUS_OK && fwrite(out, 1, bytes, stdout) != bytes)
        st = FAIL(STATUS_IO, "the text cannot be written to standard output");
    free(in);
    free(ids);
    free(out);
    tokenizer_free(t);
    return st;
}

status cmd_tokenizer_import(struct args *a)
{
    const char *pattern = NULL;
    bool json = false;
    const struct flag flags[] = {FLAG("pattern", &pattern), FLAG("json", &json)};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 2, 2));
    struct tokenizer *t;
    char hash[65];
    TRY(tokenizer_import(&t, a->words[0], pattern));
    status st = tokenizer_save(t, a->words[1]);
    if (st == STATUS_OK) {
        tokenizer_hash(t, hash);
        log_info("%d tokens, sha256 %s", (int)tokenizer_vocab_size(t), hash);
        print_saved(t, a->words[1], json);
    }
    tokenizer_free(t);
    return st;
}

status cmd_tokenizer_extend(struct args *a)
{
    struct flag_list specials = {.count = 0};
    const char *out = NULL;
    bool json = false;
    const struct flag flags[] = {FLAG("out", &out), FLAG("special", &specials), FLAG("json", &json)};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, out ? 1 : 2, 1));
    if (specials.count == 0)
        return FAIL(STATUS_CONFIG, "--special TEXT names a new token; give it once for each");
    TRY(tokenizer_extend(a->words[0], specials.items, specials.count, out));
    struct tokenizer *t;
    TRY(tokenizer_load(&t, out));
    print_saved(t, out, json);
    tokenizer_free(t);
    return STATUS_OK;
}
