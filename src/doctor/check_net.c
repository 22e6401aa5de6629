/* Checks of the network and of NCCL. */
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ports of /sys/class/infiniband */

struct port {
    char name[2 * HOSTFS_NAME]; /* "mlx5_0/1" */
    char path[256];
    char state[32], phys[32], layer[32];
    double rate; /* Gb/s; NaN: not known */
};
enum { PORTS_MAX = 64 };

static void port_read(const struct doctor *d, const char *device, const char *number, struct port *p)
{
    snprintf(p->name, sizeof p->name, "%s/%s", device, number);
    snprintf(p->path, sizeof p->path, "/sys/class/infiniband/%s/ports/%s", device, number);
    if (!hostfs_read(&d->fs, p->state, sizeof p->state, "%s/state", p->path)) p->state[0] = 0;
    if (!hostfs_read(&d->fs, p->phys, sizeof p->phys, "%s/phys_state", p->path)) p->phys[0] = 0;
    if (!hostfs_read(&d->fs, p->layer, sizeof p->layer, "%s/link_layer", p->path)) p->layer[0] = 0;
    if (!hostfs_number(&d->fs, &p->rate, "%s/rate", p->path)) p->rate = NAN;
}

/* 0, with SKIP reported: there is no port. */
static int ports_read(struct doctor *d, struct port *ports)
{
    char devices[NAMES_MAX][HOSTFS_NAME], numbers[8][HOSTFS_NAME];
    int count = 0;
    const int n = hostfs_list(&d->fs, devices, NAMES_MAX, "/sys/class/infiniband");
    for (int i = 0; i < n; i++) {
        const int m = hostfs_list(&d->fs, numbers, 8, "/sys/class/infiniband/%s/ports", devices[i]);
        for (int k = 0; k < m && count < PORTS_MAX; k++)
            port_read(d, devices[i], numbers[k], &ports[count++]);
    }
    if (count == 0) report(d, DOCTOR_SKIP, "", "no InfiniBand or RoCE port on this host");
    return count;
}

static bool port_active(const struct port *p)
{
    return strstr(p->state, "ACTIVE") != NULL;
}
static bool port_ethernet(const struct port *p)
{
    return strcmp(p->layer, "Ethernet") == 0;
}

bool has_ports(const struct doctor *d)
{
    char one[1][HOSTFS_NAME];
    return hostfs_list(&d->fs, one, 1, "/sys/class/infiniband") > 0;
}

void check_infiniband(struct doctor *d)
{
    struct port ports[PORTS_MAX];
    int active = 0;
    double best = NAN;
    const int count = ports_read(d, ports);
    if (count == 0) return;
    for (int i = 0; i < count; i++)
        if (port_active(&ports[i])) active++, best = fmax(best, ports[i].rate);
    if (active == 0) {
        report_number(d, DOCTOR_FAIL, "", 0, count, "none of %d ports is active", count);
        return;
    }
    for (int i = 0; i < count; i++) {
        const struct port *p = &ports[i];
        if (!port_active(p))
            report(d, DOCTOR_WARN, p->name, "%s is %s (%s)", p->name,
                   p->state[0] ? p->state : "of unknown state", p->phys);
        else if (p->rate < best)
            report_number(d, DOCTOR_WARN, p->name, p->rate, best, "%s runs at %.0f Gb/s, others at %.0f",
                          p->name, p->rate, best);
    }
    if (!reported(d))
        report_number(d, DOCTOR_PASS, "", active, count, "%d ports active, %.0f Gb/s", active, best);
}

/* The first GID of RoCE v2 that has an address; -1: none. */
static int gid_find(const struct doctor *d, const struct port *p)
{
    char type[64], gid[64];
    for (int i = 0; i < 32; i++)
        if (hostfs_read(&d->fs, type, sizeof type, "%s/gid_attrs/types/%d", p->path, i) &&
            strcmp(type, "RoCE v2") == 0 && hostfs_read(&d->fs, gid, sizeof gid, "%s/gids/%d", p->path, i) &&
            strspn(gid, "0:") != strlen(gid))
            return i;
    return -1;
}

void check_roce(struct doctor *d)
{
    struct port ports[PORTS_MAX];
    int good = 0;
    const int count = ports_read(d, ports);
    for (int i = 0; i < count; i++) {
        if (!port_ethernet(&ports[i]) || !port_active(&ports[i])) continue;
        if (gid_find(d, &ports[i]) >= 0)
            good++;
        else
            report(d, DOCTOR_FAIL, ports[i].name, "%s has no RoCE v2 GID", ports[i].name);
    }
    if (count == 0 || reported(d)) return;
    if (good)
        report_number(d, DOCTOR_PASS, "", good, good, "%d ports have a RoCE v2 GID", good);
    else
        report(d, DOCTOR_SKIP, "", "no active Ethernet port: InfiniBand needs no RoCE");
}

