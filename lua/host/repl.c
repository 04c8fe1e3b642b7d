/* repl.c - core.line: a line typed at the terminal, by libedit where there is one.
 *
 * libedit is opened when the prompt is, so that scripts neither wait for it nor need it. Its
 * reading of characters is ours: signals are blocked but while it waits, so that none comes
 * unnoticed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "host.h"

/* ---- what is used of histedit.h ---- */

typedef struct editline EditLine;
typedef struct history History;
typedef struct {
    int number;
    const char *text;
} hist_event;
typedef struct {
    const char *buffer, *cursor, *end;
} line_info;

enum { EL_PROMPT = 0, EL_EDITOR = 2, EL_SIGNAL = 3, EL_BIND = 4, EL_ADDFN = 9, EL_HIST = 10 };
enum { EL_GETCFN = 13, EL_PREP_TERM = 16, EL_REFRESH = 20 };
enum { H_SETSIZE = 1, H_ENTER = 10, H_LOAD = 17, H_SAVE = 18, H_SETUNIQUE = 20 };
enum { CC_REFRESH = 4, CC_ERROR = 6, CC_REDISPLAY = 8 };

static struct {
    EditLine *(*init)(const char *, FILE *, FILE *, FILE *);
    int (*set)(EditLine *, int, ...);
    const char *(*gets)(EditLine *, int *);
    void (*reset)(EditLine *);
    void (*resize)(EditLine *);
    const line_info *(*line)(EditLine *);
    int (*insert)(EditLine *, const char *);
    int (*source)(EditLine *, const char *);
    History *(*history_init)(void);
    int (*history)(History *, hist_event *, int, ...);
} edit;

static EditLine *editor; /* NULL: lines are read plainly */
static History *entries;
static char *history_path;
static const char *prompt_text = "";
static lua_State *reader; /* who waits for the line */
static int attended = -1; /* a file descriptor that is looked after meanwhile */

static int load_library(void)
{
    static const struct {
        const char *name;
        void *slot;
    } wanted[] = {{"el_init", &edit.init},
                  {"el_set", &edit.set},
                  {"el_gets", &edit.gets},
                  {"el_reset", &edit.reset},
                  {"el_resize", &edit.resize},
                  {"el_line", &edit.line},
                  {"el_insertstr", &edit.insert},
                  {"el_source", &edit.source},
                  {"history_init", &edit.history_init},
                  {"history", &edit.history}};
    void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen("libedit.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found) return 0;
        memcpy(wanted[i].slot, &found, sizeof found);
    }
    return 1;
}

/* ---- signals while a line is read ---- */

static const int caught[] = {SIGINT, SIGTSTP, SIGCONT, SIGWINCH, SIGTERM, SIGHUP};
enum { CAUGHT = sizeof caught / sizeof caught[0] };
static struct sigaction before[CAUGHT];
static sigset_t mask_before;
static volatile sig_atomic_t came[64];

static void on_signal(int number) { came[number] = 1; }

static void begin_reading(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t blocked;
    sigemptyset(&action.sa_mask);
    sigemptyset(&blocked);
    for (int i = 0; i < CAUGHT; i++) sigaddset(&blocked, caught[i]);
    sigprocmask(SIG_BLOCK, &blocked, &mask_before);
    for (int i = 0; i < CAUGHT; i++) {
        came[caught[i]] = 0;
        sigaction(caught[i], &action, &before[i]);
    }
}

static void end_reading(void)
{
    for (int i = 0; i < CAUGHT; i++) sigaction(caught[i], &before[i], NULL);
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
    if (came[SIGTERM]) raise(SIGTERM); /* the terminal is as it was now */
    if (came[SIGHUP]) raise(SIGHUP);
}

