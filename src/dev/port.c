#include "dev/port.h"
#include "dev/hostfs.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The start of field `index` of a line, from 0; "" behind the last. */
static const char *field(const char *line, int index)
{
    line += strspn(line, " ");
    for (; index > 0; index--) {
        line += strcspn(line, " ");
        line += strspn(line, " ");
    }
    return line;
}

/* The inode of the socket that listens at the port; 0: none found. */
static unsigned long listener(const char *table, int port)
{
    enum { LOCAL = 1, STATE = 3, INODE = 9, LISTENS = 0x0A };
    char line[512];
    unsigned long inode = 0;
    FILE *in = fopen(table, "re");
    while (in && inode == 0 && fgets(line, sizeof line, in)) {
        const char *local = strchr(field(line, LOCAL), ':'); /* ADDRESS:PORT, hexadecimal */
        if (local && strtol(local + 1, NULL, 16) == port && strtol(field(line, STATE), NULL, 16) == LISTENS)
            inode = strtoul(field(line, INODE), NULL, 10);
    }
    if (in) fclose(in);
    return inode;
}

static bool holds(const char *pid, const char *want)
{
    char dir[300], path[600], link[64];
    bool found = false;
    snprintf(dir, sizeof dir, "/proc/%.255s/fd", pid);
    DIR *fds = opendir(dir);
    for (struct dirent *e; fds && !found && (e = readdir(fds));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        const ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        found = strcmp(link, want) == 0;
    }
    if (fds) closedir(fds);
    return found;
}

const char *port_owner(int port, char buf[128])
{
    char want[64], name[64] = "";
    const struct hostfs fs = {.root = ""};
    unsigned long inode = listener("/proc/net/tcp", port);
    if (inode == 0) inode = listener("/proc/net/tcp6", port);
    snprintf(buf, 128, "another process");
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    DIR *proc = inode ? opendir("/proc") : NULL;
    for (struct dirent *e; proc && (e = readdir(proc));) {
        if (!isdigit((unsigned char)e->d_name[0]) || !holds(e->d_name, want)) continue;
        if (!hostfs_read(&fs, name, sizeof name, "/proc/%.20s/comm", e->d_name)) name[0] = 0;
        snprintf(buf, 128, "process %.20s (%.63s)", e->d_name, name);
        break;
    }
    if (proc) closedir(proc);
    return buf;
}
