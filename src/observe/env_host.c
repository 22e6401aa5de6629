#include "observe/env_host.h"
#include "base/utf8.h"
#include "dev/hostfs.h"
#include "dev/nvml.h"

#include <ctype.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { NAMES_MAX = 128 };

static void set_text(json_t *o, const char *key, const char *text)
{
    if (text[0] == 0) return;
    char *clean = utf8_clean(text, strlen(text));
    json_object_set_new(o, key, json_string(clean));
    free(clean);
}
static void set_number(json_t *o, const char *key, double value)
{
    if (isfinite(value)) json_object_set_new(o, key, json_real(value));
}
/* The text of a file, under a key. */
static void set_file(json_t *o, const char *key, const struct hostfs *fs, const char *path)
{
    char text[1024];
    if (hostfs_read(fs, text, sizeof text, "%s", path)) set_text(o, key, text);
}
static void set_some(json_t *o, const char *key, json_t *part)
{
    if (json_object_size(part) > 0 || json_array_size(part) > 0)
        json_object_set_new(o, key, part);
    else
        json_decref(part);
}

/* ---- the host */

static void set_limits(json_t *o)
{
    static const struct {
        const char *name;
        int which;
    } limits[] = {{"memlock", RLIMIT_MEMLOCK}, {"nofile", RLIMIT_NOFILE}, {"nproc", RLIMIT_NPROC},
                  {"stack", RLIMIT_STACK},     {"core", RLIMIT_CORE},     {"as", RLIMIT_AS}};
    json_t *part = json_object();
    struct rlimit limit;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (getrlimit((__rlimit_resource_t)limits[i].which, &limit) != 0) continue;
        json_object_set_new(part, limits[i].name,
                            limit.rlim_cur == RLIM_INFINITY ? json_string("unlimited")
                                                            : json_integer((json_int_t)limit.rlim_cur));
    }
    set_some(o, "ulimits", part);
}

static void set_cgroup(json_t *o, const struct hostfs *fs)
{
    json_t *part = json_object();
    set_file(part, "path", fs, "/proc/self/cgroup");
    set_file(part, "memory_max", fs, "/sys/fs/cgroup/memory.max");
    set_file(part, "memory_events", fs, "/sys/fs/cgroup/memory.events");
    set_file(part, "cpu_max", fs, "/sys/fs/cgroup/cpu.max");
    set_file(part, "cpuset", fs, "/sys/fs/cgroup/cpuset.cpus.effective");
    set_some(o, "cgroup", part);
}

/* Cores of each NUMA node. */
static void set_nodes(json_t *o, const struct hostfs *fs)
{
    char names[NAMES_MAX][HOSTFS_NAME], path[128];
    json_t *part = json_object();
    const int count = hostfs_list(fs, names, NAMES_MAX, "/sys/devices/system/node");
    for (int i = 0; i < count; i++) {
        if (strncmp(names[i], "node", 4) != 0 || !isdigit((unsigned char)names[i][4])) continue;
        snprintf(path, sizeof path, "/sys/devices/system/node/%s/cpulist", names[i]);
        set_file(part, names[i], fs, path);
    }
    set_some(o, "numa", part);
}

static void set_network(json_t *o, const struct hostfs *fs)
{
    static const char *const classes[] = {"net", "infiniband"};
    static const char *const files[] = {"operstate", "mtu",      "speed",    "address",
                                        "fw_ver",    "hca_type", "node_guid"};
    char names[NAMES_MAX][HOSTFS_NAME], path[256];
    json_t *part = json_object();
    for (int c = 0; c < 2; c++) {
        const int count = hostfs_list(fs, names, NAMES_MAX, "/sys/class/%s", classes[c]);
        for (int i = 0; i < count; i++) {
            if (strcmp(names[i], "lo") == 0) continue;
            json_t *one = json_object();
            for (size_t k = 0; k < sizeof files / sizeof files[0]; k++) {
                if (c == 0 && strcmp(files[k], "address") == 0) continue; /* says who, not what */
                snprintf(path, sizeof path, "/sys/class/%s/%s/%s", classes[c], names[i], files[k]);
                set_file(one, files[k], fs, path);
            }
            snprintf(path, sizeof path, "/sys/class/%s/%s/ports/1/rate", classes[c], names[i]);
            set_file(one, "rate", fs, path);
            set_some(part, names[i], one);
        }
    }
    set_some(o, "network", part);
}

/* ---- libraries: those that this process has loaded */

