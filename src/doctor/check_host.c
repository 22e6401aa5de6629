/* Checks of the host: limits, memory, processor, kernel. */
#include "base/text.h"
#include "doctor/doctor_int.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A limit of bytes for display. */
static const char *bytes_text(char text[32], double bytes)
{
    if (isinf(bytes)) return "unlimited";
    return text_bytes(text, bytes);
}

void check_memlock(struct doctor *d)
{
    char text[32];
    const double v = d->system.memlock;
    const char *have = bytes_text(text, v);
    if (!isnan(v) && has_ports(d) && isfinite(v))
        report_number(d, v < 64 << 20 ? DOCTOR_FAIL : DOCTOR_WARN, "", v, NAN,
                      "%s, and InfiniBand registers more", have);
    else if (v < 64 << 20 && d->cards > 0)
        report_number(d, DOCTOR_WARN, "", v, 64 << 20, "%s: pinned memory may be refused", have);
    else
        report_number(d, DOCTOR_PASS, "", v, NAN, "%s", have);
}

void check_nofile(struct doctor *d)
{
    const double v = d->system.nofile;
    report_number(d, v < 1024 ? DOCTOR_WARN : DOCTOR_PASS, "", v, 1024,
                  isinf(v) ? "unlimited" : "%.0f open files", v);
}

void check_shm(struct doctor *d)
{
    char text[32];
    const double v = d->system.shm_bytes, least = d->cards > 0 ? 1 << 30 : 64 << 20;
    if (v == 0)
        report_number(d, d->cards > 1 ? DOCTOR_FAIL : DOCTOR_WARN, "", 0, least, "there is no /dev/shm");
    else if (v < least)
        report_number(d, DOCTOR_WARN, "", v, least, "%s: NCCL and other programs' loaders run out of it",
                      text_bytes(text, v));
    else
        report_number(d, DOCTOR_PASS, "", v, least, "%s", text_bytes(text, v));
}

