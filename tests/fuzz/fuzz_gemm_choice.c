/* Any bytes as lines of chosen algorithms: refused, or printed and read back the same. A second copy of the bytes gets the checksum that
 * it needs, or no input would ever be looked at behind it. */
#include "base/hash.h"
#include "ops/gemm_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void line(const char *text, size_t bytes)
{
    struct gemm_place place, place_back;
    struct gemm_choice choice, back;
    if (!gemm_choice_parse(text, bytes, &place, &choice)) return;
    char *printed = NULL;
    size_t printed_bytes;
    FILE *f = open_memstream(&printed, &printed_bytes);
    if (f == NULL) abort();
    gemm_choice_print(f, &place, &choice);
    if (fclose(f) != 0) abort();
    if (!gemm_choice_parse(printed, printed_bytes - 1, &place_back, &back)) abort();
    if (memcmp(&choice.key, &back.key, sizeof back.key) != 0 || choice.way != back.way) abort();
    if (memcmp(choice.algo, back.algo, sizeof back.algo) != 0 || choice.time_ns != back.time_ns) abort();
    if (strcmp(place.gpu, place_back.gpu) != 0) abort();
    free(printed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct gemm_choice_list list = {0};
    struct gemm_choice_counts counts;
    struct gemm_place here;
    gemm_choice_place(&here, "NVIDIA H200", 132, 130100);
    if (gemm_choice_list_read(&list, &here, (const char *)data, bytes, &counts) != STATUS_OK) abort();
    if (list.count > counts.used) abort();
    gemm_choice_free(&list);
    char *summed = malloc(bytes + 16);
    if (summed == NULL) abort();
    if (bytes) memcpy(summed, data, bytes);
    snprintf(summed + bytes, 16, " crc=%08x", crc32c(0, data, bytes));
    line(summed, bytes + strlen(" crc=") + 8);
    free(summed);
    return 0;
}
