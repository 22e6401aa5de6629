/* signals: SIGTERM, SIGUSR1, SIGUSR2 and the first SIGINT ask a run to save and stop (train/stop.h). A second SIGINT
 * ends the process at once (exit 130). The handler only sets a flag. */
#ifndef INGOT_TRAIN_SIGNALS_H
#define INGOT_TRAIN_SIGNALS_H
void signals_catch(void); /* calls signals_ignore, too */
/* A closed pipe, a closed terminal, and a terminal that stops background jobs which write (SIGPIPE, SIGHUP, SIGTTOU) do
 * not end or stop this process, nor those that it starts: what they write is dropped or shown. */
void signals_ignore(void);
int signals_pending(void); /* the signal number, or 0 */
enum { SIGNALS_INTERRUPT = 2 }; /* SIGINT: a second one ends the process */
const char *signals_name(int number);
#endif
