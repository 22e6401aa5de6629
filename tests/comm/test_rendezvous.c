/* The meeting over TCP: who is let in, who is not, and what strangers can do. Ranks are processes with torchrun's variables. */
#include "comm/launch/rendezvous.h"
#include "comm/support_ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const secret = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
static const char *const other_secret = "10112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

/* ---- processes */

struct rank {
    int rank, ranks;
    const char *address, *secret, *run; /* NULL: not set */
    const char *host;                   /* not NULL: on a machine of this name */
    int wait_ms;
    const char *text; /* of its error; NULL: none is expected */
    status code;
};
enum { NO_PRIVILEGE = 77 };

static void set(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}
static int as_rank(const struct rank *r, int port)
{
    char number[3][16];
    struct comm_env e;
    struct comm *c;
    if (r->host && (unshare(CLONE_NEWUTS) != 0 || sethostname(r->host, strlen(r->host)) != 0))
        return NO_PRIVILEGE;
    const int values[] = {r->rank, r->ranks, port};
    for (int i = 0; i < 3; i++) snprintf(number[i], sizeof number[i], "%d", values[i]);
    set("RANK", number[0]);
    set("WORLD_SIZE", number[1]);
    set("MASTER_PORT", number[2]);
    set("MASTER_ADDR", r->address ? r->address : "127.0.0.1");
    set("INGOT_JOB_SECRET", r->secret);
    set("TORCHELASTIC_RUN_ID", r->run);
    usleep((useconds_t)r->wait_ms * 1000);
    status st = comm_env_read(&e);
    if (st == STATUS_OK) st = comm_open(&c, &e);
    if (st == STATUS_OK) {
        int all[16];
        st = comm_all_gather(c, "ranks", &r->rank, all, sizeof r->rank, NULL);
        for (int i = 0; i < r->ranks; i++) st = all[i] == i ? st : STATUS_INTERNAL;
        comm_close(c, st);
    }
    if (st != r->code || (r->text && !said(r->text))) return 1;
    return 0;
}
static pid_t begin(const struct rank *r, int port)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(2);
        _exit(as_rank(r, port));
    }
    return pid;
}
static void ended_well(pid_t pid, int line)
{
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) fail_msg("the rank of line %d ends with %d", line, how);
}

static int socket_at(struct sockaddr_in *a, int port)
{
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    return fd;
}
static int free_port(void)
{
    struct sockaddr_in a;
    socklen_t bytes = sizeof a;
    const int fd = socket_at(&a, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &bytes), 0);
    close(fd);
    return ntohs(a.sin_port);
}

/* ---- tests */

static void test_meeting(void **state)
{
    (void)state;
    const char *const secrets[] = {NULL, secret};
    for (int k = 0; k < 2; k++) {
        const int port = free_port();
        pid_t pids[4];
        for (int r = 3; r >= 0; r--) /* whoever comes before rank 0 waits for it */
            pids[r] = begin(
                &(struct rank){.rank = r, .ranks = 4, .secret = secrets[k], .wait_ms = 60 * (3 - r)}, port);
        for (int r = 0; r < 4; r++) ended_well(pids[r], __LINE__);
    }
}

/* They talk nonsense, too little, too much, or nothing, before the ranks and between them. */
static void test_strangers(void **state)
{
    (void)state;
    const int port = free_port();
    struct sockaddr_in a;
    int fds[40];
    char noise[1000];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)(i * 37);
    pid_t pids[3] = {begin(&(struct rank){.rank = 0, .ranks = 3, .secret = secret}, port), 0, 0};
    for (int i = 0; i < 40; i++) {
        fds[i] = socket_at(&a, port);
        for (int k = 0; k < 200 && connect(fds[i], (struct sockaddr *)&a, sizeof a) != 0; k++) usleep(10000);
        const size_t bytes = (size_t)(i % 4) * 99 + (i % 8 > 3 ? 500 : 0);
        if (bytes) (void)!send(fds[i], noise, bytes, MSG_NOSIGNAL);
        if (i % 3 == 0) close(fds[i]), fds[i] = -1;
        if (i == 20) pids[1] = begin(&(struct rank){.rank = 1, .ranks = 3, .secret = secret}, port);
    }
    pids[2] = begin(&(struct rank){.rank = 2, .ranks = 3, .secret = secret}, port);
    for (int r = 0; r < 3; r++) ended_well(pids[r], __LINE__);
    for (int i = 0; i < 40; i++)
        if (fds[i] >= 0) close(fds[i]);
}

