/* remote.c - core.remote: a rank's end of the prompt over all ranks (the other is front.c).
 *
 * A thread, the ear, listens to the front process while Lua runs: it hands on what the program
 * prints, tells how far this rank is, and brings interruptions. Those must end all ranks at the
 * same call of their groups. So where one is to be raised, before a call or in Lua, the rank parks:
 * it waits until the front, which asks all of them, lets it go on or raise the error. One that
 * waits in a call which others never join is told to give up.
 *
 *   from the front   i  Ctrl-C             I  so that Lua notices     q  how far?
 *                    g  go on (a number)   r  raise (a number)        a  give up the call
 *                    b  all have given up
 *                    l  an entry           c  complete this           n  a new epoch
 *                    d  the end
 *   to the front     o  was printed        e  the same to stderr      s  how far this rank is
 *                    v  a value            x  an error                c  what completes
 *                    p  the prompt, and how far
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host.h"

enum { AT_PROMPT, RUNNING, AT_CALL, IN_LUA, RAISING, DRAINED }; /* two of them are parked */
enum { NOTHING, GO_ON, RAISE };
enum { HEADER = 5, MOST_TEXT = 1 << 28, MOST_PROGRESS = 2000 };

typedef struct message {
    struct message *next;
    size_t size;
    char kind, text[];
} message;

static struct {
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    int state, order, all_drained, is_closed;
    long parked;            /* how often: an order is about one of them */
    message *first, **last; /* for the one that waits at the prompt */

    pthread_mutex_t mouth; /* of what is sent */
    int socket;            /* -1: there is no front */
    int printed[2];        /* what comes out of stdout and stderr */
    pthread_t main;
} remote = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER,
            .state = RUNNING,
            .mouth = PTHREAD_MUTEX_INITIALIZER,
            .socket = -1};

static volatile sig_atomic_t giving_up;

/* ---- sending ---- */

static void send_all(const char *data, size_t n)
{
    while (n) {
        ssize_t done = send(remote.socket, data, n, MSG_NOSIGNAL);
        if (done < 0 && errno != EINTR) return;
        if (done > 0) data += done, n -= (size_t)done;
    }
}

/* Holding the mouth. */
static void tell(char kind, const char *text, size_t n)
{
    uint32_t length = htonl((uint32_t)n);
    char header[HEADER] = {kind};
    memcpy(header + 1, &length, sizeof length);
    send_all(header, sizeof header);
    send_all(text, n);
}

/* Holding the mouth: hands on what has been printed. */
static void tell_printed(void)
{
    char text[4096];
    for (int i = 0; i < 2; i++) {
        ssize_t n;
        while ((n = read(remote.printed[i], text, sizeof text)) > 0)
            tell(i ? 'e' : 'o', text, (size_t)n);
    }
}

/* What is printed before comes before. */
static void say(char kind, const char *text, size_t n)
{
    fflush(stdout);
    fflush(stderr);
    pthread_mutex_lock(&remote.mouth);
    tell_printed();
    tell(kind, text, n);
    pthread_mutex_unlock(&remote.mouth);
}

void host_remote_flush(void)
{
    if (remote.socket < 0) return;
    pthread_mutex_lock(&remote.mouth);
    tell_printed();
    pthread_mutex_unlock(&remote.mouth);
}

/* How far this rank is: its state and how often it has parked (p at the prompt, r running, w
 * running to note Ctrl-C by itself, k parked before a call, j parked in Lua, x raising, d having
 * given up a call), then context, from, to, begun and finished of its calls. */
static void say_progress(char kind, const char *prompt)
{
    static const char names[] = {'p', 'r', 'k', 'j', 'x', 'd'};
    static ul_group_progress list[MOST_PROGRESS];
    char *text = NULL;
    size_t size = 0;
    fflush(stdout);
    fflush(stderr);
    pthread_mutex_lock(&remote.mouth); /* what is true when it is said: the prompt comes last */
    FILE *out = open_memstream(&text, &size);
    int n = ul_group_progress_list(list, MOST_PROGRESS);
    pthread_mutex_lock(&remote.lock);
    char state = names[remote.state];
    long parked = remote.parked;
    pthread_mutex_unlock(&remote.lock);
    if (state == 'r' && host_signals_noted()) state = 'w';
    if (out) fprintf(out, "%c%ld", state, parked);
    for (int i = 0; i < n && out; i++)
        fprintf(out, " %d:%d:%d:%lld:%lld", list[i].context, list[i].from, list[i].to,
                (long long)list[i].begun, (long long)list[i].finished);
    if (prompt && out) fprintf(out, "\n%s", prompt);
    if (out) fclose(out);
    tell_printed();
    tell(kind, text ? text : "", size);
    pthread_mutex_unlock(&remote.mouth);
    free(text);
}

