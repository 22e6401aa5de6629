/* explain: recorded failures of runs, each a directory of records and the host's files, and the sentence that tells
 * each. Runs without trouble give no wrong word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "observe/explain.h"
#include "temp.h"

#include <math.h>
#include <stdbool.h>
#include <sys/stat.h>

#define BEGIN 1.8e9 /* 2027-01-15 08:00:00 UTC */
#define HOST                                                                                                 \
    "/proc/sys/kernel/hostname = node07\n/proc/sys/kernel/random/boot_id = b00t-1\n/proc/uptime = 90000 1\n"

/* A run of 300 steps of 0.5 s that goes wrong. NULL, 0: as in a run without trouble. */
struct recorded {
    const char *cause, *says; /* expected: name, and words of the sentence */
    int code;                 /* exit.json's; -1: there is none */
    const char *reason;
    const char *log;               /* last line of log.txt */
    const char *flight;            /* comm-flight.txt */
    const char *bug;               /* bug.txt */
    const char *host;              /* further lines of the host's files */
    const char *xid;               /* a line of gpu-node07.jsonl */
    double memory_free, disk_free; /* of the host's last record */
    const char *ckpt;              /* a directory in ckpt/ */
    bool locked, no_steps, diverged, away;
    double quiet_s; /* since the last record */
};

