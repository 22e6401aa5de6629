/* The part of a kernel, derived from its name. Names are those of the driver: generated kernels of cuBLASLt
 * and cuDNN in plain words, C++ functions mangled (Itanium C++ ABI, section 5.1).
 *
 * A full demangler is not needed: the name of a kernel is [nested] identifiers with template arguments, and
 * its parameters are not shown. An argument that refers to an earlier part of the name is written as "_".
 * From the first part that cannot be parsed, the rest is "...". */
#include "observe/kernels.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *key, *text;
} part_names[KERNEL_PART_COUNT] = {
#define X(part, key, text) {key, text},
    KERNEL_PART_LIST(X)
#undef X
};

const char *kernel_part_text(enum kernel_part part)
{
    return part_names[part].text;
}
const char *kernel_part_key(enum kernel_part part)
{
    return part_names[part].key;
}

/* A position in a mangled name, and the text written so far. */
struct reader {
    const char *at;
    char *out;
    size_t used, size;
    bool stop; /* met something it cannot parse */
};

static void put(struct reader *r, const char *text, size_t n)
{
    size_t room = r->size - 1 - r->used;
    if (n > room) n = room;
    memcpy(r->out + r->used, text, n);
    r->used += n;
    r->out[r->used] = 0;
}
static void put_text(struct reader *r, const char *text)
{
    put(r, text, strlen(text));
}

/* <length><identifier>; NULL and length 0 when there is none. */
static const char *identifier(struct reader *r, size_t *length)
{
    const char *at = r->at;
    size_t n = 0;
    while (isdigit((unsigned char)*at) && n < 10000) n = n * 10 + (size_t)(*at++ - '0');
    *length = 0;
    if (n == 0 || strnlen(at, n) < n) return NULL;
    *length = n;
    r->at = at + n;
    return at;
}

/* The unnamed namespace. nvcc names it after the file: _GLOBAL__N__<hash>_8_optim_cu_<hash>, where 8 is the
 * length of "optim.cu". */
static bool unnamed(const char *name, size_t n)
{
    static const char prefix[] = "_GLOBAL__N_";
    return n >= sizeof prefix - 1 && memcmp(name, prefix, sizeof prefix - 1) == 0;
}

/* The stem of that file, and its length; 0 if the name does not contain it. */
static const char *unnamed_file(const char *name, size_t n, size_t *length)
{
    const char *end = name + n, *at = memchr(name + sizeof "_GLOBAL__N_", '_', n - sizeof "_GLOBAL__N_");
    size_t file = 0;
    *length = 0;
    if (at == NULL) return NULL;
    for (at++; at < end && isdigit((unsigned char)*at); at++) file = file * 10 + (size_t)(*at - '0');
    if (file < 4 || at >= end || (size_t)(end - at) < file + 1 || memcmp(at + file - 2, "_cu", 3) != 0)
        return NULL;
    *length = file - 3;
    return at + 1;
}

static void arguments(struct reader *r, int depth);

/* A reference to an earlier part of the name: S_, S0_, ..., T_, T0_, ... */
static bool back_reference(struct reader *r)
{
    const char *at = r->at;
    if (*at != 'S' && *at != 'T') return false;
    for (at++; isdigit((unsigned char)*at) || isupper((unsigned char)*at);) at++;
    if (*at != '_') return false;
    r->at = at + 1;
    return true;
}

/* Identifiers joined by "::", each with optional arguments; up to and with the E of a nested name. */
static void put_path(struct reader *r, bool nested, int depth)
{
    bool first = true;
    for (;;) {
        size_t n;
        if (nested && *r->at == 'E') {
            r->at++;
            return;
        }
        if (*r->at == 'I' && !first) {
            arguments(r, depth + 1);
            if (r->stop || !nested) return;
            continue;
        }
        if (nested && *r->at == 'L') r->at++; /* internal linkage */
        if (nested && back_reference(r)) continue;
        const char *name = first || nested ? identifier(r, &n) : NULL;
        if (name == NULL) {
            r->stop = nested || first;
            return;
        }
        if (unnamed(name, n)) {
            name = n > sizeof "_GLOBAL__N_" ? unnamed_file(name, n, &n) : NULL;
            if (name == NULL) continue;
        }
        if (!first) put_text(r, "::");
        put(r, name, n);
        first = false;
    }
}

static void put_type_name(struct reader *r)
{
    static const struct {
        const char *name, *shown;
    } known[] = {{"__nv_bfloat16", "bf16"}, {"__half", "f16"}};
    size_t n;
    const char *name = identifier(r, &n);
    if (name == NULL) {
        r->stop = true;
        return;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, name, n) == 0) {
            put_text(r, known[i].shown);
            return;
        }
    put(r, name, n);
}

static const char *builtin(char c)
{
    static const struct {
        char letter;
        const char *name;
    } types[] = {{'f', "f32"},   {'d', "f64"},    {'i', "int"},  {'j', "uint"},  {'l', "long"},
                 {'m', "ulong"}, {'b', "bool"},   {'v', "void"}, {'a', "int8"},  {'h', "uint8"},
                 {'s', "int16"}, {'t', "uint16"}, {'c', "char"}, {'x', "int64"}, {'y', "uint64"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].letter == c) return types[i].name;
    return NULL;
}

