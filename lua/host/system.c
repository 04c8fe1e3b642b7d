/* system.c - what a run asks of the system: clocks, the terminal, and a folder of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* now() -> seconds since 1970 */
static int now(lua_State *L)
{
    lua_pushnumber(L, seconds_of(CLOCK_REALTIME));
    return 1;
}

/* clock() -> seconds that never go back */
static int monotonic(lua_State *L)
{
    lua_pushnumber(L, seconds_of(CLOCK_MONOTONIC));
    return 1;
}

/* columns() -> how many the terminal has that standard output is; nil where it is none.
 * mpirun gives ranks a terminal; the front process tells them whether there is one.
 */
static int columns(lua_State *L)
{
    struct winsize size = {0};
    const char *front = getenv("UL_RANK_TERMINAL");
    if (!isatty(STDOUT_FILENO) || (front && !strcmp(front, "0"))) return 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0) size.ws_col = 80;
    lua_pushinteger(L, size.ws_col);
    return 1;
}

/* is_unread() -> whether output was lost because no program reads the pipe any more */
static int is_unread(lua_State *L)
{
    struct stat status;
    struct pollfd output = {.fd = STDOUT_FILENO};
    lua_pushboolean(L, ferror(stdout) && fstat(STDOUT_FILENO, &status) == 0 &&
                           (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)) &&
                           poll(&output, 1, 0) == 1);
    return 1;
}

/* nil and the system's own words */
static int refused(lua_State *L, int error)
{
    lua_pushnil(L);
    lua_pushstring(L, strerror(error));
    return 2;
}

/* cut_file(path, bytes) -> true, or nil and why not; nothing behind that many bytes stays */
static int cut_file(lua_State *L)
{
    if (truncate(luaL_checkstring(L, 1), (off_t)luaL_checknumber(L, 2)) < 0)
        return refused(L, errno);
    lua_pushboolean(L, 1);
    return 1;
}

/* kind_of(path) -> 'file', 'folder', 'pipe', 'socket' or 'device'; nil where there is none */
static int kind_of(lua_State *L)
{
    struct stat status;
    if (stat(luaL_checkstring(L, 1), &status) < 0) return 0;
    mode_t mode = status.st_mode;
    lua_pushstring(L, S_ISREG(mode)    ? "file"
                      : S_ISDIR(mode)  ? "folder"
                      : S_ISFIFO(mode) ? "pipe"
                      : S_ISSOCK(mode) ? "socket"
                                       : "device");
    return 1;
}

/* link_of(path) -> what a symbolic link points at, as it is written; nil where it is none */
static int link_of(lua_State *L)
{
    char target[PATH_MAX];
    ssize_t n = readlink(luaL_checkstring(L, 1), target, sizeof target);
    if (n < 0) return 0;
    lua_pushlstring(L, target, (size_t)n);
    return 1;
}

/* may_write(folder) -> true; or false and why nothing can be made in it */
static int may_write(lua_State *L)
{
    int may = access(luaL_checkstring(L, 1), W_OK | X_OK) == 0, error = errno;
    lua_pushboolean(L, may);
    if (may) return 1;
    lua_pushstring(L, strerror(error));
    return 2;
}

/* is_mount(folder) -> whether a file system of its own begins there */
static int is_mount(lua_State *L)
{
    struct stat here, above;
    const char *path = luaL_checkstring(L, 1);
    lua_pushfstring(L, "%s/..", path);
    lua_pushboolean(L, stat(path, &here) == 0 && stat(lua_tostring(L, -1), &above) == 0 &&
                           here.st_dev != above.st_dev);
    return 1;
}

/* ---- locks ---- */

static const char *const lock_name = "ulysses.lock";

/* The system lets go of a lock by itself when the process ends, however it ends. */
static int lock_release(lua_State *L)
{
    int *fd = luaL_checkudata(L, 1, lock_name);
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return 0;
}

/* Some network file systems have no locks; then nobody is kept out. */
static int has_no_locks(int error)
{
    return error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK;
}

/* Whether a locked file is still the one of that name: who held it may have removed it since. */
static int is_named(int fd, const char *path)
{
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
}

/* The locked file; -1 and errno, where EWOULDBLOCK says that another process has it. *fd is open
 * then, too, unless the file cannot be made.
 */
static int lock_file(int *fd, const char *path)
{
    for (;;) {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (*fd < 0) return -1;
        if (flock(*fd, LOCK_EX | LOCK_NB) < 0 && !has_no_locks(errno)) return -1;
        if (is_named(*fd, path)) return 0;
        close(*fd);
    }
}

/* lock(path) -> a lock with :release(); false and the holder's process id where another process has
 * it; nil and why the file cannot be made
 */
static int lock(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    int *held = lua_newuserdata(L, sizeof *held);
    *held = -1;
    if (luaL_newmetatable(L, lock_name)) {
        lua_pushcfunction(L, lock_release);
        lua_setfield(L, -2, "__gc");
        lua_createtable(L, 0, 1);
        lua_pushcfunction(L, lock_release);
        lua_setfield(L, -2, "release");
        lua_setfield(L, -2, "__index");
    }
    lua_setmetatable(L, -2);
    char text[32] = "";
    if (lock_file(held, path) < 0) {
        if (*held < 0 || errno != EWOULDBLOCK) return refused(L, errno);
        if (read(*held, text, sizeof text - 1) < 0) text[0] = 0;
        lua_pushboolean(L, 0);
        lua_pushinteger(L, atoi(text));
        return 2;
    }
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(*held, 0) == 0 && write(*held, text, (size_t)n) == n) return 1;
    int error = errno;
    unlink(path);
    return refused(L, error);
}

/* core.system, core.version */
void host_open_system(lua_State *L, int core)
{
    static const luaL_Reg functions[] = {{"now", now},
                                         {"clock", monotonic},
                                         {"columns", columns},
                                         {"cut_file", cut_file},
                                         {"is_unread", is_unread},
                                         {"kind_of", kind_of},
                                         {"link_of", link_of},
                                         {"lock", lock},
                                         {"may_write", may_write},
                                         {"is_mount", is_mount},
                                         {NULL, NULL}};
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    lua_setfield(L, core, "system");
    lua_pushliteral(L, UL_VERSION);
    lua_setfield(L, core, "version");
}
