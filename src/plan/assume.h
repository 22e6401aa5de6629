/* assume: assumptions of the user that a plan cannot derive, such as load imbalance (`ingot plan --assume`;
 * assume.def). */
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
/* Parses "imbalance=1.2,network=0.5" into *a. STATUS_CONFIG, in one line: an unknown name (lists all names), a value
 * that is no number or out of range. */
status assume_read(const char *text, struct assume *a) WARN_UNUSED;
/* Writes the names that differ from the default, as assume_read takes them; "" if none does. Returns buf. */
enum { ASSUME_TEXT = 1024 };
const char *assume_text(char buf[ASSUME_TEXT], const struct assume *a);
/* Applies the factors compute, attention, memory_ops, fp8_rate and network to the machine's rates. */
void assume_machine(const struct assume *a, struct machine *m);
/* True if an assumption changes what activations or state take on the device: memory is then an estimate, not ingot's
 * own layout. */
bool assume_memory(const struct assume *a);
#endif
