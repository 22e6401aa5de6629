/* The doctor's own examination: made-up hosts with one fault, and with two. */
#include "doctor/doctor_int.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct fault {
    const char *what, *check;
    enum doctor_verdict verdict;
    const char *script;
    bool solo;
};
static const struct fault faults[] = {
#define FAULT(what, check, verdict, script) {what, #check, DOCTOR_##verdict, script, false},
#define SOLO(what, check, verdict, script)  {what, #check, DOCTOR_##verdict, script, true},
#include "doctor/faults.def"
};
enum { FAULTS = sizeof faults / sizeof faults[0] };

#define PORT(n, layer, rate)                                                                                 \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/state = 4: ACTIVE\n"                                          \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/phys_state = 5: LinkUp\n"                                     \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/link_layer = " layer "\n"                                     \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/rate = " rate "\n"                                            \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/counters/symbol_error = 0\n"                                  \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/counters/link_downed = 0\n"
#define ROCE(n)                                                                                              \
    PORT(n, "Ethernet", "400 Gb/sec (4X NDR)")                                                               \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/gid_attrs/types/0 = IB/RoCE v1\n"                             \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/gid_attrs/types/3 = RoCE v2\n"                                \
    "/sys/class/infiniband/mlx5_" #n "/ports/1/gids/3 = 0000:0000:0000:0000:0000:ffff:c0a8:0101\n"           \
    "/sys/class/infiniband/mlx5_" #n "/device/net/eth" #n "/mtu = 9000\n"                                    \
    "/tools/dcb pfc show dev eth" #n " = prio-pfc 0:off 1:off 2:off 3:on\n"
static const char sound[] =
    "cards=8\n"
    "/proc/driver/nvidia/version = NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build\n"
    "/dev/kmsg = 6,1,4000000000,-;NVRM: Xid (PCI:0000:1a:00): 79, long ago\\n6,2,89000000000,-;usb 1-1: new "
    "device\n"
    "/proc/uptime = 100000.00 900000.00\n"
    "/proc/meminfo = MemTotal: 2000000000 kB\\nMemAvailable: 1900000000 kB\n"
    "/proc/loadavg = 1.20 1.00 1.00 2/3000 4711\n"
    "/proc/self/environ = PATH=/bin\\nNCCL_DEBUG=WARN\n"
    "/proc/self/mounts = /dev/sda1 / ext4 rw 0 0\\n/dev/nvme0n1 /data xfs rw 0 0\n"
    "/proc/sys/kernel/numa_balancing = 0\n"
    "/sys/devices/system/node/node0/cpulist = 0-47\n"
    "/sys/devices/system/node/node1/cpulist = 48-95\n"
    "/sys/bus/pci/devices/0000:1d:00.0/numa_node = 0\n"
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor = performance\n"
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver = acpi-cpufreq\n"
    "/sys/kernel/mm/transparent_hugepage/enabled = always [madvise] never\n"
    "/sys/kernel/iommu_groups/7/type = identity\n"
    "/sys/fs/cgroup/cpu.max = max 100000\n"
    "/sys/module/nvidia_peermem/refcnt = 0\n" PORT(0, "InfiniBand", "400 Gb/sec (4X NDR)")
        PORT(1, "InfiniBand", "400 Gb/sec (4X NDR)") PORT(2, "InfiniBand", "400 Gb/sec (4X NDR)")
            PORT(3, "InfiniBand", "400 Gb/sec (4X NDR)") ROCE(4) ROCE(
                5) "system memlock=inf\nsystem nofile=1048576\nsystem cores=96\nsystem "
                   "shm_bytes=1e12\nsystem disk_bytes=2e12\n"
                   "system disk_inodes=1e9\nsystem clock_error_s=0.004\nsystem nccl=22809\nsystem cufile=0\n";

/* The worst that a check reported. */
static enum doctor_verdict verdict_of(const struct doctor *d, const char *check)
{
    enum doctor_verdict worst = DOCTOR_PASS;
    for (int i = 0; i < d->count; i++)
        if (strcmp(d->findings[i].check->name, check) == 0 && d->findings[i].verdict > worst)
            worst = d->findings[i].verdict;
    return worst;
}

/* Examines the host with the faults a and b (NULL: none). `wrong` [256]: what was reported and should not be, or the
 * other way round; "" for a right examination. */
static status examine(const struct fault *a, const struct fault *b, char *wrong)
{
    struct doctor *d;
    char *script;
    size_t bytes;
    FILE *f = memory_stream(&script, &bytes);
    fprintf(f, "%s%s\n%s\n", sound, a ? a->script : "", b ? b->script : "");
    memory_stream_close(f);
    status st = doctor_run(&d, &(struct doctor_how){.storage = "/data", .script = script});
    free(script);
    TRY(st);
    wrong[0] = 0;
    const struct fault *both[2] = {a, b};
    for (int k = 0; k < 2; k++)
        if (both[k] && verdict_of(d, both[k]->check) != both[k]->verdict)
            snprintf(wrong, 256, "%s: %s says %s, not %s", both[k]->what, both[k]->check,
                     doctor_verdict_text(verdict_of(d, both[k]->check)),
                     doctor_verdict_text(both[k]->verdict));
    for (int i = 0; i < d->count; i++) {
        const struct doctor_finding *g = &d->findings[i];
        const bool meant =
            (a && strcmp(g->check->name, a->check) == 0) || (b && strcmp(g->check->name, b->check) == 0);
        if (!meant && g->verdict >= DOCTOR_WARN)
            snprintf(wrong, 256, "false alarm of %s: %s", g->check->name, g->text);
    }
    doctor_close(d);
    return STATUS_OK;
}

status doctor_selftest(FILE *out)
{
    char wrong[256];
    int missed = 0, pairs = 0, bad_pairs = 0;
    TRY(examine(NULL, NULL, wrong));
    fprintf(out, "%-44s %s\n", "a sound host", wrong[0] ? wrong : "nothing found");
    missed += wrong[0] != 0;
    for (int i = 0; i < FAULTS; i++) {
        TRY(examine(&faults[i], NULL, wrong));
        fprintf(out, "%-44s %s %s\n", faults[i].what,
                wrong[0] ? "MISSED:" : doctor_verdict_text(faults[i].verdict),
                wrong[0] ? wrong : faults[i].check);
        missed += wrong[0] != 0;
    }
    for (int i = 0; i < FAULTS; i++)
        for (int k = i + 1; k < FAULTS; k++) {
            if (faults[i].solo || faults[k].solo || strcmp(faults[i].check, faults[k].check) == 0) continue;
            TRY(examine(&faults[i], &faults[k], wrong));
            pairs++;
            if (wrong[0] && bad_pairs++ < 10)
                fprintf(out, "%s and %s: %s\n", faults[i].what, faults[k].what, wrong);
        }
    fprintf(out, "%d faults, %d missed; %d pairs, %d wrong\n", FAULTS, missed, pairs, bad_pairs);
    if (missed + bad_pairs == 0) return STATUS_OK;
    return FAIL(STATUS_INTERNAL, "the doctor is wrong about %d faults and %d pairs of faults", missed,
                bad_pairs);
}