/* Cores of the cgroup's quota; infinity: none. */
static double cpu_quota(const struct doctor *d)
{
    char text[128], *end;
    double quota, period;
    if (hostfs_read(&d->fs, text, sizeof text, "/sys/fs/cgroup/cpu.max")) {
        quota = strtod(text, &end);
        if (end == text) return INFINITY; /* "max 100000" */
        period = strtod(end, NULL);
    } else if (!hostfs_number(&d->fs, &quota, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us") || quota <= 0 ||
               !hostfs_number(&d->fs, &period, "/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
        return INFINITY;
    return period > 0 ? quota / period : INFINITY;
}

void check_cores(struct doctor *d)
{
    const double cores = d->system.cores, quota = cpu_quota(d);
    if (quota < cores)
        report_number(d, DOCTOR_WARN, "", quota, cores, "a quota of %.3g cores on an affinity of %.0f", quota,
                      cores);
    else
        report_number(d, DOCTOR_PASS, "", cores, cores, "%.0f, no quota below that", cores);
}

void check_memory(struct doctor *d)
{
    char meminfo[4096], have[32];
    double limit, used;
    const char *by = "of the host";
    if (!hostfs_read(&d->fs, meminfo, sizeof meminfo, "/proc/meminfo")) {
        report(d, DOCTOR_SKIP, "", "/proc/meminfo is not readable");
        return;
    }
    double left = 1024 * hostfs_value(meminfo, "MemAvailable");
    if (hostfs_number(&d->fs, &limit, "/sys/fs/cgroup/memory.max") &&
        hostfs_number(&d->fs, &used, "/sys/fs/cgroup/memory.current") && limit - used < left)
        left = limit - used, by = "of the cgroup's limit";
    report_number(d,
                  left < 256 << 20      ? DOCTOR_FAIL
                  : left < 2147483648.0 ? DOCTOR_WARN
                                        : DOCTOR_PASS,
                  "", left, 2147483648.0, "%s free %s", text_bytes(have, left), by);
}

void check_load(struct doctor *d)
{
    double load;
    if (!hostfs_number(&d->fs, &load, "/proc/loadavg"))
        report(d, DOCTOR_SKIP, "", "/proc/loadavg is not readable");
    else
        report_number(d, load > 0.5 * d->system.cores ? DOCTOR_WARN : DOCTOR_PASS, "", load,
                      0.5 * d->system.cores, "%.2f on %.0f cores", load, d->system.cores);
}

void check_governor(struct doctor *d)
{
    char governor[64], driver[64] = "";
    static const char dir[] = "/sys/devices/system/cpu/cpu0/cpufreq";
    if (!hostfs_read(&d->fs, governor, sizeof governor, "%s/scaling_governor", dir)) {
        report(d, DOCTOR_SKIP, "", "no cpufreq here (a virtual machine, or the firmware decides)");
        return;
    }
    hostfs_read(&d->fs, driver, sizeof driver, "%s/scaling_driver", dir);
    const bool dynamic = strcmp(driver, "intel_pstate") == 0 || strcmp(driver, "amd-pstate-epp") == 0;
    const bool slow = strcmp(governor, "powersave") == 0 && !dynamic;
    report(d, slow ? DOCTOR_WARN : DOCTOR_PASS, "", "%s (%s)", governor, driver);
}

void check_hugepages(struct doctor *d)
{
    char text[128];
    if (!hostfs_read(&d->fs, text, sizeof text, "/sys/kernel/mm/transparent_hugepage/enabled"))
        report(d, DOCTOR_SKIP, "", "the kernel has no transparent huge pages");
    else
        report(d, strstr(text, "[never]") ? DOCTOR_WARN : DOCTOR_PASS, "", "%s", text);
}

/* ---- NUMA */

/* "00000000:18:00.0" of NVML as the kernel writes it: "0000:18:00.0". */
static void pci_kernel(const char *address, char out[32])
{
    const char *from = strlen(address) > 12 ? address + strlen(address) - 12 : address;
    int i = 0;
    for (; from[i] && i < 31; i++) out[i] = (char)tolower((unsigned char)from[i]);
    out[i] = 0;
}

void check_numa(struct doctor *d)
{
    char names[NAMES_MAX][HOSTFS_NAME], address[32], label[32];
    double node, balancing;
    int nodes = 0;
    const int count = hostfs_list(&d->fs, names, NAMES_MAX, "/sys/devices/system/node");
    for (int i = 0; i < count; i++)
        nodes += strncmp(names[i], "node", 4) == 0 && isdigit((unsigned char)names[i][4]);
    if (nodes == 0) {
        report(d, DOCTOR_SKIP, "", "the kernel shows no NUMA nodes");
        return;
    }
    if (nodes > 1 && hostfs_number(&d->fs, &balancing, "/proc/sys/kernel/numa_balancing") && balancing > 0)
        report_number(d, DOCTOR_WARN, "", balancing, 0, "numa_balancing is on: pages move while a step runs");
    for (int i = 0; i < d->cards && nodes > 1; i++) {
        pci_kernel(d->card[i].pci, address);
        if (hostfs_number(&d->fs, &node, "/sys/bus/pci/devices/%s/numa_node", address) && node < 0)
            report_number(d, DOCTOR_WARN, d->card[i].uuid, node, NAN, "the node of %s is not known",
                          card_label(d, i, label));
    }
    if (!reported(d))
        report_number(d, DOCTOR_PASS, "", nodes, NAN, nodes == 1 ? "one node" : "%d nodes", nodes);
}

/* ---- what stands between peers */

/* The first group that translates addresses; "": none. */
static bool iommu_translates(const struct doctor *d, char type[32])
{
    char groups[NAMES_MAX][HOSTFS_NAME];
    const int count = hostfs_list(&d->fs, groups, NAMES_MAX, "/sys/kernel/iommu_groups");
    for (int i = 0; i < count; i++)
        if (hostfs_read(&d->fs, type, 32, "/sys/kernel/iommu_groups/%s/type", groups[i]) &&
            strncmp(type, "DMA", 3) == 0)
            return true;
    return false;
}

void check_iommu(struct doctor *d)
{
    char type[32];
    if (d->cards < 2)
        report(d, DOCTOR_SKIP, "", "it matters with more than one GPU");
    else if (iommu_translates(d, type))
        report(d, DOCTOR_WARN, "", "it translates DMA (%s): peer copies over PCIe are slow or wrong", type);
    else
        report(d, DOCTOR_PASS, "", "off or pass-through");
}

/* The ACS control word of a bridge's configuration space; -1: it has none, or its extended part is not readable. */
static int acs_control(const unsigned char *space, size_t bytes)
{
    for (size_t at = 0x100, left = 48; at >= 0x100 && at + 8 <= bytes && left-- > 0;) {
        const unsigned head = space[at] | (unsigned)space[at + 1] << 8 | (unsigned)space[at + 2] << 16 |
                              (unsigned)space[at + 3] << 24;
        if ((head & 0xffff) == 0x000d) return space[at + 6] | space[at + 7] << 8;
        at = head >> 20;
    }
    return -1;
}

void check_acs(struct doctor *d)
{
    char names[NAMES_MAX][HOSTFS_NAME], class[32], path[256];
    unsigned char space[4096];
    int bridges = 0, read = 0;
    if (d->cards < 2) {
        report(d, DOCTOR_SKIP, "", "it matters with more than one GPU");
        return;
    }
    const int count = d->fs.text ? 0 : hostfs_list(&d->fs, names, NAMES_MAX, "/sys/bus/pci/devices");
    for (int i = 0; i < count; i++) {
        if (!hostfs_read(&d->fs, class, sizeof class, "/sys/bus/pci/devices/%s/class", names[i]) ||
            strncmp(class, "0x0604", 6) != 0)
            continue;
        bridges++;
        snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/config", d->fs.root, names[i]);
        FILE *f = fopen(path, "re");
        const size_t n = f ? fread(space, 1, sizeof space, f) : 0;
        if (f) fclose(f);
        read += n > 256;
        const int control = acs_control(space, n);
        if (control > 0 && (control & 1))
            report_number(d, DOCTOR_WARN, names[i], control, 0,
                          "bridge %s validates sources: peer copies take a detour", names[i]);
    }
    if (reported(d)) return;
    if (bridges > 0 && read == bridges)
        report_number(d, DOCTOR_PASS, "", bridges, bridges, "off on %d bridges", bridges);
    else
        report(d, DOCTOR_SKIP, "", bridges ? "reading it needs root" : "no PCIe bridge is visible");
}

void check_clock(struct doctor *d)
{
    const double e = d->system.clock_error_s;
    if (isnan(e))
        report(d, DOCTOR_SKIP, "", "adjtimex is not permitted");
    else if (isinf(e))
        report(d, DOCTOR_WARN, "", "not synchronised: hosts may differ by any time");
    else
        report_number(d, e > 0.5 ? DOCTOR_WARN : DOCTOR_PASS, "", e, 0.5, "within %.3g s of the time service",
                      e);
}
