#include "train/memory_copy.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/int_math.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/scope.h"
#include "base/text.h"
#include "dev/copy_thread.h"
#include "train/save.h"
#include "train/snapshot.h"
#include "train/state_raw.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFERS = 2, PAGE = 4096, CHUNK = 4 << 20, META_ROOM = 1 << 20, META_ROOM_RANK = 64 << 10 };
static const uint64_t MAGIC = 0x31306d656d676e69; /* "ingmem01" */

/* A rank's part of a copy: `crcs` of its chunks, then, on the next page, its bytes. */
struct copy_part {
    _Atomic int64_t number; /* of the copy that it belongs to; while it is being written -number; 0: none */
    int64_t at, bytes;      /* in the memory; bytes 0: a replica has the same */
    int64_t step;
    uint64_t key;
};
struct copy_meta {
    int64_t at, bytes; /* JSON, as a checkpoint's meta */
    uint32_t crc;
};
struct copy_head {
    uint64_t magic;
    int64_t ranks, room; /* room: of a description */
    struct copy_meta meta[BUFFERS];
    struct copy_part parts[BUFFERS][COMM_RANKS_MAX];
};

struct memory_copy {
    struct trainer *t;
    struct comm *world;
    int fd;
    char *base; /* the memory; NULL: empty */
    int64_t bytes;
    int64_t number; /* of the last copy */
    uint64_t key;
    bool holds; /* this rank has a part of its own */
    bool restored;
    struct memory_copy_start start;
    /* Of a GPU's state: a copy is completed by a thread. */
    bool running; /* it is to be joined */
    pthread_t thread;
    bool pinned[BUFFERS];   /* this rank's part of a buffer */
    struct copy_part *part; /* that it completes, and its number, */
    int64_t due;
    status st; /* and how that went */
    char message[1024];
};

static int64_t pages(int64_t bytes)
{
    return int64_round_up(bytes, PAGE);
}

static int64_t crc_bytes(int64_t bytes)
{
    return pages(chunk_count(bytes, CHUNK) * (int64_t)sizeof(uint32_t));
}

static struct copy_head *head_of(const struct memory_copy *m)
{
    return (struct copy_head *)m->base;
}

/* ---- the memory */

static bool variable(int *fd)
{
    const char *text = getenv(MEMORY_COPY_VARIABLE);
    int64_t n;
    struct stat st;
    if (text == NULL || !text_to_int(text, &n) || n < 0 || n > INT_MAX) return false;
    *fd = (int)n;
    return fstat(*fd, &st) == 0 && S_ISREG(st.st_mode);
}

status memory_copy_check(const struct run_spec *r)
{
    int fd;
    if (r->ckpt_memory_every == 0 || variable(&fd)) return STATUS_OK;
    return FAIL(
        STATUS_CONFIG,
        "ckpt.memory_every %lld: the copy outlives the ranks in the memory of `ingot launch`, which has "
        "not started this one (mpirun, srun, torchrun and `ingot train` alone keep nothing): start it "
        "with `ingot launch -n N --restart K`, or leave the key out",
        (long long)r->ckpt_memory_every);
}

static void unmap(struct memory_copy *m)
{
    for (int b = 0; b < BUFFERS; b++) {
        if (m->pinned[b]) dev_unpin(&m->t->dev, m->base + head_of(m)->parts[b][comm_rank(m->world)].at);
        m->pinned[b] = false;
    }
    if (m->base) munmap(m->base, (size_t)m->bytes);
    m->base = NULL;
    m->bytes = 0;
}

