/* What `ingot bench` runs: each function measures one family on this machine and prints a table to stdout. */
#ifndef INGOT_BENCH_BENCH_H
#define INGOT_BENCH_BENCH_H
#include "base/status.h"
#define BENCH(name, function, usage, text) status function(int argc, char **argv) WARN_UNUSED;
#include "bench/bench.def"
#undef BENCH
#endif