/* Ctrl-Z: the shell finds the terminal as it knows it. */
static void suspend(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL}, ours;
    sigset_t one, kept;
    sigemptyset(&action.sa_mask);
    sigemptyset(&one);
    sigaddset(&one, SIGTSTP);
    if (editor) edit.set(editor, EL_PREP_TERM, 0);
    sigaction(SIGTSTP, &action, &ours);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &one, &kept); /* stops here */
    sigprocmask(SIG_SETMASK, &kept, NULL);
    sigaction(SIGTSTP, &ours, NULL);
    if (editor) edit.set(editor, EL_PREP_TERM, 1);
    came[SIGTSTP] = 0;
    came[SIGCONT] = 1;
}

/* Something has come that attend() is about; whether that ends the line. */
static int look_after(void)
{
    lua_State *L = reader;
    if (!lua_checkstack(L, 6)) return 1;
    lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.attend");
    int ends = lua_pcall(L, 0, 1, 0) != 0 || lua_toboolean(L, -1);
    lua_pop(L, 1);
    return ends;
}

/* One byte of standard input; 0 at its end, -1 where a signal, or what attend() is about, ends the
 * line. */
static int read_byte(char *c)
{
    for (;;) {
        struct pollfd in[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                              {.fd = attended, .events = POLLIN}};
        int n = ppoll(in, 2, NULL, &mask_before);
        if (n > 0 && in[1].revents && look_after()) return -1;
        if (n > 0 && in[0].revents) return (int)read(STDIN_FILENO, c, 1);
        if (n > 0) continue;
        if (n < 0 && errno != EINTR) return -1;
        if (came[SIGINT] || came[SIGTERM] || came[SIGHUP]) return -1;
        if (came[SIGTSTP]) suspend();
        if (came[SIGWINCH] && editor) edit.resize(editor);
        if (came[SIGCONT] && editor) edit.set(editor, EL_REFRESH);
        came[SIGWINCH] = came[SIGCONT] = 0;
    }
}

static int read_character(EditLine *unused, wchar_t *out)
{
    (void)unused;
    mbstate_t state = {0};
    for (;;) {
        char c;
        int n = read_byte(&c);
        if (n <= 0) return n;
        size_t used = mbrtowc(out, &c, 1, &state);
        if (used == (size_t)-1) { /* not of this encoding: left out */
            memset(&state, 0, sizeof state);
        } else if (used != (size_t)-2) {
            if (used == 0) *out = 0;
            return 1;
        }
    }
}

/* ---- editing ---- */

static char *prompt_of(EditLine *unused)
{
    (void)unused;
    return (char *)prompt_text;
}

/* Tab: asks Lua what to insert, or what to list. */
static unsigned char complete(EditLine *e, int key)
{
    (void)key;
    lua_State *L = reader;
    const line_info *info = edit.line(e);
    int top = lua_gettop(L);
    unsigned char result = CC_ERROR;
    if (!lua_checkstack(L, 6)) return result;
    lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.complete");
    lua_pushlstring(L, info->buffer, (size_t)(info->cursor - info->buffer));
    if (lua_pcall(L, 1, 2, 0) == 0) {
        const char *insert = lua_tostring(L, top + 1), *list = lua_tostring(L, top + 2);
        if (insert && *insert && edit.insert(e, insert) == 0) result = CC_REFRESH;
        if (list) {
            printf("\n%s\n", list);
            fflush(stdout);
            result = CC_REDISPLAY;
        }
    }
    lua_settop(L, top);
    return result;
}

