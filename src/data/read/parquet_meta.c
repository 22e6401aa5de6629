/* The footer: a Thrift struct FileMetaData. From the schema, a tree in depth-first order, it keeps the
 * position of our column (leaf number and levels); from each row group, the byte range of that column's
 * pages. Every position is checked against the file size here; the page reader therefore never leaves the
 * file. */
#include "data/read/parquet_int.h"

#include "data/text/array.h"
#include "data/read/thrift.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEVELS_MAX = 16,
    PATH_MAX_BYTES = 512,
    NAMES_MAX_BYTES = 400,
    REQUIRED = 0,
    OPTIONAL = 1,
    REPEATED = 2
};
#define ROWS_MAX ((int64_t)1 << 31) /* of a row group */

struct element { /* of the schema */
    int type, repetition, children, converted, logical;
    struct thrift_bytes name;
};
struct level {    /* a group that contains the current element */
    int children; /* members still to come */
    int def, rep, def_list;
    size_t path_bytes;
};
struct schema {
    const char *file, *column;
    struct level stack[LEVELS_MAX];
    int depth;
    char path[PATH_MAX_BYTES];
    int leaf, found; /* leaves so far; index of our column, or -1 */
    int matches;     /* leaves that `column` names or is a prefix of */
    struct element ours;
    struct level ours_level;
    char ours_path[PATH_MAX_BYTES];
    char names[NAMES_MAX_BYTES];
};

static status damaged(const char *file, const char *what)
{
    return FAIL(STATUS_DATA, "%s: the Parquet footer is damaged: %s", file, what);
}

