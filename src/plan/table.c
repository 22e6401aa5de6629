#include "plan/table.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { CELL = 256 };

static const char *cell(char buf[CELL], const struct table_column *c, const json_t *row)
{
    const json_t *v = json_object_get(row, c->key);
    char text[32];
    if (v == NULL) return "-";
    const double x = json_number_value(v);
    switch (c->form) {
    case TABLE_TEXT: snprintf(buf, CELL, "%s", json_string_value(v)); break;
    case TABLE_WHOLE: snprintf(buf, CELL, "%lld", (long long)x); break;
    case TABLE_NUMBER: snprintf(buf, CELL, "%.3g", x); break;
    case TABLE_COUNT: snprintf(buf, CELL, "%s", text_count(text, x)); break;
    case TABLE_BYTES: snprintf(buf, CELL, "%s", text_bytes(text, x)); break;
    case TABLE_TIME: snprintf(buf, CELL, "%s", text_time(text, x)); break;
    case TABLE_PERCENT: snprintf(buf, CELL, "%.1f %%", 100 * x); break;
    }
    return buf;
}

/* Characters of the widest cell; 0: no row has the key. */
static int width_of(const struct table_column *c, const json_t *rows)
{
    int most = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        char buf[CELL];
        const json_t *row = json_array_get(rows, i);
        const int n = (int)strlen(cell(buf, c, row));
        if (json_object_get(row, c->key) && n > most) most = n;
    }
    const int head = (int)strlen(c->head);
    return most > 0 && most < head ? head : most;
}

/* Blanks that end a line are left out: *blanks stand before the next cell. */
static void print_cell(const struct table_column *c, int width, const char *text, int *blanks)
{
    if (width == 0) return;
    const int pad = width - (int)strlen(text), left = c->form == TABLE_TEXT ? 0 : pad;
    printf("%*s%s", *blanks + left, "", text);
    *blanks = 2 + pad - left;
}

void table_print(const struct table_column *columns, int count, const json_t *rows)
{
    const int lines = (int)json_array_size(rows);
    for (int i = -1; i < lines; i++) { /* the headings, then the rows */
        int blanks = 0;
        for (int k = 0; k < count; k++) {
            char buf[CELL];
            print_cell(&columns[k], width_of(&columns[k], rows),
                       i < 0 ? columns[k].head : cell(buf, &columns[k], json_array_get(rows, (size_t)i)),
                       &blanks);
        }
        printf("\n");
    }
}