/* Connections that say nothing. */
static void connect_silent(int *fds, int count, int port)
{
    struct sockaddr_in a;
    for (int i = 0; i < count; i++) {
        fds[i] = socket_at(&a, port);
        for (int k = 0; k < 200 && connect(fds[i], (struct sockaddr *)&a, sizeof a) != 0; k++) usleep(10000);
    }
}
static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++) close(fds[i]);
}

/* They hold their connections; the ranks must not wait for them. */
static void test_silent_strangers(void **state)
{
    (void)state;
    enum { SILENT = 200, WHILE_S = 60 }; /* one after the other they would have 1000 s */
    const int port = free_port();
    int fds[SILENT];
    struct timespec from, to;
    const pid_t zero = begin(&(struct rank){.rank = 0, .ranks = 2, .secret = secret}, port);
    connect_silent(fds, SILENT, port);
    clock_gettime(CLOCK_MONOTONIC, &from);
    ended_well(begin(&(struct rank){.rank = 1, .ranks = 2, .secret = secret}, port), __LINE__);
    ended_well(zero, __LINE__);
    clock_gettime(CLOCK_MONOTONIC, &to);
    assert_true(to.tv_sec - from.tv_sec <= WHILE_S);
    close_all(fds, SILENT);
}

/* Rank 1 never comes: rank 0 says who did. */
static void test_strangers_named(void **state)
{
    (void)state;
    const int port = free_port();
    int fds[3];
    set("INGOT_RENDEZVOUS_S", "2");
    const pid_t zero = begin(
        &(struct rank){.rank = 0,
                       .ranks = 2,
                       .secret = secret,
                       .code = STATUS_COMM,
                       .text = "within 2 seconds; 4 strangers connected (3 said too little within 5 s, 1 "
                               "without the secret, INGOT_JOB_SECRET), the last from 127.0.0.1"},
        port);
    connect_silent(fds, 3, port);
    ended_well(
        begin(&(struct rank){.rank = 1, .ranks = 2, .secret = other_secret, .code = STATUS_COMM}, port),
        __LINE__);
    ended_well(zero, __LINE__);
    close_all(fds, 3);
    set("INGOT_RENDEZVOUS_S", "soon");
    ended_well(begin(&(struct rank){.rank = 0,
                                    .ranks = 2,
                                    .secret = secret,
                                    .code = STATUS_CONFIG,
                                    .text = "INGOT_RENDEZVOUS_S=soon"},
                     port),
               __LINE__);
    set("INGOT_RENDEZVOUS_S", NULL);
}

/* Each of these is dismissed; rank 0 keeps waiting, and the right one joins. */
static void test_turned_away(void **state)
{
    (void)state;
    const int port = free_port();
    const struct rank wrong[] = {
        {.rank = 1,
         .ranks = 2,
         .secret = other_secret,
         .run = "a",
         .code = STATUS_COMM,
         .text = "INGOT_JOB_SECRET"},
        {.rank = 1, .ranks = 2, .run = "a", .code = STATUS_COMM, .text = "INGOT_JOB_SECRET"},
        {.rank = 1,
         .ranks = 3,
         .secret = secret,
         .run = "a",
         .code = STATUS_CONFIG,
         .text = "one of 3 ranks, rank 0 waits for 2"},
        {.rank = 1, .ranks = 2, .secret = secret, .run = "b", .code = STATUS_CONFIG, .text = "another job"},
        {.rank = 1,
         .ranks = 2,
         .secret = "12",
         .run = "a",
         .code = STATUS_CONFIG,
         .text = "64 hexadecimal digits"},
        {.rank = 1,
         .ranks = 2,
         .address = "192.0.2.1",
         .run = "a",
         .code = STATUS_CONFIG,
         .text = "can be reached by others"},
        {.rank = 1,
         .ranks = 2,
         .address = "no such host",
         .secret = secret,
         .run = "a",
         .code = STATUS_CONFIG,
         .text = "is no address"},
    };
    const pid_t first = begin(&(struct rank){.rank = 0, .ranks = 2, .secret = secret, .run = "a"}, port);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ended_well(begin(&wrong[i], port), 1000 + (int)i);
    ended_well(begin(&(struct rank){.rank = 1, .ranks = 2, .secret = secret, .run = "a"}, port), __LINE__);
    ended_well(first, __LINE__);
}

