/* Power loss. Every call with which saves change the file system is recorded. Then, for many prefixes of that record, a
 * disk is made on which the calls that no later fsync covers are lost, torn or zeroed, each at random; a name survives by
 * the fsync of its directory, data by that of their file. On every such disk the newest acknowledged checkpoint is there,
 * every visible one has the bytes that were saved, and the next save works. Without fsync, which is the canary, states
 * are lost.
 *
 * FAULTS_STATES=N: so many states (scripts/faults.sh); FAULTS_SEED=N repeats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "temp.h"
#include "train/checkpoint.h"
#include "train/ckpt_leftovers.h"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { NODES = 512, OPS = 4096, ENTRIES = 16, NAME = 64, TENSOR = 700, SAVES = 5, KEEP = 2, SECTOR = 512 };
enum kind { MAKE_DIR, CREATE, WRITE, RENAME, SWAP, REMOVE, SYNC, ACKNOWLEDGED };

/* ---- the record */

struct op {
    enum kind kind;
    int dir, dir2, node; /* of a name: its directory; of data, of a sync: the file or directory */
    char name[NAME], name2[NAME];
    int64_t at;
    size_t bytes;
    char *data;
    int synced; /* the first later op that makes it durable; INT_MAX: none */
};
struct node {
    bool dir;
    int count;
    struct {
        char name[NAME];
        int node;
    } entries[ENTRIES];
    char *data; /* of a state: contents */
    size_t bytes;
};
static struct op ops[OPS];
static struct node now[NODES], disk[NODES]; /* while recording; of a state */
static int op_count, node_count;
static bool recording;
static char root[512];

static int find(const struct node *d, const char *name)
{
    for (int i = 0; i < d->count; i++)
        if (strcmp(d->entries[i].name, name) == 0) return i;
    return -1;
}

static void enter(struct node *d, const char *name, int node)
{
    int i = find(d, name);
    if (i < 0) {
        i = d->count++;
        assert_true(i < ENTRIES && strlen(name) < NAME);
        snprintf(d->entries[i].name, NAME, "%s", name);
    }
    d->entries[i].node = node;
}

static int leave(struct node *d, const char *name)
{
    const int i = find(d, name), node = i < 0 ? -1 : d->entries[i].node;
    if (i >= 0) d->entries[i] = d->entries[--d->count];
    return node;
}

/* The node of a path below root, -1: not one. `parent`: of the directory that it is in, and its last name. */
static int node_of(const char *path, bool parent, char last[NAME])
{
    const size_t n = strlen(root);
    if (!recording || strncmp(path, root, n) != 0 || (path[n] != '/' && path[n] != 0)) return -1;
    int at = 0;
    for (const char *p = path + n; *p == '/';) {
        const size_t length = strcspn(++p, "/");
        char name[NAME];
        snprintf(name, sizeof name, "%.*s", (int)length, p);
        p += length;
        if (parent && *p == 0) {
            snprintf(last, NAME, "%s", name);
            return at;
        }
        const int i = find(&now[at], name);
        if (i < 0) return -1;
        at = now[at].entries[i].node;
    }
    return parent ? -1 : at;
}

static int node_of_fd(int fd)
{
    char link[64], path[PATH_MAX];
    if (!recording) return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    return node_of(path, false, NULL);
}

static struct op *note(enum kind kind, int node)
{
    assert_true(op_count < OPS);
    struct op *o = &ops[op_count++];
    *o = (struct op){.kind = kind, .node = node};
    return o;
}

static void note_name(enum kind kind, const char *path)
{
    char name[NAME];
    const int dir = node_of(path, true, name);
    if (dir < 0) return;
    assert_true(node_count < NODES);
    struct op *o = note(kind, kind == REMOVE ? -1 : node_count);
    o->dir = o->dir2 = dir;
    snprintf(o->name, NAME, "%s", name);
    if (kind == REMOVE) {
        leave(&now[dir], name);
        return;
    }
    now[node_count].dir = kind == MAKE_DIR;
    enter(&now[dir], name, node_count++);
}

static void note_data(int fd, const void *data, size_t bytes, int64_t at)
{
    const int node = node_of_fd(fd);
    if (node < 0) return;
    struct op *o = note(WRITE, node);
    o->at = at < 0 ? (int64_t)now[node].bytes : at;
    o->bytes = bytes;
    o->data = malloc(bytes + 1);
    memcpy(o->data, data, bytes);
    if (now[node].bytes < (size_t)o->at + bytes) now[node].bytes = (size_t)o->at + bytes;
}

static void note_move(enum kind kind, const char *from, const char *to)
{
    char a[NAME], b[NAME];
    const int dir = node_of(from, true, a), dir2 = node_of(to, true, b);
    if (dir < 0 || dir2 < 0) return;
    struct op *o = note(kind, -1);
    o->dir = dir, o->dir2 = dir2;
    snprintf(o->name, NAME, "%s", a);
    snprintf(o->name2, NAME, "%s", b);
    const int x = leave(&now[dir], a), y = kind == SWAP ? leave(&now[dir2], b) : -1;
    enter(&now[dir2], b, x);
    if (kind == SWAP) enter(&now[dir], a, y);
}

