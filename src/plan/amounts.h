/* amounts: numbers of a whole run in words that people use, from a laptop's minutes to a cluster's months. Each
 * returns buf. */
#ifndef INGOT_PLAN_AMOUNTS_H
#define INGOT_PLAN_AMOUNTS_H
#include "plan/outlook.h"

/* "77.8M", "185", "0.033": device hours, money, and what else may be far below one. */
const char *amount_number(char buf[32], double n);
/* "2.05 TB/s", "125 MB/s". */
const char *amount_rate(char buf[32], double bytes_per_s);
/* "86.6 expected", "one in 120 such runs". */
const char *amount_failures(char buf[64], double failures);
/* "every 10 min 6 s of work (121 steps): 7377 of 771.09 GiB; training stands still for 2.59 s each", or that one at the
 * end is enough. */
enum { AMOUNT_CHECKPOINTS = 192 };
const char *amount_checkpoints(char buf[AMOUNT_CHECKPOINTS], const struct outlook *o);
#endif
