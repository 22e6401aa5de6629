/* Three kinds of errors.
 *
 *   bug in ingot      CHECK(cond, fmt, ...)            always on: prints values, scope path and place, aborts (SIGABRT)
 *   run-time error    return FAIL(code, fmt, ...)      writes one thread-local record where the error is found; callers
 *                                                      forward it with TRY(call), or prefix text with status_wrap()
 *   no memory        MEMORY_CHECK(p, fmt, ...)         for a few bytes that no caller could do without: one line, exit 5
 *
 * A status is also the exit code of the program. */
#ifndef INGOT_BASE_STATUS_H
#define INGOT_BASE_STATUS_H
#include <stdarg.h>

/*         name      exit  meaning */
#define STATUS_LIST(X)                                                                                       \
    X(OK, 0, "done")                                                                                         \
    X(CONFIG, 2, "usage or configuration")                                                                   \
    X(DATA, 3, "data or tokenizer")                                                                          \
    X(CKPT, 4, "checkpoint or model file")                                                                   \
    X(OUT_OF_MEMORY, 5, "does not fit in memory")                                                            \
    X(NUMERIC, 6, "numeric: loss or gradient is not finite")                                                 \
    X(COMM, 10, "peer or communication")                                                                     \
    X(DEVICE, 11, "device")                                                                                  \
    X(CORRUPT, 14, "silent data corruption: wrong bits without an error")                                    \
    X(INTERNAL, 70, "internal error")                                                                        \
    X(IO, 74, "file system: disk full, not readable or not writable")                                        \
    X(STOPPED, 75, "saved and stopped early; the same command resumes it")

typedef enum {
#define X(name, code, text) STATUS_##name = (code),
    STATUS_LIST(X)
#undef X
} status;

#define WARN_UNUSED            __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Text of a status, from STATUS_LIST; "unknown" for a value outside it. */
const char *status_text(status st);

/* Writes this thread's record and returns `st`. Use FAIL. */
status status_fail(status st, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Prefixes this thread's record with "fmt: " and returns `st`: `return status_wrap(st, "while loading %s", path)`.
 */
status status_wrap(status st, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* This thread's last record: one line without a newline; "" when nothing failed. Valid until the next failure. */
const char *status_message(void);
/* "file.c:line in scope > scope" where the last record was written. */
const char *status_where(void);

/* A failed CHECK also appends a line to this file (docs/FORMATS.md: bug.txt), for who finds the run later. "": none. */
void check_file_set(const char *path);
__attribute__((noreturn)) void check_failed(const char *file, int line, const char *cond, const char *fmt,
                                            ...) PRINTF_LIKE(4, 5);

/* Prints the error line with memory_advice (base/memory.h) and ends the process with STATUS_OUT_OF_MEMORY. Any
 * thread. */
__attribute__((noreturn)) void memory_refused(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* The code of a failed system call: STATUS_OUT_OF_MEMORY for ENOMEM, else STATUS_IO. */
status status_of_errno(int err);

#define FAIL(code, ...) status_fail((code), __FILE__, __LINE__, __VA_ARGS__)
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        status try_st_ = (call);                                                                             \
        if (__builtin_expect(try_st_ != STATUS_OK, 0)) return try_st_;                                       \
    } while (0)
/* TRY for functions with one `status st` and one label `out:`. */
#define TRY_OUT(call)                                                                                        \
    do {                                                                                                     \
        st = (call);                                                                                         \
        if (__builtin_expect(st != STATUS_OK, 0)) goto out;                                                  \
    } while (0)
#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (__builtin_expect(!(cond), 0)) check_failed(__FILE__, __LINE__, #cond, __VA_ARGS__);              \
    } while (0)
#define MEMORY_CHECK(cond, ...)                                                                              \
    do {                                                                                                     \
        if (__builtin_expect(!(cond), 0)) memory_refused(__VA_ARGS__);                                       \
    } while (0)

#endif