/* ---- the ear ---- */

/* Ctrl-C, also for what this rank has started, where that is a family of its own. */
static void interrupt(void)
{
    if (getpgrp() == getpid())
        kill(0, SIGINT);
    else
        pthread_kill(remote.main, SIGINT);
}

/* parked: the one it is about. */
static void give_order(int order, long parked)
{
    int is_parked = remote.state == AT_CALL || remote.state == IN_LUA;
    if (is_parked && parked == remote.parked) remote.order = order;
    pthread_cond_broadcast(&remote.changed);
}

static void queue(char kind, const char *text, size_t n)
{
    message *m = malloc(sizeof *m + n + 1);
    if (!m) return;
    *m = (message){.size = n, .kind = kind};
    memcpy(m->text, text, n);
    m->text[n] = 0;
    *remote.last = m;
    remote.last = &m->next;
    pthread_cond_broadcast(&remote.changed);
}

static void hear(char kind, const char *text, size_t n)
{
    if (kind == 'q') {
        say_progress('s', NULL);
        return;
    }
    char number[32] = "";
    memcpy(number, text, n < sizeof number - 1 ? n : sizeof number - 1);
    long parked = atol(number);
    pthread_mutex_lock(&remote.lock);
    int runs = remote.state != AT_PROMPT;
    switch (kind) {
    case 'g':
        give_order(GO_ON, parked);
        break;
    case 'r':
        give_order(RAISE, parked);
        break;
    case 'a':
        giving_up = runs;
        break;
    case 'b':
        remote.all_drained = 1;
        break;
    case 'i':
    case 'I':
        break;
    default:
        queue(kind, text, n);
    }
    pthread_mutex_unlock(&remote.lock);
    if (runs && kind == 'i') interrupt();
    if (runs && kind == 'I') {
        host_signals_stop();
        pthread_kill(remote.main, SIGUSR1);
    }
}

/* The front has gone: the prompt ends, and mpirun will end the rest. */
static void hear_the_end(void)
{
    pthread_mutex_lock(&remote.lock);
    remote.is_closed = 1;
    give_order(RAISE, remote.parked);
    giving_up = remote.all_drained = 1;
    pthread_mutex_unlock(&remote.lock);
}

/* Takes whole messages from the front of the buffer; returns how many bytes are left. */
static size_t hear_all(char *data, size_t n)
{
    size_t at = 0;
    while (n - at >= HEADER) {
        uint32_t length;
        memcpy(&length, data + at + 1, sizeof length);
        length = ntohl(length);
        if (n - at - HEADER < length) break;
        hear(data[at], data + at + HEADER, length);
        at += HEADER + length;
    }
    memmove(data, data + at, n - at);
    return n - at;
}

static void *listen_on(void *unused)
{
    (void)unused;
    size_t n = 0, room = 1 << 16;
    char *data = malloc(room);
    struct pollfd waits[3] = {{.fd = remote.socket, .events = POLLIN},
                              {.fd = remote.printed[0], .events = POLLIN},
                              {.fd = remote.printed[1], .events = POLLIN}};
    while (data) {
        if (poll(waits, 3, -1) < 0) continue;
        if (waits[1].revents || waits[2].revents) host_remote_flush();
        if (!waits[0].revents) continue;
        if (room - n < 4096) {
            char *more = room < MOST_TEXT ? realloc(data, room *= 2) : NULL;
            if (!more) break;
            data = more;
        }
        ssize_t got = recv(remote.socket, data + n, room - n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n = hear_all(data, n + (size_t)got);
    }
    free(data);
    hear_the_end();
    waits[0].fd = -1;
    while (poll(waits, 3, -1)) host_remote_flush(); /* or who prints would wait */
    return NULL;
}

/* ---- the main thread: where it stops ---- */

int host_remote_is_open(void) { return remote.socket >= 0; }

static int park(int where)
{
    pthread_mutex_lock(&remote.lock);
    if (remote.state != RAISING) {
        remote.state = where;
        remote.parked++;
        remote.order = remote.is_closed ? RAISE : NOTHING;
        while (remote.order == NOTHING) pthread_cond_wait(&remote.changed, &remote.lock);
        remote.state = remote.order == RAISE ? RAISING : RUNNING;
    }
    int raises = remote.state == RAISING;
    pthread_mutex_unlock(&remote.lock);
    return raises;
}

int host_remote_park(void) { return park(IN_LUA); }

static int begins(void) { return host_signals_stopping() && park(AT_CALL); }
static int gives_up(void) { return giving_up; }

static int is_over(void)
{
    pthread_mutex_lock(&remote.lock);
    int over = remote.all_drained;
    remote.state = over ? RAISING : DRAINED;
    if (over) giving_up = 0;
    pthread_mutex_unlock(&remote.lock);
    return over;
}

/* ---- opening ---- */

static int redirect(int i, int fd)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return -1;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    remote.printed[i] = ends[0];
    int rc = dup2(ends[1], fd);
    close(ends[1]);
    return rc;
}

