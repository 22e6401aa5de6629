#include "base/text.h"
#include "base/status.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum { WORD_MAX = 64 };

static int min3(int a, int b, int c)
{
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

/* Optimal string alignment distance: insert, delete, replace, swap of neighbours. */
static int distance(const char *a, const char *b)
{
    size_t la = strlen(a), lb = strlen(b);
    if (la > WORD_MAX || lb > WORD_MAX) return INT_MAX; /* no typo */
    int d[3][WORD_MAX + 1];
    for (size_t j = 0; j <= lb; j++) d[0][j] = (int)j;
    for (size_t i = 1; i <= la; i++) {
        int *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= lb; j++) {
            row[j] = min3(up[j] + 1, row[j - 1] + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < row[j])
                row[j] = up2[j - 2] + 1;
        }
    }
    return d[la % 3][lb];
}

const char *text_nearest(const char *word, const char *const *candidates, int count)
{
    const char *best = NULL;
    int best_d = (int)(strlen(word) + 2) / 3 + 1; /* a third of the letters may be wrong */
    for (int i = 0; i < count; i++) {
        int d = distance(word, candidates[i]);
        if (d < best_d) best = candidates[i], best_d = d;
    }
    return best;
}

static double suffix_factor(const char *s)
{
    static const struct {
        const char *suffix;
        double factor;
    } table[] = {
        {"", 1},    {"k", 1e3},  {"K", 1e3},   {"M", 1e6},      {"B", 1e9},
        {"G", 1e9}, {"T", 1e12}, {"Ki", 1024}, {"Mi", 1048576}, {"Gi", 1073741824.0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(s, table[i].suffix) == 0) return table[i].factor;
    return 0;
}

/* A decimal number without leading space, hexadecimal, "inf" or "nan". */
static bool starts_number(const char *s)
{
    if (*s == '-' || *s == '+') s++;
    if (*s == '.') s++;
    return *s >= '0' && *s <= '9' && !(s[0] == '0' && (s[1] == 'x' || s[1] == 'X'));
}

bool text_to_int(const char *s, int64_t *out)
{
    if (!starts_number(s)) return false;
    char *end;
    errno = 0;
    long long i = strtoll(s, &end, 10);
    if (*end == 0) {
        if (errno) return false;
        *out = i;
        return true;
    }
    double v = strtod(s, &end);
    double factor = suffix_factor(end);
    if (factor == 0) return false;
    v *= factor;
    if (!(fabs(v) < 9007199254740992.0) || v != floor(v))
        return false; /* beyond 2^53 a double is not exact */
    *out = (int64_t)v;
    return true;
}

bool text_to_real(const char *s, double *out)
{
    if (!starts_number(s)) return false;
    char *end;
    double v = strtod(s, &end);
    if (*end != 0 || !isfinite(v)) return false;
    *out = v;
    return true;
}

bool text_to_bool(const char *s, bool *out)
{
    if (strcmp(s, "true") == 0)
        *out = true;
    else if (strcmp(s, "false") == 0)
        *out = false;
    else
        return false;
    return true;
}

const char *text_bytes(char buf[32], double bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;
    while (fabs(bytes) >= 1024 && u < 5) bytes /= 1024, u++;
    snprintf(buf, 32, u ? "%.2f %s" : "%.0f %s", bytes, unit[u]);
    return buf;
}

const char *text_count(char buf[32], double n)
{
    static const char *const unit[] = {"", "k", "M", "B", "T"};
    int u = 0;
    while (fabs(n) >= 1000 && u < 4) n /= 1000, u++;
    snprintf(buf, 32, u ? (n < 10 ? "%.2f%s" : "%.1f%s") : "%.0f%s", n, unit[u]);
    return buf;
}

const char *text_duration(char buf[32], double seconds)
{
    long long s = seconds > 0 ? (long long)(seconds + 0.5) : 0;
    if (s >= 86400)
        snprintf(buf, 32, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(buf, 32, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(buf, 32, "%lldm%02llds", s / 60, s % 60);
    else
        snprintf(buf, 32, "%llds", s);
    return buf;
}

const char *text_time(char buf[32], double s)
{
    static const struct {
        double seconds;
        const char *one, *part;
        int parts;
    } units[] = {{365.25 * 86400, "years", "d", 365},
                 {86400, "d", "h", 24},
                 {3600, "h", "min", 60},
                 {60, "min", "s", 60}};
    for (int i = 0; i < 4; i++) {
        if (s < 0.9995 * units[i].seconds) continue;
        const long long parts = (long long)(s / units[i].seconds * units[i].parts + 0.5);
        if (s >= 100 * units[i].seconds || parts % units[i].parts == 0)
            snprintf(buf, 32, "%.0f %s", s / units[i].seconds, units[i].one);
        else
            snprintf(buf, 32, "%lld %s %lld %s", parts / units[i].parts, units[i].one, parts % units[i].parts,
                     units[i].part);
        return buf;
    }
    if (s >= 0.9995)
        snprintf(buf, 32, s < 9.995 ? "%.2f s" : "%.1f s", s);
    else if (s >= 0.9995e-3)
        snprintf(buf, 32, s < 9.995e-3 ? "%.2f ms" : s < 99.95e-3 ? "%.1f ms" : "%.0f ms", 1e3 * s);
    else
        snprintf(buf, 32, "%.0f us", 1e6 * s);
    return buf;
}

void text_wrap(FILE *out, int at, int indent, int columns, const char *text)
{
    if (at > indent) at = columns + 1;
    for (const char *word = text + strspn(text, " "); *word;) {
        const size_t bytes = strcspn(word, " ");
        int width = 0;
        for (size_t i = 0; i < bytes; i++) width += ((unsigned char)word[i] & 0xC0) != 0x80;
        if (at > indent && at + 1 + width > columns) {
            fputc('\n', out);
            at = 0;
        }
        if (at < indent) fprintf(out, "%*s", indent - at, ""), at = indent;
        if (at > indent) fputc(' ', out), at++;
        fwrite(word, 1, bytes, out);
        at += width;
        word += bytes;
        word += strspn(word, " ");
    }
    fputc('\n', out);
}

int text_columns(int fd, int otherwise)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : otherwise;
}

char *text_shell_word(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%^";
    char *out = malloc(4 * strlen(word) + 3), *at = out;
    if (out == NULL) return NULL;
    const bool quoted = word[0] == 0 || word[strspn(word, plain)] != 0;
    if (quoted) *at++ = '\'';
    for (; *word; word++) {
        if (*word == '\'') {
            memcpy(at, "'\\'", 3); /* closes the quotes, an escaped quote; the next one opens them */
            at += 3;
        }
        *at++ = *word;
    }
    if (quoted) *at++ = '\'';
    *at = 0;
    return out;
}

const char *text_parent(char *buf, size_t size, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    snprintf(buf, size, "%.*s", (int)n, path);
    if (n == 0) snprintf(buf, size, ".");
    return buf;
}
