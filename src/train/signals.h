/* signals: SIGTERM, SIGUSR1, SIGUSR2 and the first SIGINT ask a run to finish the step, save and stop. A second SIGINT
 * ends the process at once (exit 130). The handler only sets a flag, which the loop reads between steps. SIGPIPE and
 * SIGHUP are ignored. */
#ifndef INGOT_TRAIN_SIGNALS_H
#define INGOT_TRAIN_SIGNALS_H
void signals_catch(void);
int signals_pending(void); /* the signal number, or 0 */
const char *signals_name(int number);
#endif