static const char *type_name(int type)
{
    static const char *const names[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                        "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
    return type >= 0 && type < 8 ? names[type] : "of an unknown type";
}

const char *parquet_encoding_name(int encoding)
{
    static const char *const names[] = {"PLAIN",
                                        "1",
                                        "PLAIN_DICTIONARY",
                                        "RLE",
                                        "BIT_PACKED",
                                        "DELTA_BINARY_PACKED",
                                        "DELTA_LENGTH_BYTE_ARRAY",
                                        "DELTA_BYTE_ARRAY",
                                        "RLE_DICTIONARY",
                                        "BYTE_STREAM_SPLIT"};
    return encoding >= 0 && encoding < 10 ? names[encoding] : "an unknown one";
}

/* The union LogicalType: the id of its only member. */
static int read_logical(struct thrift *t, struct thrift_field field)
{
    struct thrift_field f = {0, THRIFT_STOP};
    int id = 0;
    if (!thrift_struct(t, field)) return 0;
    while (thrift_next(t, &f)) {
        id = f.id;
        thrift_skip(t, f.type);
    }
    return id;
}

static struct element read_element(struct thrift *t)
{
    struct thrift_field f = {0, THRIFT_STOP};
    struct element e = {.type = -1, .converted = -1, .name = {"", 0}};
    while (thrift_next(t, &f)) switch (f.id) {
        case 1: e.type = thrift_i32(t, f); break;
        case 3: e.repetition = thrift_i32(t, f); break;
        case 4: e.name = thrift_binary(t, f); break;
        case 5: e.children = thrift_i32(t, f); break;
        case 6: e.converted = thrift_i32(t, f); break;
        case 10: e.logical = read_logical(t, f); break;
        default: thrift_skip(t, f.type); break;
        }
    return e;
}

/* `column` is the path, or a prefix of whole components. */
static void match(struct schema *s, const struct element *e, const struct level *at)
{
    size_t bytes = strlen(s->column), used = strlen(s->names);
    bool begins = strncmp(s->path, s->column, bytes) == 0;
    if (used + strlen(s->path) + 8 < sizeof s->names)
        snprintf(s->names + used, sizeof s->names - used, "%s%s", used ? ", " : "", s->path);
    else if (used + 6 < sizeof s->names && !strstr(s->names, ", ..."))
        snprintf(s->names + used, sizeof s->names - used, ", ...");
    if (!begins || (s->path[bytes] != 0 && s->path[bytes] != '.')) return;
    s->matches++;
    s->found = s->leaf;
    s->ours = *e;
    s->ours_level = *at;
    memcpy(s->ours_path, s->path, sizeof s->path);
}

/* One element below the root: a leaf, or a group followed by its children. */
static status add_element(struct schema *s, const struct element *e)
{
    while (s->depth > 0 && s->stack[s->depth - 1].children == 0) s->depth--;
    if (s->depth == 0) return damaged(s->file, "the schema has elements outside its tree");
    struct level *parent = &s->stack[s->depth - 1], here = *parent;
    parent->children--;
    if (e->repetition < REQUIRED || e->repetition > REPEATED)
        return damaged(s->file, "the schema has an unknown repetition");
    here.children = e->children;
    here.def += e->repetition != REQUIRED;
    here.rep += e->repetition == REPEATED;
    if (e->repetition == REPEATED) here.def_list = here.def;
    int n = snprintf(s->path + parent->path_bytes, sizeof s->path - parent->path_bytes, "%s%.*s",
                     parent->path_bytes ? "." : "",
                     (int)(e->name.bytes < PATH_MAX_BYTES ? e->name.bytes : PATH_MAX_BYTES), e->name.data);
    here.path_bytes = parent->path_bytes + (size_t)n;
    for (char *p = s->path; *p; p++)
        if ((unsigned char)*p < ' ') *p = '?'; /* for messages of one line */
    if (here.path_bytes >= sizeof s->path)
        return damaged(s->file, "a column's path is longer than 511 bytes");
    if (e->children < 0) return damaged(s->file, "the schema has a negative number of children");
    if (e->children == 0) {
        match(s, e, &here);
        s->leaf++;
        return STATUS_OK;
    }
    if (s->depth == LEVELS_MAX)
        return FAIL(STATUS_DATA, "%s: the Parquet schema nests deeper than %d", s->file, LEVELS_MAX);
    s->stack[s->depth++] = here;
    return STATUS_OK;
}

static status read_schema(struct thrift *t, struct thrift_field field, struct schema *s)
{
    struct thrift_field e;
    int64_t count = thrift_list(t, field, &e);
    for (int64_t i = 0; i < count && !t->bad; i++) {
        if (!thrift_struct(t, e)) break;
        struct element element = read_element(t);
        if (t->bad) break;
        if (i == 0) {
            s->stack[0] = (struct level){.children = element.children};
            s->depth = 1;
        } else {
            TRY(add_element(s, &element));
        }
    }
    for (int i = 0; i < s->depth; i++)
        if (s->stack[i].children != 0) return damaged(s->file, "the schema has fewer elements than it says");
    return STATUS_OK;
}

/* ConvertedType and LogicalType of integers: INT_8 to UINT_64; INTEGER. */
static bool is_number(const struct element *e)
{
    bool converted = e->converted == -1 || (e->converted >= 11 && e->converted <= 18);
    return converted && (e->logical == 0 || e->logical == 10);
}

/* UTF8, ENUM, JSON or bare bytes; STRING, ENUM, JSON. Invalid UTF-8 fails row by row. */
static bool is_text(const struct element *e)
{
    bool converted = e->converted == -1 || e->converted == 0 || e->converted == 4 || e->converted == 19;
    return converted && (e->logical == 0 || e->logical == 1 || e->logical == 4 || e->logical == 12);
}

static status check_column(const struct schema *s)
{
    const struct element *e = &s->ours;
    const char *want = "a text (BYTE_ARRAY), or a list of INT32 or INT64, is expected";
    if (s->matches == 0)
        return FAIL(STATUS_DATA, "%s: no column '%s'; --key names one of: %s", s->file, s->column, s->names);
    if (s->matches > 1)
        return FAIL(STATUS_DATA, "%s: '%s' has %d columns inside; --key names one of: %s", s->file, s->column,
                    s->matches, s->names);
    int rep = s->ours_level.rep;
    bool text = e->type == PARQUET_BYTE_ARRAY, id = e->type == PARQUET_INT32 || e->type == PARQUET_INT64;
    if (rep > 1 || (rep == 1 && text))
        return FAIL(STATUS_DATA, "%s: column '%s' is a list of %s; %s", s->file, s->ours_path,
                    text ? "texts" : "lists", want);
    if (id && rep == 0)
        return FAIL(STATUS_DATA, "%s: column '%s' has one %s in a row; %s", s->file, s->ours_path,
                    type_name(e->type), want);
    if (!(text ? is_text(e) : id && is_number(e)))
        return FAIL(STATUS_DATA, "%s: column '%s' is %s%s; %s", s->file, s->ours_path, type_name(e->type),
                    text || id ? " of another meaning (a date, a decimal)" : "", want);
    return STATUS_OK;
}

struct chunk_parse {
    int64_t values, packed, data_at, dictionary_at;
    int type, codec;
    bool elsewhere, encrypted, meta;
};

static void read_column_meta(struct thrift *t, struct thrift_field field, struct chunk_parse *c)
{
    struct thrift_field f = {0, THRIFT_STOP};
    c->meta = true;
    if (!thrift_struct(t, field)) return;
    while (thrift_next(t, &f)) switch (f.id) {
        case 1: c->type = thrift_i32(t, f); break;
        case 4: c->codec = thrift_i32(t, f); break;
        case 5: c->values = thrift_i64(t, f); break;
        case 7: c->packed = thrift_i64(t, f); break;
        case 9: c->data_at = thrift_i64(t, f); break;
        case 11: c->dictionary_at = thrift_i64(t, f); break;
        default: thrift_skip(t, f.type); break;
        }
}

static void read_column(struct thrift *t, struct chunk_parse *c)
{
    struct thrift_field f = {0, THRIFT_STOP};
    while (thrift_next(t, &f)) switch (f.id) {
        case 1:
            c->elsewhere = true;
            thrift_skip(t, f.type);
            break;
        case 3: read_column_meta(t, f, c); break;
        case 8:
        case 9:
            c->encrypted = true;
            thrift_skip(t, f.type);
            break;
        default: thrift_skip(t, f.type); break;
        }
}

static const char *codec_name(int codec)
{
    static const char *const names[] = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO",
                                        "BROTLI",       "LZ4",    "ZSTD", "LZ4_RAW"};
    return codec >= 0 && codec < 8 ? names[codec] : "unknown";
}

