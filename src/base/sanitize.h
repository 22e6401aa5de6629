/* Inner loops that the address sanitizer would make ten times slower look at all that they access before, as a whole, and then run without its checks
 * of each access:
 *
 *   if (SANITIZED) sanitize_access(p, bytes);     in the caller, which reports the first byte that is not to be accessed
 *   UNSANITIZED static void kernel(...)
 *
 * Nothing, without sanitizers; clang's check each access. */
#ifndef INGOT_BASE_SANITIZE_H
#define INGOT_BASE_SANITIZE_H
#include <stdint.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { SANITIZED = 1 };
#define UNSANITIZED __attribute__((no_sanitize("address"), no_sanitize("undefined")))
static inline void sanitize_access(const void *p, int64_t bytes)
{
    const volatile char *bad = __asan_region_is_poisoned((void *)(uintptr_t)p, (size_t)bytes);
    if (bad) (void)*bad;
}
#else
enum { SANITIZED = 0 };
#define UNSANITIZED
static inline void sanitize_access(const void *p, int64_t bytes)
{
    (void)p;
    (void)bytes;
}
#endif
#endif
