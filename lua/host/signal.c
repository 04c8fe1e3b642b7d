/* signal.c - core.signals: Ctrl-C and SIGTERM, as a note to poll for or as an error in Lua.
 *
 * Nothing is installed until someone asks. watch() notes both signals, so that a training loop ends
 * between two steps; SIGHUP, of a terminal that is gone, is like SIGTERM, and SIGPIPE comes to
 * nothing: system.c tells that nobody reads any more. The prompt asks for more: there Ctrl-C is the
 * error 'interrupted!' in the code that runs. It comes by a hook that fires at the next call,
 * return or instruction that the interpreter executes. Compiled loops never look at hooks, so what
 * is typed at the prompt is not compiled; calls of C that block return early, since nothing is
 * restarted.
 *
 *   presses   watched                           at the prompt
 *   first     noted                             the error
 *   second    the error                         the error, where the first came to nothing
 *   third     ends the program                  ends the program
 *
 * At a prompt over several ranks a press comes from the front process, which counts them too, and
 * the error comes where all ranks agree to have it (remote.c).
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

static volatile sig_atomic_t watching; /* depth of watch() */
static volatile sig_atomic_t raising;  /* the first press is an error, unless it is watched */
static volatile sig_atomic_t held;     /* depth of hold(): no error now */
static volatile sig_atomic_t owed;     /* an error came while held */
static volatile sig_atomic_t presses, interrupted, terminated; /* since they were last taken */
static volatile sig_atomic_t stopping; /* several ranks: the error is to come */
static volatile sig_atomic_t talks;    /* to a terminal */

static lua_State *volatile state; /* any of the Lua state's that lives as long as it */
static pthread_t thread;          /* the one that runs Lua */

/* ---- the error ---- */

/* A hook of someone else's, a profiler's say, that ours displaced. */
static struct {
    lua_Hook call;
    int mask, count;
} displaced;

static void stop(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    if (host_collecting) return; /* the error would be lost there; the next call will do */
    lua_sethook(L, displaced.call, displaced.mask, displaced.count);
    if (held) {
        owed = 1;
        return;
    }
    if (host_remote_is_open() && !host_remote_park()) return;
    lua_pushliteral(L, "interrupted!");
    lua_error(L);
}

