/* Almost all text is already in normal form; a check therefore runs first: 32 bytes at a time where first
 * bytes are sufficient, else one look-up per character. Only segments may change: from the last character
 * that no neighbour changes (combining class 0, quick check YES) to the next one. Segments are decomposed,
 * put in canonical order and recomposed; everything between them is copied. */
#include "data/text/nfc.h"
#include "base/bytes32.h"
#include "base/utf8.h"
#include "data/text/array.h"
#include "data/text/unicode.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { /* Hangul syllables and their letters */
       SYLLABLE = 0xac00,
       SYLLABLES = 11172,
       LEAD = 0x1100,
       LEADS = 19,
       VOWEL = 0x1161,
       VOWELS = 21,
       TAIL = 0x11a7, /* one before the first: no tail */
       TAILS = 28
};

struct letter {
    uint32_t code;
    uint8_t combining;
};

/* Lead bytes of characters that may need normalization. Not included: below U+0300; cf, d0, d1 (Greek and
 * Cyrillic letters); e4 to e9, eb and ec (Chinese characters, Hangul syllables). suspects[low half] has bit 0
 * for c_, 1 for d_, 2 for e_, 3 for f_. */
static const uint8_t suspects[16] = {14 & ~2, 14 & ~2, 14, 14,      14 & ~4, 14 & ~4, 14 & ~4, 14 & ~4,
                                     14 & ~4, 14 & ~4, 14, 14 & ~4, 15 & ~4, 15,      15,      14};

static inline bool is_suspect(uint8_t byte)
{
    return byte >= 0xc0 && (suspects[byte & 15] >> (byte >> 4 & 3) & 1);
}

/* The first suspect of text[at, bytes), in steps of 32; else a position near the end. */
static size_t skip_plain(const uint8_t *text, size_t at, size_t bytes)
{
    static const uint8_t kinds[16] = {[12] = 1, 2, 4, 8}; /* bit of a first byte's upper half */
    for (; bytes - at >= 32; at += 32) {
        bytes32 v = bytes32_load(text + at);
        if (bytes32_mask(v) == 0) continue; /* ASCII */
        bytes32 both = bytes32_and(bytes32_pick_low(suspects, v), bytes32_pick_high(kinds, v));
        uint32_t found = ~bytes32_mask(bytes32_equal(both, bytes32_set(0)));
        if (found != 0) return at + (size_t)__builtin_ctz(found);
    }
    return at;
}

/* Start of the first segment of text[at, bytes) that may change, and *trouble, the character that causes it;
 * `bytes` if there is none. At `at` is a character that no neighbour changes, or the text begins. */
static size_t find_segment(const uint8_t *text, size_t at, size_t bytes, size_t *trouble)
{
    size_t segment = at;
    unsigned combining = 0;
    while (at < bytes) {
        if (!is_suspect(text[at])) {
            size_t next = skip_plain(text, at + 1, bytes);
            while (next < bytes && !is_suspect(text[next])) next++;
            for (segment = next - 1; (text[segment] & 0xc0) == 0x80;) segment--;
            combining = 0;
            if ((at = next) == bytes) break;
        }
        struct utf8_char c = utf8_read(text + at);
        unsigned number = unicode_nfc_number(c.code);
        if (number < UNICODE_NFC_TROUBLE) {
            segment = at;
            combining = 0;
        } else {
            const struct unicode_nfc *r = &unicode_nfc_records[number];
            *trouble = at;
            if (r->quick != UNICODE_NFC_YES || r->combining < combining) return segment;
            combining = r->combining;
        }
        at += c.bytes;
    }
    return bytes;
}

static size_t segment_end(const uint8_t *text, size_t at, size_t bytes)
{
    for (struct utf8_char c; at < bytes; at += c.bytes) {
        c = utf8_read(text + at);
        if (unicode_nfc_number(c.code) < UNICODE_NFC_TROUBLE) break;
    }
    return at;
}

/* Appends the full canonical decomposition of a character to letters, which has space for 8 more. */
static size_t decompose(uint32_t code, struct letter *letters)
{
    if (code - SYLLABLE < SYLLABLES) {
        uint32_t s = code - SYLLABLE, tail = s % TAILS;
        letters[0] = (struct letter){LEAD + s / (VOWELS * TAILS), 0};
        letters[1] = (struct letter){VOWEL + s / TAILS % VOWELS, 0};
        letters[2] = (struct letter){TAIL + tail, 0};
        return tail != 0 ? 3 : 2;
    }
    uint32_t chain[8]; /* the last parts, in reverse: only first parts decompose further */
    size_t depth = 0, count = 0;
    const struct unicode_nfc *r = &unicode_nfc_records[unicode_nfc_number(code)];
    for (; r->first != 0; r = &unicode_nfc_records[unicode_nfc_number(code)]) {
        if (r->second != 0) chain[depth++] = r->second;
        code = r->first;
        CHECK(depth < sizeof chain / sizeof *chain, "U+%04X", (unsigned)code);
    }
    letters[count++] = (struct letter){code, r->combining};
    while (depth > 0) {
        code = chain[--depth];
        letters[count++] = (struct letter){code, unicode_nfc_records[unicode_nfc_number(code)].combining};
    }
    return count;
}

