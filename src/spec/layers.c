/* Type of each layer: model.layers and model.window_layers. Both are short texts and are parsed again on
 * every query. */
#include "spec/keys.h"
#include "spec/spec_int.h"

#include <stdlib.h>
#include <string.h>

typedef long long ll;

static const char *const mixer_words[] = {
#define WORD(prefix, value, word) word,
    MIXER_WORDS(WORD)
#undef WORD
};
static const char *const ffn_words[] = {
#define WORD(prefix, value, word) word,
    FFN_WORDS(WORD)
#undef WORD
};
enum {
    MIXER_COUNT = sizeof mixer_words / sizeof mixer_words[0],
    FFN_COUNT = sizeof ffn_words / sizeof ffn_words[0]
};

/* ---- model.layers */

struct item {
    int64_t count;
    struct layer_spec layer;
};
struct word {
    const char *at;
    int bytes;
};

static struct word word_at(const char *p)
{
    struct word w = {p, 0};
    for (char c = *p; c && c != '*' && c != '/' && c != ',' && c != ';' && c != ' '; c = p[w.bytes])
        w.bytes++;
    return w;
}

static status word_unknown(struct word w, const char *const *words, int count, const char *what)
{
    char text[32], all[128] = "";
    for (int i = 0; i < count; i++) {
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", words[i]);
    }
    snprintf(text, sizeof text, "%.*s", w.bytes, w.at);
    return FAIL(STATUS_CONFIG, "model.layers: '%s' is no %s; there are %s", text, what, all);
}

/* The row of `words` that equals w, or an error that lists the words. */
static status word_find(struct word w, const char *const *words, int count, const char *what, int *found)
{
    for (int i = 0; i < count; i++)
        if (strncmp(words[i], w.at, (size_t)w.bytes) == 0 && words[i][w.bytes] == 0) {
            *found = i;
            return STATUS_OK;
        }
    return word_unknown(w, words, count, what);
}

static const char *blanks(const char *p)
{
    while (*p == ' ') p++;
    return p;
}

/* Parses [COUNT*]MIXER[/FFN] at *at and advances it behind trailing blanks. */
static status read_item(const char **at, struct item *item)
{
    enum { COUNT_MAX = 100000 };
    const char *p = blanks(*at);
    int mixer = MIXER_GQA, ffn = FFN_MLP;
    item->count = 1;
    if (*p >= '0' && *p <= '9') {
        for (item->count = 0; *p >= '0' && *p <= '9'; p++)
            if (item->count < COUNT_MAX) item->count = item->count * 10 + (*p - '0');
        p = blanks(p);
        if (*p != '*' || item->count == 0 || item->count >= COUNT_MAX)
            return FAIL(STATUS_CONFIG, "model.layers: write a count as 3*gqa, from 1 to %d, not '%.20s'",
                        COUNT_MAX - 1, *at);
        p = blanks(p + 1);
    }
    struct word w = word_at(p);
    TRY(word_find(w, mixer_words, MIXER_COUNT, "mixer", &mixer));
    p = blanks(p + w.bytes);
    if (*p == '/') {
        w = word_at(blanks(p + 1));
        TRY(word_find(w, ffn_words, FFN_COUNT, "feed-forward part", &ffn));
        p = blanks(w.at + w.bytes);
    }
    item->layer = (struct layer_spec){(enum mixer)mixer, (enum ffn)ffn};
    *at = p;
    return STATUS_OK;
}

/* Parses one list, up to ';' or the end; returns its number of layers. With `out`: the layer at `index`
 * (modulo the length if the list repeats). */
static status read_list(const char **at, int64_t *count, int64_t index, struct layer_spec *out)
{
    struct item item;
    for (*count = 0;; (*at)++) {
        TRY(read_item(at, &item));
        if (out && index >= *count && index < *count + item.count) *out = item.layer;
        *count += item.count;
        if (**at != ',') break;
    }
    if (**at == 0 || **at == ';') return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "model.layers: '%.20s' is neither a comma and a layer nor the end; write it as 3*swa,1*gqa",
                *at);
}

/* once: layers before ';', 0 without one; repeated: length of the repeating list, which begins at `from`. */
static status read_pattern(const struct model_spec *m, int64_t *once, int64_t *repeated, const char **from)
{
    const char *p = m->layers;
    *once = 0;
    *from = p;
    TRY(read_list(&p, repeated, 0, NULL));
    if (*p == 0) return STATUS_OK;
    *once = *repeated;
    *from = ++p;
    TRY(read_list(&p, repeated, 0, NULL));
    if (*p == 0) return STATUS_OK;
    return FAIL(STATUS_CONFIG, "model.layers: a second ';'; layers that come once stand before the only one");
}