/* Orders that interrupt what Lua does; those of Ctrl-C itself are signal.c's. */
static void on_order(int number)
{
    (void)number;
    host_signals_arm();
}

/* open(fd): from now on, what is printed goes to the front, and the prompt is there. */
static int open_remote(lua_State *L)
{
    remote.socket = (int)luaL_checkinteger(L, 1);
    remote.last = &remote.first;
    remote.main = pthread_self();
    struct sigaction action = {.sa_handler = on_order}; /* without SA_RESTART */
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGINT, SIG_IGN); /* until the prompt sees to it */
    fflush(NULL);
    if (redirect(0, STDOUT_FILENO) < 0 || redirect(1, STDERR_FILENO) < 0)
        return luaL_error(L, "no pipes: %s", strerror(errno));
    setvbuf(stdout, NULL, _IOLBF, 0);
    ul_group_interruptible(begins, gives_up, is_over);
    sigset_t blocked, before;
    pthread_t ear;
    sigfillset(&blocked);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int rc = pthread_create(&ear, NULL, listen_on, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) return luaL_error(L, "no thread: %s", strerror(rc));
    pthread_detach(ear);
    return 0;
}

/* For tests: groups as the prompt has them, without one. */
static int interruptible(lua_State *L)
{
    (void)L;
    ul_group_interruptible(begins, gives_up, is_over);
    return 0;
}

static int is_open(lua_State *L)
{
    lua_pushboolean(L, host_remote_is_open());
    return 1;
}

/* ---- the prompt ---- */

/* ready(prompt): this rank waits for an entry. */
static int ready(lua_State *L)
{
    const char *prompt = luaL_checkstring(L, 1);
    pthread_mutex_lock(&remote.lock);
    remote.state = AT_PROMPT;
    remote.order = NOTHING;
    remote.all_drained = 0;
    giving_up = 0;
    pthread_mutex_unlock(&remote.lock);
    say_progress('p', prompt);
    return 0;
}

/* next() -> kind, text of the next message from the front; nil when there is none any more */
static int next(lua_State *L)
{
    pthread_mutex_lock(&remote.lock);
    while (!remote.first && !remote.is_closed) pthread_cond_wait(&remote.changed, &remote.lock);
    message *m = remote.first;
    if (m) {
        remote.first = m->next;
        if (!remote.first) remote.last = &remote.first;
        if (m->kind == 'l' || m->kind == 'd') remote.state = RUNNING;
    }
    pthread_mutex_unlock(&remote.lock);
    if (!m) return 0;
    lua_pushlstring(L, &m->kind, 1);
    lua_pushlstring(L, m->text, m->size);
    free(m);
    return 2;
}

/* say(kind, text): to the front, behind what has been printed */
static int say_to_front(lua_State *L)
{
    size_t n;
    const char *kind = luaL_checkstring(L, 1), *text = luaL_checklstring(L, 2, &n);
    say(*kind, text, n);
    return 0;
}

/* renew(epoch): of all groups */
static int renew(lua_State *L)
{
    ul_group_renew((int)luaL_checkinteger(L, 1));
    return 0;
}

void host_open_remote(lua_State *L, int core)
{
    static const luaL_Reg functions[] = {
        {"open", open_remote}, {"is_open", is_open}, {"interruptible", interruptible},
        {"ready", ready},      {"next", next},       {"say", say_to_front},
        {"renew", renew},      {NULL, NULL}};
    lua_newtable(L);
    for (const luaL_Reg *f = functions; f->name; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    lua_setfield(L, core, "remote");
}