static bool is_codec(int codec)
{
    return codec == PARQUET_NONE || codec == PARQUET_SNAPPY || codec == PARQUET_GZIP ||
           codec == PARQUET_BROTLI || codec == PARQUET_ZSTD || codec == PARQUET_LZ4_RAW;
}

/* `file_bytes`: up to the footer. */
static status take_chunk(struct parquet_meta *m, const char *file, const struct chunk_parse *c, int64_t rows,
                         int64_t file_bytes)
{
    long long group = (long long)m->count;
    if (c->encrypted)
        return FAIL(STATUS_DATA, "%s: the column is encrypted (row group %lld); decrypt the file first", file,
                    group);
    if (!c->meta) return FAIL(STATUS_DATA, "%s: row group %lld lacks the column", file, group);
    if (c->elsewhere) return FAIL(STATUS_DATA, "%s: row group %lld lies in another file", file, group);
    if (!is_codec(c->codec))
        return FAIL(
            STATUS_DATA,
            "%s: compression %s is not supported (row group %lld); write it with zstd, snappy or gzip", file,
            codec_name(c->codec), group);
    if (c->type != m->type) return damaged(file, "a row group's column is of another type than the schema's");
    /* 0 as the offset of a dictionary means none: no page can begin there. */
    int64_t at = c->dictionary_at > 0 && c->dictionary_at < c->data_at ? c->dictionary_at : c->data_at;
    if (at < 0 || c->packed < 0 || at > file_bytes || c->packed > file_bytes - at)
        return FAIL(STATUS_DATA, "%s: row group %lld lies outside the file (byte %lld, %lld bytes)", file,
                    group, (long long)at, (long long)c->packed);
    if (rows < 0 || rows > ROWS_MAX || c->values < rows || (m->rep_max == 0 && c->values != rows))
        return FAIL(STATUS_DATA, "%s: row group %lld has %lld rows and %lld values", file, group,
                    (long long)rows, (long long)c->values);
    TRY(array_grow(&m->chunks, &m->room, (size_t)m->count + 1, sizeof *m->chunks));
    m->chunks[m->count++] = (struct parquet_chunk){at, c->packed, c->values, rows, m->rows, c->codec};
    m->rows += rows;
    return STATUS_OK;
}

