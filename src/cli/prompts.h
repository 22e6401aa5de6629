/* Prompts of `ingot generate`, one after the other: one text, the lines of a file, or standard input as it comes. */
#ifndef INGOT_CLI_PROMPTS_H
#define INGOT_CLI_PROMPTS_H
#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct prompts {
    const char *path; /* NULL: the one prompt */
    FILE *in;
    bool rows;        /* NAME.jsonl: the text under "prompt" of each line */
    bool asks;        /* a terminal: "> " is shown before a line is read */
    int64_t number;   /* of the line, from 1 */
    char *line;
    size_t room;
    json_t *row;
};
/* `path`: a file, whose lines are prompts, or "-". STATUS_IO when it cannot be read. */
status prompts_open(struct prompts *p, const char *path) WARN_UNUSED;
void prompts_close(struct prompts *p); /* accepts a zeroed one */
/* The next prompt, valid until the following call; *more false: none is left. Empty lines are passed over. STATUS_DATA
 * names file and line: no JSON, no text under "prompt". */
status prompts_next(struct prompts *p, const char **prompt, bool *more) WARN_UNUSED;
#endif