/* Maps the pages now, not one by one in the middle of a step or of a checksum. Where the kernel does not know how, later. */
static void touch(const struct memory_copy *m, const struct copy_part *p, bool write)
{
#ifdef MADV_POPULATE_WRITE
    (void)madvise(m->base + p->at, (size_t)(crc_bytes(p->bytes) + pages(p->bytes)),
                  write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
#endif
}

static status map(struct memory_copy *m)
{
    struct stat st;
    unmap(m);
    if (fstat(m->fd, &st) != 0)
        return FAIL(status_of_errno(errno), "the copy in memory: %s", strerror(errno));
    if (st.st_size < (off_t)sizeof(struct copy_head)) return STATUS_OK;
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (at == MAP_FAILED)
        return FAIL(STATUS_OUT_OF_MEMORY,
                    "the copy in memory (ckpt.memory_every): %lld bytes cannot be mapped: %s",
                    (long long)st.st_size, strerror(errno));
    m->base = at;
    m->bytes = st.st_size;
    return STATUS_OK;
}

/* Waits for the copy that a thread completes; its error, once. */
static status copied(struct memory_copy *m)
{
    if (m->running) pthread_join(m->thread, NULL);
    const bool ran = m->running;
    m->running = false;
    return ran && m->st != STATUS_OK ? FAIL(m->st, "%s", m->message) : STATUS_OK;
}

status memory_copy_open(struct memory_copy **out, struct trainer *t)
{
    *out = NULL;
    if (t->spec.run.ckpt_memory_every == 0) return STATUS_OK;
    struct memory_copy *m = calloc(1, sizeof *m);
    if (m == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of the copy in memory");
    m->t = t;
    m->world = t->mesh.world;
    m->start.seconds = NAN;
    m->key = state_raw_key(t);
    m->holds = mesh_ep(&t->mesh.shape) > 1 || mesh_replica(&t->mesh) == 0;
    CHECK(variable(&m->fd), "memory_copy_check was not asked");
    const status st = map(m);
    if (st == STATUS_OK)
        *out = m;
    else
        memory_copy_close(m);
    return st;
}

void memory_copy_close(struct memory_copy *m)
{
    if (m == NULL) return;
    if (copied(m) != STATUS_OK) log_warn("%s", status_message());
    unmap(m);
    free(m);
}

struct memory_copy_start memory_copy_start(const struct memory_copy *m)
{
    return m ? m->start : (struct memory_copy_start){.seconds = NAN};
}

/* ---- finding a copy */

/* Why a buffer cannot be used; the worst of all ranks counts. */
enum fault { WHOLE, OTHER_MESH, DAMAGED, TORN, EMPTY };

static bool inside(const struct memory_copy *m, int64_t at, int64_t bytes)
{
    return at >= 0 && bytes >= 0 && at <= m->bytes && bytes <= m->bytes - at;
}

static char *data_of(const struct memory_copy *m, const struct copy_part *p)
{
    return m->base + p->at + crc_bytes(p->bytes);
}

static uint32_t *crcs_of(const struct memory_copy *m, const struct copy_part *p)
{
    return (uint32_t *)(m->base + p->at);
}

static uint32_t chunk_crc(const char *data, int64_t bytes, int64_t chunk)
{
    const struct span s = chunk_span(chunk, bytes, CHUNK);
    return crc32c((uint32_t)chunk, data + s.begin, (size_t)(s.end - s.begin));
}

static bool part_passes(const struct memory_copy *m, const struct copy_part *p)
{
    if (!inside(m, p->at, p->bytes) || !inside(m, p->at, p->bytes + crc_bytes(p->bytes))) return false;
    touch(m, p, false);
    const char *data = data_of(m, p);
    const uint32_t *crcs = crcs_of(m, p);
    _Atomic int bad = 0;
    PARALLEL_CHUNKS(c, chunk_count(p->bytes, CHUNK))
    if (chunk_crc(data, p->bytes, c) != crcs[c]) atomic_store(&bad, 1);
    return !bad;
}

/* The copy's number if all ranks have written their parts; 0: not. */
static int64_t number_of(const struct memory_copy *m, int buffer)
{
    const struct copy_head *h = head_of(m);
    const int64_t first = atomic_load(&h->parts[buffer][0].number);
    for (int64_t r = 1; r < h->ranks; r++)
        if (atomic_load(&h->parts[buffer][r].number) != first) return 0;
    return first > 0 ? first : 0;
}

/* The greatest number of a copy that was begun there. */
static int64_t begun(const struct memory_copy *m, int buffer)
{
    const struct copy_head *h = head_of(m);
    int64_t most = 0;
    for (int64_t r = 0; h && r < COMM_RANKS_MAX; r++) {
        const int64_t n = llabs(atomic_load(&h->parts[buffer][r].number));
        if (n > most) most = n;
    }
    return most;
}

/* The part that this rank can load; NULL: none. */
static const struct copy_part *part_for(const struct memory_copy *m, int buffer)
{
    const struct copy_head *h = head_of(m);
    for (int64_t r = 0; r < h->ranks; r++) {
        const struct copy_part *p = &h->parts[buffer][r];
        if (p->bytes > 0 && p->key == m->key && p->bytes == (int64_t)state_raw_bytes(m->t)) return p;
    }
    return NULL;
}

static enum fault look_at(const struct memory_copy *m, int buffer)
{
    const struct copy_head *h = head_of(m);
    if (h == NULL || h->magic != MAGIC || h->ranks < 1 || h->ranks > COMM_RANKS_MAX)
        return h && h->magic ? DAMAGED : EMPTY;
    const struct copy_meta *d = &h->meta[buffer];
    if (number_of(m, buffer) == 0) return begun(m, buffer) > 0 ? TORN : EMPTY;
    if (!inside(m, d->at, d->bytes) || crc32c(0, m->base + d->at, (size_t)d->bytes) != d->crc) return DAMAGED;
    const struct copy_part *p = part_for(m, buffer);
    if (p == NULL) return OTHER_MESH;
    return part_passes(m, p) ? WHOLE : DAMAGED;
}

/* The same on all ranks; *rank: the first with the worst fault. */
static status agree_fault(const struct memory_copy *m, int buffer, enum fault *fault, int *rank)
{
    const int32_t mine = (int32_t)look_at(m, buffer);
    int32_t all[COMM_RANKS_MAX];
    TRY(comm_all_gather(m->world, "copy in memory", &mine, all, sizeof mine, NULL));
    *fault = WHOLE;
    *rank = 0;
    for (int r = 0; r < comm_ranks(m->world); r++)
        if (all[r] > (int32_t)*fault) *fault = (enum fault)all[r], *rank = r;
    return STATUS_OK;
}

static void say_fault(const struct memory_copy *m, int buffer, enum fault fault, int rank)
{
    const long long step = fault == EMPTY ? 0 : (long long)head_of(m)->parts[buffer][0].step;
    if (comm_rank(m->world) > 0 || fault == WHOLE || fault == EMPTY) return;
    if (fault == OTHER_MESH)
        log_warn("the copy in memory of step %lld is of another mesh: rank %d finds no part like its own",
                 step, rank);
    else if (fault == DAMAGED)
        log_warn("the copy in memory of step %lld is damaged: what rank %d reads of it fails its checksum",
                 step, rank);
    else
        log_info("memory    a copy was being written when the ranks ended; the one before it counts");
}

/* *buffer: of the newest whole copy; -1: none. */
static status find(const struct memory_copy *m, int *buffer)
{
    *buffer = -1;
    const int newest = begun(m, 1) > begun(m, 0);
    for (int i = 0; i < BUFFERS && *buffer < 0; i++) {
        const int b = i == 0 ? newest : !newest;
        enum fault fault;
        int rank;
        TRY(agree_fault(m, b, &fault, &rank));
        say_fault(m, b, fault, rank);
        if (fault == WHOLE) *buffer = b;
    }
    return STATUS_OK;
}

static status load(struct memory_copy *m, int buffer)
{
    const struct copy_meta *d = &head_of(m)->meta[buffer];
    const struct copy_part *p = part_for(m, buffer);
    const double begin = clock_s();
    char text[32];
    json_error_t why;
    json_t *meta = json_loadb(m->base + d->at, (size_t)d->bytes, 0, &why);
    if (meta == NULL) return FAIL(STATUS_CKPT, "the copy in memory: its description: %s", why.text);
    status st = trainer_restore_raw(m->t, meta, data_of(m, p));
    json_decref(meta);
    TRY(st);
    m->number = atomic_load(&p->number);
    m->restored = m->start.used = true;
    log_detail("memory    found in %.3f s, loaded in %.3f s", m->start.seconds, clock_s() - begin);
    m->start.seconds += clock_s() - begin;
    log_info("weights   of step %lld from memory (ckpt.memory_every): %s per rank in %.3f s, checked",
             (long long)m->t->step, text_bytes(text, (double)p->bytes), m->start.seconds);
    return STATUS_OK;
}

status memory_copy_restore(struct memory_copy *m, bool *found, int64_t *saved)
{
    SCOPE("train.restore_memory", -1);
    int64_t on_disk = -1;
    int buffer;
    *found = false;
    if (m == NULL) return STATUS_OK;
    const double begin = clock_s();
    m->start.wanted = true;
    if (comm_rank(m->world) == 0) TRY(checkpoint_newest(m->t->spec.run.run_dir, &on_disk));
    TRY(comm_broadcast(m->world, "step on disk", &on_disk, sizeof on_disk, NULL));
    TRY(find(m, &buffer));
    m->start.seconds = clock_s() - begin;
    if (buffer >= 0 && head_of(m)->parts[buffer][0].step >= on_disk) {
        *found = true;
        *saved = on_disk;
        return load(m, buffer);
    }
    if (comm_rank(m->world) > 0) return STATUS_OK;
    if (buffer >= 0)
        log_info(
            "memory    the checkpoint of step %lld on disk is newer than the copy in memory, of step %lld",
            (long long)on_disk, (long long)head_of(m)->parts[buffer][0].step);
    else
        log_line(m->base ? LOG_WARN : LOG_INFO,
                 "no copy in memory to go on from (ckpt.memory_every): the run goes on from disk, %s",
                 on_disk >= 0 ? "from its last checkpoint" : "where there is no checkpoint yet");
    return STATUS_OK;
}

/* ---- room */

struct need {
    int64_t bytes, room;
    double taken;
};

static status fits(const struct memory_copy *m, const struct need *all, int64_t bytes)
{
    const struct trainer *t = m->t;
    const int ranks = comm_ranks(m->world);
    const double host = t->dev.kind == DEV_CPU
                            ? plan_bytes(&t->spec, &t->dev, m->world ? &t->mesh : NULL) * ranks
                            : plan_host_bytes();
    char a[32], b[32], c[32];
    double sum = (double)bytes;
    for (int r = 0; r < ranks; r++) sum += all[r].taken;
    if (sum <= host) return STATUS_OK;
    return FAIL(
        STATUS_OUT_OF_MEMORY,
        "ckpt.memory_every: two copies of the state take %s, with the run %s of the host's %s: leave it "
        "out, or take optim.state=int8",
        text_bytes(a, (double)bytes), text_bytes(b, sum), text_bytes(c, host));
}

/* Rank 0 sets the size; a refusal is the same on all ranks. */
static status resize(struct memory_copy *m, int64_t bytes)
{
    int32_t err = 0;
    unmap(m);
    if (comm_rank(m->world) == 0) {
        if (ftruncate(m->fd, 0) != 0) err = errno;
        if (err == 0) err = posix_fallocate(m->fd, 0, (off_t)bytes);
        if (err != 0 && ftruncate(m->fd, 0) != 0) log_warn("the copy in memory: %s", strerror(errno));
    }
    TRY(comm_broadcast(m->world, "room for copies", &err, sizeof err, NULL));
    if (err != 0)
        return FAIL(STATUS_OUT_OF_MEMORY,
                    "ckpt.memory_every: the system gives no %lld bytes for two copies: %s", (long long)bytes,
                    strerror(err));
    return map(m);
}

static void lay_out(struct memory_copy *m, const struct need *all)
{
    struct copy_head *h = head_of(m);
    int64_t at = pages((int64_t)sizeof *h);
    h->ranks = comm_ranks(m->world);
    h->room = all[0].room;
    for (int b = 0; b < BUFFERS; b++) {
        h->meta[b] = (struct copy_meta){.at = at};
        at += h->room;
        for (int64_t r = 0; r < h->ranks; r++) {
            h->parts[b][r].at = at;
            at += crc_bytes(all[r].bytes) + pages(all[r].bytes);
        }
    }
    h->magic = MAGIC;
}

/* The parts of the memory are those that this start needs. */
static bool suits(const struct memory_copy *m, const struct need *all)
{
    const struct copy_head *h = head_of(m);
    if (h == NULL || h->magic != MAGIC || h->ranks != comm_ranks(m->world) || h->room != all[0].room)
        return false;
    int64_t at = pages((int64_t)sizeof *h);
    for (int b = 0; b < BUFFERS; b++) {
        at += h->room;
        for (int64_t r = 0; r < h->ranks; r++) {
            if (h->parts[b][r].at != at) return false;
            at += crc_bytes(all[r].bytes) + pages(all[r].bytes);
        }
    }
    return at == m->bytes;
}

/* ---- making a copy */

status memory_copy_forget(struct memory_copy *m)
{
    if (m == NULL) return STATUS_OK;
    TRY(copied(m));
    struct copy_head *h = head_of(m);
    for (int b = 0; b < BUFFERS; b++) atomic_store(&h->parts[b][comm_rank(m->world)].number, 0);
    return comm_barrier(m->world, "copies are forgotten");
}

static status describe(struct memory_copy *m, int buffer)
{
    json_t *meta;
    struct copy_meta *d = &head_of(m)->meta[buffer];
    TRY(save_metadata(m->t, &meta));
    if (meta == NULL) return STATUS_OK; /* not rank 0 */
    char *text = json_dumps(meta, JSON_COMPACT);
    json_decref(meta);
    const size_t bytes = text ? strlen(text) : 0;
    status st = STATUS_OK;
    if (text == NULL || (int64_t)bytes > head_of(m)->room)
        st = FAIL(STATUS_OUT_OF_MEMORY, "the copy in memory: its description has %zu bytes, room is for %lld",
                  bytes, (long long)head_of(m)->room);
    if (st == STATUS_OK) {
        memcpy(m->base + d->at, text, bytes);
        d->bytes = (int64_t)bytes;
        d->crc = crc32c(0, text, bytes);
    }
    free(text);
    return st;
}

/* The bytes are there: this rank's part of copy `number` is whole. */
static void complete(const struct memory_copy *m, struct copy_part *p, int64_t number)
{
    const char *data = data_of(m, p);
    uint32_t *crcs = crcs_of(m, p);
    PARALLEL_CHUNKS(c, m->holds ? chunk_count(p->bytes, CHUNK) : 0)
    crcs[c] = chunk_crc(data, p->bytes, c);
    atomic_store(&p->number, number);
}

static status copy_gpu(struct memory_copy *m)
{
    struct trainer *t = m->t;
    struct stream *side = snapshot_stream(t);
    status st = dev_use(&t->dev);
    if (st == STATUS_OK) st = state_raw_queue(t, side, data_of(m, m->part));
    TRY(snapshot_queued(t, st));
    TRY(dev_sync(side));
    return state_raw_join(t, data_of(m, m->part));
}

static void *copier(void *ctx)
{
    struct memory_copy *m = ctx;
    parallel_threads_set(save_threads());
    m->st = copy_gpu(m);
    if (m->st == STATUS_OK)
        complete(m, m->part, m->due);
    else
        snprintf(m->message, sizeof m->message, "%s", status_message());
    return NULL;
}

/* A GPU's part, beside the next step (snapshot.h). */
static status put_beside(struct memory_copy *m, struct copy_part *p, int64_t number)
{
    TRY(state_raw_begin(m->t, data_of(m, p)));
    m->part = p;
    m->due = number;
    snapshot_begin(m->t);
    m->running = pthread_create(&m->thread, NULL, copier, m) == 0;
    return m->running
               ? STATUS_OK
               : snapshot_queued(m->t, FAIL(STATUS_OUT_OF_MEMORY, "no thread for the copy in memory: free "
                                                                  "memory, or leave out ckpt.memory_every"));
}

static status put(struct memory_copy *m)
{
    const int64_t number = m->number + 1;
    const int buffer = (int)(number % BUFFERS);
    struct copy_part *p = &head_of(m)->parts[buffer][comm_rank(m->world)];
    TRY(copied(m));
    TRY(comm_barrier(m->world, "copy in memory")); /* the copy before is whole */
    atomic_store(&p->number, -number);
    save_delay();
    TRY(describe(m, buffer));
    p->key = m->key;
    p->step = m->t->step;
    m->number = number;
    if (m->holds && m->t->snapshot) return put_beside(m, p, number);
    if (m->holds) TRY(state_raw_save(m->t, data_of(m, p)));
    complete(m, p, number);
    return STATUS_OK;
}

static status pin(struct memory_copy *m, int buffer)
{
    const struct copy_part *p = &head_of(m)->parts[buffer][comm_rank(m->world)];
    TRY(dev_pin(&m->t->dev, m->base + p->at, (size_t)(crc_bytes(p->bytes) + pages(p->bytes)),
                "ckpt.memory_every"));
    m->pinned[buffer] = true;
    return STATUS_OK;
}

/* Takes seconds; the first copy waits for it. */
static void *pinner(void *ctx)
{
    struct memory_copy *m = ctx;
    const double begin = clock_s();
    parallel_threads_set(save_threads());
    m->st = STATUS_OK;
    status st = dev_use(&m->t->dev);
    for (int b = 0; b < BUFFERS && st == STATUS_OK; b++) st = pin(m, b);
    if (st != STATUS_OK)
        log_warn("ckpt.memory_every: %s: training waits while the state is copied", status_message());
    else
        log_detail("memory for copies pinned in %.3f s", clock_s() - begin);
    return NULL;
}

static void pin_all(struct memory_copy *m)
{
    if (m->t->dev.kind != DEV_CUDA || !m->holds) return;
    m->running = pthread_create(&m->thread, NULL, pinner, m) == 0;
    if (!m->running) log_warn("ckpt.memory_every: no thread to pin memory: training waits for copies");
}

status memory_copy_begin(struct memory_copy *m)
{
    if (m == NULL) return STATUS_OK;
    TRY(snapshot_open(m->t));
    const struct memory *used = &m->t->memory;
    const int ranks = comm_ranks(m->world);
    const struct need mine = {.bytes = m->holds ? (int64_t)state_raw_bytes(m->t) : 0,
                              .room = META_ROOM + (int64_t)META_ROOM_RANK * ranks,
                              .taken =
                                  (double)(m->t->dev.kind == DEV_CPU ? memory_peak(used) : used->host.peak)};
    struct need all[COMM_RANKS_MAX];
    int64_t bytes = pages((int64_t)sizeof(struct copy_head));
    TRY(comm_all_gather(m->world, "copies in memory", &mine, all, sizeof mine, NULL));
    bytes += BUFFERS * all[0].room;
    for (int r = 0; r < ranks; r++) bytes += BUFFERS * (crc_bytes(all[r].bytes) + pages(all[r].bytes));
    TRY(fits(m, all, bytes));
    int32_t keep = m->restored && suits(m, all);
    TRY(comm_broadcast(m->world, "copies are kept", &keep, sizeof keep, NULL));
    if (keep) /* parts of a copy that was not finished must not be taken for those of the next one */
        atomic_store(&head_of(m)->parts[(m->number + 1) % BUFFERS][comm_rank(m->world)].number, 0);
    if (!keep) {
        TRY(resize(m, bytes));
        m->number = 0;
        if (comm_rank(m->world) == 0) lay_out(m, all);
    }
    TRY(comm_barrier(m->world, "room for copies"));
    for (int b = 0; b < BUFFERS && m->holds; b++) {
        struct copy_part *p = &head_of(m)->parts[b][comm_rank(m->world)];
        p->bytes = mine.bytes;
        touch(m, p, true);
    }
    pin_all(m);
    if (m->restored && !keep) TRY(put(m));
    if (comm_rank(m->world) > 0) return STATUS_OK;
    char text[32];
    log_info("memory    two copies of the state, %s, stay with `ingot launch` (ckpt.memory_every %lld)",
             text_bytes(text, (double)bytes), (long long)m->t->spec.run.ckpt_memory_every);
    return STATUS_OK;
}

status memory_copy_step(struct memory_copy *m)
{
    if (m == NULL || m->t->step % m->t->spec.run.ckpt_memory_every != 0) return STATUS_OK;
    SCOPE("train.memory_copy", m->t->step);
    const double begin = clock_s();
    TRY(put(m));
    return save_stalled(m->t, begin);
}
