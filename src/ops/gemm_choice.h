/* The algorithm of a GPU library for each GEMM, as text. One line per GEMM, for a cache file that outlives the run
 * and for checkpoints. Plain C without CUDA: the algorithm is 64 opaque bytes.
 *
 *   gemm gpu=NVIDIA_H200 sms=132 lt=130100 m=8192 n=3072 k=2048 ta=0 tb=1 dt=BF16 cdt=BF16 add=0 bias=0 tf32=0
 *        align=256,256,256 way=library algo=<128 hex digits> ns=133300 crc=89abcdef      (one line, one space each)
 *   FP8: dt=F8_E5M2,F8_E4M3 names the types of a and b if they differ; fast=1 follows tf32=0 for fast accumulation,
 *        then scales=N for scales of blocks
 *
 * The crc is CRC-32C of everything before " crc=": a truncated or edited line is ignored. An algorithm is valid for
 * one GPU model, number of multiprocessors and library version (struct gemm_place). Lines of other places are kept. */
#ifndef INGOT_OPS_GEMM_CHOICE_H
#define INGOT_OPS_GEMM_CHOICE_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Everything that an algorithm depends on. No padding: keys are compared and hashed as bytes. */
struct gemm_key {
    int64_t m, n, k;
    uint8_t trans_a, trans_b, dt, cdt, add, tf32;   /* dt: of a; add: 1 for ACCUM_ADD, 2 for EPILOGUE_ADD */
    uint16_t bias;          /* alignment of the bias that the epilogue adds; 0: no bias */
    uint16_t align[4];      /* alignment classes of a, b, c and, for add 2, of the addend (else 0): 256, 16, or the
                               alignment itself below 16 */
    uint8_t dt_b;           /* of b: dt, or the other FP8 type */
    uint8_t fast;           /* FP8: fast accumulation */
    uint8_t scales;         /* 8 * mode of a + mode of b, of codes with scales of blocks: cublasLtMatmulMatrixScale_t */
    uint8_t unused[5];      /* 0 */
};

/* Whether the GEMM has a part that a separate op can do: see GEMM_UNFUSED. */
static inline bool gemm_key_unfuses(const struct gemm_key *k) { return k->bias != 0 || k->add == 2; }

enum gemm_way {
    GEMM_LIBRARY,           /* the library, by `algo` */
    GEMM_UNFUSED,           /* the library does not support this bias or addend: c begins as it, then ACCUM_ADD */
    GEMM_PLAIN,             /* the library does not support this GEMM: the custom kernel */
    GEMM_WAY_COUNT
};
enum { GEMM_ALGO_BYTES = 64 };
struct gemm_choice {
    struct gemm_key key;
    enum gemm_way way;
    uint8_t algo[GEMM_ALGO_BYTES];
    int64_t time_ns;        /* measured when it was chosen; 0: not timed */
};
struct gemm_place {
    char gpu[96];           /* without spaces: see gemm_choice_place */
    int64_t sms, library;
};
struct gemm_choice_list { struct gemm_choice *items; int count, capacity; };

/* Fills a place from the device name that CUDA reports. */
void gemm_choice_place(struct gemm_place *p, const char *gpu, int64_t sms, int64_t library);
/* Writes the line with its newline. */
void gemm_choice_print(FILE *out, const struct gemm_place *p, const struct gemm_choice *c);
/* Reads a line of `bytes` without its newline; false: damaged. */
bool gemm_choice_parse(const char *line, size_t bytes, struct gemm_place *p, struct gemm_choice *c);

/* Adds c; replaces the entry with the same key. */
status gemm_choice_add(struct gemm_choice_list *list, const struct gemm_choice *c) WARN_UNUSED;
const struct gemm_choice *gemm_choice_find(const struct gemm_choice_list *list, const struct gemm_key *key);
void gemm_choice_free(struct gemm_choice_list *list);

/* Adds the lines whose place is `here`. Blank lines and lines that begin with # are comments. */
struct gemm_choice_counts { int used, foreign, damaged; };
status gemm_choice_list_read(struct gemm_choice_list *list, const struct gemm_place *here, const char *text,
                             size_t bytes, struct gemm_choice_counts *counts) WARN_UNUSED;
/* The same from a file; a missing file is empty. One warning names all damaged lines. */
status gemm_choice_file_read(struct gemm_choice_list *list, const struct gemm_place *here,
                             const char *path) WARN_UNUSED;
/* Adds lines to a file and creates its directory. Lines that other processes wrote meanwhile are kept; lines with the
 * same place and key are replaced; damaged lines are dropped. The new file replaces the old one atomically. */
status gemm_choice_file_add(const struct gemm_choice_list *list, const struct gemm_place *here,
                            const char *path) WARN_UNUSED;
/* Resolves a race between ranks that time the same GEMM: the first writer decides, so all ranks use the same
 * algorithm. `mine` is added to the file, or *mine becomes the choice that another process has written since `old`
 * was read. `old`: the unusable line found then; NULL: there was none. Waits at most a few seconds for other writers,
 * then returns STATUS_IO. */
status gemm_choice_file_settle(struct gemm_choice *mine, const struct gemm_choice *old, const struct gemm_place *here,
                               const char *path) WARN_UNUSED;
#endif
