/* ingot tokenizer: trains a tokenizer on text, and shows what a tokenizer does. */
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "base/utf8_repair.h"
#include "cli/cli.h"
#include "data/text/alphabet.h"
#include "data/text/array.h"
#include "data/read/reader.h"
#include "data/tokenizer/tokenizer.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define TRAIN_USAGE                                                                                          \
    "tokenizer train INPUT... -o DIR [--vocab-size N] [--split NAME] [--special TEXT ...] [--key "           \
    "NAME]"
#define ENCODE_USAGE                                                                                         \
    "tokenizer encode DIR [FILE|-] [--ids | --json] [--specials] [--on-invalid error|replace|skip]"
#define DECODE_USAGE "tokenizer decode DIR [FILE|-]"
#define IMPORT_USAGE "tokenizer import SOURCE DIR [--pattern NAME]"

enum { SPECIALS_MAX = 1024 };

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

static status read_documents(struct documents *d, int count, char **paths, const char *key)
{
    for (int i = 0; i < count; i++) TRY(add_file(d, paths[i], key));
    size_t at = 0;
    for (size_t i = 0; i < d->count; at += d->items[i++].bytes) d->items[i].data = d->blob + at;
    return STATUS_OK;
}

/* --special TEXT may be given many times: these are taken out before the flags are read. */
static status take_specials(int *argc, char **argv, const char **specials, int *count)
{
    static const char flag[] = "--special";
    int kept = 0;
    *count = 0;
    for (int i = 0; i < *argc; i++) {
        const char *value = NULL;
        if (strncmp(argv[i], "--special=", sizeof flag) == 0)
            value = argv[i] + sizeof flag;
        else if (strcmp(argv[i], flag) == 0 && i + 1 == *argc)
            return FAIL(STATUS_CONFIG, "--special needs a text");
        else if (strcmp(argv[i], flag) == 0)
            value = argv[++i];
        if (value == NULL)
            argv[kept++] = argv[i];
        else if (*count == SPECIALS_MAX)
            return FAIL(STATUS_CONFIG, "more than %d special tokens", SPECIALS_MAX);
        else
            specials[(*count)++] = value;
    }
    *argc = kept;
    return STATUS_OK;
}

static status train_and_save(const struct tokenizer_train_config *config, const struct documents *docs,
                             const char *out)
{
    char bytes[32], rate[32];
    struct tokenizer *t;
    double start = clock_s();
    log_info("training on %s in %zu documents", text_bytes(bytes, (double)docs->bytes), docs->count);
    TRY(tokenizer_train(&t, config, docs->items, (int64_t)docs->count));
    double seconds = clock_s() - start;
    log_info("%d tokens in %.1f s (%s/s)", (int)tokenizer_vocab_size(t), seconds,
             text_bytes(rate, (double)docs->bytes / seconds));
    status st = tokenizer_save(t, out);
    if (st == STATUS_OK) printf("%s/tokenizer.json\n", out);
    tokenizer_free(t);
    return st;
}

