/* Converts config.json to a model spec and back, with the families' tables. */
#include "base/io.h"
#include "model/hf_fp8.h"
#include "model/hf_int.h"

#include <stdlib.h>
#include <string.h>

static const struct hf_family *const families[] = {
#define X(family) &hf_##family,
    HF_FAMILY_LIST(X)
#undef X
};
enum { FAMILIES = sizeof families / sizeof families[0] };

const char *hf_family_name(int i)
{
    return i < FAMILIES ? families[i]->name : NULL;
}

static const struct hf_family *named_family(struct hf_reader *r)
{
    char known[512] = "";
    const char *type = hf_read_text(r, r->root, "model_type", "");
    for (int i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i]->name, type) == 0) return families[i];
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 families[i]->name);
    }
    if (r->st == STATUS_OK)
        r->st = FAIL(STATUS_CKPT, "%s: model_type '%.40s' is not supported; ingot reads %s", r->path, type,
                     known);
    return NULL;
}

static void read_all(struct hf_reader *r, struct model_spec *m)
{
    const struct hf_family *f = named_family(r);
    if (f == NULL) return;
    hf_fp8_config_read(r);
    hf_fields_read(r, m, f->fields, f->field_count);
    if (r->st == STATUS_OK) f->read(r, m);
}

status hf_config_parse(struct model_spec *m, const char *name, const char *text, size_t bytes)
{
    json_error_t e;
    struct hf_reader r = {.path = name, .root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e)};
    if (r.root == NULL) return FAIL(STATUS_CKPT, "%s:%d:%d: %s", name, e.line, e.column, e.text);
    model_spec_default(m);
    if (json_is_object(r.root))
        read_all(&r, m);
    else
        r.st = FAIL(STATUS_CKPT, "%s is not a JSON object", name);
    json_decref(r.root);
    TRY(r.st);
    model_spec_resolve(m);
    status st = model_spec_check(m);
    if (st != STATUS_OK) return FAIL(STATUS_CKPT, "%s: %s", name, status_message());
    model_spec_canonical(m);
    return STATUS_OK;
}

status hf_config_read(struct model_spec *m, const char *dir)
{
    char path[1024], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/config.json", dir);
    TRY(io_read_file(path, 16 << 20, &text, &bytes));
    status st = hf_config_parse(m, path, text, bytes);
    free(text);
    return st;
}

struct ends {
    int32_t bos, eos; /* -1: none */
};

/* `kept`: linears that are no codes, of a model in FP8 (borrowed); NULL: it is not. */
static char *format(const struct hf_family *f, const struct model_spec *m, dtype dt, struct ends ends,
                    json_t *kept)
{
    const char *type = dt == DTYPE_F32 ? "float32" : "bfloat16";
    json_t *j = json_pack("{s:s, s:[s], s:b, s:s, s:s}", "model_type", f->name, "architectures",
                          f->architecture, "use_cache", 1, "dtype", type, "torch_dtype", type);
    hf_fields_write(j, m, f->fields, f->field_count);
    f->write(j, m);
    json_object_set_new(j, "bos_token_id", ends.bos >= 0 ? json_integer(ends.bos) : json_null());
    json_object_set_new(j, "eos_token_id", ends.eos >= 0 ? json_integer(ends.eos) : json_null());
    if (kept)
        json_object_set_new(j, "quantization_config",
                            json_pack("{s:s, s:s, s:s, s:[i, i], s:O}", "quant_method", "fp8", "fmt", "e4m3",
                                      "activation_scheme", "dynamic", "weight_block_size", HF_FP8_BLOCK,
                                      HF_FP8_BLOCK, "modules_to_not_convert", kept));
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(j);
    return text;
}

/* Writes the model as config.json of the family and reads it back. Returns how many keys differ, the first of
 * them in `key`; -1: the family cannot read its own text. */
static int differences(const struct hf_family *f, const struct model_spec *m, const struct key **key)
{
    struct spec was = {.model = *m}, is;
    char *text = format(f, m, DTYPE_F32, (struct ends){-1, -1}, NULL);
    MEMORY_CHECK(text != NULL, "no memory for config.json");
    status st = hf_config_parse(&is.model, f->name, text, strlen(text));
    int count = 0;
    *key = NULL;
    for (int i = 0; i < KEY_AT_COUNT && st == STATUS_OK; i++) {
        const struct key *k = key_row(i);
        if (strcmp(k->section, "model") != 0 || key_equal(k, &was, &is)) continue;
        if (*key == NULL) *key = k;
        count++;
    }
    free(text);
    return st == STATUS_OK ? count : -1;
}

status hf_family_find(const struct model_spec *m, const struct hf_family **family)
{
    struct model_spec canonical = *m;
    const struct key *key;
    model_spec_canonical(&canonical);
    for (int i = 0; i < FAMILIES; i++) {
        *family = families[i];
        if (differences(families[i], &canonical, &key) == 0) return STATUS_OK;
    }
    return FAIL(STATUS_CONFIG, "no Hugging Face family holds this model: none has this %s",
                key ? key->name : "combination");
}

status hf_family(const struct model_spec *m, const char **family)
{
    const struct hf_family *f;
    TRY(hf_family_find(m, &f));
    *family = f->name;
    return STATUS_OK;
}

void hf_nearest(const struct model_spec *m, char text[128])
{
    struct model_spec canonical = *m;
    int least = KEY_AT_COUNT;
    model_spec_canonical(&canonical);
    snprintf(text, 128, "no family is near it");
    for (int i = 0; i < FAMILIES; i++) {
        const struct key *key;
        const int count = differences(families[i], &canonical, &key);
        if (count <= 0 || count >= least) continue;
        least = count;
        snprintf(text, 128, "%s has another model.%s", families[i]->name, key->name);
    }
}

status hf_config_format(char **text, const struct model_spec *m, dtype dt, int32_t bos, int32_t eos)
{
    const struct hf_family *f;
    struct model_spec canonical = *m;
    TRY(hf_family_find(m, &f));
    model_spec_canonical(&canonical);
    *text = format(f, &canonical, dt, (struct ends){bos, eos}, NULL);
    return *text ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for config.json");
}

static status write_text(const char *dir, char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/config.json", dir);
    status st = io_write_file(path, text, strlen(text));
    free(text);
    return st;
}

status hf_config_write(const struct model_spec *m, const char *dir, dtype dt, int32_t bos, int32_t eos)
{
    char *text;
    TRY(hf_config_format(&text, m, dt, bos, eos));
    return write_text(dir, text);
}

status hf_config_write_fp8(const struct decoder *d, const char *dir, int32_t bos, int32_t eos)
{
    const struct hf_family *f;
    struct model_spec canonical = d->spec;
    json_t *kept;
    TRY(hf_family_find(&d->spec, &f));
    TRY(hf_fp8_kept(d, &kept));
    model_spec_canonical(&canonical);
    char *text = format(f, &canonical, DTYPE_BF16, (struct ends){bos, eos}, kept);
    json_decref(kept);
    return text ? write_text(dir, text) : FAIL(STATUS_OUT_OF_MEMORY, "no memory for config.json");
}
