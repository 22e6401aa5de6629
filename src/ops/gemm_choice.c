#include "ops/gemm_choice.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "tensor/dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE_MAX_BYTES = 1024, FILE_MAX_BYTES = 16 << 20, LOCK_MS = 5000 };
static const char *const way_names[GEMM_WAY_COUNT] = {"library", "unfused", "plain"};

_Static_assert(sizeof(struct gemm_key) == 3 * sizeof(int64_t) + 6 + 5 * sizeof(uint16_t) + 8,
               "keys are compared as bytes");

void gemm_choice_place(struct gemm_place *p, const char *gpu, int64_t sms, int64_t library)
{
    *p = (struct gemm_place){.sms = sms, .library = library};
    size_t at = 0;
    for (; gpu[at] && at + 1 < sizeof p->gpu; at++)
        p->gpu[at] = gpu[at] > ' ' && gpu[at] < 0x7f ? gpu[at] : '_';
    if (at == 0) p->gpu[0] = '_';
}

static bool same_place(const struct gemm_place *a, const struct gemm_place *b)
{
    return a->sms == b->sms && a->library == b->library && strcmp(a->gpu, b->gpu) == 0;
}

/* ------------------------------------------------------------------ writing */

void gemm_choice_print(FILE *out, const struct gemm_place *p, const struct gemm_choice *c)
{
    const struct gemm_key *k = &c->key;
    char line[LINE_MAX_BYTES], algo[2 * GEMM_ALGO_BYTES + 1], added[8] = "", other[16] = "", scales[12] = "";
    if (k->align[3]) snprintf(added, sizeof added, ",%d", k->align[3]);
    if (k->dt_b != k->dt) snprintf(other, sizeof other, ",%s", dtype_name((dtype)k->dt_b));
    if (k->scales) snprintf(scales, sizeof scales, " scales=%d", k->scales);
    for (int i = 0; i < GEMM_ALGO_BYTES; i++) snprintf(algo + 2 * i, 3, "%02x", c->algo[i]);
    int bytes = snprintf(
        line, sizeof line,
        "gemm gpu=%s sms=%lld lt=%lld m=%lld n=%lld k=%lld ta=%d tb=%d dt=%s%s cdt=%s add=%d bias=%d "
        "tf32=%d%s%s align=%d,%d,%d%s way=%s algo=%s ns=%lld",
        p->gpu, (long long)p->sms, (long long)p->library, (long long)k->m, (long long)k->n, (long long)k->k,
        k->trans_a, k->trans_b, dtype_name((dtype)k->dt), other, dtype_name((dtype)k->cdt), k->add, k->bias,
        k->tf32, k->fast ? " fast=1" : "", scales, k->align[0], k->align[1], k->align[2], added,
        way_names[c->way], algo, (long long)c->time_ns);
    CHECK(bytes > 0 && bytes < LINE_MAX_BYTES, "a line of %d bytes", bytes);
    fprintf(out, "%s crc=%08x\n", line, crc32c(0, line, (size_t)bytes));
}

/* ------------------------------------------------------------------ reading */

/* The rest of a line; bad: something did not parse. */
struct reader {
    char *at;
    bool bad;
};

/* The value of the next field, which must be `name`; ends at a space. */
static const char *field(struct reader *r, const char *name)
{
    size_t length = strlen(name);
    if (r->bad || strncmp(r->at, name, length) != 0 || r->at[length] != '=') {
        r->bad = true;
        return "";
    }
    char *value = r->at + length + 1, *end = strchr(value, ' ');
    r->at = end ? end + 1 : value + strlen(value);
    if (end) *end = '\0';
    if (*value == '\0') r->bad = true;
    return value;
}

/* Decimal digits only. */
static int64_t number_of(struct reader *r, const char *value, int64_t max)
{
    int64_t v = 0;
    if (strspn(value, "0123456789") != strlen(value) || !text_to_int(value, &v) || v > max) r->bad = true;
    return r->bad ? 0 : v;
}

static int64_t number(struct reader *r, const char *name, int64_t max)
{
    return number_of(r, field(r, name), max);
}

static uint8_t type(struct reader *r, const char *word)
{
    int dt = dtype_from_name(word);
    if (dt < 0) r->bad = true;
    return (uint8_t)(dt < 0 ? 0 : dt);
}

/* One type for both operands, or two different ones. */
static void types(struct reader *r, struct gemm_key *k)
{
    char text[32];
    snprintf(text, sizeof text, "%s", field(r, "dt"));
    char *comma = strchr(text, ',');
    if (comma) *comma = '\0';
    k->dt = k->dt_b = type(r, text);
    if (comma) k->dt_b = type(r, comma + 1);
    r->bad |= comma && k->dt_b == k->dt;
}

/* A field that older lines lack: up to `max`, or absent for 0. */
static uint8_t optional(struct reader *r, const char *name, int64_t max)
{
    const size_t length = strlen(name);
    if (strncmp(r->at, name, length) != 0 || r->at[length] != '=') return 0;
    const int64_t v = number(r, name, max);
    r->bad |= v == 0;
    return (uint8_t)v;
}

