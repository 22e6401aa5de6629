/* Runs a fuzz target over its seeds as an ordinary test: every file of the directories (or every file) named
 * on the command line. A target that has a mutator also runs on MUTATIONS inputs that it makes, the first of nothing. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                                     unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

enum { MUTATIONS = 3000, MUTATED_BYTES = 2048 };

/* For mutators: libFuzzer's changes more. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size)
{
    if (size == 0 && max_size > 0) data[size++] = '{';
    if (size > 0) data[size / 2] = (uint8_t)(data[size / 2] * 5 + 1);
    return size;
}

static void run_mutations(void)
{
    uint8_t *data = malloc(MUTATED_BYTES);
    if (!data) abort();
    size_t bytes = 0;
    for (unsigned int seed = 1; seed <= MUTATIONS; seed++) {
        bytes = LLVMFuzzerCustomMutator(data, bytes, MUTATED_BYTES, seed);
        uint8_t *exact = malloc(bytes ? bytes : 1);
        if (!exact || bytes > MUTATED_BYTES) abort();
        for (size_t i = 0; i < bytes; i++) exact[i] = data[i];
        LLVMFuzzerTestOneInput(exact, bytes);
        free(exact);
        if (seed % 50 == 0) bytes = 0;
    }
    free(data);
    printf("%d mutations\n", MUTATIONS);
}

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    size_t size = 1 << 24, bytes;
    uint8_t *read = malloc(size);
    if (!read) abort();
    bytes = fread(read, 1, size, f);
    fclose(f);
    uint8_t *data =
        malloc(bytes ? bytes : 1); /* of exactly this size, so that the sanitizer sees a read beyond */
    if (!data) abort();
    for (size_t i = 0; i < bytes; i++) data[i] = read[i];
    free(read);
    LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    return 1;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            count += replay_file(argv[i]);
            continue;
        }
        for (struct dirent *e; (e = readdir(dir));) {
            char path[4096];
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            count += replay_file(path);
        }
        closedir(dir);
    }
    if (LLVMFuzzerCustomMutator) run_mutations();
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1; /* a target without seeds tests nothing */
}
