/* table: rows of JSON objects, printed as aligned columns or as they are. */
#ifndef INGOT_PLAN_TABLE_H
#define INGOT_PLAN_TABLE_H
#include "base/status.h"

#include <jansson.h>

enum table_form { TABLE_TEXT, TABLE_WHOLE, TABLE_NUMBER, TABLE_COUNT, TABLE_BYTES, TABLE_TIME, TABLE_PERCENT };
/* A key of the rows, and its heading. PERCENT: of a fraction; TEXT columns are aligned left. */
struct table_column {
    const char *key, *head;
    enum table_form form;
};
/* Prints the columns that any row has; a row without a key has "-" there. */
void table_print(const struct table_column *columns, int count, const json_t *rows);
#endif
