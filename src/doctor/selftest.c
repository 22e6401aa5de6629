/* The doctor's own examination: made-up hosts with one fault, and with two. */
#include "base/io.h"
#include "base/memory.h"
#include "doctor/doctor_int.h"
#include "spec/spec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct fault {
    const char *what, *check;
    enum doctor_verdict verdict;
    const char *script;
    bool solo, run; /* run: the host is asked for a run */
};
static const struct fault faults[] = {
#define FAULT(what, check, verdict, script) {what, #check, DOCTOR_##verdict, script, false, false},
#define SOLO(what, check, verdict, script)  {what, #check, DOCTOR_##verdict, script, true, false},
#define RUN(what, check, verdict, script)   {what, #check, DOCTOR_##verdict, script, true, true},
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
                   "system disk_inodes=1e9\nsystem clock_error_s=0.004\nsystem nccl=22809\nsystem cufile=0\n"
                   "rate copy=95\nbaseline copy=100\n"
                   "message 0=9e9\nmessage 1=9e9\nmessage 2=9e9\nmessage 3=9e9\n";
static const struct fault sound_run = {.what = "a sound run", .check = "", .run = true};

/* The worst that a check reported. */
static enum doctor_verdict verdict_of(const struct doctor *d, const char *check)
{
    enum doctor_verdict worst = DOCTOR_PASS;
    for (int i = 0; i < d->count; i++)
        if (strcmp(d->findings[i].check->name, check) == 0 && d->findings[i].verdict > worst)
            worst = d->findings[i].verdict;
    return worst;
}

/* ---- files: a directory for the run's shard and for records */

/* A shard of llm.c: 256 words of header, ids of 16 bits below 512. */
static status write_shard(const char *work)
{
    enum { HEADER = 512, IDS = 8192 };
    uint16_t *shard = calloc(HEADER + IDS, sizeof *shard);
    MEMORY_CHECK(shard, "no memory for a shard");
    const int32_t head[3] = {20240520, 1, IDS};
    char path[96];
    memcpy(shard, head, sizeof head);
    for (int i = 0; i < IDS; i++) shard[HEADER + i] = (uint16_t)(i % 512);
    snprintf(path, sizeof path, "%s/shard.bin", work);
    const status st = io_write_file(path, shard, (HEADER + IDS) * sizeof *shard);
    free(shard);
    return st;
}

/* The run of the fault's script: keys in lines "run KEY=VALUE". */
static status run_spec(const char *work, const struct fault *f, struct spec *spec)
{
    enum { KEYS_MAX = 16, KEY = 128 };
    char keys[KEYS_MAX][KEY], *list[KEYS_MAX];
    int count = 0;
    snprintf(keys[count++], KEY, "data.train=%s/shard.bin", work);
    snprintf(keys[count++], KEY, "data.val=%s/shard.bin", work);
    snprintf(keys[count++], KEY, "run.dir=%s", work);
    snprintf(keys[count++], KEY, "model.preset=nano");
    snprintf(keys[count++], KEY, "model.vocab_size=512");
    snprintf(keys[count++], KEY, "train.batch_tokens=1Mi");
    for (const char *line = f->script; line && *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, "run ", 4) == 0 && count < KEYS_MAX)
            snprintf(keys[count++], KEY, "%.*s", (int)strcspn(line + 4, "\n"), line + 4);
    for (int i = 0; i < count; i++) list[i] = keys[i];
    return spec_load_open(spec, NULL, count, list, NULL);
}

/* What is left of a script for the host. */
static void put_host(FILE *out, const struct fault *f)
{
    for (const char *line = f ? f->script : NULL; line && *line;
         line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, "run ", 4) != 0) fprintf(out, "%.*s\n", (int)strcspn(line, "\n"), line);
}

/* ---- the record: --json, and --replay of it */

static bool same_finding(const struct doctor_finding *a, const struct doctor_finding *b)
{
    return a->check == b->check && a->verdict == b->verdict && strcmp(a->text, b->text) == 0 &&
           strcmp(a->entity, b->entity) == 0;
}

static status replay_same(const struct doctor *d, const char *path, char *wrong)
{
    struct doctor *r;
    TRY(doctor_replay(&r, path, &(struct doctor_how){.within = 0.1}));
    bool same = r->count == d->count && doctor_exit(r, false) == doctor_exit(d, false) &&
                doctor_exit(r, true) == doctor_exit(d, true);
    for (int i = 0; same && i < d->count; i++) same = same_finding(&d->findings[i], &r->findings[i]);
    if (!same) snprintf(wrong, 256, "its record is judged otherwise (--replay)");
    doctor_close(r);
    return STATUS_OK;
}