static const struct recorded table[] = {
    {"finished", "is finished", 0, .reason = "finished"},
    {"finished_unsound", "did not learn to its end", 0, .reason = "finished", .diverged = true},
    {"interrupt", "Ctrl-C", 75,
     .reason = "SIGINT: saved at step 300 of 1000; the same command with --resume resumes it"},
    {"terminate", "SIGTERM", 75, .reason = "SIGTERM: saved at step 300 of 1000; the same command resumes it"},
    {"user_signal", "user's signal", 75,
     .reason = "SIGUSR1: saved at step 300 of 1000; the same command resumes it"},
    {"time_limit", "train.max_minutes", 75, .reason = "train.max_minutes: saved at step 300 of 1000"},
    {"spike_stop", "jumped", 6, .reason = "the loss of step 300 is 9, z 20: a spike (train.on_spike=stop)"},
    {"nan_loss", "the loss was not finite", 6,
     .reason = "the loss of step 301 is not finite; there is no sound checkpoint"},
    {"nan_gradient", "a gradient was not finite", 6,
     .reason = "the gradient of layers.0.w is not finite in step 301"},
    {"nan_validation", "validation loss", 6,
     .reason = "the validation loss after step 300 is not finite: training diverged"},
    {"nan_fp8", "FP8", 6,
     .reason =
         "an input or a gradient of a GEMM is not finite in step 3, which FP8 codes hide from the loss"},
    {"nan_state", "when it saved", 6,
     .reason = "m/w is not finite after step 300: training diverged, and this is not saved"},
    {"disk_full", "disk, or the quota, was full", 74,
     .reason = "cannot write 'ckpt/x': No space left on device; free space there"},
    {"disk_full", "disk, or the quota, was full", 74,
     .reason = "cannot write 'ckpt/x': Disk quota exceeded; free space"},
    {"read_only", "read-only", 74,
     .reason = "cannot create 'ckpt/x': Read-only file system; the file system is mounted"},
    {"permission", "may not write", 74,
     .reason = "cannot create 'ckpt/x': Permission denied; check owner and permissions"},
    {"disk_error", "disk reported an error", 74,
     .reason = "cannot read 'a.bin': Input/output error; the device reports an error"},
    {"stale", "stale handle", 74,
     .reason = "cannot read 'a.bin': Stale file handle; see the reason and try again"},
    {"memory_plan", "does not fit in memory", 5, .reason = "the run needs 80 GiB, 64 GiB are free"},
    {"memory_refused", "refused it memory", 5, .reason = "no memory for the description of a run"},
    {"data_changed", "not those that it began with", 3,
     .reason = "these shards have changed since the checkpoint"},
    {"data_damaged", "bytes have changed", 3,
     .reason = "a.bin: block 7 of the ids is not what its manifest says"},
    {"data_missing", "not found", 3, .reason = "no shard matches 'data/*.bin'"},
    {"checkpoint", "checkpoint could not be read", 4,
     .reason = "ckpt/step-00000300: not a checkpoint of this model"},
    {"config", "configuration was refused", 2, .reason = "model.head_count: 3 does not divide 32"},
    {"bug", "ingot itself", 70, .reason = "the layout differs"},
    {"peer_killed", "killed from outside", 10,
     .reason = "rank 1 was ended by signal 9 (Killed); seen in all-reduce"},
    {"peer_oom", "ran out of memory", 10, .reason = "rank 1 was ended by signal 9 (Killed)",
     .host = "/dev/kmsg = 3,1,89999000000,-;Out of memory: Killed process 812 (ingot) total-vm:9kB\n"},
    {"peer_crashed", "a rank crashed", 10, .reason = "rank 2 was ended by signal 11 (Segmentation fault)"},
    {"peer_stopped", "stood still", 10,
     .reason = "rank 1 (process 812) was stopped by a signal and stood still"},
    {"peer_silent", "no more sign of life", 10,
     .reason = "rank 1 (process 812) gives no sign of life: stopped or dead"},
    {"peer_nan", "not finite", 10,
     .reason = "rank 1 failed: the loss of step 7 is not finite; seen in barrier"},
    {"corrupt", "wrong bits", 14,
     .reason = "silent data corruption: rank 1 (host node07) computed the gradient of embed.weight wrongly"},
    {"corrupt", "wrong bits", 10, .reason = "rank 1 ended with exit code 14 (silent data corruption)"},
    {"peer_disk", "could not read or write", 10, .reason = "rank 1 ended with exit code 74 (file system)"},
    {"peer_differs", "different things", 10,
     .reason = "the ranks do different things: rank 0 sends 'x' of 8 bytes"},
    {"peer_absent", "did not come", 10, .reason = "rank 3 did not come within 60 seconds"},
    {"deadlock", "waited for each other", 10, .reason = "the ranks wait for each other: rank 0 in barrier"},
    {"launcher_gone", "whoever started", 10, .reason = "whoever started the ranks is gone; seen in barrier"},
    {"network", "network", 10, .reason = "NCCL, all-reduce: unhandled system error (x)"},
    {"gpu_xid", "Xid 79 on gpu2 of node07: the GPU has fallen off the bus", 11,
     .reason = "CUDA: unspecified launch failure",
     .xid = "{\"kind\":\"xid\",\"time\":1800000149.0,\"gpu\":2,\"xid\":79}"},
    {"gpu_xid", "Xid 94", 10, .reason = "rank 1 gives no sign of life: stopped or dead",
     .xid = "{\"kind\":\"xid\",\"time\":1800000149.0,\"gpu\":1,\"xid\":94}"},
    {"gpu_memory", "no memory left", 11, .reason = "CUDA: out of memory in cudaMalloc"},
    {"gpu_absent", "no GPU", 11, .reason = "machine.device=cuda: no GPU is visible"},
    {"gpu", "failed", 11, .reason = "CUDA: an illegal instruction was encountered"},
    /* without a word */
    {"killed", "kill -9", .code = -1},
    {"killed", "while a checkpoint was written", .code = -1, .ckpt = ".tmp-00000300-4711"},
    {"killed", "before its first step", .code = -1, .no_steps = true},
    {"oom_killer", "out-of-memory killer", .code = -1,
     .host = "/dev/kmsg = 3,1,89999000000,-;Out of memory: Killed process 4711 (ingot) total-vm:9kB\n"},
    {"oom_cgroup", "memory limit of its container", .code = -1,
     .host = "/sys/fs/cgroup/memory.events = oom 3\\noom_kill 3\n"},
    {"oom_likely", "most likely by the out-of-memory killer", .code = -1, .memory_free = 2e8},
    {"crashed", "it crashed", .code = -1,
     .host = "/dev/kmsg = 6,1,89999000000,-;ingot[4711]: segfault at 8 ip 0000 sp 0000 error 4 in ingot\n"},
    {"host_restarted", "its host went down", .code = -1,
     .host = "/proc/sys/kernel/random/boot_id = b00t-2\n"},
    {"interrupt_twice", "second Ctrl-C", .code = -1,
     .log = "SIGINT: finishing step 301, then saving; again to stop now without saving"},
    {"grace_over", "too short", .code = -1, .log = "SIGTERM: finishing step 301, about 40s, then saving"},
    {"disk_full_likely", "disk of the run is full", .code = -1, .disk_free = 4096},
    {"killed_elsewhere", "another host", .code = -1, .away = true, .quiet_s = 9000},
    {"peer_crashed", "a rank crashed", .code = -1,
     .flight = "# rank 0 was ended by signal 11 (Segmentation fault)\n"},
    {"check",
     "the program is wrong there, not the data or the host: 3 rows of 4: check n == rows at gemm.c:12 in "
     "train.step, rank 0",
     .code = -1,
     .bug = "2027-01-15T07:00:00Z\trank 0\tprocess 11\told.c:1\told\tof the part before\n"
            "2027-01-15T08:02:30Z\trank 0\tprocess 4711\tgemm.c:12 in train.step\tn == rows\t3 rows of 4\n"
            "2027-01-15T08:02:31Z\trank 1\ttorn"},
    {"check", "rank 1 (rank 1 was ended by signal 6", 10,
     .reason = "rank 1 was ended by signal 6 (Aborted); seen in collective 61",
     .bug = "2027-01-15T08:02:30Z\trank 1\tprocess 4712\tgemm.c:12\tn == rows\t3 rows of 4\n"},
    /* now */
    {"running", "runs, step 300 of 1000: nothing needs a look", .code = -1, .locked = true},
    {"preparing", "first step", .code = -1, .locked = true, .no_steps = true},
    {"running_away", "on another host", .code = -1, .away = true},
    {"stalled", "stands still", .code = -1, .locked = true, .quiet_s = 200,
     .host = "/proc/4711/stat = 4711 (ingot) S 1 1\n"},
    {"frozen", "stopped by a signal", .code = -1, .locked = true, .quiet_s = 200,
     .host = "/proc/4711/stat = 4711 (ingot) T 1 1\n"},
    {"waits_disk", "waits for the file system", .code = -1, .locked = true, .quiet_s = 200,
     .host = "/proc/4711/stat = 4711 (a) b) D 1 1\n"},
    {"waits_space", "waits for space on the disk", .code = -1, .locked = true, .quiet_s = 200,
     .log = "the disk is full: checkpoint 300 needs 4 GiB, 1 GiB are free in 'ckpt'; it is saved when there "
            "is space "
            "(or end the run, or take ckpt.on_full=stop)\n2027-01-15T08:03:30Z info saving: since 1m00s"},
    {"stalled", "stands still", .code = -1, .locked = true, .quiet_s = 200,
     .log = "the disk is full: it is saved when there is space\n2027-01-15T08:03:30Z info checkpoint of step "
            "300: 4 GiB in 9 s"},
    {"spike_lasts", "stays high", .code = -1, .locked = true, .diverged = true},
    {"slow_gpu", "a GPU runs below its speed", .code = -1, .locked = true,
     .xid = "{\"kind\":\"gpu\",\"time\":1800000149.0,\"gpu\":2,\"uuid\":\"GPU-2\",\"hw_thermal_s\":9}"},
};

