#include "train/data_identity.h"
#include "base/log.h"
#include "base/utf8.h"
#include "data/shard/shard_identity.h"
#include "data/tokenizer/tokenizer.h"
#include "spec/keys.h"

#include <stdlib.h>
#include <string.h>

enum { ORDER = 1 }; /* of samples.h: another number when the same seed gives another order */

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static json_int_t number_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* Both are known and differ. */
static bool differ(const char *a, const char *b)
{
    return a[0] && b[0] && strcmp(a, b) != 0;
}

/* The refusal just made, or a warning in its place. */
static status refuse(bool accept, status st)
{
    if (!accept) return st;
    log_warn("accepted: %s", status_message());
    return STATUS_OK;
}

/* ---- making ---- */

static json_t *set_json(const struct shard_set *set, const char *pattern)
{
    char sum[65], *path = utf8_clean(pattern, strlen(pattern));
    shard_set_identity(set, sum);
    json_t *o =
        json_pack("{s:s, s:i, s:I, s:s, s:s}", "path", path, "shards", set->count, "tokens",
                  (json_int_t)set->tokens, "sha256", sum, "by", set->manifest ? "manifest" : "samples");
    free(path);
    return o;
}

/* The tokenizer of the shards, else that of data.tokenizer where it can be loaded. */
static void find_tokenizer(const struct data_sources *s, const struct run_spec *r, char sum[65])
{
    struct tokenizer *t;
    sum[0] = 0;
    for (int i = 0; i < s->sources->count && !sum[0]; i++) memcpy(sum, s->sets[i].tokenizer_hash, 65);
    if (sum[0] || !r->data_tokenizer[0] || tokenizer_load(&t, r->data_tokenizer) != STATUS_OK) return;
    tokenizer_hash(t, sum);
    tokenizer_free(t);
}