static void test_other_machine(void **state)
{
    (void)state;
    const int port = free_port();
    const char *const text = "rank 1 runs on elsewhere, rank 0 on ";
    const struct rank ranks[] = {
        {.rank = 0, .ranks = 2, .code = STATUS_CONFIG, .text = text},
        {.rank = 1, .ranks = 2, .host = "elsewhere", .code = STATUS_CONFIG, .text = text},
    };
    const pid_t zero = begin(&ranks[0], port), one = begin(&ranks[1], port);
    int how;
    assert_int_equal(waitpid(one, &how, 0), one);
    if (WIFEXITED(how) && WEXITSTATUS(how) == NO_PRIVILEGE) {
        kill(zero, SIGKILL);
        waitpid(zero, NULL, 0);
        skip();
    }
    assert_int_equal(how, 0);
    ended_well(zero, __LINE__);
}

/* Who listens at rank 0's place without the secret is not believed. */
static void test_impostor(void **state)
{
    (void)state;
    struct sockaddr_in a;
    const int port = free_port(), fd = socket_at(&a, port), on = 1;
    char hello[40] = "ingotH1", answer[328] = "ingotA1", join[296];
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 4), 0);
    const pid_t pid = begin(
        &(struct rank){
            .rank = 1, .ranks = 2, .code = STATUS_COMM, .text = "does not know the secret", .secret = secret},
        port);
    const int guest = accept(fd, NULL, NULL);
    assert_true(guest >= 0);
    assert_int_equal(send(guest, hello, sizeof hello, 0), sizeof hello);
    assert_int_equal(recv(guest, join, sizeof join, MSG_WAITALL), sizeof join);
    assert_int_equal(send(guest, answer, sizeof answer, 0), sizeof answer);
    ended_well(pid, __LINE__);
    close(guest);
    close(fd);
}

static void test_secret_files(void **state)
{
    (void)state;
    char dir[] = "/tmp/ingot-secret-XXXXXX", path[64], link[64];
    struct rendezvous_secret s;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/secret", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    const struct {
        const char *text;
        mode_t mode;
        status code;
    } files[] = {{"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n", 0600, STATUS_OK},
                 {"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", 0400, STATUS_OK},
                 {"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", 0644, STATUS_CONFIG},
                 {"00112233445566778899aabbccddeeff00112233445566778899aabbccddeefg", 0600, STATUS_CONFIG},
                 {"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff00", 0600, STATUS_CONFIG},
                 {"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
                  "00112233445566778899aabbccddeeff",
                  0600, STATUS_CONFIG},
                 {"", 0600, STATUS_CONFIG}};
    set("INGOT_JOB_SECRET", NULL);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(files[i].text, f);
        fclose(f);
        chmod(path, files[i].mode);
        set("INGOT_JOB_SECRET_FILE", path);
        assert_int_equal(rendezvous_secret_read(&s), files[i].code);
        if (files[i].code == STATUS_OK) {
            assert_int_equal(s.count, 32);
            assert_int_equal(s.bytes[0], 0);
            assert_int_equal(s.bytes[31], 0xff);
        }
        if (i == 0) {
            assert_int_equal(symlink(path, link), 0);
            set("INGOT_JOB_SECRET_FILE", link);
            assert_int_not_equal(rendezvous_secret_read(&s), STATUS_OK);
            set("INGOT_JOB_SECRET_FILE", path);
            set("INGOT_JOB_SECRET", secret);
            assert_int_equal(rendezvous_secret_read(&s), STATUS_CONFIG);
            set("INGOT_JOB_SECRET", NULL);
        }
        unlink(path);
    }
    set("INGOT_JOB_SECRET_FILE", NULL);
    unlink(link);
    rmdir(dir);
    assert_int_equal(rendezvous_secret_read(&s), STATUS_OK);
    assert_int_equal(s.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meeting),          cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_turned_away),      cmocka_unit_test(test_other_machine),
        cmocka_unit_test(test_impostor),         cmocka_unit_test(test_secret_files),
        cmocka_unit_test(test_silent_strangers), cmocka_unit_test(test_strangers_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