static void put_file(const char *name, const char *text)
{
    temp_write(temp_path(name), text, strlen(text));
}

static void write_metrics(const struct recorded *r)
{
    FILE *f = fopen(temp_path("metrics.jsonl"), "we");
    assert_non_null(f);
    fprintf(f, "{\"kind\":\"schema\",\"format\":\"ingot metrics\",\"version\":1}\n"
               "{\"kind\":\"start\",\"step\":0,\"time\":1800000000.0}\n");
    for (int i = 1; i <= 300 && !r->no_steps; i++)
        fprintf(f,
                "{\"kind\":\"step\",\"step\":%d,\"tokens\":%d,\"time\":%.3f,\"loss\":%.4f,\"grad_norm\":0.5,"
                "\"step_s\":0.5,\"tokens_per_s\":16384,\"rss_bytes\":1e9}\n",
                i, i * 8192, BEGIN + 0.5 * i, 3 + 0.01 * (i % 7) + (r->diverged && i > 250 ? 4 : 0));
    fclose(f);
}

static void write_host(const struct recorded *r)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"kind\":\"schema\",\"format\":\"ingot host\",\"version\":1}\n%s\n"
             "{\"kind\":\"host\",\"time\":%.3f,\"cpu_percent\":9,\"load\":1,\"memory_available\":%.0f,\"disk_"
             "free\":%.0f}\n",
             r->xid ? r->xid : "", BEGIN + 149, r->memory_free > 0 ? r->memory_free : 3e10,
             r->disk_free > 0 ? r->disk_free : 5e11);
    put_file("gpu-node07.jsonl", text);
}

static void write_run(const struct recorded *r)
{
    char text[1400];
    temp_clear();
    write_metrics(r);
    write_host(r);
    put_file("config.yaml", "train:\n  steps: 1000\noptim:\n  warmup_steps: 10\n");
    put_file("env.json",
             "{\"host\": \"node07\", \"start\": \"2027-01-15T08:00:00Z\", \"memory_bytes\": 64000000000, "
             "\"system\": "
             "{\"boot\": \"b00t-1\", \"cgroup\": {\"memory_events\": \"oom 0\\noom_kill 0\"}}}\n");
    put_file("lock", "process 4711 on node07\n");
    snprintf(text, sizeof text, "2027-01-15T08:02:30Z info %s\n", r->log ? r->log : "saved step 300");
    put_file("log.txt", text);
    if (r->flight) put_file("comm-flight.txt", r->flight);
    if (r->bug) put_file("bug.txt", r->bug);
    snprintf(text, sizeof text, "{\"code\": %d, \"reason\": \"%s\", \"step\": 300}\n", r->code,
             r->reason ? r->reason : "");
    if (r->code >= 0) put_file("exit.json", text);
    snprintf(text, sizeof text, "%s/ckpt/%s", temp_dir, r->ckpt ? r->ckpt : "step-00000300");
    assert_int_equal(io_make_dirs(text), STATUS_OK);
}

