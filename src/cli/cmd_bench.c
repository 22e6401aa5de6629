/* ingot bench: a table of benchmarks. */
#include "bench/bench.h"
#include "base/text.h"
#include "cli/cli.h"
#include <stdio.h>
#include <string.h>

struct bench {
    const char *name, *usage, *text;
    status (*run)(int argc, char **argv);
};
static const struct bench benches[] = {
#define BENCH(name, function, usage, text) {name, usage, text, function},
#include "bench/bench.def"
#undef BENCH
};
enum { BENCH_COUNT = sizeof benches / sizeof benches[0] };

status cmd_bench(int argc, char **argv)
{
    if (argc == 0 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        FILE *out = argc == 0 ? stderr : stdout;
        for (int i = 0; i < BENCH_COUNT; i++)
            fprintf(out, "usage: ingot bench %s\n       %s\n", benches[i].usage, benches[i].text);
        return argc == 0 ? STATUS_CONFIG : STATUS_OK;
    }
    const char *names[BENCH_COUNT];
    for (int i = 0; i < BENCH_COUNT; i++) {
        names[i] = benches[i].name;
        if (strcmp(argv[0], names[i]) == 0) return benches[i].run(argc - 1, argv + 1);
    }
    const char *near = text_nearest(argv[0], names, BENCH_COUNT);
    return FAIL(STATUS_CONFIG, "unknown benchmark '%s'%s%s%s; ingot bench lists them", argv[0],
                near ? "; did you mean '" : "", near ? near : "", near ? "'" : "");
}
