#include "train/ckpt_leftovers.h"
#include "base/io.h"
#include "base/log.h"
#include "train/ckpt_int.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The pid at the end of ".tmp-STEP-PID" or ".trash-STEP-PID"; 0 for other names. */
static long leftover_pid(const char *name)
{
    if (strncmp(name, ".tmp-", 5) != 0 && strncmp(name, ".trash-", 7) != 0) return 0;
    char *end;
    long pid = strtol(strrchr(name, '-') + 1, &end, 10);
    return *end == 0 && pid > 0 ? pid : 0;
}

/* One checkpoint is written at a time: what bears our own pid is from an earlier life. */
static bool runs(long pid)
{
    return pid != getpid() && (kill((pid_t)pid, 0) == 0 || errno != ESRCH);
}

static status remove_trees(const char *dir, bool locked)
{
    struct io_list list;
    TRY(io_list(dir, &list));
    status st = STATUS_OK;
    for (int i = 0; i < list.count && st == STATUS_OK; i++) {
        const char *name = list.names[i];
        const long pid = leftover_pid(name);
        char path[CKPT_PATH_MAX + 300];
        if (pid == 0 || (!locked && runs(pid))) continue;
        snprintf(path, sizeof path, "%s/%s", dir, name);
        st = io_remove_tree(path);
        if (st == STATUS_OK)
            log_info("removed   %s, left by a process that was killed while it %s a checkpoint", path,
                     name[2] == 'm' ? "wrote" : "deleted");
    }
    io_list_free(&list);
    return st;
}

static status remove_files(const char *dir)
{
    int removed = 0;
    TRY(io_sweep(dir, SWEEP_OWN, &removed));
    if (removed > 0)
        log_info("removed   %d temporary file%s in %s, left by a process that was killed", removed,
                 removed > 1 ? "s" : "", dir);
    return STATUS_OK;
}

static status remove_below(const char *run_dir, bool locked)
{
    char dir[CKPT_PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s/ckpt", CKPT_PATH_MAX - 64, run_dir);
    TRY(remove_trees(dir, locked));
    return remove_files(dir);
}

status ckpt_leftovers_remove(const char *run_dir)
{
    return remove_below(run_dir, false);
}

status ckpt_leftovers_start(const char *run_dir, bool locked)
{
    TRY(remove_below(run_dir, locked));
    return remove_files(run_dir);
}

/* ---- the mark */

static void mark_path(char path[CKPT_PATH_MAX], const char *run_dir)
{
    snprintf(path, CKPT_PATH_MAX, "%.*s/saved", CKPT_PATH_MAX - 64, run_dir);
}

status ckpt_saved_mark(const char *run_dir)
{
    static const char text[] = "This run has saved a checkpoint. --resume fails when ckpt/ has none.\n";
    char path[CKPT_PATH_MAX];
    enum io_kind kind;
    mark_path(path, run_dir);
    TRY(io_kind(path, &kind));
    return kind == IO_NONE ? io_write_file(path, text, sizeof text - 1) : STATUS_OK;
}

status ckpt_saved_forget(const char *run_dir)
{
    char path[CKPT_PATH_MAX];
    enum io_kind kind;
    mark_path(path, run_dir);
    TRY(io_kind(path, &kind));
    return kind == IO_NONE ? STATUS_OK : io_remove_tree(path);
}

status ckpt_saved_none(const char *run_dir)
{
    char path[CKPT_PATH_MAX];
    enum io_kind kind;
    mark_path(path, run_dir);
    TRY(io_kind(path, &kind));
    if (kind != IO_NONE)
        return FAIL(
            STATUS_CKPT,
            "%s has saved checkpoints, and %s/ckpt has none now: put them back, or delete %s to begin "
            "at step 0",
            run_dir, run_dir, path);
    log_info("%s has no checkpoint: the run begins at step 0", run_dir);
    return STATUS_OK;
}
