/* ingot report: pages about run directories. */
#include "base/io.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "observe/observe.h"

#include <limits.h>
#include <stdio.h>

/* Without --out: RUN/report.html, or compare.html beside the first of several runs. */
status cmd_report(struct args *a)
{
    const char *out = NULL;
    char path[PATH_MAX], parent[PATH_MAX - 32];
    bool json = false;
    const struct flag flags[] = {FLAG("out", &out), FLAG("json", &json)};
    TRY(args_parse(a, flags, 2));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, INT_MAX));
    if (a->word_count == 1)
        snprintf(path, sizeof path, "%s/report.html", a->words[0]);
    else
        snprintf(path, sizeof path, "%s/compare.html", text_parent(parent, sizeof parent, a->words[0]));
    if (out == NULL) out = path;
    if (a->word_count == 1)
        TRY(report_write(a->words[0], out));
    else
        TRY(report_compare((const char *const *)a->words, a->word_count, out));
    if (json)
        print_json(json_pack("{s:s}", "report", out));
    else
        printf("%s\n", out);
    return STATUS_OK;
}