static int open_editor(void)
{
    const char *terminal = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return 0;
    if (!terminal || !*terminal || !strcmp(terminal, "dumb") || !load_library()) return 0;
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    editor = edit.init("ulysses-lua", stdin, stdout, stderr);
    entries = edit.history_init();
    if (!editor || !entries) return editor = NULL, 0;
    hist_event event;
    edit.history(entries, &event, H_SETSIZE, 2000);
    edit.history(entries, &event, H_SETUNIQUE, 1);
    if (history_path) edit.history(entries, &event, H_LOAD, history_path);
    edit.set(editor, EL_PROMPT, prompt_of);
    edit.set(editor, EL_EDITOR, "emacs");
    edit.set(editor, EL_HIST, edit.history, entries);
    edit.set(editor, EL_SIGNAL, 0);
    edit.set(editor, EL_GETCFN, read_character);
    edit.set(editor, EL_ADDFN, "ulysses-complete", "Complete a name", complete);
    edit.set(editor, EL_BIND, "^I", "ulysses-complete", NULL);
    edit.set(editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    edit.source(editor, NULL);
    return 1;
}

/* open(history or nil, complete) -> whether lines can be edited. complete(line) -> what to insert,
 * what to list.
 */
static int open_line(lua_State *L)
{
    const char *path = luaL_optstring(L, 1, NULL);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_settop(L, 2);
    lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.complete");
    if (!editor) {
        free(history_path);
        history_path = path ? strdup(path) : NULL;
        open_editor();
    }
    lua_pushboolean(L, editor != NULL);
    return 1;
}

/* ---- reading ---- */

/* A plain line, without its end, pushed; 0 where there is none. */
static int read_plain(lua_State *L)
{
    luaL_Buffer text;
    char c = 0;
    int n, any = 0;
    luaL_buffinit(L, &text);
    while ((n = read_byte(&c)) > 0 && c != '\n') {
        any = 1;
        luaL_addchar(&text, c);
    }
    luaL_pushresult(&text);
    return n >= 0 && (any || n > 0);
}

static int read_edited(lua_State *L)
{
    int n = 0;
    edit.set(editor, EL_PREP_TERM, 1); /* before the prompt is seen, so that all keys are keys */
    const char *text = edit.gets(editor, &n);
    if (!text || n <= 0) {
        edit.reset(editor);
        return 0;
    }
    lua_pushlstring(L, text, (size_t)n - (text[n - 1] == '\n'));
    return 1;
}

/* read(prompt) -> the line; false after Ctrl-C, nil at the end */
static int read_line(lua_State *L)
{
    prompt_text = luaL_checkstring(L, 1);
    lua_settop(L, 1);
    reader = L;
    clearerr(stdin); /* a read of Lua's may have been cut short */
    begin_reading(); /* before the prompt is seen */
    if (!editor && isatty(STDIN_FILENO)) fputs(prompt_text, stdout);
    fflush(stdout);
    int got = editor ? read_edited(L) : read_plain(L);
    int interrupted = came[SIGINT];
    end_reading();
    prompt_text = "";
    if (got) return 1;
    if (interrupted)
        lua_pushboolean(L, 0);
    else
        lua_pushnil(L);
    return 1;
}

/* attend(fd, f): while a line is read, f is called when there is something to read from fd; where
 * it returns true, that was the line.
 */
static int attend(lua_State *L)
{
    attended = (int)luaL_checkinteger(L, 1);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_settop(L, 2);
    lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.attend");
    return 0;
}

/* add(entry): into the history, and its file */
static int add_entry(lua_State *L)
{
    hist_event event;
    const char *text = luaL_checkstring(L, 1);
    if (!editor) return 0;
    edit.history(entries, &event, H_ENTER, text);
    if (history_path) edit.history(entries, &event, H_SAVE, history_path);
    return 0;
}

/* on_error(f): f is called where an error is raised in the call of a module or another scope,
 * before its frames are gone
 */
static int on_error(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_settop(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.on_error");
    return 0;
}

/* is_terminal() -> whether someone types and sees the answer */
static int is_terminal(lua_State *L)
{
    lua_pushboolean(L, isatty(STDIN_FILENO) && isatty(STDOUT_FILENO));
    return 1;
}

void host_open_line(lua_State *L, int core)
{
    static const luaL_Reg functions[] = {{"open", open_line},
                                         {"read", read_line},
                                         {"add", add_entry},
                                         {"is_terminal", is_terminal},
                                         {"on_error", on_error},
                                         {"attend", attend},
                                         {NULL, NULL}};
    lua_newtable(L);
    for (const luaL_Reg *f = functions; f->name; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    lua_setfield(L, core, "line");
}
