/* Which algorithm of a GPU library computes which GEMM, as text: one line per GEMM, for a cache file that outlives the
 * run and for the record in checkpoints. Plain C without CUDA: the algorithm is 64 opaque bytes.
 *
 *   gemm gpu=NVIDIA_H200 sms=132 lt=130100 m=8192 n=3072 k=2048 ta=0 tb=1 dt=BF16 cdt=BF16 add=0 bias=0 tf32=0 align=256,256,256
 *        way=library algo=<128 hex digits> ns=133300 crc=89abcdef                                             (one line, one space each)
 *
 * The crc is CRC-32C of all that stands before " crc=": a line that was cut or edited is not used. An algorithm is valid for one
 * model of GPU, number of multiprocessors and version of the library (struct gemm_place); lines of other places are kept. */
#ifndef INGOT_OPS_GEMM_CHOICE_H
#define INGOT_OPS_GEMM_CHOICE_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* All that an algorithm depends on. No padding: keys are compared and hashed as bytes. */
struct gemm_key {
    int64_t m, n, k;
    uint8_t trans_a, trans_b, dt, cdt, add, tf32;   /* add: 1 to c (ACCUM_ADD), 2 gemm_args.add */
    uint16_t bias;          /* alignment of the bias that the GEMM's epilogue adds; 0: none */
    uint16_t align[4];      /* classes of a, b, c, and with add 2 of what is added: 256, 16, or what it is below 16; else the last is 0 */
};

enum gemm_way {
    GEMM_LIBRARY,           /* by `algo` */
    GEMM_UNFUSED,           /* the library offers nothing with this bias: add it by itself */
    GEMM_PLAIN,             /* the library offers nothing: our kernel */
    GEMM_WAY_COUNT
};
enum { GEMM_ALGO_BYTES = 64 };
struct gemm_choice {
    struct gemm_key key;
    enum gemm_way way;
    uint8_t algo[GEMM_ALGO_BYTES];
    int64_t time_ns;        /* when it was chosen; 0: it was not timed */
};
struct gemm_place {
    char gpu[96];           /* without spaces: gemm_choice_place */
    int64_t sms, library;
};
struct gemm_choice_list { struct gemm_choice *items; int count, capacity; };

/* A place from the device's name as CUDA spells it. */
void gemm_choice_place(struct gemm_place *p, const char *gpu, int64_t sms, int64_t library);
/* Writes the line with its newline. */
void gemm_choice_print(FILE *out, const struct gemm_place *p, const struct gemm_choice *c);
/* Reads a line of `bytes` without its newline; false: damaged. */
bool gemm_choice_parse(const char *line, size_t bytes, struct gemm_place *p, struct gemm_choice *c);

status gemm_choice_add(struct gemm_choice_list *list, const struct gemm_choice *c) WARN_UNUSED; /* in place of the same key's */
const struct gemm_choice *gemm_choice_find(const struct gemm_choice_list *list, const struct gemm_key *key);
void gemm_choice_free(struct gemm_choice_list *list);

/* Adds the lines that were made at `here`. Blank lines and those that begin with # are comments. */
struct gemm_choice_counts { int used, foreign, damaged; };
status gemm_choice_list_read(struct gemm_choice_list *list, const struct gemm_place *here, const char *text, size_t bytes,
                             struct gemm_choice_counts *counts) WARN_UNUSED;
/* The same from a file; one that is not there is empty. Damaged lines are named in one warning. */
status gemm_choice_file_read(struct gemm_choice_list *list, const struct gemm_place *here, const char *path) WARN_UNUSED;
/* Adds lines to a file, whose directory is made: what other processes wrote meanwhile stays, lines of the same place and key are
 * replaced, damaged ones go. The new file takes the old one's place in one step. */
status gemm_choice_file_add(const struct gemm_choice_list *list, const struct gemm_place *here, const char *path) WARN_UNUSED;
/* Whoever comes first decides: `mine` goes into the file, or *mine becomes what another process has put there since `old` was read (the
 * line that was found then and is of no use; NULL: there was none). So ranks that time a GEMM at the same moment take the same
 * algorithm. Waits a few seconds at most for others that write; STATUS_IO then. */
status gemm_choice_file_settle(struct gemm_choice *mine, const struct gemm_choice *old, const struct gemm_place *here, const char *path) WARN_UNUSED;
#endif
