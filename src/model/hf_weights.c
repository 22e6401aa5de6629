/* Converts between Hugging Face safetensors and the master arrays. */
#include "base/parallel.h"
#include "base/log.h"
#include "model/hf_fp8.h"
#include "model/hf_int.h"
#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

/* Buffers in older files that are not weights. */
static bool is_buffer(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (length >= strlen(ends[i]) && strcmp(name + length - strlen(ends[i]), ends[i]) == 0) return true;
    return false;
}

static int64_t width(const struct param *p)
{
    return p->rank == 2 ? p->shape[1] : 1;
}

/* The shape that the other side stores; returns the rank. */
static int stored_shape(const struct hf_tensor *h, const struct param *p, int64_t shape[3])
{
    shape[0] = h->transposed ? width(p) : h->rows;
    shape[1] = h->channels ? 1 : h->transposed ? h->rows : width(p);
    shape[2] = width(p);
    return h->channels ? 3 : p->rank;
}

static status check_shape(const struct safetensor *t, const struct hf_tensor *h, const struct param *p,
                          const char *dir)
{
    int64_t want[3];
    char text[96];
    const int rank = stored_shape(h, p, want);
    bool good = t->rank == rank;
    for (int i = 0, at = 0; i < rank; i++) {
        good = good && t->shape[i] == want[i];
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", i ? ", " : "", (long long)want[i]);
    }
    if (!good)
        return FAIL(STATUS_CKPT, "%s: %s has another shape than its config.json says: expected [%s]", dir,
                    t->name, text);
    if (t->dt == DTYPE_F8_E4M3 && rank == 2 && !h->transposed) return STATUS_OK;
    if (t->dt != DTYPE_F64 && t->dt != DTYPE_F32 && t->dt != DTYPE_BF16 && t->dt != DTYPE_F16)
        return FAIL(STATUS_CKPT,
                    "%s: %s is %s; ingot reads F64, F32, BF16 and F16 weights, and matrices in F8_E4M3", dir,
                    t->name, t->type);
    return STATUS_OK;
}

/* scales: of codes; NULL: there are none. */
static void copy_in(const struct decoder *d, const struct hf_tensor *h, const struct safetensor *t,
                    const struct safetensor *scales)
{
    const struct param *p = &d->params.rows[h->param];
    dtype acc = dtype_acc(d->params.dt);
    int64_t in = width(p);
    void *master = params_master(&d->params, h->param);
    PARALLEL_CHUNKS(r, h->rows)
    {
        for (int64_t c = 0; c < in; c++) {
            char element[8]; /* mapped data may have any alignment */
            int64_t at = h->transposed ? c * h->rows + r : r * in + c;
            size_t size = dtype_bytes((dtype)t->dt);
            memcpy(element, (const char *)t->data + (size_t)at * size, size);
            const double v = dtype_load(element, 0, (dtype)t->dt);
            dtype_store(master, hf_row(h, r) * in + c, acc, scales ? v * hf_fp8_scale(scales, r, c) : v);
        }
    }
}

/* The tensor by its name, or by the name without "transformer." of older GPT-2 files. */
static const struct safetensor *find(const struct safetensors *s, const char *name)
{
    static const char prefix[] = "transformer.";
    const struct safetensor *t = safetensors_find(s, name);
    if (t == NULL && strncmp(name, prefix, sizeof prefix - 1) == 0)
        t = safetensors_find(s, name + sizeof prefix - 1);
    return t;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hf_tensor *)a)->name, ((const struct hf_tensor *)b)->name);
}

/* The list is in the order of by_name. */
static bool known(const struct hf_tensor *list, int count, const char *name)
{
    struct hf_tensor key;
    if (strlen(name) + sizeof "transformer." > sizeof key.name) return false;
    snprintf(key.name, sizeof key.name, "%s", name);
    if (bsearch(&key, list, (size_t)count, sizeof *list, by_name)) return true;
    snprintf(key.name, sizeof key.name, "transformer.%s", name);
    return bsearch(&key, list, (size_t)count, sizeof *list, by_name) != NULL;
}