/* L <type> <value> E: the value; a bool as a word. */
static void literal(struct reader *r)
{
    size_t n;
    bool word = *r->at == 'b';
    if (builtin(*r->at))
        r->at++;
    else if (*r->at == 'N') { /* an enumeration */
        struct reader type = {.at = r->at + 1, .out = (char[1]){0}, .size = 1};
        put_path(&type, true, 0);
        r->at = type.at;
        r->stop = type.stop;
    } else if (identifier(r, &n) == NULL)
        r->stop = true;
    if (r->stop) return;
    if (word && (*r->at == '0' || *r->at == '1')) {
        put_text(r, *r->at++ == '1' ? "true" : "false");
    } else {
        if (*r->at == 'n') put_text(r, "-"), r->at++;
        n = strspn(r->at, "0123456789");
        put(r, r->at, n);
        r->at += n;
        r->stop = n == 0;
    }
    if (*r->at == 'E')
        r->at++;
    else
        r->stop = true;
}

static void argument(struct reader *r, int depth)
{
    r->at += strspn(r->at, "PRKV"); /* pointers and qualifiers */
    const char *type = builtin(*r->at);
    if (type) {
        r->at++;
        put_text(r, type);
    } else if (back_reference(r)) {
        put_text(r, "_");
    } else if (*r->at == 'L') {
        r->at++;
        literal(r);
    } else if (*r->at == 'N') {
        r->at++;
        put_path(r, true, depth);
    } else if (isdigit((unsigned char)*r->at)) {
        put_type_name(r);
        if (!r->stop && *r->at == 'I') arguments(r, depth + 1);
    } else {
        r->stop = true;
    }
}

/* I <argument>* E */
static void arguments(struct reader *r, int depth)
{
    enum { DEPTH_MAX = 8 };
    r->at++;
    put_text(r, "<");
    for (bool first = true; *r->at != 'E'; first = false) {
        if (!first) put_text(r, ", ");
        if (depth > DEPTH_MAX)
            r->stop = true;
        else
            argument(r, depth);
        if (r->stop) { /* stop here: close all brackets */
            put_text(r, "...>");
            return;
        }
    }
    r->at++;
    put_text(r, ">");
}

void kernel_name_short(const char *name, char *out, size_t size)
{
    struct reader r = {.at = name, .out = out, .size = size};
    out[0] = 0;
    if (name[0] == '_' && name[1] == 'Z') {
        r.at = name + 2;
        if (*r.at == 'L') r.at++;
        bool nested = *r.at == 'N';
        if (nested) r.at++;
        put_path(&r, nested, 0);
    }
    if (r.used == 0) put_text(&r, name);
}

/* The words are lower case. */
static bool has(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strstr(text, *words)) return true;
    return false;
}

static void lower(char *text)
{
    for (; *text; text++) *text = (char)tolower((unsigned char)*text);
}

enum kernel_part kernel_part_of(const char *name)
{
    /* Searched in the full name, so that file names (gemm_plain.cu) and parameter types (attn_fwd_args)
     * count, too. cuDNN is used only for attention: its kernels are named after their generator, its helpers
     * after its namespace. */
    static const char *const attention[] = {"cudnn", "sdpa", "flash", "fmha", "attn", "attention", NULL};
    static const char *const gemms[] = {"nvjet", "gemm",   "cutlass", "cublas", "xmma",
                                        "gemv",  "splitk", "wgmma",   NULL};
    /* Kernels of libraries and ours, by file name. */
    static const char *const communication[] = {"nccl", "p2p_barrier_cu", "tree_sum_cu", "p2p_kernels_cu",
                                                NULL};
    /* Searched in the function's name only. */
    static const char *const optimizer[] = {"adam",  "lion",   "update",    "optim", "clip",
                                            "sumsq", "square", "grad_norm", "ortho", NULL};
    char text[2048];
    snprintf(text, sizeof text, "%s", name);
    lower(text);
    if (has(text, communication) || strcmp(text, "memcpy between gpus") == 0) return KERNEL_COMMUNICATION;
    if (strncmp(text, "memcpy", 6) == 0 || strncmp(text, "memset", 6) == 0) return KERNEL_COPY;
    if (has(text, attention)) return KERNEL_ATTENTION;
    if (has(text, gemms)) return KERNEL_GEMM;
    kernel_name_short(name, text, sizeof text);
    text[strcspn(text, "<")] = 0;
    lower(text);
    const char *base = text;
    for (const char *p = strstr(text, "::"); p; p = strstr(p + 2, "::")) base = p + 2;
    if (strncmp(base, "delta", 5) == 0) return KERNEL_ATTENTION;   /* the rowwise dO * O; the delta rule */
    if (strncmp(base, "hopper_", 7) == 0) return KERNEL_ATTENTION; /* attn_fwd_sm90.cu, attn_bwd_sm90.cu */
    return has(base, optimizer) ? KERNEL_OPTIMIZER : KERNEL_MEMORY;
}
