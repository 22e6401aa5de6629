#include "observe/env.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/process.h"
#include "base/text.h"
#include "observe/env_host.h"
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

const char *env_processor(char buf[256])
{
    char line[512] = "";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0) break;
    if (f) fclose(f);
    char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
    buf[0] = 0;
    if (value == NULL) return buf;
    value[strcspn(value, "\n")] = 0;
    snprintf(buf, 256, "%s", value + 1 + strspn(value + 1, " "));
    return buf;
}

static void set_processor(json_t *o)
{
    char name[256];
    set_text(o, "processor", env_processor(name));
}

/* The command line of this process, to be pasted into a shell. */
static void set_command(json_t *o)
{
    char words[1 << 15], *text = NULL;
    size_t bytes = 0;
    FILE *f = fopen("/proc/self/cmdline", "re");
    size_t n = f ? fread(words, 1, sizeof words - 1, f) : 0;
    if (f) fclose(f);
    words[n] = 0;
    FILE *out = memory_stream(&text, &bytes);
    for (const char *w = words; w < words + n; w += strlen(w) + 1) {
        char *word = text_shell_word(w);
        MEMORY_CHECK(word != NULL, "no memory to quote a word");
        fprintf(out, "%s%s", w > words ? " " : "", word);
        free(word);
    }
    memory_stream_close(out);
    set_text(o, "command", text);
    free(text);
}

/* Commit, branch, and whether files that git knows were changed. Asked of git itself: whether a tree is dirty is a
 * question of its index. */
static void set_worktree(json_t *o, const char *run_dir)
{
    enum { COMMIT = 64, BRANCH = 256 };
    static const char oid[] = "# branch.oid ", head[] = "# branch.head ";
    const char *const argv[] = {"git",      "--no-optional-locks",  "-C",     run_dir,
                                "-c",       "core.fsmonitor=false", "status", "--porcelain=v2",
                                "--branch", "--untracked-files=no", NULL};
    char text[4096], commit[COMMIT + 1] = "", branch[BRANCH + 1] = "";
    bool dirty = false;
    if (process_read(argv, 2, text, sizeof text) != STATUS_OK) return;
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        if (strncmp(line, oid, sizeof oid - 1) == 0)
            snprintf(commit, sizeof commit, "%s", line + sizeof oid - 1);
        else if (strncmp(line, head, sizeof head - 1) == 0)
            snprintf(branch, sizeof branch, "%s", line + sizeof head - 1);
        else if (line[0] != '#')
            dirty = true;
    }
    json_t *tree = json_object();
    set_text(tree, "commit", commit);
    set_text(tree, "branch", branch);
    json_object_set_new(tree, "dirty", json_boolean(dirty));
    json_object_set_new(o, "worktree", tree);
}

/* Command and start of the process that began the run, from the file that is about to be replaced. */
static void set_first(json_t *o, const char *run_dir)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/env.json", run_dir);
    enum io_kind kind;
    if (io_kind(path, &kind) != STATUS_OK || kind != IO_FILE) return;
    json_t *old = json_load_file(path, 0, NULL), *first = json_object_get(old, "first");
    json_t *from = json_is_object(first) ? first : old, *kept = json_object();
    static const char *const keys[] = {"command", "start"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_string_value(json_object_get(from, keys[i])))
            set_text(kept, keys[i], json_string_value(json_object_get(from, keys[i])));
    if (json_object_size(kept) > 0)
        json_object_set_new(o, "first", kept);
    else
        json_decref(kept);
    json_decref(old);
}

/* What the run learns from. */
static void set_data(json_t *o, const struct env_run *run)
{
    json_t *data = json_object(), *sources = json_array();
    for (int i = 0; i < run->source_count; i++) {
        const struct env_source *from = &run->sources[i];
        json_t *source = json_object();
        set_text(source, "name", from->name);
        set_text(source, "path", from->path);
        set_int(source, "tokens", from->tokens);
        json_object_set_new(source, "share", json_real(from->share));
        set_text(source, "sha256",
                 json_string_value(json_object_get(
                     json_array_get(json_object_get(run->data, "train"), (size_t)i), "sha256")));
        json_array_append_new(sources, source);
    }
    json_object_set_new(data, "train", sources);
    set_text(data, "val", run->val);
    set_int(data, "val_tokens", run->val_tokens);
    set_text(data, "tokenizer", run->tokenizer);
    set_text(data, "tokenizer_sha256", run->tokenizer_sha256);
    set_int(data, "vocab_size", run->vocab_size);
    json_object_set(data, "changes", json_object_get(run->data, "changes"));
    json_object_set_new(o, "data", data);
}

/* Variables that change how ingot and the libraries below it compute. A list of names, and no pattern: a user's other variables may be
 * secrets. */
static const char *const settings_kept[] = {
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_SCHEDULE",
    "OMP_DYNAMIC",
    "OMP_STACKSIZE",
    "OMP_THREAD_LIMIT",
    "GOMP_SPINCOUNT",
    "GOMP_CPU_AFFINITY",
    "GOMP_STACKSIZE",
    "DNNL_VERBOSE",
    "DNNL_MAX_CPU_ISA",
    "DNNL_DEFAULT_FPMATH_MODE",
    "ONEDNN_VERBOSE",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NVLS_ENABLE",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_CROSS_NIC",
    "NCCL_TOPO_FILE",
    "NCCL_DEBUG",
    "INGOT_LOG",
    "INGOT_RENDEZVOUS_S",
};

static void set_settings(json_t *o)
{
    json_t *settings = json_object();
    for (size_t i = 0; i < sizeof settings_kept / sizeof settings_kept[0]; i++)
        set_text(settings, settings_kept[i], getenv(settings_kept[i]));
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
    MEMORY_CHECK(text != NULL, "no memory to print %s", name);
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
    MEMORY_CHECK(o != NULL, "no memory for the description of a run");
    char text[256] = "";
    set_text(o, "ingot", INGOT_VERSION);
    set_text(o, "git", INGOT_GIT);
    gethostname(text, sizeof text - 1);
    set_text(o, "host", text);
    set_text(o, "device", run->device);
    set_text(o, "isa", run->isa);
    set_text(o, "precision", run->precision);
    set_int(o, "threads", run->threads);
    set_int(o, "ranks", run->ranks);
    set_int(o, "parameters", run->parameters);
    set_processor(o);
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) set_int(o, "cores", CPU_COUNT(&cpus));
    set_int(o, "memory_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    set_onednn(o);
    json_object_set_new(o, "system", env_host());
    set_settings(o);
    set_command(o);
    set_start(o);
    if (run->resumed) set_first(o, run_dir);
    set_worktree(o, run_dir);
    if (run->source_count > 0) set_data(o, run);
    char path[1024];
    snprintf(path, sizeof path, "%s/exit.json", run_dir);
    unlink(path);
    return write_object(run_dir, "env.json", o);
}

status env_write_exit(const char *run_dir, int code, const char *reason, int64_t step)
{
    json_t *o = json_object();
    MEMORY_CHECK(o != NULL, "no memory for the description of a run");
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
