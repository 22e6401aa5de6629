#include "observe/env.h"
#include "base/io.h"
#include "observe/observe_int.h"

#if INGOT_ONEDNN
#include <dnnl.h>
#endif
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef INGOT_GIT
#define INGOT_GIT ""
#endif

static void set_text(json_t *o, const char *key, const char *text)
{
    if (text == NULL || text[0] == 0) return;
    char *clean = utf8_clean(text, strlen(text));
    json_object_set_new(o, key, json_string(clean));
    free(clean);
}
static void set_int(json_t *o, const char *key, int64_t v)
{
    if (v > 0) json_object_set_new(o, key, json_integer(v));
}

static void set_processor(json_t *o)
{
    char line[512] = "";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0) break;
    if (f) fclose(f);
    char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
    if (value == NULL) return;
    value[strcspn(value, "\n")] = 0;
    set_text(o, "processor", value + 1 + strspn(value + 1, " "));
}

/* The words of this process's command line, joined by blanks. */
static void set_command(json_t *o)
{
    char text[4096];
    FILE *f = fopen("/proc/self/cmdline", "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (text[i] == 0) text[i] = ' ';
    set_text(o, "command", text);
}

/* Settings that change how the libraries below ingot compute. */
static void set_settings(json_t *o)
{
    static const char *const prefixes[] = {"OMP_", "GOMP_", "DNNL_", "ONEDNN_", "CUDA_VISIBLE", "NCCL_"};
    json_t *settings = json_object();
    for (char **e = environ; *e; e++)
        for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
            char name[128];
            const char *equals = strchr(*e, '=');
            if (equals == NULL || strncmp(*e, prefixes[i], strlen(prefixes[i])) != 0) continue;
            snprintf(name, sizeof name, "%.*s", (int)(equals - *e), *e);
            set_text(settings, name, equals + 1);
        }
    json_object_set_new(o, "settings", settings);
}

static void set_start(json_t *o)
{
    time_t now = time(NULL);
    struct tm tm;
    char stamp[32];
    gmtime_r(&now, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &tm);
    set_text(o, "start", stamp);
}

/* Writes the object to RUN_DIR/NAME, and frees it. */
static status write_object(const char *run_dir, const char *name, json_t *o)
{
    char path[1024];
    char *text = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    CHECK(text != NULL, "%s could not be printed", name);
    snprintf(path, sizeof path, "%s/%s", run_dir, name);
    size_t n = strlen(text);
    text[n] = '\n'; /* over the terminating zero */
    status st = io_write_file(path, text, n + 1);
    free(text);
    return st;
}

/* The peer of `ingot bench gemm`. */
static void set_onednn(json_t *o)
{
#if INGOT_ONEDNN
    char text[64];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
    set_text(o, "onednn", text);
#else
    set_text(o, "onednn", "not built in");
#endif
}

status env_write(const char *run_dir, const struct env_run *run)
{
    json_t *o = json_object();
    CHECK(o != NULL, "out of memory");
    char text[256] = "";
    set_text(o, "ingot", INGOT_VERSION);
    set_text(o, "git", INGOT_GIT);
    gethostname(text, sizeof text - 1);
    set_text(o, "host", text);
    set_text(o, "device", run->device);
    set_text(o, "isa", run->isa);
    set_text(o, "precision", run->precision);
    set_int(o, "threads", run->threads);
    set_int(o, "parameters", run->parameters);
    set_processor(o);
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) set_int(o, "cores", CPU_COUNT(&cpus));
    set_int(o, "memory_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    set_onednn(o);
    set_settings(o);
    set_command(o);
    set_start(o);
    char path[1024];
    snprintf(path, sizeof path, "%s/exit.json", run_dir);
    unlink(path);
    return write_object(run_dir, "env.json", o);
}

status env_write_exit(const char *run_dir, int code, const char *reason, int64_t step)
{
    json_t *o = json_object();
    CHECK(o != NULL, "out of memory");
    json_object_set_new(o, "code", json_integer(code));
    set_text(o, "status", status_text((status)code));
    set_text(o, "reason", reason);
    json_object_set_new(o, "step", json_integer(step));
    return write_object(run_dir, "exit.json", o);
}

const char *env_git(void)
{
    return INGOT_GIT;
}