/* Of a, b and c, and of the addend if there is one. */
static void alignments(struct reader *r, uint16_t align[4], bool added)
{
    char text[32], *at = text;
    snprintf(text, sizeof text, "%s", field(r, "align"));
    int count = 0;
    for (char *comma = at; comma && count < 4; count++) {
        comma = strchr(at, ',');
        if (comma) *comma = '\0';
        align[count] = (uint16_t)number_of(r, at, 256);
        at = comma ? comma + 1 : NULL;
    }
    r->bad |= at || count != (added ? 4 : 3) || (added && align[3] == 0);
}

static enum gemm_way way_of(struct reader *r)
{
    const char *word = field(r, "way");
    for (int i = 0; i < GEMM_WAY_COUNT; i++)
        if (strcmp(word, way_names[i]) == 0) return (enum gemm_way)i;
    r->bad = true;
    return GEMM_PLAIN;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void algorithm(struct reader *r, uint8_t algo[GEMM_ALGO_BYTES])
{
    const char *hex = field(r, "algo");
    if (strlen(hex) != 2 * GEMM_ALGO_BYTES) r->bad = true;
    for (int i = 0; i < GEMM_ALGO_BYTES && !r->bad; i++) {
        int high = digit_of(hex[2 * i]), low = digit_of(hex[2 * i + 1]);
        r->bad |= high < 0 || low < 0;
        if (!r->bad) algo[i] = (uint8_t)(high << 4 | low);
    }
}

/* Checks the checksum at the end and cuts it off. */
static bool sum_agrees(char *line)
{
    char *end = strstr(line, " crc="), want[16];
    if (end == NULL) return false;
    snprintf(want, sizeof want, "%08x", crc32c(0, line, (size_t)(end - line)));
    if (strcmp(end + strlen(" crc="), want) != 0) return false;
    *end = '\0';
    return true;
}

bool gemm_choice_parse(const char *line, size_t bytes, struct gemm_place *p, struct gemm_choice *c)
{
    char copy[LINE_MAX_BYTES];
    *c = (struct gemm_choice){.way = GEMM_PLAIN};
    *p = (struct gemm_place){.sms = 0};
    if (bytes >= sizeof copy || memchr(line, '\0', bytes)) return false;
    memcpy(copy, line, bytes);
    copy[bytes] = '\0';
    if (strncmp(copy, "gemm ", 5) != 0 || !sum_agrees(copy)) return false;
    struct reader r = {.at = copy + 5};
    const char *gpu = field(&r, "gpu");
    if (strlen(gpu) >= sizeof p->gpu) return false;
    snprintf(p->gpu, sizeof p->gpu, "%s", gpu);
    p->sms = number(&r, "sms", INT32_MAX);
    p->library = number(&r, "lt", INT64_MAX);
    struct gemm_key *k = &c->key;
    k->m = number(&r, "m", INT64_MAX);
    k->n = number(&r, "n", INT64_MAX);
    k->k = number(&r, "k", INT64_MAX);
    k->trans_a = (uint8_t)number(&r, "ta", 1);
    k->trans_b = (uint8_t)number(&r, "tb", 1);
    types(&r, k);
    k->cdt = type(&r, field(&r, "cdt"));
    k->add = (uint8_t)number(&r, "add", 2);
    k->bias = (uint16_t)number(&r, "bias", 256);
    k->tf32 = (uint8_t)number(&r, "tf32", 1);
    k->fast = optional(&r, "fast", 1);
    k->scales = optional(&r, "scales", 63);
    alignments(&r, k->align, k->add == 2);
    c->way = way_of(&r);
    algorithm(&r, c->algo);
    c->time_ns = number(&r, "ns", INT64_MAX);
    return !r.bad && *r.at == '\0';
}

/* ------------------------------------------------------------------ lists */

status gemm_choice_add(struct gemm_choice_list *list, const struct gemm_choice *c)
{
    struct gemm_choice *same = (struct gemm_choice *)gemm_choice_find(list, &c->key);
    if (same) {
        *same = *c;
        return STATUS_OK;
    }
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 32;
        struct gemm_choice *items = realloc(list->items, (size_t)capacity * sizeof *items);
        if (items == NULL)
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d choices of algorithms", capacity);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = *c;
    return STATUS_OK;
}

const struct gemm_choice *gemm_choice_find(const struct gemm_choice_list *list, const struct gemm_key *key)
{
    for (int i = 0; i < list->count; i++)
        if (memcmp(&list->items[i].key, key, sizeof *key) == 0) return &list->items[i];
    return NULL;
}

void gemm_choice_free(struct gemm_choice_list *list)
{
    free(list->items);
    *list = (struct gemm_choice_list){0};
}

/* The line at `text` and its length; returns the next line, or NULL at the end. */
static const char *next_line(const char *text, const char *end, size_t *bytes)
{
    const char *newline = memchr(text, '\n', (size_t)(end - text));
    *bytes = (size_t)((newline ? newline : end) - text);
    return newline && newline + 1 < end ? newline + 1 : NULL;
}

static bool is_comment(const char *line, size_t bytes)
{
    return bytes == 0 || line[0] == '#';
}

status gemm_choice_list_read(struct gemm_choice_list *list, const struct gemm_place *here, const char *text,
                             size_t bytes, struct gemm_choice_counts *counts)
{
    const char *end = text + bytes, *next;
    *counts = (struct gemm_choice_counts){0};
    for (const char *line = text; line && line < end; line = next) {
        size_t length;
        struct gemm_place place;
        struct gemm_choice choice;
        next = next_line(line, end, &length);
        if (is_comment(line, length)) continue;
        if (!gemm_choice_parse(line, length, &place, &choice)) {
            counts->damaged++;
        } else if (!same_place(&place, here)) {
            counts->foreign++;
        } else {
            TRY(gemm_choice_add(list, &choice));
            counts->used++;
        }
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------------ files */

/* *data NULL: no such file. */
static status read_if_there(const char *path, char **data, size_t *bytes)
{
    *data = NULL;
    *bytes = 0;
    bool there;
    TRY(io_exists(path, &there));
    return there ? io_read_file(path, FILE_MAX_BYTES, data, bytes) : STATUS_OK;
}

status gemm_choice_file_read(struct gemm_choice_list *list, const struct gemm_place *here, const char *path)
{
    char *data;
    size_t bytes;
    struct gemm_choice_counts counts;
    TRY(read_if_there(path, &data, &bytes));
    if (data == NULL) return STATUS_OK;
    status st = gemm_choice_list_read(list, here, data, bytes, &counts);
    free(data);
    if (st == STATUS_OK && counts.damaged)
        log_warn("%s: %d damaged lines skipped; these GEMMs are timed again", path, counts.damaged);
    return st;
}

/* The lines of an old file to keep. */
static void print_kept(FILE *out, const struct gemm_choice_list *list, const struct gemm_place *here,
                       const char *text, size_t bytes)
{
    const char *end = text + bytes, *next;
    for (const char *line = text; line && line < end; line = next) {
        size_t length;
        struct gemm_place place;
        struct gemm_choice choice;
        next = next_line(line, end, &length);
        bool keep = is_comment(line, length);
        if (!keep && gemm_choice_parse(line, length, &place, &choice))
            keep = !same_place(&place, here) || gemm_choice_find(list, &choice.key) == NULL;
        if (keep) fprintf(out, "%.*s\n", (int)length, line);
    }
}

static status make_parent(const char *path)
{
    char parent[1024];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash == NULL || slash == parent) return STATUS_OK;
    *slash = '\0';
    return io_make_dirs(parent);
}

status gemm_choice_file_add(const struct gemm_choice_list *list, const struct gemm_place *here,
                            const char *path)
{
    char *old = NULL, *text = NULL;
    size_t old_bytes = 0, bytes = 0;
    if (list->count == 0) return STATUS_OK;
    TRY(make_parent(path));
    TRY(read_if_there(path, &old, &old_bytes));
    FILE *out = memory_stream(&text, &bytes);
    if (old) print_kept(out, list, here, old, old_bytes);
    for (int i = 0; i < list->count; i++) gemm_choice_print(out, here, &list->items[i]);
    memory_stream_close(out);
    status st = io_write_file(path, text, bytes);
    free(text);
    free(old);
    return st;
}

/* The lock is on a file beside it, since every addition replaces the file itself. As in train/runlock.c the
 * lock ends with its holder. */
static status lock_file(const char *path, int *fd)
{
    char lock_path[PATH_MAX];
    const struct timespec pause = {.tv_nsec = 1000000};
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    *fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (*fd < 0) return FAIL(STATUS_IO, "cannot open '%s': %s", lock_path, strerrordesc_np(errno));
    for (int left = LOCK_MS; fcntl(*fd, F_OFD_SETLK, &lock) != 0; left--) {
        if (left == 0 || (errno != EAGAIN && errno != EACCES)) {
            const int why = errno;
            io_close(fd);
            return FAIL(STATUS_IO, "cannot lock '%s': %s", lock_path, strerrordesc_np(why));
        }
        (void)nanosleep(&pause, NULL);
    }
    return STATUS_OK;
}

static bool same_way(const struct gemm_choice *a, const struct gemm_choice *b)
{
    return a->way == b->way && memcmp(a->algo, b->algo, sizeof a->algo) == 0;
}

status gemm_choice_file_settle(struct gemm_choice *mine, const struct gemm_choice *old,
                               const struct gemm_place *here, const char *path)
{
    struct gemm_choice_list list = {0};
    int lock;
    TRY(make_parent(path));
    TRY(lock_file(path, &lock));
    status st = gemm_choice_file_read(&list, here, path);
    const struct gemm_choice *theirs = st == STATUS_OK ? gemm_choice_find(&list, &mine->key) : NULL;
    if (theirs && !(old && same_way(theirs, old)))
        *mine = *theirs;
    else if (st == STATUS_OK)
        st = gemm_choice_file_add(&(struct gemm_choice_list){.items = mine, .count = 1}, here, path);
    gemm_choice_free(&list);
    io_close(&lock);
    return st;
}