/* Whether it has the scales of a tensor of codes, which was read. */
static bool of_codes(const struct safetensors *s, const char *name)
{
    char codes[256];
    const size_t n = strlen(name), end = strlen(HF_FP8_SCALE);
    if (n <= end || n >= sizeof codes || strcmp(name + n - end, HF_FP8_SCALE) != 0) return false;
    snprintf(codes, sizeof codes, "%.*s", (int)(n - end), name);
    const struct safetensor *t = safetensors_find(s, codes);
    return t && t->dt == DTYPE_F8_E4M3;
}

/* Every tensor of the files must be in the list, or be one that may be ignored. */
static status check_leftovers(const struct decoder *d, const struct safetensors *s, struct hf_tensor *list,
                              int count, const char *dir)
{
    const struct hf_family *family;
    int left = 0;
    TRY(hf_family_find(&d->spec, &family));
    qsort(list, (size_t)count, sizeof *list, by_name);
    for (int i = 0; i < safetensors_count(s); i++) {
        const char *name = safetensors_item(s, i)->name;
        const char *out = family->left_out;
        bool tied_copy = d->spec.tied_embeddings && strcmp(name, "lm_head.weight") == 0;
        if (tied_copy || is_buffer(name) || known(list, count, name) || of_codes(s, name)) continue;
        if (out == NULL || strncmp(name, out, strlen(out)) != 0)
            return FAIL(
                STATUS_CKPT,
                "%s: %s is a weight that its config.json does not announce; ingot will not drop it silently",
                dir, name);
        left++;
    }
    if (left > 0)
        log_warn("%s: %d tensors %s* are left out: ingot has no such part, transformers drops them, too", dir,
                 left, family->left_out);
    return STATUS_OK;
}

static bool of_vocabulary(const struct decoder *d, const struct hf_tensor *h)
{
    const enum role role = d->params.rows[h->param].role;
    return role == ROLE_EMBED || role == ROLE_HEAD;
}

/* Rows [known, end) become the mean of those before them. */
static void fill_with_mean(const struct decoder *d, const struct hf_tensor *h, const struct hf_vocab *v)
{
    const int64_t in = width(&d->params.rows[h->param]);
    const dtype acc = dtype_acc(d->params.dt);
    void *master = params_master(&d->params, h->param);
    PARALLEL_CHUNKS(c, in)
    {
        double sum = 0;
        for (int64_t r = 0; r < v->known; r++) sum += dtype_load(master, r * in + c, acc);
        for (int64_t r = v->known; r < v->end; r++)
            dtype_store(master, r * in + c, acc, sum / (double)v->known);
    }
}

status hf_weights_read(struct decoder *d, const char *dir)
{
    return hf_weights_read_extended(d, dir, NULL);
}

status hf_weights_read_extended(struct decoder *d, const char *dir, const struct hf_vocab *v)
{
    struct safetensors *s = NULL;
    struct hf_tensor *list = NULL;
    int count = 0;
    status st = hf_map(d, &list, &count);
    if (st == STATUS_OK) st = safetensors_open(&s, dir);
    if (st != STATUS_OK) goto out;
    for (int i = 0; i < count; i++) {
        const struct safetensor *t = find(s, list[i].name);
        if (t == NULL) {
            st = FAIL(STATUS_CKPT, "%s: %s is missing", dir, list[i].name);
            goto out;
        }
        const bool longer = v && of_vocabulary(d, &list[i]);
        if (longer) list[i].rows = list[i].parts[0].rows = v->stored;
        TRY_OUT(check_shape(t, &list[i], &d->params.rows[list[i].param], dir));
        const struct safetensor *scales = NULL;
        if (t->dt == DTYPE_F8_E4M3) TRY_OUT(hf_fp8_find(s, t, dir, &scales));
        copy_in(d, &list[i], t, scales);
        if (longer) fill_with_mean(d, &list[i], v);
    }
    st = check_leftovers(d, s, list, count, dir);
out:
    safetensors_close(s);
    free(list);
    return st;
}

