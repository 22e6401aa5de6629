#include "serve/serve_int.h"

#include "base/io.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKEN_BYTES = 16, TOKEN_LEAST = 16 };

bool serve_token_equal(const char *a, const char *b)
{
    const size_t n = strlen(b);
    unsigned char differ = strlen(a) != n;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)a[differ ? 0 : i] ^ (unsigned char)b[i];
    return differ == 0;
}

static status make(const char *path)
{
    unsigned char random[TOKEN_BYTES];
    char text[2 * TOKEN_BYTES + 2], dir[1024];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return FAIL(STATUS_IO, "serve: no random numbers for a token: %s", strerror(errno));
    for (int i = 0; i < TOKEN_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", random[i]);
    text[2 * TOKEN_BYTES] = '\n';
    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = 0;
    TRY(io_make_dirs(dir));
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST) return STATUS_OK; /* another process was first */
    if (fd < 0) return FAIL(status_of_errno(errno), "serve: %s: %s", path, strerror(errno));
    const bool whole = write(fd, text, 2 * TOKEN_BYTES + 1) == 2 * TOKEN_BYTES + 1;
    close(fd);
    return whole ? STATUS_OK : FAIL(STATUS_IO, "serve: %s cannot be written", path);
}

static status read_file(const char *path, char token[SERVE_TOKEN])
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FAIL(STATUS_CONFIG, "serve: the token file %s: %s", path, strerror(errno));
    const bool known = fstat(fd, &info) == 0;
    const ssize_t n = read(fd, token, SERVE_TOKEN - 1);
    close(fd);
    if (known && (info.st_mode & 077) != 0)
        return FAIL(STATUS_CONFIG, "serve: the token file %s can be read by others (mode %o): chmod 600 %s",
                    path, (unsigned)info.st_mode & 0777, path);
    token[n > 0 ? n : 0] = 0;
    token[strcspn(token, "\r\n")] = 0;
    size_t i = 0;
    while (isalnum((unsigned char)token[i]) || token[i] == '-' || token[i] == '_') i++;
    if (!known || token[i] != 0 || i < TOKEN_LEAST)
        return FAIL(STATUS_CONFIG,
                    "serve: the token file %s must hold one line of %d to %d letters, digits, - or _", path,
                    (int)TOKEN_LEAST, (int)SERVE_TOKEN - 2);
    return STATUS_OK;
}

status serve_token_read(const char *file, char token[SERVE_TOKEN], char path[1024])
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (file)
        snprintf(path, 1024, "%s", file);
    else if (config && config[0] == '/')
        snprintf(path, 1024, "%s/ingot/token", config);
    else if (home && home[0] == '/')
        snprintf(path, 1024, "%s/.config/ingot/token", home);
    else
        return FAIL(STATUS_CONFIG, "serve: no HOME for a token file: give --token-file FILE");
    bool there = true;
    if (file == NULL) TRY(io_exists(path, &there));
    if (!there) TRY(make(path));
    return read_file(path, token);
}
