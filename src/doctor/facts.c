/* What the checks read: files of /proc and /sys, NVML, and numbers that only system calls give. */
#include "base/clock.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/process.h"
#include "base/text.h"
#include "doctor/doctor_int.h"

#include <dlfcn.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

extern char **environ;

static double limit_of(int resource)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0) return NAN;
    return limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur;
}

/* The version of NCCL, or -1 for a library without such a call; 0: it is not there. */
static double nccl_version(void)
{
    int version = -1;
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) return 0;
    int (*get)(int *) = (int (*)(int *))dlsym(library, "ncclGetVersion");
    if (get == NULL || get(&version) != 0) version = -1;
    dlclose(library);
    return version;
}

static bool library_is_there(const char *name)
{
    void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (library) dlclose(library);
    return library != NULL;
}

/* The kernel's bound of the clock's error: what a time service keeps small. Without one it grows until the clock
 * counts as not synchronised. */
static double clock_error(void)
{
    struct timex t = {0};
    const int state = adjtimex(&t);
    if (state < 0) return NAN;
    return state == TIME_ERROR || (t.status & STA_UNSYNC) ? INFINITY : 1e-6 * (double)t.maxerror;
}

static void system_read(struct doctor *d)
{
    struct system_values *s = &d->system;
    struct statvfs fs;
    cpu_set_t cpus;
    s->now_s = clock_wall_s();
    s->memlock = limit_of(RLIMIT_MEMLOCK);
    s->nofile = limit_of(RLIMIT_NOFILE);
    s->cores = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? (double)CPU_COUNT(&cpus) : (double)NAN;
    s->shm_bytes = statvfs("/dev/shm", &fs) == 0 ? (double)fs.f_blocks * (double)fs.f_frsize : 0;
    s->disk_bytes = s->disk_inodes = NAN;
    if (statvfs(d->storage, &fs) == 0) {
        s->disk_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
        if (fs.f_files > 0) s->disk_inodes = (double)fs.f_favail;
    }
    s->clock_error_s = clock_error();
    s->nccl = INGOT_CUDA && d->cards > 0 ? nccl_version() : (double)NAN;
    s->cufile = library_is_there("libcufile.so.0");
}

static void cards_read(struct doctor *d)
{
    if (d->nvml == NULL) return;
    const int count = nvml_count(d->nvml);
    d->cards = count < 0 ? 0 : count > CARDS_MAX ? CARDS_MAX : count;
    nvml_driver(d->nvml, d->driver);
    for (int i = 0; i < d->cards; i++) nvml_read(d->nvml, i, &d->card[i]);
}

/* ---- a made-up host */

