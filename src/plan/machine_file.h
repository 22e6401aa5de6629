/* machine_file: a machine that a file describes, for `ingot plan --machine 64xFILE`. A line is NAME: VALUE, a # begins
 * a comment. Names are the fields of struct machine (plan/machine.h); numbers of a list have blanks or commas between;
 * `like: h100` starts from a row of machine.def. */
#ifndef INGOT_PLAN_MACHINE_FILE_H
#define INGOT_PLAN_MACHINE_FILE_H
#include "plan/machine.h"

/* `row` finds a row of machine.def by name, NULL: none. m->name is not set. STATUS_CONFIG, in one line with file and
 * line: an unknown name, no number, or a rate that is missing. STATUS_IO as io_read_file. */
status machine_file_read(const char *path, const struct machine *(*row)(const char *name),
                         struct machine *m) WARN_UNUSED;
#endif