/* The record says the same; half of it is refused. */
static status record(const char *work, const struct doctor *d, char *wrong)
{
    char path[96];
    struct doctor *r;
    json_t *o = doctor_json(d, false);
    char *text = json_dumps(o, JSON_INDENT(1));
    MEMORY_CHECK(text, "no memory for a record");
    json_decref(o);
    snprintf(path, sizeof path, "%s/record", work);
    status st = io_write_file(path, text, strlen(text));
    if (st == STATUS_OK) st = replay_same(d, path, wrong);
    if (st == STATUS_OK) st = io_write_file(path, text, strlen(text) / 2);
    free(text);
    TRY(st);
    if (doctor_replay(&r, path, &(struct doctor_how){.within = 0.1}) == STATUS_DATA) return STATUS_OK;
    snprintf(wrong, 256, "half of its record is taken for one (--replay)");
    return STATUS_OK;
}

/* Examines the host with the faults a and b (NULL: none). `wrong` [256]: what was reported and should not be, or the
 * other way round; "" for a right examination. */
static status examine(const char *work, const struct fault *a, const struct fault *b, char *wrong)
{
    struct doctor *d;
    char *script;
    size_t bytes;
    FILE *f = memory_stream(&script, &bytes);
    struct spec spec;
    fputs(sound, f);
    put_host(f, a);
    put_host(f, b);
    memory_stream_close(f);
    struct doctor_how how = {.storage = "/data", .script = script, .within = 0.1};
    status st = STATUS_OK;
    if (a && a->run) how.spec = &spec, st = run_spec(work, a, &spec);
    if (st == STATUS_OK) st = doctor_run(&d, &how);
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
    if (b == NULL && wrong[0] == 0) st = record(work, d, wrong);
    doctor_close(d);
    return st;
}

static status sound_host(const char *work, FILE *out, const struct fault *f, const char *name, int *missed)
{
    char wrong[256];
    TRY(examine(work, f, NULL, wrong));
    fprintf(out, "%-44s %s\n", name, wrong[0] ? wrong : "nothing found");
    *missed += wrong[0] != 0;
    return STATUS_OK;
}

static status selftest(const char *work, FILE *out)
{
    char wrong[256];
    int missed = 0, pairs = 0, bad_pairs = 0;
    TRY(write_shard(work));
    TRY(sound_host(work, out, NULL, "a sound host", &missed));
    TRY(sound_host(work, out, &sound_run, sound_run.what, &missed));
    for (int i = 0; i < FAULTS; i++) {
        TRY(examine(work, &faults[i], NULL, wrong));
        fprintf(out, "%-44s %s %s\n", faults[i].what,
                wrong[0] ? "MISSED:" : doctor_verdict_text(faults[i].verdict),
                wrong[0] ? wrong : faults[i].check);
        missed += wrong[0] != 0;
    }
    for (int i = 0; i < FAULTS; i++)
        for (int k = i + 1; k < FAULTS; k++) {
            if (faults[i].solo || faults[k].solo || strcmp(faults[i].check, faults[k].check) == 0) continue;
            TRY(examine(work, &faults[i], &faults[k], wrong));
            pairs++;
            if (wrong[0] && bad_pairs++ < 10)
                fprintf(out, "%s and %s: %s\n", faults[i].what, faults[k].what, wrong);
        }
    fprintf(out, "%d faults, %d missed; %d pairs, %d wrong\n", FAULTS, missed, pairs, bad_pairs);
    if (missed + bad_pairs == 0) return STATUS_OK;
    return FAIL(STATUS_INTERNAL, "the doctor is wrong about %d faults and %d pairs of faults", missed,
                bad_pairs);
}

status doctor_selftest(FILE *out)
{
    char work[64];
    const char *base = getenv("TMPDIR");
    snprintf(work, sizeof work, "%.40s/ingot-doctor-XXXXXX", base ? base : "/tmp");
    if (mkdtemp(work) == NULL) return FAIL(STATUS_IO, "%s: %s", work, strerror(errno));
    const status st = selftest(work, out);
    char why[256];
    snprintf(why, sizeof why, "%s", status_message());
    const status removed = io_remove_tree(work);
    return st != STATUS_OK ? FAIL(st, "%s", why) : removed;
}
