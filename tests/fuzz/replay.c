/* Runs a fuzz target over its seeds as an ordinary test: every file of the directories (or every file) named
 * on the command line. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

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
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1; /* a target without seeds tests nothing */
}
