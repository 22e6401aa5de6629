#include "cli/cli.h"
#include "observe/observe.h"

#include <stdio.h>

status cmd_report(int argc, char **argv)
{
    static const char usage[] = "report RUN";
    int help = 0;
    TRY(flags_parse(usage, NULL, 0, &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    if (argc != 1) return FAIL(STATUS_CONFIG, "a run directory is needed: ingot %s", usage);
    TRY(report_write(argv[0]));
    printf("%s/report.html\n", argv[0]);
    return STATUS_OK;
}
