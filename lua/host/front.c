/* front.c - connections between the front process and its ranks, and what front.lua sees of them.
 *
 * Ranks connect to the front: on this machine to a socket that is no file, from other hosts by TCP
 * to an address that the environment tells. Both ends show that they know one half of a secret.
 */
#define _GNU_SOURCE
#include "front.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <lauxlib.h>

#include "launch.h"

enum { HALF = 16, RANK_DIGITS = 8, HEADER = 5, MOST_TEXT = 1 << 28, PATIENCE = 5 /* seconds */ };

/* What a rank has sent that has not been taken yet. */
typedef struct ear {
    int fd; /* -1: not connected */
    char *data;
    size_t n, room;
} ear;

static struct {
    int fd; /* that listens */
    char secret[2 * HALF + 1];
    int ranks, connected, last;
    ear *ears; /* [ranks] */
    char *script;
    size_t script_size;
} front = {.fd = -1};

int front_fd(void) { return front.fd; }

/* ---- addresses: the secret, unix or tcp, a name or a port and addresses ---- */

/* The address of a socket that is no file; its length. */
static socklen_t abstract(struct sockaddr_un *at, const char *name)
{
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t n = strlen(name) < sizeof at->sun_path - 1 ? strlen(name) : sizeof at->sun_path - 1;
    memcpy(at->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* This machine's, as numbers; the one that only it can use last. */
static void list_addresses(FILE *out)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all)) all = NULL;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        char text[INET_ADDRSTRLEN];
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
            i->ifa_flags & IFF_LOOPBACK)
            continue;
        const struct sockaddr_in *in = (const void *)i->ifa_addr;
        if (inet_ntop(AF_INET, &in->sin_addr, text, sizeof text)) fprintf(out, ",%s", text);
    }
    if (all) freeifaddrs(all);
    fprintf(out, ",127.0.0.1");
}

