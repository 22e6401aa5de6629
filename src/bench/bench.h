/* What `ingot bench` runs: each function measures one family on this machine and prints a table to stdout, or JSON with --json. */
#ifndef INGOT_BENCH_BENCH_H
#define INGOT_BENCH_BENCH_H
#include "base/status.h"

/* Memory-bound ops in GB/s beside a plain copy, measured in turn.  [--json] [--isa avx2|avx512|amx] */
status bench_ops(int argc, char **argv) WARN_UNUSED;
#endif
