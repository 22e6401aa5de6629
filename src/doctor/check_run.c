/* Checks of what a run needs here: `ingot doctor RUN.yaml`. */
#include "base/io.h"
#include "base/text.h"
#include "dev/port.h"
#include "doctor/doctor_int.h"
#include "model/param_count.h"
#include "observe/runs.h"
#include "optim/optim.h"
#include "plan/mesh_choose.h"
#include "plan/plan.h"
#include "train/data_sources.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct run_spec *run_of(const struct doctor *d)
{
    return &d->spec->run;
}

/* Ranks that the axes of the mesh ask for, without data parallelism, which takes what is there. */
static int64_t ranks_of(const struct run_spec *r)
{
    return r->parallel_tensor * r->parallel_pipeline * r->parallel_context;
}

static bool on_gpu(const struct doctor *d)
{
    const int device = (int)run_of(d)->machine_device;
    return device == DEVICE_CUDA || (device == DEVICE_AUTO && d->cards > 0);
}

void check_run_device(struct doctor *d)
{
    int sound = 0;
    for (int i = 0; i < d->cards; i++) sound += card_sound(d, i);
    if (!on_gpu(d))
        report(d, DOCTOR_PASS, "", "the run is for the processor");
    else if (sound == 0)
        report(d, DOCTOR_FAIL, "", "machine.device is cuda, and no GPU answers here: %s",
               d->nvml ? "NVML sees none" : d->nvml_why);
    else
        report_number(d, DOCTOR_PASS, "", sound, 1, "%d GPU%s for it", sound, sound == 1 ? "" : "s");
}

/* ---- data */

static status look_at_data(struct doctor *d, struct data_sources *s, struct shard_set *val)
{
    const struct run_spec *r = run_of(d);
    const int64_t words = d->spec->model.vocab_size;
    TRY(data_sources_open(s, r));
    TRY(data_sources_open_val(val, r));
    TRY(data_sources_check(s, val, r));
    TRY(data_sources_tokenizer(&s->sets[0], r, false));
    const int64_t ids = data_sources_vocab_size(s);
    if (words > 0 && ids > words)
        return FAIL(STATUS_DATA, "the shards use %lld token ids, model.vocab_size is %lld", (long long)ids,
                    (long long)words);
    return words > 0 ? data_sources_fit(val, words) : STATUS_OK;
}

void check_run_data(struct doctor *d)
{
    struct data_sources s = {0};
    struct shard_set val = {0};
    char a[32], b[32];
    if (look_at_data(d, &s, &val) != STATUS_OK)
        report(d, DOCTOR_FAIL, "", "%.250s", status_message());
    else
        report(d, DOCTOR_PASS, "", "%s tokens to train on, %s to validate",
               text_count(a, (double)data_sources_tokens(&s)), text_count(b, (double)val.tokens));
    data_sources_close(&s);
    shard_set_close(&val);
}

/* ---- memory */

/* GPUs of this host, as `ingot plan --machine NxKIND` has them. False, and reported: not known. */
static bool cluster_here(struct doctor *d, struct cluster *c)
{
    const struct machine *m = d->cards > 0 ? machine_of_gpu(d->card[0].name) : NULL;
    if (m == NULL) {
        report(d, DOCTOR_SKIP, "", "%s: `ingot plan --machine` says it for a named one",
               d->cards > 0 ? "nothing is known of this GPU" : "no GPU is here");
        return false;
    }
    *c = (struct cluster){.machine = m, .devices = d->cards, .node = d->cards};
    return true;
}

static void memory_of_mesh(struct doctor *d, const struct cluster *c)
{
    struct mesh_plan *p;
    char bytes[32];
    struct mesh_result *r = calloc(1, sizeof *r);
    CHECK(r, "out of memory");
    status st = mesh_plan_open(&p, d->spec, c);
    if (st == STATUS_OK) {
        st = mesh_choose(p, r);
        mesh_plan_close(p);
    }
    const double most = st == STATUS_OK ? mesh_result_bytes(r) : NAN, all = d->card[0].memory_total;
    const double left = all - d->card[0].memory_used;
    if (st != STATUS_OK)
        report(d, DOCTOR_FAIL, "", "%.250s", status_message());
    else if (most > left)
        report_number(d, DOCTOR_FAIL, "", most, left, "%s per GPU, and others use %.0f %% of gpu0",
                      text_bytes(bytes, most), 100 * d->card[0].memory_used / all);
    else
        report_number(d, DOCTOR_PASS, "", most, left, "%s per GPU, by plan", text_bytes(bytes, most));
    free(r);
}

static void memory_of_host(struct doctor *d)
{
    struct plan_need need;
    char a[32], b[32], text[4096];
    double left = NAN;
    if (hostfs_read(&d->fs, text, sizeof text, "/proc/meminfo"))
        left = 1024 * hostfs_value(text, "MemAvailable");
    if (plan_need_of(d->spec, &need) != STATUS_OK)
        report_number(d, DOCTOR_FAIL, "", need.bytes, need.have, "%.250s", status_message());
    else if (need.bytes > left)
        report_number(d, DOCTOR_FAIL, "", need.bytes, left, "%s by plan, and %s are free now",
                      text_bytes(a, need.bytes), text_bytes(b, left));
    else
        report_number(d, DOCTOR_PASS, "", need.bytes, left, "%s by plan, %s free", text_bytes(a, need.bytes),
                      isfinite(left) ? text_bytes(b, left) : "not known how much is");
}