struct layer_spec model_layer(const struct model_spec *m, int64_t layer)
{
    int64_t once, repeated, count;
    const char *p;
    struct layer_spec l = {0};
    status st = read_pattern(m, &once, &repeated, &p);
    if (st == STATUS_OK && layer < once) {
        p = m->layers;
        st = read_list(&p, &count, layer, &l);
    } else if (st == STATUS_OK) {
        st = read_list(&p, &count, (layer - once) % repeated, &l);
    }
    CHECK(st == STATUS_OK, "a layer of a pattern that was not checked: %s", status_message());
    return l;
}

const char *mixer_word(enum mixer mixer)
{
    CHECK((int)mixer < MIXER_COUNT, "mixer %d", (int)mixer);
    return mixer_words[mixer];
}

const char *ffn_word(enum ffn ffn)
{
    CHECK((int)ffn < FFN_COUNT, "feed-forward part %d", (int)ffn);
    return ffn_words[ffn];
}

static bool same_layer(struct layer_spec a, struct layer_spec b)
{
    return a.mixer == b.mixer && a.ffn == b.ffn;
}

/* Appends layers [from, to) as "3*swa,gqa/mlp"; false if `text` is too small. */
static bool write_list(char text[SPEC_TEXT], const struct layer_spec *layers, int64_t from, int64_t to)
{
    size_t at = strlen(text);
    for (int64_t i = from, next; i < to; i = next) {
        char count[24] = "";
        for (next = i + 1; next < to && same_layer(layers[next], layers[i]);) next++;
        if (next - i > 1) snprintf(count, sizeof count, "%lld*", (ll)(next - i));
        const bool plain = layers[i].ffn == FFN_MLP;
        const int n =
            snprintf(text + at, SPEC_TEXT - at, "%s%s%s%s%s", i > from ? "," : "", count,
                     mixer_words[layers[i].mixer], plain ? "" : "/", plain ? "" : ffn_words[layers[i].ffn]);
        at += (size_t)n;
        if (at >= SPEC_TEXT) return false;
    }
    return true;
}

/* Finds the prefix and the period with the smallest sum of lengths. period[n]: of the last n layers, by the
 * prefix function of Knuth, Morris and Pratt over the reversed list. */
bool model_layers_set(struct model_spec *m, const struct layer_spec *layers)
{
    const int64_t count = m->layer_count;
    int64_t best = count, once = 0;
    int64_t *border = malloc((size_t)(count + 1) * sizeof *border);
    MEMORY_CHECK(border != NULL, "no memory for %lld layers", (ll)count);
    border[0] = -1;
    for (int64_t n = 1, k = -1; n <= count; n++) {
        while (k >= 0 && !same_layer(layers[count - 1 - k], layers[count - n])) k = border[k];
        border[n] = ++k;
        const int64_t period = n - border[n], sum = count - n + period;
        if (sum <= best) best = sum, once = count - n;
    }
    free(border);
    char text[SPEC_TEXT] = "";
    bool fits = write_list(text, layers, 0, once);
    if (fits && once > 0) fits = snprintf(text + strlen(text), SPEC_TEXT - strlen(text), ";") == 1;
    fits = fits && write_list(text, layers, once, best);
    if (!fits || strlen(text) >= SPEC_TEXT - 1) return false;
    memset(m->layers, 0, sizeof m->layers);
    memcpy(m->layers, text, strlen(text));
    return true;
}

/* How many layers have each part. Plans ask thousands of times: the pattern is parsed once, not once per layer. */
struct layer_counts {
    int64_t mixers[MIXER_COUNT], ffns[FFN_COUNT];
};

/* Adds the first `layers` layers of the list at `p`, which is `length` layers long and repeats. */
static void count_list(const char *p, int64_t length, int64_t layers, struct layer_counts *c)
{
    const int64_t repeats = layers / length, rest = layers % length;
    struct item item = {0};
    for (int64_t begin = 0; begin < length; begin += item.count, p++) {
        CHECK(read_item(&p, &item) == STATUS_OK, "a pattern that was not checked: %s", status_message());
        const int64_t left = rest - begin, partial = left < item.count ? left : item.count;
        const int64_t found = repeats * item.count + (partial > 0 ? partial : 0);
        c->mixers[item.layer.mixer] += found;
        c->ffns[item.layer.ffn] += found;
    }
}