static bool system_set(struct doctor *d, const char *name, double value)
{
#define X(member)                                                                                            \
    if (strcmp(name, #member) == 0) return d->system.member = value, true;
    SYSTEM_VALUES(X)
#undef X
    return false;
}

static bool rate_set(json_t *rates, const char *name, double value)
{
    json_array_append_new(rates, json_pack("{s:s, s:s, s:f, s:s}", "what", name, "entity", "made-up", "value",
                                           value, "unit", "MB/s"));
    return true;
}

/* The rate, in bytes/s, of messages of rank `name` to the next one. */
static bool message_set(struct doctor *d, const char *name, double value)
{
    int64_t rank;
    if (!text_to_int(name, &rank) || rank < 0 || rank >= MADE_UP_RANKS) return false;
    d->message_rate[rank] = value;
    if (rank >= d->messages) d->messages = (int)rank + 1;
    return d->net = true;
}

/* "KIND NAME=VALUE". before: a counter at the last look, a minute ago. rate: what was measured now; baseline: what is
 * stored of it. */
static status script_value(struct doctor *d, char *line)
{
    char *equals = strchr(line, '='), *name = line + strcspn(line, " ");
    if (equals && equals > name + 1) {
        *equals = *name++ = 0;
        const double value = strtod(equals + 1, NULL);
        const bool known =
            strcmp(line, "before") == 0     ? !json_object_set_new(d->before, name, json_real(value))
            : strcmp(line, "rate") == 0     ? rate_set(d->rates, name, value)
            : strcmp(line, "baseline") == 0 ? rate_set(json_object_get(d->baseline, "rates"), name, value)
            : strcmp(line, "message") == 0  ? message_set(d, name, value)
                                            : system_set(d, name, value);
        if (known) return STATUS_OK;
        *(name - 1) = ' ', *equals = '=';
    }
    return FAIL(STATUS_CONFIG, "the script of a made-up host: '%s' is not known", line);
}

static bool is_value(const char *line)
{
    static const char *const kinds[] = {"system ", "before ", "rate ", "baseline ", "message "};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strncmp(line, kinds[i], strlen(kinds[i])) == 0) return true;
    return false;
}

/* A line that begins with "/" is a file; values: above; "no driver" removes NVML; the rest is NVML's. */
static status script_read(struct doctor *d, const char *script)
{
    char *files, *gpus, line[1024];
    size_t bytes[2];
    bool driver = true;
    status st = STATUS_OK;
    FILE *to_files = memory_stream(&files, &bytes[0]), *to_gpus = memory_stream(&gpus, &bytes[1]);
    d->before = json_object();
    d->baseline = json_pack("{s:[]}", "rates");
    d->before_s = d->system.now_s - 60;
    while (*script && st == STATUS_OK) {
        const size_t n = strcspn(script, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, script);
        script += n + (script[n] == '\n');
        if (line[0] == '/')
            fprintf(to_files, "%s\n", line);
        else if (is_value(line))
            st = script_value(d, line);
        else if (strcmp(line, "no driver") == 0)
            driver = false;
        else
            fprintf(to_gpus, "%s\n", line);
    }
    memory_stream_close(to_files);
    memory_stream_close(to_gpus);
    if (json_array_size(json_object_get(d->baseline, "rates")) == 0)
        json_decref(d->baseline), d->baseline = NULL;
    d->fs.text = files;
    if (st == STATUS_OK && driver && nvml_open_script(&d->nvml, gpus, &d->nvml_code) != STATUS_OK) {
        snprintf(d->nvml_why, sizeof d->nvml_why, "%s", status_message());
        if (d->nvml_code == 0) st = STATUS_CONFIG; /* the script is wrong */
    }
    free(gpus);
    return st;
}

static status made_up_read(struct doctor *d, const char *script)
{
#define X(name) d->system.name = NAN;
    SYSTEM_VALUES(X)
#undef X
    d->system.now_s = 1.8e9;
    snprintf(d->host, sizeof d->host, "made-up");
    TRY(script_read(d, script));
    cards_read(d);
    return STATUS_OK;
}

status doctor_file_read(const char *path, json_t **out)
{
    char *text;
    size_t bytes;
    json_error_t why;
    TRY(io_read_file(path, 16 << 20, &text, &bytes));
    json_t *o = *out = json_loadb(text, bytes, 0, &why);
    free(text);
    if (o == NULL) return FAIL(STATUS_DATA, "%s: line %d: %s", path, why.line, why.text);
    const char *schema = json_string_value(json_object_get(o, "schema"));
    if (schema && strcmp(schema, "ingot.doctor/1") == 0 && json_is_array(json_object_get(o, "checks")) &&
        json_is_array(json_object_get(o, "rates")))
        return STATUS_OK;
    json_decref(o);
    *out = NULL;
    return FAIL(STATUS_DATA, "%s: no output of `ingot doctor --json`", path);
}

status facts_read(struct doctor *d, const struct doctor_how *how)
{
    d->level = how->level;
    d->alone = how->alone;
    d->comm = how->comm;
    d->spec = how->spec;
    d->net = how->net;
    d->within = how->within;
    if (how->baseline) TRY(doctor_file_read(how->baseline, &d->baseline));
    d->counters = json_object();
    d->rates = json_array();
    d->before_s = NAN;
    snprintf(d->storage, sizeof d->storage, "%s", how->storage ? how->storage : ".");
    if (how->script) return made_up_read(d, how->script);
    d->fs = hostfs_here();
    gethostname(d->host, sizeof d->host - 1);
    bool there = true;
    if (how->storage) TRY(io_exists(how->storage, &there));
    if (!there) return FAIL(STATUS_CONFIG, "--storage %s: there is no such directory", how->storage);
    const status st = nvml_open(&d->nvml, &d->nvml_code);
    if (st != STATUS_OK && st != STATUS_DEVICE) return st; /* INGOT_NVML_SCRIPT is wrong */
    if (st != STATUS_OK) snprintf(d->nvml_why, sizeof d->nvml_why, "%s", status_message());
    cards_read(d);
    system_read(d);
    return how->fresh ? STATUS_OK : history_open(d, how->state);
}

const char *env_of(const struct doctor *d, const char *name, char *text, size_t bytes)
{
    char all[4096];
    if (d->fs.text == NULL) return getenv(name);
    if (!hostfs_read(&d->fs, all, sizeof all, "/proc/self/environ")) return NULL;
    const size_t n = strlen(name);
    for (const char *line = all; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) != 0 || line[n] != '=') continue;
        snprintf(text, bytes, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
        return text;
    }
    return NULL;
}

bool tool_read(const struct doctor *d, const char *const argv[], char *out, size_t bytes)
{
    char line[256] = "";
    for (int i = 0; argv[i]; i++) {
        const size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, i ? " %s" : "/tools/%s", argv[i]);
    }
    if (!hostfs_is_real(&d->fs)) return hostfs_read(&d->fs, out, bytes, "%s", line);
    return process_read(argv, 2, out, bytes) == STATUS_OK;
}