void check_run_memory(struct doctor *d)
{
    struct cluster c;
    const struct run_spec *r = run_of(d);
    if (d->spec->model.vocab_size == 0)
        report(d, DOCTOR_SKIP, "", "model.vocab_size is not known: see run_data");
    else if (on_gpu(d)) {
        if (cluster_here(d, &c)) memory_of_mesh(d, &c);
    } else if (ranks_of(r) > 1 || r->parallel_zero > 0 || r->parallel_expert > 1)
        report(d, DOCTOR_SKIP, "", "several CPU ranks: `ingot plan --machine %lldxcpu` says it",
               (long long)(ranks_of(r) > 1 ? ranks_of(r) : 2));
    else
        memory_of_host(d);
}

/* ---- where it is written */

/* Of a checkpoint: fp32 masters and moments. */
static double checkpoint_bytes(const struct doctor *d)
{
    const struct run_spec *r = run_of(d);
    const double moment = r->optim_state == OPTIM_STATE_INT8   ? 1.0625
                          : r->optim_state == OPTIM_STATE_BF16 ? 2
                                                               : 4;
    return (double)model_param_count(&d->spec->model, d->spec->model.vocab_size) *
           (4 + moment * optim_moments((enum optim)r->optim_name));
}

void check_run_disk(struct doctor *d)
{
    char a[32], b[32];
    const double one = checkpoint_bytes(d), kept = (double)(run_of(d)->ckpt_keep + 1),
                 left = d->system.disk_bytes;
    if (d->spec->model.vocab_size == 0)
        report(d, DOCTOR_SKIP, d->storage, "model.vocab_size is not known: see run_data");
    else if (isnan(left))
        report(d, DOCTOR_FAIL, d->storage, "%s: its file system does not answer", d->storage);
    else if (left < 2 * one)
        report_number(d, DOCTOR_FAIL, d->storage, left, kept * one, "%s are free, not two checkpoints of %s",
                      text_bytes(a, left), text_bytes(b, one));
    else if (left < kept * one)
        report_number(d, DOCTOR_WARN, d->storage, left, kept * one,
                      "%s are free, not the %.0f checkpoints of %s of ckpt.keep and one that is written",
                      text_bytes(a, left), kept, text_bytes(b, one));
    else
        report_number(d, DOCTOR_PASS, d->storage, left, kept * one, "%s are free, %.0f checkpoints take %s",
                      text_bytes(a, left), kept, text_bytes(b, kept * one));
}

void check_run_dir(struct doctor *d)
{
    const char *dir = run_of(d)->run_dir;
    char path[SPEC_TEXT + 32];
    struct io_list saved = {0};
    bool there = false;
    snprintf(path, sizeof path, "%s/ckpt", dir);
    if (io_exists(dir, &there) != STATUS_OK || io_list(path, &saved) != STATUS_OK)
        report(d, DOCTOR_FAIL, dir, "%.250s", status_message());
    else if (access(there ? dir : d->storage, W_OK | X_OK) != 0)
        report(d, DOCTOR_FAIL, dir, "%.200s is not writable: %s", there ? dir : d->storage, strerror(errno));
    else if (there && run_is_locked(dir))
        report(d, DOCTOR_FAIL, dir, "a process trains %.200s now", dir);
    else if (saved.count > 0)
        report(d, DOCTOR_PASS, dir, "%.180s holds a run: --resume goes on with it", dir);
    else
        report(d, DOCTOR_PASS, dir, "%.200s %s", dir, there ? "has no checkpoint yet" : "will be made");
    io_list_free(&saved);
}

/* ---- the port where ranks of several hosts meet */

static int try_port(int port)
{
    const int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in any = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY)};
    if (fd < 0) return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const bool ok = bind(fd, (const struct sockaddr *)&any, sizeof any) == 0 && listen(fd, 1) == 0;
    const int err = ok ? 0 : errno;
    close(fd);
    return err;
}

void check_run_port(struct doctor *d)
{
    char text[64], owner[128];
    int64_t port;
    const char *word = env_of(d, "MASTER_PORT", text, sizeof text);
    if (word == NULL)
        report(d, DOCTOR_SKIP, "", "no MASTER_PORT: ranks of one host meet without a port");
    else if (d->comm)
        report(d, DOCTOR_PASS, "", "the ranks have met at port %.20s", word);
    else if (!text_to_int(word, &port) || port < 1 || port > 65534)
        report(d, DOCTOR_FAIL, "", "MASTER_PORT=%.20s: it must be a number from 1 to 65534", word);
    else {
        const int err = try_port((int)port);
        if (err == EADDRINUSE)
            report(d, DOCTOR_FAIL, "", "port %lld is taken by %s", (long long)port,
                   port_owner((int)port, owner));
        else if (err)
            report(d, DOCTOR_FAIL, "", "port %lld: %s", (long long)port, strerror(err));
        else
            report(d, DOCTOR_PASS, "", "port %lld is free", (long long)port);
    }
}