static struct layer_counts count_layers(const struct model_spec *m)
{
    struct layer_counts c = {0};
    const int64_t all = m->layer_count + m->mtp_depth;
    int64_t once, repeated;
    const char *from;
    const status st = read_pattern(m, &once, &repeated, &from);
    CHECK(st == STATUS_OK, "layers of a pattern that was not checked: %s", status_message());
    if (once > 0) count_list(m->layers, once, once < all ? once : all, &c);
    if (once < all) count_list(from, repeated, all - once, &c);
    return c;
}

int64_t model_mixer_count(const struct model_spec *m, enum mixer mixer)
{
    return count_layers(m).mixers[mixer];
}

int64_t model_ffn_count(const struct model_spec *m, enum ffn ffn)
{
    return count_layers(m).ffns[ffn];
}

static status check_pattern(const struct model_spec *m)
{
    int64_t once, repeated;
    const char *from;
    TRY(read_pattern(m, &once, &repeated, &from));
    if (once >= m->layer_count)
        return FAIL(STATUS_CONFIG, "model.layers: %lld layers before the ';', model.layer_count is %lld",
                    (ll)once, (ll)m->layer_count);
    return STATUS_OK;
}

/* ---- model.window_layers */

/* Parses one part of "0-3,8" at *at and advances it behind the comma; false on a syntax error. */
static bool read_range(const char **at, int64_t *first, int64_t *last)
{
    const char *p = *at;
    int64_t bound[2];
    int count = 0;
    do {
        if (count) p++; /* the '-' */
        if (*p < '0' || *p > '9') return false;
        for (bound[count] = 0; *p >= '0' && *p <= '9'; p++)
            if (bound[count] < 1000000) bound[count] = bound[count] * 10 + (*p - '0');
    } while (++count < 2 && *p == '-');
    *first = bound[0];
    *last = bound[count - 1];
    if (*p == ',' && p[1] != 0)
        p++;
    else if (*p != 0)
        return false;
    *at = p;
    return *first <= *last;
}

bool ranges_hold(const char *text, int64_t layer)
{
    if (strcmp(text, "all") == 0) return true;
    int64_t first, last;
    for (const char *p = text; *p;) {
        if (!read_range(&p, &first, &last)) return false;
        if (layer >= first && layer <= last) return true;
    }
    return false;
}

static bool names_swa(const struct model_spec *m)
{
    return strstr(m->layers, mixer_words[MIXER_SWA]) != NULL; /* no other word contains it */
}

bool model_layer_window(const struct model_spec *m, int64_t layer)
{
    if (m->window == 0) return false;
    const enum mixer mixer = model_layer(m, layer).mixer;
    if (mixer == MIXER_SWA) return true;
    return mixer == MIXER_GQA && !names_swa(m) && ranges_hold(m->window_layers, layer);
}

status ranges_check(const char *key, const char *text, int64_t layer_count)
{
    if (strcmp(text, "all") == 0) return STATUS_OK;
    int64_t first, last;
    const char *p = text;
    do {
        if (!read_range(&p, &first, &last))
            return FAIL(STATUS_CONFIG, "%s '%.64s': write all, or indices and ranges such as 0-3,8", key,
                        text);
        if (last >= layer_count)
            return FAIL(STATUS_CONFIG, "%s '%.64s': there is no layer %lld, the last is %lld", key, text,
                        (ll)last, (ll)layer_count - 1);
    } while (*p);
    return STATUS_OK;
}

static status check_windows(const struct model_spec *m)
{
    const bool swa = names_swa(m);
    if (m->window > m->context_length)
        return FAIL(STATUS_CONFIG,
                    "model.window %lld is larger than model.context_length %lld; 0 is full attention",
                    (ll)m->window, (ll)m->context_length);
    if (swa && m->window == 0)
        return FAIL(STATUS_CONFIG, "model.layers names swa: model.window must say how many tokens it sees");
    if (strcmp(m->window_layers, "all") == 0) return STATUS_OK;
    if (swa)
        return FAIL(STATUS_CONFIG,
                    "model.window_layers does nothing where model.layers names swa; leave it out");
    return ranges_check("model.window_layers", m->window_layers, m->layer_count);
}

status layers_check(const struct model_spec *m)
{
    TRY(check_pattern(m));
    return check_windows(m);
}
