/* Pretokenizers by name, and their use. */
#include "data/pretokenizer.h"
#include "base/text.h"
#include "data/split.h"
#include <stdio.h>
#include <string.h>

status pretokenizer_named(struct pretokenizer *p, const char *name)
{
    const char *names[SPLIT_COUNT];
    char all[512] = "";
    for (int i = 0; i < SPLIT_COUNT; i++) {
        names[i] = split_table[i].name;
        if (strcmp(name, names[i]) == 0) {
            *p = (struct pretokenizer){.row = &split_table[i]};
            return STATUS_OK;
        }
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    const char *near = text_nearest(name, names, SPLIT_COUNT);
    return FAIL(STATUS_CONFIG, "the pretokenizer \"%.60s\" is unknown%s%s%s; known are %s", name,
                near != NULL ? " (did you mean " : "", near != NULL ? near : "", near != NULL ? "?)" : "",
                all);
}

const char *pretokenizer_name(const struct pretokenizer *p)
{
    return p->nfc ? NULL : p->row->name;
}

size_t pretokenizer_text(const struct pretokenizer *p, char *out, size_t cap)
{
    return (size_t)snprintf(out, cap, "%s%s", p->nfc ? "NFC\n" : "", p->row->pattern);
}

status pretokenizer_normalize(const struct pretokenizer *p, const char *text, size_t bytes,
                              struct pretokenizer_room *room, const char **out, size_t *out_bytes)
{
    (void)room;
    CHECK(!p->nfc, "NFC");
    *out = text;
    *out_bytes = bytes;
    return STATUS_OK;
}

int pretokenizer_scan(const struct pretokenizer *p, struct pretokenizer_cursor *c, size_t *ends, int max)
{
    int count = p->row->scan(c->text, c->at, c->bytes, ends, max);
    if (count > 0) c->at = ends[count - 1];
    return count;
}

size_t pretokenizer_cut(const char *text, size_t bytes, size_t want)
{
    return split_cut(text, bytes, want);
}
