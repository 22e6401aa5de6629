/* A small tokenizer (gpt2's pieces, 400 ids, <|endoftext|>) for tests that build shards. */
#ifndef INGOT_TESTS_DATA_TOKENIZER_FIXTURE_H
#define INGOT_TESTS_DATA_TOKENIZER_FIXTURE_H
#include "base/io.h"
#include "data/tokenizer/tokenizer.h"
#include <stdlib.h>

/* Trains it and saves it in `dir`; 0, or -1 as a cmocka setup wants it. */
static inline int tokenizer_fixture(struct text doc, const char *dir)
{
    const char *specials[] = {"<|endoftext|>"};
    struct tokenizer_train_config config = {
        .pretokenizer = "gpt2", .vocab_size = 400, .specials = specials, .special_count = 1};
    struct tokenizer *t;
    if (tokenizer_train(&t, &config, &doc, 1) != STATUS_OK) return -1;
    status st = tokenizer_save(t, dir);
    tokenizer_free(t);
    return st == STATUS_OK ? 0 : -1;
}

/* The same on a file. */
static inline int tokenizer_fixture_of_file(const char *path, const char *dir)
{
    char *text;
    size_t bytes;
    if (io_read_file(path, 1 << 24, &text, &bytes) != STATUS_OK) return -1;
    int rc = tokenizer_fixture((struct text){text, bytes}, dir);
    free(text);
    return rc;
}
#endif
