/* Whether a request is meant for this program: against DNS rebinding and pages of other sites. */
#include "serve/serve_int.h"

#include <string.h>
#include <strings.h>

static bool host_is(const char *host, size_t n, const char *name)
{
    return n == strlen(name) && strncasecmp(host, name, n) == 0;
}

bool serve_host_is_own(const char *header, const char *own)
{
    static const char http[] = "http://";
    if (header == NULL) return false;
    if (strncasecmp(header, http, sizeof http - 1) == 0) header += sizeof http - 1;
    size_t n = header[0] == '[' ? strcspn(header, "]") + 1 : strcspn(header, ":");
    if (n > strlen(header)) return false;
    const char *port = header + n;
    if (port[0] == ':' && (port[1] == 0 || strspn(port + 1, "0123456789") != strlen(port + 1))) return false;
    if (port[0] != 0 && port[0] != ':') return false;
    return host_is(header, n, "127.0.0.1") || host_is(header, n, "localhost") ||
           host_is(header, n, "[::1]") || (own && own[0] && host_is(header, n, own));
}
