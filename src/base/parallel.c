#include "base/parallel.h"
#include <omp.h>
#include <sched.h>

static int available_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : omp_get_num_procs();
}

void parallel_threads_set(int threads)
{
    omp_set_dynamic(0);
    omp_set_max_active_levels(1); /* a library called inside a chunk runs on that chunk's thread */
    omp_set_num_threads(threads > 0 ? threads : available_cores());
}

int parallel_threads(void)
{
    return omp_get_max_threads();
}
