#include "train/signals.h"

#include <assert.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* A signal handler can access file-scope state only. */
static volatile sig_atomic_t pending;

static_assert(SIGNALS_INTERRUPT == SIGINT, "the number of SIGINT");

/* Ends the line that the display leaves on a terminal. What is called here is safe in a handler (signal-safety(7)). */
static void end_now(void)
{
    if (tcgetpgrp(STDERR_FILENO) >= 0 && write(STDERR_FILENO, "\n", 1) < 0) _exit(128 + SIGINT);
    _exit(128 + SIGINT);
}

static void on_signal(int number)
{
    if (number == SIGINT && pending) end_now();
    pending = number;
}

void signals_ignore(void)
{
    const int numbers[] = {SIGPIPE, SIGHUP, SIGTTOU};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) signal(numbers[i], SIG_IGN);
}

void signals_catch(void)
{
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_signal;
    sigfillset(&act.sa_mask);
    act.sa_flags = SA_RESTART;
    const int stop[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};
    sigset_t held;
    signals_ignore();
    pending = 0;
    sigemptyset(&held);
    for (size_t i = 0; i < sizeof stop / sizeof stop[0]; i++) {
        sigaction(stop[i], &act, NULL);
        sigaddset(&held, stop[i]);
    }
    pthread_sigmask(SIG_UNBLOCK, &held, NULL); /* a launcher's ranks start with some blocked */
}

int signals_pending(void)
{
    return pending;
}

const char *signals_name(int number)
{
    switch (number) {
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    case SIGINT: return "SIGINT";
    default: return "signal";
    }
}
