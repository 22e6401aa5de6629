#include "cli/cli.h"
#include "observe/observe.h"

#include <stdio.h>

status cmd_report(struct args *a)
{
    TRY(args_parse(a, NULL, 0));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 1));
    TRY(report_write(a->words[0]));
    printf("%s/report.html\n", a->words[0]);
    return STATUS_OK;
}