/* ---- the calls, in place of libc's */

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    const bool there = syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && (flags & O_CREAT) && !there) note_name(CREATE, path);
    return fd;
}
ssize_t write(int fd, const void *data, size_t bytes)
{
    const ssize_t n = syscall(SYS_write, fd, data, bytes);
    if (n > 0) note_data(fd, data, (size_t)n, -1);
    return n;
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    const ssize_t n = syscall(SYS_pwrite64, fd, data, bytes, at);
    if (n > 0) note_data(fd, data, (size_t)n, at);
    return n;
}
int fsync(int fd)
{
    const int node = node_of_fd(fd);
    if (node >= 0) note(SYNC, node);
    return 0;
}
int mkdir(const char *path, mode_t mode)
{
    const int r = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (r == 0) note_name(MAKE_DIR, path);
    return r;
}
int rename(const char *from, const char *to)
{
    const int r = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (r == 0) note_move(RENAME, from, to);
    return r;
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    const int r = (int)syscall(SYS_renameat2, a, from, b, to, flags);
    if (r == 0) note_move(SWAP, from, to);
    return r;
}
int unlinkat(int at, const char *name, int flags)
{
    char link[64], path[PATH_MAX], whole[PATH_MAX + NAME];
    const int r = (int)syscall(SYS_unlinkat, at, name, flags);
    if (r != 0 || !recording) return r;
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    const ssize_t n = at == AT_FDCWD ? 0 : readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    snprintf(whole, sizeof whole, "%s%s%s", path, path[0] ? "/" : "", name);
    note_name(REMOVE, whole);
    return r;
}

/* ---- what is saved */

static float value(int64_t step, int tensor, int i)
{
    return (float)(step * 1000 + tensor * 100000 + i);
}

struct tensors {
    float data[2][TENSOR];
    struct ckpt_item items[2];
};
static void tensors_of(struct tensors *t, int64_t step)
{
    for (int k = 0; k < 2; k++) {
        t->items[k] = (struct ckpt_item){.dt = DTYPE_F32, .rank = 1, .shape = {TENSOR}, .data = t->data[k]};
        snprintf(t->items[k].name, sizeof t->items[k].name, "master/%d", k);
        for (int i = 0; i < TENSOR; i++) t->data[k][i] = step < 0 ? 0 : value(step, k, i);
    }
}

static status save(const char *dir, int64_t step)
{
    struct tensors t;
    tensors_of(&t, step);
    return checkpoint_save(dir, step, t.items, 2, NULL, KEEP, NULL);
}

/* Saves, the last one once more: it replaces itself by an exchange of names. */
static void record(void)
{
    snprintf(root, sizeof root, "%s", temp_path("run"));
    assert_int_equal(io_make_dirs(root), STATUS_OK);
    recording = true;
    now[0].dir = true;
    node_count = 1;
    for (int step = 1; step <= SAVES; step++) {
        assert_int_equal(save(root, step), STATUS_OK);
        note(ACKNOWLEDGED, -1)->at = step;
    }
    assert_int_equal(save(root, SAVES), STATUS_OK);
    note(ACKNOWLEDGED, -1)->at = SAVES;
    recording = false;
}

/* ---- states */

static void plan_syncs(bool canary)
{
    for (int i = 0; i < op_count; i++) {
        struct op *o = &ops[i];
        o->synced = INT_MAX;
        const int what = o->kind == WRITE ? o->node : o->dir2;
        for (int j = i + 1; j < op_count && !canary && o->synced == INT_MAX; j++)
            if (ops[j].kind == SYNC && ops[j].node == what) o->synced = j;
    }
}

static void put_data(struct node *f, const struct op *o, size_t bytes, bool zeros)
{
    if (f->bytes < (size_t)o->at + bytes) {
        f->data = realloc(f->data, (size_t)o->at + bytes);
        memset(f->data + f->bytes, 0, (size_t)o->at + bytes - f->bytes);
        f->bytes = (size_t)o->at + bytes;
    }
    if (!zeros && bytes) memcpy(f->data + o->at, o->data, bytes);
}

struct draws {
    uint64_t seed, count;
};
static double draw(struct draws *r)
{
    return rng_uniform(r->seed, RNG_TEST, 0, r->count++);
}

static bool chance(struct draws *r, double p)
{
    return draw(r) < p;
}

static void move(const struct op *o)
{
    const int x = leave(&disk[o->dir], o->name);
    const int y = o->kind == SWAP && x >= 0 ? leave(&disk[o->dir2], o->name2) : -1;
    if (x >= 0) enter(&disk[o->dir2], o->name2, x);
    if (y >= 0) enter(&disk[o->dir], o->name, y);
}