/* The column `leaf` of a row group. */
static status read_group(struct thrift *t, struct parquet_meta *m, const struct schema *s, int64_t file_bytes)
{
    struct thrift_field f = {0, THRIFT_STOP}, e;
    struct chunk_parse chunk = {.type = -1, .codec = -1, .data_at = -1, .values = -1, .packed = -1};
    int64_t rows = -1, count;
    while (thrift_next(t, &f)) switch (f.id) {
        case 1:
            count = thrift_list(t, f, &e);
            for (int64_t i = 0; i < count && !t->bad; i++)
                if (i == s->found && thrift_struct(t, e))
                    read_column(t, &chunk);
                else
                    thrift_skip(t, e.type);
            break;
        case 3: rows = thrift_i64(t, f); break;
        default: thrift_skip(t, f.type); break;
        }
    if (t->bad) return STATUS_OK; /* reported by the caller */
    return take_chunk(m, s->file, &chunk, rows, file_bytes);
}

static status read_groups(struct thrift *t, struct thrift_field field, struct parquet_meta *m,
                          const struct schema *s, int64_t file_bytes)
{
    struct thrift_field e;
    int64_t count = thrift_list(t, field, &e);
    if (m->has_groups) return damaged(s->file, "two lists of row groups");
    m->has_groups = true;
    for (int64_t i = 0; i < count && thrift_struct(t, e) && !t->bad; i++)
        TRY(read_group(t, m, s, file_bytes));
    return STATUS_OK;
}

static status take_schema(struct parquet_meta *m, const struct schema *s)
{
    TRY(check_column(s));
    m->type = s->ours.type;
    m->def_max = s->ours_level.def;
    m->rep_max = s->ours_level.rep;
    m->def_list = s->ours_level.def_list;
    return STATUS_OK;
}

status parquet_meta_read(struct parquet_meta *m, const char *name, const uint8_t *footer, size_t bytes,
                         int64_t file_bytes, const char *column)
{
    struct thrift t = {.p = footer, .end = footer + bytes};
    struct thrift_field f = {0, THRIFT_STOP};
    int64_t rows = -1;
    struct schema s = {.file = name, .column = column, .found = -1};
    *m = (struct parquet_meta){0};
    while (thrift_next(&t, &f)) switch (f.id) {
        case 2:
            if (s.depth > 0) return damaged(name, "two schemas");
            TRY(read_schema(&t, f, &s));
            if (!t.bad) TRY(take_schema(m, &s));
            break;
        case 3: rows = thrift_i64(&t, f); break;
        case 4:
            if (s.depth == 0) return damaged(name, "row groups in front of the schema");
            TRY(read_groups(&t, f, m, &s, file_bytes));
            break;
        default: thrift_skip(&t, f.type); break;
        }
    if (t.bad) return damaged(name, t.cut ? "it ends too early" : "it is no Thrift struct");
    if (rows != m->rows) return damaged(name, "the rows of its groups are not as many as it says");
    if (!m->has_groups) return damaged(name, "the schema or the list of row groups is missing");
    return STATUS_OK;
}

void parquet_meta_free(struct parquet_meta *m)
{
    free(m->chunks);
    *m = (struct parquet_meta){0};
}