static void version_text(char text[32], long v, long major, long minor)
{
    snprintf(text, 32, "%ld.%ld.%ld", v / major, v % major / minor, v % minor);
}

static void *loaded(const char *name, const char *symbol)
{
    void *library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    void *f = library ? dlsym(library, symbol) : NULL;
    if (library) dlclose(library); /* it stays: others hold it */
    return f;
}

static void set_libraries(json_t *o)
{
    static const char *const blas[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    json_t *part = json_object();
    char text[32], long_text[1024];
    int version = 0, length = 0;
    for (int i = 0; i < 2; i++) {
        size_t (*get)(void) = (size_t(*)(void))loaded(blas[i], "cublasLtGetVersion");
        if (get == NULL) continue;
        version_text(text, (long)get(), 10000, 100);
        set_text(part, "cublasLt", text);
    }
    size_t (*dnn)(void) = (size_t(*)(void))loaded("libcudnn.so.9", "cudnnGetVersion");
    if (dnn) version_text(text, (long)dnn(), 10000, 100), set_text(part, "cudnn", text);
    int (*nccl)(int *) = (int (*)(int *))loaded("libnccl.so.2", "ncclGetVersion");
    if (nccl && nccl(&version) == 0) version_text(text, version, 10000, 100), set_text(part, "nccl", text);
    int (*cuda)(int *) = (int (*)(int *))loaded("libcuda.so.1", "cuDriverGetVersion");
    if (cuda && cuda(&version) == 0) {
        snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
        set_text(part, "cuda_driver", text);
    }
    int (*mpi)(char *, int *) = (int (*)(char *, int *))loaded("libmpi.so.40", "MPI_Get_library_version");
    if (mpi && mpi(long_text, &length) == 0) {
        long_text[strcspn(long_text, ",\n")] = 0;
        set_text(part, "mpi", long_text);
    }
    set_some(o, "libraries", part);
}

/* ---- GPUs */

static json_t *gpu_object(const struct hostfs *fs, const struct nvml_card *c)
{
    json_t *o = json_object();
    char address[32], path[128];
    set_text(o, "name", c->name);
    set_text(o, "uuid", c->uuid);
    set_text(o, "pci", c->pci);
    set_text(o, "vbios", c->vbios);
    set_number(o, "memory_bytes", c->memory_total);
    set_number(o, "limit_watts", c->limit_watts);
    set_number(o, "default_watts", c->default_watts);
    set_number(o, "max_sm_mhz", c->sm_max_mhz);
    set_number(o, "pcie_lanes", c->pcie_width);
    set_number(o, "pcie_gen_max", c->pcie_gen_max);
    set_number(o, "nvlinks", c->links_active);
    set_number(o, "ecc", c->ecc_on);
    set_number(o, "mig", c->mig);
    const char *from =
        strlen(c->pci) > 12 ? c->pci + strlen(c->pci) - 12 : c->pci; /* the kernel's domain has 4 digits */
    snprintf(address, sizeof address, "%s", from);
    for (char *p = address; *p; p++) *p = (char)tolower((unsigned char)*p);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", address);
    set_file(o, "numa_node", fs, path);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/local_cpulist", address);
    set_file(o, "near_cores", fs, path);
    return o;
}

static void set_gpus(json_t *o, const struct hostfs *fs)
{
    struct nvml *n;
    struct nvml_card c;
    char driver[96];
    if (nvml_open(&n, NULL) != STATUS_OK) return; /* no driver: no such entries */
    json_t *list = json_array();
    set_text(o, "driver", nvml_driver(n, driver));
    if (nvml_cuda(n)) set_number(o, "driver_cuda", nvml_cuda(n) / 10 / 100.0);
    for (int i = 0; i < nvml_count(n); i++) {
        nvml_read(n, i, &c);
        json_array_append_new(list, gpu_object(fs, &c));
    }
    set_some(o, "gpus", list);
    nvml_close(n);
}

json_t *env_host(void)
{
    const struct hostfs fs = hostfs_here();
    json_t *o = json_object();
    set_file(o, "kernel", &fs, "/proc/sys/kernel/osrelease");
    set_file(o, "boot", &fs, "/proc/sys/kernel/random/boot_id");
    set_file(o, "kernel_command", &fs, "/proc/cmdline");
    set_file(o, "container", &fs, "/run/systemd/container");
    set_limits(o);
    set_cgroup(o, &fs);
    set_nodes(o, &fs);
    set_network(o, &fs);
    set_libraries(o);
    set_gpus(o, &fs);
    return o;
}