/* Sorts a run of marks by combining class, stable; `room` has space for `count`. */
static void sort_marks(struct letter *marks, size_t count, struct letter *room)
{
    if (count <= 16) {
        for (size_t i = 1; i < count; i++) {
            struct letter m = marks[i];
            size_t k = i;
            for (; k > 0 && marks[k - 1].combining > m.combining; k--) marks[k] = marks[k - 1];
            marks[k] = m;
        }
        return;
    }
    size_t place[257] = {0};
    for (size_t i = 0; i < count; i++) place[marks[i].combining + 1]++;
    for (int i = 0; i < 256; i++) place[i + 1] += place[i];
    for (size_t i = 0; i < count; i++) room[place[marks[i].combining]++] = marks[i];
    memcpy(marks, room, count * sizeof *marks);
}

static void sort_letters(struct letter *letters, size_t count, struct letter *room)
{
    for (size_t i = 0, begin; i < count; i++) {
        for (begin = i; i < count && letters[i].combining != 0;) i++;
        if (i - begin > 1) sort_marks(letters + begin, i - begin, room);
    }
}

/* The character that two compose to, or 0. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    if (a - LEAD < LEADS && b - VOWEL < VOWELS) return SYLLABLE + ((a - LEAD) * VOWELS + (b - VOWEL)) * TAILS;
    if (a - SYLLABLE < SYLLABLES && (a - SYLLABLE) % TAILS == 0 && b - TAIL - 1 < TAILS - 1)
        return a + (b - TAIL);
    int low = 0, high = unicode_nfc_pair_count;
    while (low < high) {
        int mid = (low + high) / 2;
        const uint32_t *pair = unicode_nfc_pairs[mid];
        if (pair[0] == a && pair[1] == b) return pair[2];
        if (pair[0] < a || (pair[0] == a && pair[1] < b))
            low = mid + 1;
        else
            high = mid;
    }
    return 0;
}

/* In place; returns the new length. */
static size_t compose(struct letter *letters, size_t count)
{
    size_t n = 0, starter = count; /* none yet */
    unsigned between = 0;          /* class of the last mark between the starter and letters[i]; 0: none */
    for (size_t i = 0; i < count; i++) {
        struct letter l = letters[i];
        if (starter < count && (between == 0 || between < l.combining)) {
            uint32_t both = compose_pair(letters[starter].code, l.code);
            if (both != 0) {
                letters[starter].code = both;
                continue;
            }
        }
        if (l.combining == 0) starter = n;
        between = l.combining;
        letters[n++] = l;
    }
    return n;
}

struct work {
    struct letter *letters, *room;
    size_t cap, room_cap;
};

static status write_segment(struct work *w, const uint8_t *text, size_t at, size_t end, char **buffer,
                            size_t *cap, size_t *used)
{
    size_t count = 0;
    for (struct utf8_char c; at < end; at += c.bytes) {
        c = utf8_read(text + at);
        TRY(array_grow(&w->letters, &w->cap, count + 8, sizeof *w->letters));
        count += decompose(c.code, w->letters + count);
    }
    if (count > 16) TRY(array_grow(&w->room, &w->room_cap, count, sizeof *w->room));
    sort_letters(w->letters, count, w->room);
    count = compose(w->letters, count);
    TRY(array_grow(buffer, cap, *used + 4 * count, 1));
    for (size_t i = 0; i < count; i++) *used += (size_t)utf8_write(w->letters[i].code, *buffer + *used);
    return STATUS_OK;
}

static status append(const uint8_t *text, size_t bytes, char **buffer, size_t *cap, size_t *used)
{
    TRY(array_grow(buffer, cap, *used + bytes + 1, 1));
    memcpy(*buffer + *used, text, bytes);
    *used += bytes;
    return STATUS_OK;
}

status nfc_normalize(const char *text, size_t bytes, char **buffer, size_t *cap, const char **out,
                     size_t *out_bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t done = 0, used = 0, trouble;
    size_t at = find_segment(p, 0, bytes, &trouble);
    *out = text;
    *out_bytes = bytes;
    if (at == bytes) return STATUS_OK;
    struct work w = {0};
    status st = STATUS_OK;
    for (; at < bytes; at = find_segment(p, done, bytes, &trouble)) {
        TRY_OUT(append(p + done, at - done, buffer, cap, &used));
        done = segment_end(p, trouble, bytes);
        TRY_OUT(write_segment(&w, p, at, done, buffer, cap, &used));
    }
    TRY_OUT(append(p + done, bytes - done, buffer, cap, &used));
    *out = *buffer;
    *out_bytes = used;
out:
    free(w.letters);
    free(w.room);
    return st;
}