/* The disk after the first n calls; what is not durable is lost with probability `drop`. */
static void lose(struct draws *r, int n, double drop)
{
    for (int i = 0; i < node_count; i++) {
        free(disk[i].data);
        disk[i] = (struct node){.dir = now[i].dir};
    }
    for (int i = 0; i < n; i++) {
        const struct op *o = &ops[i];
        const bool durable = o->synced < n;
        if (!durable && chance(r, drop)) continue;
        if (o->kind == MAKE_DIR || o->kind == CREATE) enter(&disk[o->dir], o->name, o->node);
        if (o->kind == REMOVE) leave(&disk[o->dir], o->name);
        if (o->kind == RENAME || o->kind == SWAP) move(o);
        if (o->kind != WRITE) continue;
        const bool torn = !durable && chance(r, drop), zeros = !durable && chance(r, drop / 2);
        put_data(&disk[o->node], o, torn ? o->bytes / SECTOR / 2 * SECTOR : o->bytes, zeros);
    }
}

static void make(int node, const char *path)
{
    const struct node *d = &disk[node];
    if (!d->dir) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        if (d->bytes) assert_int_equal(fwrite(d->data, 1, d->bytes, f), d->bytes);
        fclose(f);
        return;
    }
    (void)mkdir(path, 0777);
    for (int i = 0; i < d->count; i++) {
        char below[PATH_MAX];
        snprintf(below, sizeof below, "%s/%s", path, d->entries[i].name);
        make(d->entries[i].node, below);
    }
}

/* ---- the oracle: NULL, or what is wrong */

static const char *all_verify(const char *dir)
{
    char path[PATH_MAX];
    struct io_list names;
    const char *wrong = NULL;
    snprintf(path, sizeof path, "%s/ckpt", dir);
    if (io_list(path, &names) != STATUS_OK) return "ckpt cannot be listed";
    for (int i = 0; i < names.count; i++) {
        snprintf(path, sizeof path, "%s/ckpt/%s", dir, names.names[i]);
        if (strncmp(names.names[i], "step-", 5) == 0 && checkpoint_verify(path) != STATUS_OK)
            wrong = "a visible checkpoint does not verify";
    }
    io_list_free(&names);
    return wrong;
}

static const char *newest(const char *dir, int64_t acknowledged, bool *found)
{
    struct tensors t;
    struct checkpoint *c = NULL;
    tensors_of(&t, -1);
    if (checkpoint_restore(&c, dir, t.items, 2, NULL, found) != STATUS_OK) return "none can be read";
    if (!*found) return acknowledged > 0 ? "an acknowledged checkpoint is gone" : NULL;
    const int64_t step = checkpoint_step(c);
    checkpoint_close(c);
    if (step < acknowledged) return "the acknowledged checkpoint is gone";
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < TENSOR; i++)
            if (t.data[k][i] != value(step, k, i)) return "wrong bytes were read";
    return NULL;
}

static const char *judge(const char *dir, int n)
{
    int64_t acknowledged = 0;
    bool found, marked;
    char mark[PATH_MAX];
    for (int i = 0; i < n; i++)
        if (ops[i].kind == ACKNOWLEDGED) acknowledged = ops[i].at;
    const char *wrong = newest(dir, acknowledged, &found);
    if (!wrong) wrong = all_verify(dir);
    snprintf(mark, sizeof mark, "%s/saved", dir);
    if (!wrong && (io_exists(mark, &marked) != STATUS_OK || (marked && !found)))
        wrong = "RUN/saved is there without a checkpoint";
    if (!wrong && ckpt_leftovers_start(dir, true) != STATUS_OK) wrong = "leftovers stay";
    if (!wrong && (save(dir, 100) != STATUS_OK || newest(dir, 100, &found))) wrong = "the next save fails";
    return wrong;
}

static int lost_of(struct draws *r, int states, const char **first)
{
    static const double drops[] = {0.2, 0.5, 0.9, 1.0};
    char dir[512];
    int lost = 0;
    snprintf(dir, sizeof dir, "%s", temp_path("state"));
    for (int i = 0; i < states; i++) {
        const int n = (int)(draw(r) * (op_count + 1));
        const double drop = drops[(int)(draw(r) * 4)];
        lose(r, n, drop);
        make(0, dir);
        const char *wrong = judge(dir, n);
        if (wrong && lost++ == 0) {
            *first = wrong;
            fprintf(stderr, "after %d of %d calls, drop %g: %s (%s)\n", n, op_count, drop, wrong,
                    status_message());
        }
        assert_int_equal(io_remove_tree(dir), STATUS_OK);
    }
    return lost;
}

static int64_t number_of(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : otherwise;
}

static void nothing_is_lost_with_the_power(void **state)
{
    (void)state;
    const int states = (int)number_of("FAULTS_STATES", 1000), seed = (int)number_of("FAULTS_SEED", 1);
    const char *first = NULL;
    struct draws r = {.seed = (uint64_t)seed};
    record();
    plan_syncs(false);
    const int lost = lost_of(&r, states, &first);
    printf("power loss: %d states of %d calls, seed %d: %d lost\n", states, op_count, seed, lost);
    assert_int_equal(lost, 0);
    plan_syncs(true);
    const int canary = lost_of(&r, 100, &first);
    printf("without fsync: %d of 100 lost\n", canary);
    assert_true(canary > 10);
}

int main(void)
{
    log_level_set(LOG_ERROR);
    parallel_threads_set(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_lost_with_the_power, temp_open, temp_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
