/* The files of a tokenizer: tokenizer.json; vocab.json with merges.txt, called encoder.json and vocab.bpe
 * in GPT-2's first release; tekken.json; a rank file of tiktoken with any name. */
#include "data/tokenizer/tokenizer_file.h"
#include "base/io.h"
#include "data/tokenizer/tekken.h"
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer_json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_BYTES_MAX = 1 << 30, PATH_BYTES = 1100 };

/* Older files have no list of added tokens, so the end of text is known by its name. */
static status read_pair(struct tokenizer *t, const char *vocab_path, const char *merges_path,
                        const char *pretokenizer)
{
    char *vocab = NULL, *merges = NULL;
    size_t vocab_bytes, merges_bytes;
    TRY(pretokenizer_named(&t->pretokenizer, pretokenizer != NULL ? pretokenizer : "gpt2"));
    status st = io_read_file(vocab_path, FILE_BYTES_MAX, &vocab, &vocab_bytes);
    if (st == STATUS_OK) st = io_read_file(merges_path, FILE_BYTES_MAX, &merges, &merges_bytes);
    if (st == STATUS_OK)
        st = tokenizer_json_parse_pair(t, (struct text){vocab, vocab_bytes},
                                       (struct text){merges, merges_bytes}, "<|endoftext|>");
    free(vocab);
    free(merges);
    return st;
}

static const char *const pairs[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};

/* One file of a pair names the other, which stands beside it. *is: the name is one of these. */
static status read_half(struct tokenizer *t, const char *path, const char *pretokenizer, bool *is)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char a[PATH_BYTES], b[PATH_BYTES];
    *is = false;
    for (int i = 0; i < 2; i++) {
        if (strcmp(name, pairs[i][0]) != 0 && strcmp(name, pairs[i][1]) != 0) continue;
        *is = true;
        snprintf(a, sizeof a, "%.*s%s", (int)(name - path), path, pairs[i][0]);
        snprintf(b, sizeof b, "%.*s%s", (int)(name - path), path, pairs[i][1]);
        bool first, second;
        TRY(io_exists(a, &first));
        TRY(io_exists(b, &second));
        const char *missing = !first ? pairs[i][0] : !second ? pairs[i][1] : NULL;
        if (missing)
            return FAIL(STATUS_DATA, "%s is one file of two; %s must stand beside it", name, missing);
        return read_pair(t, a, b, pretokenizer);
    }
    return STATUS_OK;
}

static status read_directory(struct tokenizer *t, const char *dir, const char *pretokenizer)
{
    char a[PATH_BYTES], b[PATH_BYTES];
    enum io_kind kind; /* if a file cannot be stat'ed, other forms must not replace it */
    snprintf(a, sizeof a, "%s/tokenizer.json", dir);
    TRY(io_kind(a, &kind));
    if (kind != IO_NONE) return tokenizer_file_read(t, a, pretokenizer);
    snprintf(a, sizeof a, "%s/added_tokens.json", dir);
    bool first, second;
    TRY(io_exists(a, &first));
    if (first)
        return FAIL(STATUS_DATA,
                    "added_tokens.json without tokenizer.json is not supported: let transformers "
                    "write the latter (save_pretrained of a fast tokenizer)");
    snprintf(a, sizeof a, "%s/tekken.json", dir);
    TRY(io_exists(a, &first));
    if (first) return tokenizer_file_read(t, a, pretokenizer);
    for (int i = 0; i < 2; i++) {
        snprintf(a, sizeof a, "%s/%s", dir, pairs[i][0]);
        snprintf(b, sizeof b, "%s/%s", dir, pairs[i][1]);
        TRY(io_exists(a, &first));
        TRY(io_exists(b, &second));
        if (first && second) return read_pair(t, a, b, pretokenizer);
    }
    return FAIL(
        STATUS_DATA,
        "the directory has neither tokenizer.json nor vocab.json with merges.txt, and no tekken.json; a rank "
        "file of tiktoken is given by its own name");
}

static status parse_file(struct tokenizer *t, const char *data, size_t bytes, const char *pretokenizer)
{
    if (tiktoken_is(data, bytes)) return tiktoken_parse(t, data, bytes, pretokenizer);
    if (bytes > 2 && data[0] == 0x0a && data[2] == 0x0a) /* fields of a protobuf */
        return FAIL(STATUS_DATA, "this looks like a model of SentencePiece, which is not supported");
    if (pretokenizer != NULL)
        return FAIL(STATUS_CONFIG, "this file names its own pattern; --pattern %s is not for it",
                    pretokenizer);
    return tekken_is(data, bytes) ? tekken_parse(t, data, bytes) : tokenizer_json_parse(t, data, bytes);
}

status tokenizer_file_read(struct tokenizer *t, const char *path, const char *pretokenizer)
{
    struct stat info;
    if (strlen(path) > PATH_BYTES - 64) return FAIL(STATUS_DATA, "the path is too long");
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return read_directory(t, path, pretokenizer);
    bool half;
    status st = read_half(t, path, pretokenizer, &half);
    if (half) return st;
    char *data = NULL;
    size_t bytes = 0;
    TRY(io_read_file(path, FILE_BYTES_MAX, &data, &bytes));
    st = parse_file(t, data, bytes, pretokenizer);
    free(data);
    return st;
}