static int listen_here(FILE *address, int has_hosts)
{
    struct sockaddr_un un;
    struct sockaddr_in in = {.sin_family = AF_INET};
    socklen_t length = sizeof in;
    char name[64];
    snprintf(name, sizeof name, "ulysses-lua.%d.%.8s", (int)getpid(), front.secret + 4);
    front.fd = socket(has_hosts ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (front.fd < 0) return -1;
    if (has_hosts ? bind(front.fd, (void *)&in, length)
                  : bind(front.fd, (void *)&un, abstract(&un, name)))
        return -1;
    if (listen(front.fd, 64)) return -1;
    if (!has_hosts) return fprintf(address, "unix,%s", name), 0;
    if (getsockname(front.fd, (void *)&in, &length)) return -1;
    fprintf(address, "tcp,%d", ntohs(in.sin_port));
    list_addresses(address);
    return 0;
}

int front_listen(const char *variable, int ranks, int has_hosts)
{
    unsigned char noise[HALF];
    if (getrandom(noise, sizeof noise, 0) != sizeof noise) return -1;
    for (int i = 0; i < HALF; i++) sprintf(front.secret + 2 * i, "%02x", noise[i]);
    front.ranks = ranks;
    front.ears = calloc((size_t)ranks, sizeof *front.ears);
    if (!front.ears) return -1;
    for (int r = 0; r < ranks; r++) front.ears[r].fd = -1;
    char *text = NULL;
    size_t size = 0;
    FILE *address = open_memstream(&text, &size);
    if (!address) return -1;
    fprintf(address, "%s,", front.secret);
    int rc = listen_here(address, has_hosts);
    fclose(address);
    if (rc == 0) setenv(variable, text, 1);
    free(text);
    return rc;
}

/* ---- hands are shaken ---- */

static void be_patient(int fd, int seconds)
{
    struct timeval most = {.tv_sec = seconds};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

static int receive_exactly(int fd, char *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, data + at, n - at, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return -1;
        at += (size_t)got;
    }
    return 0;
}

static int send_exactly(int fd, const char *data, size_t n)
{
    while (n) {
        ssize_t done = send(fd, data, n, MSG_NOSIGNAL);
        if (done < 0 && errno != EINTR) return -1;
        if (done > 0) data += done, n -= (size_t)done;
    }
    return 0;
}

/* One that has connected, and its rank; -1: a stranger. */
static int welcome(int *rank)
{
    char text[HALF + RANK_DIGITS + 1] = "";
    int fd = accept4(front.fd, NULL, NULL, SOCK_CLOEXEC), yes = 1;
    if (fd < 0) return -1;
    be_patient(fd, PATIENCE);
    int good =
        receive_exactly(fd, text, sizeof text - 1) == 0 && memcmp(text, front.secret, HALF) == 0;
    *rank = good ? atoi(text + HALF) : -1;
    good = *rank >= 0 && *rank < front.ranks && front.ears[*rank].fd < 0 &&
           send_exactly(fd, front.secret + HALF, HALF) == 0;
    if (!good) return close(fd), -1;
    be_patient(fd, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

/* A connection to one of the front's addresses, or -1. */
static int try(const struct sockaddr *at, socklen_t length, const char *secret, int rank)
{
    char text[HALF + RANK_DIGITS + 1], answer[HALF];
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    if (fd < 0) return -1;
    be_patient(fd, PATIENCE);
    snprintf(text, sizeof text, "%.16s%08d", secret, rank);
    if (connect(fd, at, length) || send_exactly(fd, text, sizeof text - 1) ||
        receive_exactly(fd, answer, sizeof answer) || memcmp(answer, secret + HALF, HALF)) {
        int kept = errno;
        close(fd);
        errno = kept;
        return -1;
    }
    be_patient(fd, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

int front_connect(const char *address, int rank)
{
    const char *kind = strchr(address, ',');
    if (!kind || kind - address != 2 * HALF) return errno = EINVAL, -1;
    if (!strncmp(kind, ",unix,", 6)) {
        struct sockaddr_un un;
        socklen_t length = abstract(&un, kind + 6);
        return try((void *)&un, length, address, rank);
    }
    int port = atoi(kind + 5), fd = -1;
    for (const char *next = strchr(kind + 5, ','); next && fd < 0; next = strchr(next + 1, ',')) {
        char text[INET_ADDRSTRLEN] = "";
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        memcpy(text, next + 1, strnlen(next + 1, sizeof text - 1));
        text[strcspn(text, ",")] = 0;
        if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
            fd = try((void *)&in, sizeof in, address, rank);
    }
    return fd;
}

/* ---- a script on standard input ---- */

int front_read_script(void)
{
    FILE *out = open_memstream(&front.script, &front.script_size);
    char data[4096];
    size_t n;
    if (!out) return -1;
    while ((n = fread(data, 1, sizeof data, stdin)) > 0) fwrite(data, 1, n, out);
    return fclose(out);
}

void front_serve_script(void)
{
    int rank, fd = welcome(&rank);
    if (fd < 0) return;
    send_exactly(fd, front.script, front.script_size);
    close(fd);
}

/* ---- the prompt's ---- */

/* Pushes the kind and the text of a message of this rank, if there is a whole one. */
static int take(lua_State *L, ear *e)
{
    uint32_t length;
    if (e->n < HEADER) return 0;
    memcpy(&length, e->data + 1, sizeof length);
    length = ntohl(length);
    if (e->n - HEADER < length) return 0;
    lua_pushlstring(L, e->data, 1);
    lua_pushlstring(L, e->data + HEADER, length);
    e->n -= HEADER + length;
    memmove(e->data, e->data + HEADER + length, e->n);
    return 1;
}

static void lose(ear *e)
{
    if (e->fd < 0) return;
    close(e->fd);
    e->fd = -1;
    front.connected--;
}

static void listen_to(ear *e)
{
    if (e->room - e->n < 1 << 16) {
        size_t room = e->room ? 2 * e->room : 1 << 17;
        char *more = room < MOST_TEXT ? realloc(e->data, room) : NULL;
        if (!more) {
            lose(e);
            return;
        }
        e->data = more;
        e->room = room;
    }
    ssize_t n = recv(e->fd, e->data + e->n, e->room - e->n, MSG_DONTWAIT);
    if (n > 0) e->n += (size_t)n;
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) lose(e);
}

static void accept_rank(void)
{
    int rank, fd = welcome(&rank);
    if (fd < 0) return;
    front.ears[rank].fd = fd;
    front.connected++;
}

/* Waits for something to come, or a signal, for so many milliseconds; 0 when mpirun has ended. */
static int wait_for_more(int milliseconds)
{
    int n = front.ranks + 2, there = 1;
    struct pollfd *waits = calloc((size_t)n, sizeof *waits);
    if (!waits) return 0;
    for (int r = 0; r < front.ranks; r++)
        waits[r] = (struct pollfd){.fd = front.ears[r].fd, .events = POLLIN};
    waits[n - 2] = (struct pollfd){.fd = front.fd, .events = POLLIN};
    waits[n - 1] = (struct pollfd){.fd = launch_errors(), .events = POLLIN};
    int ready = poll(waits, (nfds_t)n, milliseconds);
    launch_hand_on();
    if (ready > 0) {
        for (int r = 0; r < front.ranks; r++)
            if (waits[r].revents) listen_to(&front.ears[r]);
        if (waits[n - 2].revents) accept_rank();
        if (waits[n - 1].revents) there = launch_hear(1);
    } else if (ready == 0) {
        there = launch_hear(0);
    }
    free(waits);
    return there;
}

/* receive(seconds) -> rank, kind, text; nil: nothing has come; false: all has ended */
static int receive(lua_State *L)
{
    int milliseconds = (int)(1e3 * luaL_checknumber(L, 1));
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 1; i <= front.ranks; i++) {
            int r = (front.last + i) % front.ranks;
            lua_pushinteger(L, r);
            if (take(L, &front.ears[r])) return front.last = r, 3;
            lua_pop(L, 1);
        }
        if (turn == 0 && launch_errors() < 0) return lua_pushboolean(L, 0), 1;
        if (turn == 0) wait_for_more(milliseconds);
    }
    return 0;
}

/* send(rank, kind, text) */
static int send_to(lua_State *L)
{
    int rank = (int)luaL_checkinteger(L, 1);
    size_t n;
    const char *kind = luaL_checkstring(L, 2), *text = luaL_optlstring(L, 3, "", &n);
    ear *e = rank >= 0 && rank < front.ranks ? &front.ears[rank] : NULL;
    if (!e || e->fd < 0) return 0;
    uint32_t length = htonl((uint32_t)n);
    char header[HEADER] = {*kind};
    memcpy(header + 1, &length, sizeof length);
    if (send_exactly(e->fd, header, sizeof header) || send_exactly(e->fd, text, n)) lose(e);
    return 0;
}

static int presses(lua_State *L)
{
    lua_pushinteger(L, launch_presses());
    return 1;
}

static int connected(lua_State *L)
{
    lua_pushinteger(L, front.connected);
    return 1;
}

/* end(): ends all ranks */
static int end(lua_State *L)
{
    (void)L;
    launch_end();
    return 0;
}

void front_push(lua_State *L)
{
    static const luaL_Reg functions[] = {{"receive", receive},     {"send", send_to},
                                         {"presses", presses},     {"end_ranks", end},
                                         {"connected", connected}, {NULL, NULL}};
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    lua_pushinteger(L, front.ranks);
    lua_setfield(L, -2, "ranks");
    lua_pushinteger(L, launch_errors());
    lua_setfield(L, -2, "errors");
}