status data_identity_of(const struct data_sources *s, const struct shard_set *val, const struct run_spec *r,
                        json_t **out)
{
    char sum[65];
    json_t *train = json_array();
    find_tokenizer(s, r, sum);
    for (int i = 0; i < s->sources->count; i++) {
        json_t *set = set_json(&s->sets[i], s->sources->list_of[i].path);
        char *name = utf8_clean(s->sources->list_of[i].name, strlen(s->sources->list_of[i].name));
        json_object_set_new(set, "name", json_string(name));
        json_array_append_new(train, set);
        free(name);
    }
    *out = json_pack("{s:i, s:I, s:s, s:I, s:o}", "order", (int)ORDER, "seed", (json_int_t)r->run_seed,
                     "packing", key_row(KEY_AT_data_packing)->words[r->data_packing], "vocab_size",
                     (json_int_t)data_sources_vocab_size(s), "train", train);
    if (*out == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the identity of the data");
    if (sum[0]) json_object_set_new(*out, "tokenizer", json_string(sum));
    if (val->count > 0) json_object_set_new(*out, "val", set_json(val, r->data_val));
    return STATUS_OK;
}

json_t *data_identity_of_tokenizer(const struct tokenizer *t)
{
    char sum[65];
    if (t == NULL) return NULL;
    tokenizer_hash(t, sum);
    return json_pack("{s:s}", "tokenizer", sum);
}

const char *data_identity_tokenizer(const json_t *known)
{
    return text_of(known, "tokenizer");
}

/* ---- comparing ---- */

static status changed_shards(const json_t *old, const json_t *now, const char *path)
{
    return FAIL(STATUS_DATA,
                "%s: these shards have changed since %s (%lld tokens, sha256 %.12s; then %lld, %.12s): put "
                "the old ones back, or go on with --accept-data-change, which the next checkpoint records",
                text_of(now, "path"), path, (long long)number_of(now, "tokens"), text_of(now, "sha256"),
                (long long)number_of(old, "tokens"), text_of(old, "sha256"));
}

static bool same_path(const json_t *a, const json_t *b)
{
    return strcmp(text_of(a, "path"), text_of(b, "path")) == 0;
}

/* The first difference; which frozen keys cover (seed, packing, number of sources) is not looked at. */
static status difference(const json_t *old, const json_t *now, const char *path)
{
    const json_t *was = json_object_get(old, "train"), *is = json_object_get(now, "train"),
                 *old_val = json_object_get(old, "val"), *val = json_object_get(now, "val");
    if (differ(text_of(old, "tokenizer"), text_of(now, "tokenizer")))
        return FAIL(
            STATUS_DATA,
            "the tokenizer (sha256 %.12s) is not that of %s (%.12s): the ids mean another text; put "
            "the old data back, or go on with --accept-data-change, which the next checkpoint records",
            text_of(now, "tokenizer"), path, text_of(old, "tokenizer"));
    for (size_t i = 0; i < json_array_size(was) && i < json_array_size(is); i++) {
        const json_t *a = json_array_get(was, i), *b = json_array_get(is, i);
        if (differ(text_of(a, "sha256"), text_of(b, "sha256"))) return changed_shards(a, b, path);
    }
    if (same_path(old_val, val) && differ(text_of(old_val, "sha256"), text_of(val, "sha256")))
        return changed_shards(old_val, val, path);
    if (was && number_of(old, "order") != number_of(now, "order"))
        return FAIL(
            STATUS_DATA,
            "%s: this ingot orders samples by rule %lld, the one that wrote it by rule %lld: go on with "
            "that one, or with --accept-data-change, which the next checkpoint records",
            path, (long long)number_of(now, "order"), (long long)number_of(old, "order"));
    return STATUS_OK;
}

status data_identity_compare(const json_t *old, const json_t *now, const char *path, bool accept)
{
    return old && difference(old, now, path) != STATUS_OK ? refuse(accept, STATUS_DATA) : STATUS_OK;
}

status data_identity_inherit(const json_t *old, json_t *now, int64_t step)
{
    if (old == NULL) {
        log_info("data      the checkpoint does not say what its data were (an older ingot wrote it): "
                 "whether they "
                 "have changed is not known");
        return STATUS_OK;
    }
    const json_t *before = json_object_get(old, "changes");
    json_t *changes = json_is_array(before) ? json_deep_copy(before) : json_array();
    if (difference(old, now, "") != STATUS_OK) {
        json_t *entry = json_deep_copy(old);
        json_object_del(entry, "changes");
        json_object_set_new(entry, "until_step", json_integer(step));
        json_array_append_new(changes, entry);
    }
    if (json_object_set_new(now, "changes", changes) != 0)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the lineage of the data");
    if (json_array_size(changes) == 0) json_object_del(now, "changes");
    return STATUS_OK;
}

static status check_val(const json_t *known, const struct shard_set *val, const char *pattern)
{
    const char *trained = text_of(known, "tokenizer");
    const json_int_t ids = number_of(known, "vocab_size");
    const json_t *then = json_object_get(known, "val");
    if (differ(trained, val->tokenizer_hash))
        return FAIL(
            STATUS_DATA,
            "%s: made with another tokenizer (sha256 %.12s) than the model was trained with (%.12s): a loss "
            "would mean nothing; name other shards, or go on with --accept-data-change",
            pattern, val->tokenizer_hash, trained);
    if (trained[0] && json_object_get(known, "train") && !val->tokenizer_hash[0])
        return FAIL(
            STATUS_DATA,
            "%s name no tokenizer, the shards that the model was trained on do: the same ids may mean "
            "another text; build both with `ingot data build`, or go on with --accept-data-change",
            pattern);
    if (ids > 0 && val->vocab_size > 0 && ids != val->vocab_size)
        return FAIL(STATUS_DATA,
                    "%s: its vocabulary has %lld ids, that of the training shards %lld: they are of two "
                    "tokenizers; name other shards, or go on with --accept-data-change",
                    pattern, (long long)val->vocab_size, (long long)ids);
    if (strcmp(text_of(then, "path"), pattern) != 0) return STATUS_OK;
    json_t *now = set_json(val, pattern);
    const status st = differ(text_of(then, "sha256"), text_of(now, "sha256"))
                          ? changed_shards(then, now, "the checkpoint")
                          : STATUS_OK;
    json_decref(now);
    return st;
}

status data_identity_check_val(const json_t *known, const struct shard_set *val, const char *pattern,
                               bool accept)
{
    return known && check_val(known, val, pattern) != STATUS_OK ? refuse(accept, STATUS_DATA) : STATUS_OK;
}

status data_identity_check_tokenizer(const json_t *known, const char *made_by, const struct tokenizer *t,
                                     const char *dir, bool accept)
{
    char sum[65];
    const char *want = text_of(known, "tokenizer")[0] ? text_of(known, "tokenizer") : made_by;
    tokenizer_hash(t, sum);
    if (!differ(want, sum)) return STATUS_OK;
    return refuse(accept,
                  FAIL(STATUS_DATA,
                       "%s: the tokenizer there (%d ids, sha256 %.12s) is not the one that the model was "
                       "trained with (%.12s): name that one with --data.tokenizer=DIR, or go on with "
                       "--accept-data-change",
                       dir, (int)tokenizer_vocab_size(t), sum, want));
}