void check_pfc(struct doctor *d)
{
    struct port ports[PORTS_MAX];
    char nets[4][HOSTFS_NAME], device[HOSTFS_NAME], text[512];
    int good = 0;
    const int count = ports_read(d, ports);
    for (int i = 0; i < count; i++) {
        if (!port_ethernet(&ports[i]) || !port_active(&ports[i])) continue;
        snprintf(device, sizeof device, "%.*s", (int)strcspn(ports[i].name, "/"), ports[i].name);
        if (hostfs_list(&d->fs, nets, 4, "/sys/class/infiniband/%s/device/net", device) == 0) continue;
        const char *const argv[] = {"dcb", "pfc", "show", "dev", nets[0], NULL};
        if (!tool_read(d, argv, text, sizeof text)) continue;
        if (strstr(text, ":on"))
            good++;
        else
            report(d, DOCTOR_WARN, nets[0],
                   "%s: flow control is off for every priority: a full switch drops packets", nets[0]);
    }
    if (count == 0 || reported(d)) return;
    if (good)
        report_number(d, DOCTOR_PASS, "", good, good, "on for %d interfaces", good);
    else
        report(d, DOCTOR_SKIP, "",
               "no active Ethernet port, or dcb (iproute2) does not show its flow control");
}

void check_port_errors(struct doctor *d)
{
    static const char *const counters[] = {"symbol_error", "link_downed"};
    struct port ports[PORTS_MAX];
    double value;
    bool known = false;
    const int count = ports_read(d, ports);
    if (count == 0) return;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 2; k++) {
            if (!hostfs_number(&d->fs, &value, "%s/counters/%s", ports[i].path, counters[k])) continue;
            known = true;
            const double more = grown(d, ports[i].name, counters[k], value);
            if (more > 0)
                report_number(d, DOCTOR_WARN, ports[i].name, more, 0,
                              "%s: %s grew by %.0f since the last look", ports[i].name, counters[k], more);
        }
    if (reported(d)) return;
    report(d, known ? DOCTOR_PASS : DOCTOR_SKIP, "", "%s",
           !known                  ? "the ports have no counters"
           : isfinite(d->before_s) ? "none since the last look"
                                   : "no history yet");
}

void check_peermem(struct doctor *d)
{
    char one[512] = "";
    if (no_cards(d)) return;
    if (!has_ports(d)) {
        report(d, DOCTOR_SKIP, "", "no InfiniBand or RoCE port on this host");
        return;
    }
    const bool module = hostfs_read(&d->fs, one, sizeof one, "/sys/module/nvidia_peermem/refcnt");
    const bool open =
        hostfs_read(&d->fs, one, sizeof one, "/proc/driver/nvidia/version") && strstr(one, "Open Kernel");
    if (module)
        report(d, DOCTOR_PASS, "", "nvidia_peermem is loaded");
    else if (open)
        report(d, DOCTOR_PASS, "", "open kernel module: DMA-BUF takes its place");
    else
        report(d, DOCTOR_WARN, "", "neither nvidia_peermem nor an open kernel module");
}

/* ---- NCCL */

void check_nccl(struct doctor *d)
{
    const double v = d->system.nccl;
    if (no_cards(d)) return;
    if (isnan(v))
        report(d, DOCTOR_SKIP, "", "this build of ingot has no CUDA");
    else if (v == 0)
        report(d, d->cards > 1 ? DOCTOR_FAIL : DOCTOR_WARN, "", "libnccl.so.2 was not found");
    else if (v < 0)
        report(d, DOCTOR_WARN, "", "libnccl.so.2 does not say its version");
    else if (v < 21800)
        report_number(d, DOCTOR_WARN, "", v, 21800, "version %d.%d.%d is old", (int)v / 10000,
                      (int)v / 100 % 100, (int)v % 100);
    else
        report_number(d, DOCTOR_PASS, "", v, 21800, "version %d.%d.%d", (int)v / 10000, (int)v / 100 % 100,
                      (int)v % 100);
}

enum env_needs { ENV_GPUS, ENV_IB };
static const struct env_row {
    const char *name, *value;
    enum env_needs needs;
    const char *effect;
} env_rows[] = {
#define NCCL_ENV(name, value, needs, effect) {name, value, ENV_##needs, effect},
#include "doctor/nccl_env.def"
};

/* The value of a variable: of the environment, else of /etc/nccl.conf; NULL: neither sets it. */
static const char *nccl_value(const struct doctor *d, const char *name, char *text, size_t bytes,
                              const char **where)
{
    char conf[4096];
    const char *value = env_of(d, name, text, bytes);
    *where = "the environment";
    if (value || !hostfs_read(&d->fs, conf, sizeof conf, "/etc/nccl.conf")) return value;
    *where = "/etc/nccl.conf";
    const size_t n = strlen(name);
    for (const char *line = conf; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) != 0 || line[n] != '=') continue;
        snprintf(text, bytes, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
        return text;
    }
    return NULL;
}

void check_nccl_env(struct doctor *d)
{
    char text[128];
    const char *where;
    if (no_cards(d)) return;
    const bool ports = has_ports(d);
    for (size_t i = 0; i < sizeof env_rows / sizeof env_rows[0]; i++) {
        const struct env_row *r = &env_rows[i];
        const char *value = nccl_value(d, r->name, text, sizeof text, &where);
        if (value == NULL || (r->value[0] && strcmp(value, r->value) != 0)) continue;
        if (r->needs == ENV_IB ? !ports : d->cards < 2) continue; /* harmless here */
        report(d, DOCTOR_WARN, r->name, "%s=%s in %s: %s", r->name, value, where, r->effect);
    }
    if (!reported(d)) report(d, DOCTOR_PASS, "", "nothing switches a fast path off");
}
