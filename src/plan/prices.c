#include "plan/prices.h"
#include "base/io.h"
#include "base/text.h"
#include "plan/machine.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FILE_MAX = 1 << 20, WORDS = 4 };
static const char form[] =
    "a line is NAME PRICE CURRENCY DATE SOURCE, such as `h100 2.50 USD 2026-11-01 a quote`";

static status set_path(struct prices *p, const char *file)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    p->there = true;
    if (file)
        snprintf(p->path, sizeof p->path, "%s", file);
    else if (config && config[0] == '/')
        snprintf(p->path, sizeof p->path, "%s/ingot/prices.conf", config);
    else if (home && home[0] == '/')
        snprintf(p->path, sizeof p->path, "%s/.config/ingot/prices.conf", home);
    else
        p->there = false;
    return file || !p->there ? STATUS_OK : io_exists(p->path, &p->there);
}

static bool is_date(const char *word)
{
    struct tm tm = {0};
    const char *end = strptime(word, "%Y-%m-%d", &tm);
    return end && *end == 0 && strlen(word) == 10;
}

/* Of --machine, as its row has it; "cpu" and "energy" as they are. */
static status set_name(struct price *r, const char *word)
{
    struct cluster c;
    if (strcmp(word, "cpu") == 0 || strcmp(word, "energy") == 0) {
        snprintf(r->name, sizeof r->name, "%s", word);
        return STATUS_OK;
    }
    const bool bare = strpbrk(word, "./") == NULL && !isdigit((unsigned char)word[0]);
    if (bare && cluster_parse(word, &c) == STATUS_OK) {
        snprintf(r->name, sizeof r->name, "%s", c.machine->name);
        return STATUS_OK;
    }
    return FAIL(STATUS_CONFIG, "'%.40s' is no kind of --machine (h100, h200, ...), cpu or energy", word);
}

static status set_currency(struct prices *p, const char *word)
{
    size_t i = 0;
    while (word[i] >= 'A' && word[i] <= 'Z') i++;
    if (i != 3 || word[3])
        return FAIL(STATUS_CONFIG, "'%.20s' is no currency of three capital letters", word);
    if (p->currency[0] && strcmp(p->currency, word) != 0)
        return FAIL(STATUS_CONFIG, "%s, and %s above: one file has one currency", word, p->currency);
    snprintf(p->currency, sizeof p->currency, "%s", word);
    return STATUS_OK;
}

static status read_line(struct prices *p, char *line, int number)
{
    char *word[WORDS];
    struct price *r = &p->list[p->count];
    line[strcspn(line, "#\r")] = 0;
    line += strspn(line, " \t");
    if (*line == 0) return STATUS_OK;
    if (p->count == PRICES_MAX) return FAIL(STATUS_CONFIG, "more than %d prices", (int)PRICES_MAX);
    *r = (struct price){.line = number};
    for (int i = 0; i < WORDS; i++) {
        const size_t n = strcspn(line, " \t");
        word[i] = line;
        if (n == 0) return FAIL(STATUS_CONFIG, "%s", form);
        line += n;
        if (*line) *line++ = 0;
        line += strspn(line, " \t");
    }
    if (*line == 0) return FAIL(STATUS_CONFIG, "%s", form);
    TRY(set_name(r, word[0]));
    if (!text_to_real(word[1], &r->value) || !(r->value >= 0) || isinf(r->value))
        return FAIL(STATUS_CONFIG, "'%.40s' is no price", word[1]);
    TRY(set_currency(p, word[2]));
    if (!is_date(word[3])) return FAIL(STATUS_CONFIG, "'%.20s' is no date, YYYY-MM-DD: prices age", word[3]);
    const struct price *before = prices_find(p, r->name);
    if (before) return FAIL(STATUS_CONFIG, "%s has a price already, in line %d", r->name, before->line);
    snprintf(r->date, sizeof r->date, "%s", word[3]);
    snprintf(r->source, sizeof r->source, "%s", line);
    for (size_t n = strlen(r->source); n > 0 && strchr(" \t", r->source[n - 1]); n--) r->source[n - 1] = 0;
    p->count++;
    return STATUS_OK;
}

status prices_read(struct prices *p, const char *file)
{
    char *text;
    size_t bytes;
    *p = (struct prices){.count = 0};
    TRY(set_path(p, file));
    if (!p->there) return STATUS_OK;
    TRY(io_read_file(p->path, FILE_MAX, &text, &bytes));
    status st = STATUS_OK;
    int number = 0;
    for (char *line = text, *next; line && st == STATUS_OK; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        number++;
        st = read_line(p, line, number);
        if (st != STATUS_OK) st = status_wrap(st, "%s: line %d", p->path, number);
    }
    free(text);
    return st;
}

const struct price *prices_find(const struct prices *p, const char *name)
{
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->list[i].name, name) == 0) return &p->list[i];
    return NULL;
}