struct export_tensor {
    const struct decoder *d;
    const struct hf_tensor *h;
    dtype dt;
    char name[128 + sizeof HF_FP8_SCALE]; /* of scales */
};

static status copy_out(void *ctx, void *out)
{
    const struct export_tensor *e = ctx;
    const struct params *ps = &e->d->params;
    const struct param *p = &ps->rows[e->h->param];
    int64_t in = width(p);
    const void *master = params_master(ps, e->h->param);
    PARALLEL_CHUNKS(r, e->h->rows)
    {
        for (int64_t c = 0; c < in; c++) {
            int64_t at = e->h->transposed ? c * e->h->rows + r : r * in + c;
            dtype_store(out, at, e->dt, dtype_load(master, hf_row(e->h, r) * in + c, dtype_acc(ps->dt)));
        }
    }
    return STATUS_OK;
}

static status codes_out(void *ctx, void *out)
{
    const struct export_tensor *e = ctx;
    hf_fp8_codes(e->d, e->h, out);
    return STATUS_OK;
}

static status scales_out(void *ctx, void *out)
{
    const struct export_tensor *e = ctx;
    hf_fp8_scales(e->d, e->h, out);
    return STATUS_OK;
}

static struct safetensors_source source_of(struct export_tensor *e)
{
    const bool codes = e->dt == DTYPE_F8_E4M3;
    struct safetensors_source s = {
        .name = e->h->name, .dt = e->dt, .fill = codes ? codes_out : copy_out, .ctx = e};
    s.rank = stored_shape(e->h, &e->d->params.rows[e->h->param], s.shape);
    return s;
}

static struct safetensors_source scales_of(struct export_tensor *e)
{
    const struct param *p = &e->d->params.rows[e->h->param];
    snprintf(e->name, sizeof e->name, "%s" HF_FP8_SCALE, e->h->name);
    return (struct safetensors_source){.name = e->name,
                                       .dt = DTYPE_F32,
                                       .rank = 2,
                                       .shape = {hf_fp8_blocks(e->h->rows), hf_fp8_blocks(p->shape[1])},
                                       .fill = scales_out,
                                       .ctx = e};
}

/* One update of a balancing bias is smaller than bf16 resolves; transformers keeps it in f32, too. */
static dtype type_of(const struct decoder *d, const struct hf_tensor *h, dtype asked)
{
    if (d->params.rows[h->param].role == ROLE_BALANCE) return DTYPE_F32;
    return asked == DTYPE_F8_E4M3 && !hf_fp8_takes(d, h) ? DTYPE_BF16 : asked;
}

status hf_weights_write(const struct decoder *d, const char *dir, dtype dt, int64_t shard_bytes_max)
{
    struct hf_tensor *list = NULL;
    int count = 0, n = 0;
    if (dt == DTYPE_F8_E4M3) TRY(hf_fp8_check(d));
    TRY(hf_map(d, &list, &count));
    struct safetensors_source *sources = calloc(2 * (size_t)count, sizeof *sources);
    struct export_tensor *ctx = calloc((size_t)count, sizeof *ctx);
    status st = sources && ctx ? STATUS_OK
                               : FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d tensor descriptions", count);
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        ctx[i] = (struct export_tensor){.d = d, .h = &list[i], .dt = type_of(d, &list[i], dt)};
        sources[n++] = source_of(&ctx[i]);
        if (ctx[i].dt == DTYPE_F8_E4M3) sources[n++] = scales_of(&ctx[i]);
    }
    if (st == STATUS_OK) st = safetensors_write(dir, sources, n, shard_bytes_max);
    free(ctx);
    free(sources);
    free(list);
    return st;
}
