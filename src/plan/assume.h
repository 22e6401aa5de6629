/* assume: what the user of a plan takes for granted where the plan cannot know (`ingot plan --assume`; assume.def). */
#ifndef INGOT_PLAN_ASSUME_H
#define INGOT_PLAN_ASSUME_H
#include "base/status.h"
#include "plan/machine.h"
#include <stdbool.h>

struct assume {
#define ASSUME(name, value, least, most, text) double name;
#include "plan/assume.def"
#undef ASSUME
};
struct assume assume_default(void);
/* Sets what "imbalance=1.2,network=0.5" names. STATUS_CONFIG, in one line: an unknown name (with all names), no number,
 * or one out of range. */
status assume_read(const char *text, struct assume *a) WARN_UNUSED;
/* Writes the names that differ from the default, as assume_read takes them; "" if none does. Returns buf. */
enum { ASSUME_TEXT = 1024 };
const char *assume_text(char buf[ASSUME_TEXT], const struct assume *a);
/* Multiplies rates of the machine: compute, attention, memory_ops, fp8_rate, network. */
void assume_machine(const struct assume *a, struct machine *m);
/* What is kept, and where, is not what ingot lays out: the plan's memory is then the search's estimate. */
bool assume_memory(const struct assume *a);
#endif
