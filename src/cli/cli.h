/* The command line: one function per verb. A verb prints results to stdout and messages to stderr. */
#ifndef INGOT_CLI_CLI_H
#define INGOT_CLI_CLI_H
#include "base/flags.h"

struct spec;
#define VERB(name, function, form, arguments, text) status function(struct args *a) WARN_UNUSED;
#define NOTE(text)
#define OPTION(name, letter, type, value, text)
#include "cli/verbs.def"
#undef VERB
#undef NOTE
#undef OPTION
/* Loads the spec that the words and keys name: RUN.yaml, keys alone, or a run's directory, which has config.yaml. To
 * resume, --run.dir=RUN or --run.name=NAME without a word name one, too. To plan, the run need have no length.
 * `origin`: as spec_load's. */
struct spec_origin;
enum cmd_load { LOAD_BEGIN, LOAD_RESUME, LOAD_PLAN };
status cmd_load_spec(const struct args *a, enum cmd_load how, struct spec *spec,
                     struct spec_origin **origin) WARN_UNUSED;
/* What a plan needs of the shards that the run names: its vocabulary; unless `quiet`, prints their tokens. */
status cmd_plan_data(struct spec *spec, bool quiet) WARN_UNUSED;
/* What `ingot train ARGV...` would run. */
status cmd_train_spec(int argc, char **argv, struct spec *spec) WARN_UNUSED;
#endif