static status train(int argc, char **argv)
{
    const char *out = NULL, *split = "llama3", *key = NULL, *specials[SPECIALS_MAX];
    int64_t vocab_size = 32000;
    const struct flag flags[] = {
        {"out", FLAG_TEXT, &out, "directory of the new tokenizer; also -o"},
        {"vocab-size", FLAG_INT, &vocab_size, "tokens in all: 256 bytes, merges, specials (32000)"},
        {"split", FLAG_TEXT, &split,
         "how text is split into pieces: llama3 (default), gpt2, cl100k, o200k, qwen2, ...; a wrong name "
         "lists all"},
        {"special", FLAG_TEXT, NULL,
         "a special token; give it once for each (<|endoftext|> when none is given)"},
        {"key", FLAG_TEXT, &key, "where the text stands in .jsonl (text)"},
    };
    struct tokenizer_train_config config = {.specials = specials};
    struct documents docs = {0};
    int help;
    TRY(take_specials(&argc, argv, specials, &config.special_count));
    TRY(flags_parse(TRAIN_USAGE, flags, COUNT(flags), &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    if (argc == 0 || out == NULL)
        return FAIL(STATUS_CONFIG, "input files and -o DIR are needed: ingot " TRAIN_USAGE);
    if (vocab_size < 256 || vocab_size > INT32_MAX)
        return FAIL(STATUS_CONFIG, "--vocab-size %lld: it begins at 256", (long long)vocab_size);
    if (config.special_count == 0) specials[config.special_count++] = "<|endoftext|>";
    config.pretokenizer = split;
    config.vocab_size = (int32_t)vocab_size;
    status st = read_documents(&docs, argc, argv, key);
    if (st == STATUS_OK) st = train_and_save(&config, &docs, out);
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
    if (f == NULL) return FAIL(STATUS_IO, "%s cannot be opened", path);
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

static status encode(int argc, char **argv)
{
    bool ids = false, json = false, specials = false;
    const char *on_invalid = "error";
    enum utf8_invalid how = UTF8_ERROR;
    const struct flag flags[] = {
        {"ids", FLAG_SWITCH, &ids, "only the ids, on one line"},
        {"json", FLAG_SWITCH, &json, "one JSON object"},
        {"specials", FLAG_SWITCH, &specials, "special tokens in the text are tokens, not text"},
        {"on-invalid", FLAG_TEXT, &on_invalid,
         "bytes that are no UTF-8: error (default), replace (by U+FFFD, as Python's errors=\"replace\"), "
         "skip"},
    };
    int help;
    TRY(flags_parse(ENCODE_USAGE, flags, COUNT(flags), &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    if (argc < 1 || argc > 2)
        return FAIL(STATUS_CONFIG, "a tokenizer and at most one file are needed: ingot " ENCODE_USAGE);
    TRY(parse_invalid(on_invalid, &how));
    struct tokenizer *t;
    char *text = NULL;
    size_t bytes;
    TRY(tokenizer_load(&t, argv[0]));
    status st = read_all(argc == 2 ? argv[1] : NULL, &text, &bytes);
    if (st == STATUS_OK) st = make_valid(argc == 2 ? argv[1] : "stdin", how, &text, &bytes);
    if (st == STATUS_OK)
        st = encode_text(t, text, bytes, specials ? SPECIALS_PARSE : SPECIALS_AS_TEXT,
                         json  ? FORM_JSON
                         : ids ? FORM_IDS
                               : FORM_TOKENS);
    free(text);
    tokenizer_free(t);
    return st;
}

/* Numbers between white space, commas and brackets, so that a JSON list can be pasted, too. */
static status parse_ids(char *text, int32_t **ids, size_t *count)
{
    static const char between[] = " \t\r\n,[]";
    size_t cap = 0;
    *ids = NULL;
    *count = 0;
    for (char *at = text + strspn(text, between), *end; *at != 0; at = end + strspn(end, between)) {
        size_t n = strcspn(at, between);
        long value = strtol(at, &end, 10);
        if (end != at + n || value < 0 || value > INT32_MAX)
            return FAIL(STATUS_DATA, "'%.*s' is not an id", (int)(n < 40 ? n : 40), at);
        TRY(array_grow(ids, &cap, *count + 1, sizeof **ids));
        (*ids)[(*count)++] = (int32_t)value;
    }
    return STATUS_OK;
}

static status decode(int argc, char **argv)
{
    int help;
    TRY(flags_parse(DECODE_USAGE, NULL, 0, &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    if (argc < 1 || argc > 2)
        return FAIL(STATUS_CONFIG, "a tokenizer and at most one file are needed: ingot " DECODE_USAGE);
    struct tokenizer *t;
    char *in = NULL, *out = NULL;
    int32_t *ids = NULL;
    size_t bytes = 0, count = 0;
    TRY(tokenizer_load(&t, argv[0]));
    status st = read_all(argc == 2 ? argv[1] : NULL, &in, &bytes);
    if (st == STATUS_OK) st = parse_ids(in, &ids, &count);
    if (st == STATUS_OK) st = tokenizer_decode(t, ids, (int64_t)count, &out, &bytes);
    if (st == STATUS_OK && fwrite(out, 1, bytes, stdout) != bytes)
        st = FAIL(STATUS_IO, "the text cannot be written to standard output");
    free(in);
    free(ids);
    free(out);
    tokenizer_free(t);
    return st;
}

static status import(int argc, char **argv)
{
    const char *pattern = NULL;
    const struct flag flags[] = {
        {"pattern", FLAG_TEXT, &pattern,
         "how text is split, for files that do not say it: cl100k, o200k, llama3, ... "
         "(rank files of tiktoken that are not known; vocab.json, where it is gpt2 when not given)"},
    };
    int help;
    TRY(flags_parse(IMPORT_USAGE, flags, COUNT(flags), &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    if (argc != 2)
        return FAIL(STATUS_CONFIG, "a tokenizer and a new directory are needed: ingot " IMPORT_USAGE);
    struct tokenizer *t;
    char hash[65];
    TRY(tokenizer_import(&t, argv[0], pattern));
    status st = tokenizer_save(t, argv[1]);
    if (st == STATUS_OK) {
        tokenizer_hash(t, hash);
        log_info("%d tokens, sha256 %s", (int)tokenizer_vocab_size(t), hash);
        printf("%s/tokenizer.json\n", argv[1]);
    }
    tokenizer_free(t);
    return st;
}

status cmd_tokenizer(int argc, char **argv)
{
    static const char *const names[] = {"train", "import", "encode", "decode"};
    static status (*const run[])(int, char **) = {train, import, encode, decode};
    if (argc == 0 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        fprintf(argc == 0 ? stderr : stdout,
                "usage: ingot " TRAIN_USAGE "\n       ingot " IMPORT_USAGE "\n       ingot " ENCODE_USAGE
                "\n       ingot " DECODE_USAGE "\n");
        return argc == 0 ? STATUS_CONFIG : STATUS_OK;
    }
    for (int i = 0; i < COUNT(names); i++)
        if (strcmp(argv[0], names[i]) == 0) return run[i](argc - 1, argv + 1);
    const char *near = text_nearest(argv[0], names, COUNT(names));
    return FAIL(STATUS_CONFIG, "unknown: tokenizer %s%s%s%s", argv[0], near ? "; did you mean " : "",
                near ? near : "", near ? "?" : "");
}
