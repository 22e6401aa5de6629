/* The corpus of `ingot demo`: a text, its last 5 % held out, a tokenizer trained on the rest, shards of both.
 *
 *   DIR/demo.json                        what the demo was begun with (docs/FORMATS.md)
 *   DIR/data/train.txt, val.txt          the two parts
 *   DIR/data/corpus_{train,val}_*.bin    their shards
 *   DIR/tokenizer/ */
#ifndef INGOT_CLI_DEMO_CORPUS_H
#define INGOT_CLI_DEMO_CORPUS_H
#include "base/status.h"
#include <stddef.h>

enum { DEMO_PATH = 512 };
struct demo_corpus {
    const char *source; /* the user's file; NULL: the King James Bible from Debian's `bible` */
    char dir[DEMO_PATH];
    double minutes;     /* given by the user; 0: not */
    char *text;         /* owned */
    size_t bytes;
    char hash[65];
};
/* Reads the text, and chooses `dir`: runs/demo, or runs/demo-NAME for a file. */
status demo_corpus_read(struct demo_corpus *c) WARN_UNUSED;
void demo_corpus_free(struct demo_corpus *c);
/* Makes the files, unless a demo of this text has made them. STATUS_CONFIG: the directory has a demo of another text or
 * of other minutes. */
status demo_corpus_prepare(struct demo_corpus *c) WARN_UNUSED;
/* out [DEMO_PATH + 64] = DIR/name. Returns out. */
const char *demo_path(const struct demo_corpus *c, const char *name, char out[DEMO_PATH + 64]);
/* Bits per byte that a program reaches on the held-out text. */
status demo_packed_bpb(const struct demo_corpus *c, const char *program, double *bpb) WARN_UNUSED;
#endif
