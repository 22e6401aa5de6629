#include "dev/near.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#if INGOT_HWLOC
#include <hwloc.h>
#endif

const char *near_text(const cpu_set_t *set, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set)) continue;
        const int first = cpu;
        while (cpu + 1 < CPU_SETSIZE && CPU_ISSET(cpu + 1, set)) cpu++;
        const int n = snprintf(text + used, bytes - used, first < cpu ? "%s%d-%d" : "%s%d", used ? "," : "",
                               first, cpu);
        used += (size_t)n;
        if (used >= bytes) {
            text[0] = 0;
            break;
        }
    }
    return text;
}

bool near_parse(const char *text, cpu_set_t *set)
{
    CPU_ZERO(set);
    while (*text && *text != '\n') {
        char *end;
        const long first = strtol(text, &end, 10);
        long last = first;
        if (end == text) return false;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text) return false;
        }
        if (first < 0 || last < first || last >= CPU_SETSIZE) return false;
        for (long cpu = first; cpu <= last; cpu++) CPU_SET((int)cpu, set);
        if (*end != ',' && *end != '\n' && *end != 0) return false;
        text = end + (*end == ',');
    }
    return true;
}

/* What of `near` is in *set; if nothing is, *set stays. */
static int keep(const cpu_set_t *near, cpu_set_t *set)
{
    cpu_set_t kept;
    CPU_AND(&kept, near, set);
    const int count = CPU_COUNT(&kept);
    if (count > 0) *set = kept;
    return count;
}

int near_keep_sysfs(const char *root, const char *pci_address, cpu_set_t *set)
{
    char path[256], list[1024];
    cpu_set_t near;
    snprintf(path, sizeof path, "%s/%s/local_cpulist", root, pci_address);
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    const bool read = fgets(list, sizeof list, f) != NULL;
    fclose(f);
    return read && near_parse(list, &near) ? keep(&near, set) : 0;
}

#if INGOT_HWLOC
/* The cores of the first object above the device that has some. */
static int keep_in(hwloc_topology_t t, const char *pci_address, cpu_set_t *set)
{
    cpu_set_t near;
    const hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(t, pci_address);
    const hwloc_obj_t place = device ? hwloc_get_non_io_ancestor_obj(t, device) : NULL;
    if (place == NULL || place->cpuset == NULL) return 0;
    CPU_ZERO(&near);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (hwloc_bitmap_isset(place->cpuset, (unsigned)cpu)) CPU_SET(cpu, &near);
    return keep(&near, set);
}

int near_keep(const char *pci_address, cpu_set_t *set)
{
    hwloc_topology_t t;
    int count = 0;
    if (hwloc_topology_init(&t) != 0) return 0;
    /* hwloc leaves PCI devices out by default. */
    if (hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
        hwloc_topology_load(t) == 0)
        count = keep_in(t, pci_address, set);
    hwloc_topology_destroy(t);
    return count;
}
#else
int near_keep(const char *pci_address, cpu_set_t *set)
{
    return near_keep_sysfs("/sys/bus/pci/devices", pci_address, set);
}
#endif

/* Every thread that there is; those to come inherit it. */
static bool bind_threads(const cpu_set_t *set)
{
    bool ok = true;
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL) return sched_setaffinity(0, sizeof *set, set) == 0;
    for (const struct dirent *d; (d = readdir(tasks)) != NULL;)
        if (d->d_name[0] != '.')
            ok &= sched_setaffinity((pid_t)strtol(d->d_name, NULL, 10), sizeof *set, set) == 0;
    closedir(tasks);
    return ok;
}

int near_bind(const char *pci_address, cpu_set_t *set)
{
    const char *list = getenv("INGOT_CORES");
    if (list ? !near_parse(list, set) : sched_getaffinity(0, sizeof *set, set) != 0) return 0;
    const int count = near_keep(pci_address, set);
    return count > 0 && bind_threads(set) ? count
                                          : 0; /* a container may forbid it: the run is right without it */
}
