#include "cli/prompts.h"

#include "base/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

status prompts_open(struct prompts *p, const char *path)
{
    *p = (struct prompts){.path = path, .rows = ends_in(path, ".jsonl")};
    if (strcmp(path, "-") == 0) {
        p->in = stdin;
        p->asks = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
        return STATUS_OK;
    }
    int fd;
    int64_t bytes;
    TRY(io_open(path, LINKS_FOLLOW, &fd, &bytes));
    p->in = fdopen(fd, "r");
    if (p->in) return STATUS_OK;
    io_close(&fd);
    return FAIL(status_of_errno(errno), "cannot open '%s': %s", path, strerror(errno));
}

void prompts_close(struct prompts *p)
{
    if (p->in && p->in != stdin) fclose(p->in);
    json_decref(p->row);
    free(p->line);
    *p = (struct prompts){0};
}

static status take_row(struct prompts *p, const char **prompt)
{
    json_error_t error;
    json_decref(p->row);
    p->row = json_loads(p->line, 0, &error);
    if (!p->row) return FAIL(STATUS_DATA, "%s:%lld: not JSON: %s", p->path, (long long)p->number, error.text);
    *prompt = json_string_value(json_object_get(p->row, "prompt"));
    if (!*prompt) return FAIL(STATUS_DATA, "%s:%lld: no text under 'prompt'", p->path, (long long)p->number);
    return STATUS_OK;
}

status prompts_next(struct prompts *p, const char **prompt, bool *more)
{
    ssize_t n;
    *more = false;
    do {
        if (p->asks) fputs("> ", stdout);
        if (p->asks) fflush(stdout);
        n = getline(&p->line, &p->room, p->in);
        if (n < 0 && ferror(p->in)) return FAIL(STATUS_IO, "cannot read '%s': %s", p->path, strerror(errno));
        if (n < 0) return STATUS_OK;
        p->number++;
        while (n > 0 && (p->line[n - 1] == '\n' || p->line[n - 1] == '\r')) p->line[--n] = 0;
    } while (n == 0);
    if (strlen(p->line) != (size_t)n)
        return FAIL(STATUS_DATA, "%s:%lld: a zero byte in a prompt", p->path, (long long)p->number);
    *more = true;
    *prompt = p->line;
    return p->rows ? take_row(p, prompt) : STATUS_OK;
}