static void arm(lua_State *L)
{
    if (lua_gethook(L) != stop) {
        displaced.call = lua_gethook(L);
        displaced.mask = lua_gethookmask(L);
        displaced.count = lua_gethookcount(L);
    }
    lua_sethook(L, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static void disarm(lua_State *L)
{
    owed = 0;
    if (lua_gethook(L) == stop) lua_sethook(L, displaced.call, displaced.mask, displaced.count);
}

/* ---- several ranks ---- */

int host_signals_noted(void) { return watching && interrupted; }
int host_signals_stopping(void) { return stopping && !held; }

void host_signals_stop(void)
{
    if (!host_signals_noted()) stopping = 1;
}

void host_signals_arm(void)
{
    if (state && stopping) arm(state);
}

static void on_press_of_front(void)
{
    interrupted = ++presses == 1 && watching;
    stopping = !interrupted;
}

/* ---- the handlers ---- */

static void say(const char *text)
{
    if (talks && write(STDERR_FILENO, text, strlen(text)) < 0) talks = 0;
}

static void on_signal(int number)
{
    int kept = errno;
    if (!pthread_equal(pthread_self(), thread)) { /* the wait to be cut short is the other's */
        pthread_kill(thread, number);
    } else if (number == SIGPIPE) {
        return;
    } else if (number == SIGTERM || number == SIGHUP) {
        terminated = 1;
    } else if (host_remote_is_open()) {
        on_press_of_front();
    } else if (++presses >= 3) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    } else {
        interrupted = watching > 0;
        if (watching && presses == 1)
            say("\nstopping after this step; Ctrl-C again stops at once\n");
        else if (presses == 2)
            say("\nCtrl-C once more ends the program\n");
        if (state && (presses == 2 || !watching)) arm(state);
    }
    errno = kept;
}

static struct {
    int number, installed;
    struct sigaction before;
} handlers[] = {{.number = SIGINT}, {.number = SIGTERM}, {.number = SIGHUP}, {.number = SIGPIPE}};

/* Handles signal i from now on, or no longer. */
static void handle(int i, int wanted)
{
    if (wanted == handlers[i].installed) return;
    if (!wanted) {
        sigaction(handlers[i].number, &handlers[i].before, NULL);
    } else {
        struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART */
        sigemptyset(&action.sa_mask);
        sigaction(handlers[i].number, NULL, &handlers[i].before);
        /* what nohup, or a shell's & without job control, made deaf stays so */
        if (handlers[i].before.sa_handler == SIG_IGN && !raising) return;
        sigaction(handlers[i].number, &action, NULL);
    }
    handlers[i].installed = wanted;
}

/* Whether what is said on stderr comes to a terminal; of ranks the first alone says it, through the
 * front process (launch.c). */
static int is_heard(void)
{
    const char *front = getenv("UL_RANK_ERRORS");
    return front ? !strcmp(front, "terminal") : isatty(STDERR_FILENO);
}

static void update(lua_State *L)
{
    if (watching || raising) {
        lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.signals");
        state = lua_tothread(L, -1);
        lua_pop(L, 1);
        thread = pthread_self();
        talks = is_heard();
    }
    handle(0, watching || raising);
    for (int i = 1; i < 4; i++) handle(i, watching > 0);
}

/* Forgets what has been noted. */
static void forget(lua_State *L)
{
    disarm(L);
    presses = interrupted = terminated = stopping = 0;
}

/* ---- functions ---- */

/* What was noted and is not taken, when nobody will take it any more: it is done. */
static void deliver(lua_State *L)
{
    int number = terminated ? SIGTERM : interrupted && presses == 1 ? SIGINT : 0;
    if (number && !(raising && number == SIGINT)) {
        forget(L);
        raise(number);
    } else if (number) {
        interrupted = 0;
        arm(L);
    }
}

/* watch(true): both signals are noted from now on; watch(false) ends that. It nests. What is noted
 * then and was not taken comes after all: the signal does what it does where nothing is watched.
 */
static int watch(lua_State *L)
{
    int on = host_boolean(L, 1, "watch", "what to do", 1), was = watching;
    if (on && !watching && !raising) forget(L); /* at the prompt, it has */
    if (on || watching) watching += on ? 1 : -1;
    if (on && stopping && presses == 1) { /* on other ranks it may be noted already */
        disarm(L);
        interrupted = 1;
        stopping = 0;
    }
    update(L);
    if (was && !watching && !host_remote_is_open()) deliver(L);
    return 0;
}

/* pending() -> nil, 'interrupt' or 'terminate': what has been noted */
static int pending(lua_State *L)
{
    if (terminated)
        lua_pushliteral(L, "terminate");
    else if (interrupted)
        lua_pushliteral(L, "interrupt");
    else
        lua_pushnil(L);
    return 1;
}

/* take(): the same, and forgets it */
static int take(lua_State *L)
{
    pending(L);
    if (!lua_isnil(L, -1)) forget(L);
    return 1;
}

/* hold(): no interruption as an error until release(); they nest. */
static int hold(lua_State *L)
{
    (void)L;
    held++;
    return 0;
}

static int release(lua_State *L)
{
    if (held) held--;
    if (held || !owed) return 0;
    owed = 0;
    if (host_remote_is_open() && !host_remote_park()) return 0;
    lua_pushliteral(L, "interrupted!");
    return lua_error(L);
}

/* prompt(raises, watched, held) -> the three as they were. For the prompt: whether Ctrl-C is an
 * error from now on, and the depths of watch() and hold(); forgets what has been noted.
 */
static int prompt(lua_State *L)
{
    int wanted[] = {lua_toboolean(L, 1), (int)luaL_optinteger(L, 2, 0),
                    (int)luaL_optinteger(L, 3, 0)};
    lua_pushboolean(L, raising);
    lua_pushinteger(L, watching);
    lua_pushinteger(L, held);
    forget(L);
    raising = wanted[0];
    watching = wanted[1];
    held = wanted[2];
    update(L);
    return 3;
}

/* When the Lua state closes, signals do again what they did before. */
static int close_signals(lua_State *L)
{
    (void)L;
    watching = raising = held = 0;
    for (int i = 0; i < 4; i++) handle(i, 0);
    state = NULL;
    return 0;
}

void host_open_signals(lua_State *L, int core)
{
    static const luaL_Reg functions[] = {{"watch", watch}, {"pending", pending}, {"take", take},
                                         {"hold", hold},   {"release", release}, {"prompt", prompt},
                                         {NULL, NULL}};
    lua_newtable(L);
    for (const luaL_Reg *f = functions; f->name; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    lua_setfield(L, core, "signals");

    lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.signals");
    int opened = lua_isthread(L, -1);
    lua_pop(L, 1);
    if (opened) return;
    lua_newthread(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.signals");
    lua_newuserdata(L, 1);
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, close_signals);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.signals.close");
}