static void explain(struct explanation *e, const struct recorded *r)
{
    char host[2048];
    write_run(r);
    snprintf(host, sizeof host, "%s%s%s", HOST, r->host ? r->host : "",
             r->away ? "/proc/sys/kernel/hostname = node08\n" : "");
    const struct hostfs fs = {.root = "", .text = host};
    const int fd = open(temp_path("lock"), O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_WRLCK};
    assert_true(fd >= 0 && (!r->locked || fcntl(fd, F_OFD_SETLK, &lock) == 0));
    assert_int_equal(explain_run(e, temp_dir, BEGIN + 151 + r->quiet_s, &fs), STATUS_OK);
    close(fd);
}

static void each_failure_has_its_sentence(void **state)
{
    (void)state;
    struct explanation e;
    int wrong = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        explain(&e, &table[i]);
        const bool right = strcmp(e.cause, table[i].cause) == 0 && strstr(e.sentence, table[i].says) &&
                           e.todo[0] && !strstr(e.todo, "%RUN") && e.evidence_count > 0;
        if (!right) print_error("row %zu: %s, not %s\n  %s\n", i, e.cause, table[i].cause, e.sentence);
        wrong += !right;
    }
    assert_int_equal(wrong, 0);
    assert_true(sizeof table / sizeof table[0] >= 40);
}

/* A kill of another program, of one before the run, and crashes of another process or before the last record are no
 * evidence. */
static void others_are_not_blamed(void **state)
{
    (void)state;
    static const char *const hosts[] = {
        "/dev/kmsg = 3,1,89999000000,-;Out of memory: Killed process 99 (python3) total-vm:9kB\n",
        "/dev/kmsg = 3,1,40000000000,-;Out of memory: Killed process 4711 (ingot) total-vm:9kB\n",
        "/dev/kmsg = 6,1,89999000000,-;bash[99]: segfault at 8 ip 0000 sp 0000 error 4 in bash\n",
        "/dev/kmsg = 6,1,89900000000,-;ingot[99]: segfault at 8 ip 0000 sp 0000 error 4 in ingot\n",
        "/sys/fs/cgroup/memory.events = oom 0\\noom_kill 0\n"};
    struct explanation e;
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        explain(&e, &(struct recorded){.code = -1, .host = hosts[i]});
        assert_string_equal(e.cause, "killed");
    }
    /* an Xid of another day, an alert that is over, a flight of an earlier part */
    explain(&e, &(struct recorded){.code = 11,
                                   .reason = "CUDA: x",
                                   .xid = "{\"kind\":\"xid\",\"time\":1799990000.0,\"gpu\":2,\"xid\":79}"});
    assert_string_equal(e.cause, "gpu");
    explain(&e, &(struct recorded){
                    .code = -1,
                    .bug = "2027-01-15T07:59:00Z\trank 0\tprocess 4711\tgemm.c:12\tn == rows\told\n"});
    assert_string_equal(e.cause, "killed");
}

/* Two programs of this name crashed, as on a host with several runs: the line of the run's own process counts. */
static void own_process_comes_first(void **state)
{
    (void)state;
    struct explanation e;
    bool own = false;
    explain(&e,
            &(struct recorded){.code = -1,
                               .host = "/dev/kmsg = 6,1,89999000000,-;ingot[99]: segfault at 8 in ingot\\n"
                                       "6,2,89999100000,-;ingot[4711]: segfault at 8 in ingot\\n"
                                       "6,3,89999200000,-;ingot[98]: segfault at 8 in ingot\n"});
    assert_string_equal(e.cause, "crashed");
    for (int i = 0; i < e.evidence_count; i++) own |= strstr(e.evidence[i].text, "ingot[4711]") != NULL;
    assert_true(own);
}

static void text_of_any_bytes(void **state)
{
    (void)state;
    struct explanation e;
    explain(&e, &(struct recorded){.code = -1, .log = "caf\xc3\xa9 \xff\xfe\x01"});
    json_t *o = explain_json(&e);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "schema")), "ingot.explain/1");
    char *text = json_dumps(o, 0);
    assert_non_null(text);
    free(text);
    json_decref(o);
}

static void no_such_run(void **state)
{
    (void)state;
    struct explanation e;
    const struct hostfs fs = {.root = "", .text = HOST};
    assert_int_equal(explain_run(&e, "/nowhere", BEGIN, &fs), STATUS_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_failure_has_its_sentence),
                                       cmocka_unit_test(others_are_not_blamed),
                                       cmocka_unit_test(own_process_comes_first),
                                       cmocka_unit_test(text_of_any_bytes), cmocka_unit_test(no_such_run)};
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
