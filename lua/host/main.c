/* main.c - the program ulysses-lua: luajit's command line, and where require finds ulysses. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "front.h"
#include "launch.h"
#include "ranks.h"

static const char *const usage =
    "usage: ulysses-lua [options] [script.lua [arguments]]    (no script: the prompt)\n"
    "  -e STATEMENT   run a statement first (any number of times); ul, nn and F are known\n"
    "  -i             the prompt after the script, also where it failed; Ctrl-C opens it\n"
    "  -l MODULE      require a module first\n"
    "  -j COMMAND     control the compiler: on, off, p=..., v, dump\n"
    "  -O LEVEL       optimisations of the compiler\n"
    "  -              read the script from standard input\n"
    "  --device NAME  where tensors are made: cpu, cuda, cuda:1, or meta: sizes only (default:\n"
    "                 UL_DEVICE, else cpu)\n"
    "  --ranks N      the script, or one prompt, on N ranks, on --hosts a:4,b:4 or all on this\n"
    "                 one; UL_RANK_OUTPUT=all: a script with the output of all of them\n"
    "  --plan[=NAME]  run nothing: what a step of the script takes of memory, wire and time on\n"
    "                 --ranks N of a machine: a100, b200, h100, h200 (default), or here: this cpu\n"
    "  --report DIR   write the page about the run in a folder, and print where it is\n"
    "  --threads N    threads for kernels (default: UL_THREADS, else all CPUs)\n"
    "  -v, --version  print versions\n"
    "  -h, --help     print this\n"
    "  test [...]     run busted with the arguments that follow\n";

/* Adds the traceback to an error that can carry one; keeps the one that a scope has kept. */
static int with_traceback(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.error");
    int known = lua_rawequal(L, -1, 1);
    lua_pop(L, 1);
    if (!lua_isstring(L, 1)) {
        if (luaL_getmetafield(L, 1, "refusal")) { /* refuse.lua: its sentence says it all */
            luaL_callmeta(L, 1, "__tostring");
            return 1;
        }
        if (lua_isnil(L, 1) || !luaL_callmeta(L, 1, "__tostring") || !lua_isstring(L, -1)) return 1;
        lua_remove(L, 1);
    }
    if (known) {
        lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.traceback");
        if (lua_isstring(L, -1)) lua_concat(L, 2);
        return 1;
    }
    luaL_traceback(L, L, lua_tostring(L, 1), 1);
    return 1;
}

/* The text on top with the frames that are the user's alone; as it is where that fails. */
static void trim_traceback(lua_State *L)
{
    int top = lua_gettop(L);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "ulysses.frames");
    if (lua_isfunction(L, -2) && lua_pcall(L, 1, 1, 0) == 0 && lua_istable(L, -1)) {
        lua_getfield(L, -1, "trim");
        lua_pushvalue(L, top);
        if (lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1)) lua_replace(L, top);
    }
    lua_settop(L, top);
}

/* A run may be drawing its line on the terminal (log.lua): what follows begins a new one. */
static void leave_line(lua_State *L)
{
    int top = lua_gettop(L);
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "ulysses.log");
    if (lua_istable(L, -1)) {
        lua_getfield(L, -1, "leave");
        lua_pcall(L, 0, 0, 0);
    }
    lua_settop(L, top);
}

/* The exit status behind an error: where Ctrl-C has raised it (signal.c), that of any program that
 * Ctrl-C has ended.
 */
static int status_of_error(const char *text)
{
    static const char raised[] = "interrupted!";
    size_t n = sizeof raised - 1;
    return text && !strncmp(text, raised, n) && strchr("\n", text[n]) ? 130 : 1;
}

/* Runs the function below n arguments. 0, or the exit status with the error printed (nothing for
 * error(nil)). */
static int run(lua_State *L, int n)
{
    int base = lua_gettop(L) - n;
    lua_pushcfunction(L, with_traceback);
    lua_insert(L, base);
    int rc = lua_pcall(L, n, 0, base);
    lua_remove(L, base);
    if (rc == 0) return 0;
    leave_line(L);
    if (lua_isstring(L, -1)) trim_traceback(L);
    const char *text = lua_tostring(L, -1);
    if (!lua_isnil(L, -1)) ranks_complain("%s", text ? text : "(the error is no string)");
    rc = status_of_error(text);
    lua_pop(L, 1);
    return rc;
}

static int run_loaded(lua_State *L, int rc, int n)
{
    if (rc == 0) return run(L, n);
    ranks_complain("%s", lua_tostring(L, -1));
    return 1;
}

/* arg[0] the script, arg[1..] its arguments, negative ones the program and its options. */
static void set_arg(lua_State *L, int argc, char **argv, int script)
{
    lua_createtable(L, argc, script + 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - script);
    }
    lua_setglobal(L, "arg");
}

/* Pushes `in_source` for the program in its build folder, else the folder that lies at
 * `from_program` seen from the one that the program was installed in.
 */
static const char *push_dir(lua_State *L, const char *in_source, const char *from_program)
{
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n < 0 ? 0 : n] = 0;
    char *slash = strrchr(program, '/');
    if (!strncmp(program, UL_BUILD_DIR "/", sizeof UL_BUILD_DIR) || !slash)
        return lua_pushstring(L, in_source), lua_tostring(L, -1);
    *slash = 0;
    return lua_pushfstring(L, "%s/%s", program, from_program);
}

/* Puts `before` and `after`, of which one may be empty, around the search path of this name. */
static void search(lua_State *L, const char *name, const char *before, const char *after)
{
    lua_getglobal(L, "package");
    lua_getfield(L, -1, name);
    lua_pushfstring(L, "%s%s%s", before, lua_tostring(L, -1), after);
    lua_setfield(L, -3, name);
    lua_pop(L, 2);
}

/* Where require finds the library and the engine: the same files as for stock luajit, and only when
 * they are asked for. Recipes come last: one's own, in this folder, before those that came along.
 */
static void open_ulysses(lua_State *L)
{
    luaL_openlibs(L);
    const char *folder = push_dir(L, UL_LUA_DIR, UL_LUA_FROM_PROGRAM);
    const char *recipes = push_dir(L, UL_RECIPES_DIR, UL_RECIPES_FROM_PROGRAM);
    search(L, "path", lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;", folder, folder),
           lua_pushfstring(L, ";%s/?.lua", recipes));
    const char *modules = push_dir(L, UL_BUILD_DIR, UL_MODULES_FROM_PROGRAM);
    search(L, "cpath", lua_pushfstring(L, "%s/?.so;", modules), "");
    lua_settop(L, 0);
}

static int run_string(lua_State *L, const char *code, const char *argument)
{
    int rc = luaL_loadbuffer(L, code, strlen(code), "=ulysses-lua");
    if (argument) lua_pushstring(L, argument);
    return run_loaded(L, rc, argument ? 1 : 0);
}

static int print_version(lua_State *L)
{
    return run_string(L,
                      "local core = require 'ulysses.core'\n"
                      "print(('ulysses-lua " UL_VERSION ", %s, isa %s, %d threads'):format("
                      "jit.version, core.isa(), core.threads()))",
                      NULL);
}

static int set_threads(lua_State *L, const char *text)
{
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;
    if (!text || end == text || *end || n < 1 || n > 256) {
        ranks_complain("--threads needs a number from 1 to 256%s%s", text ? ", not " : "",
                       text ? text : "");
        return 1;
    }
    return run_string(L, "require('ulysses.core').threads(tonumber((...)))", text);
}

/* -j command: what jit.command or the module jit.command does; -O: as jit.opt.start. */
static const char *const control_compiler =
    "local option, text = ...\n"
    "local name, rest = text:match '^([^=]*)=?(.*)$'\n"
    "local arguments = {}\n"
    "for word in (option == '-O' and text or rest):gmatch '[^,]+' do\n"
    "  arguments[#arguments + 1] = word\n"
    "end\n"
    "if option == '-O' then return require('jit.opt').start(unpack(arguments)) end\n"
    "if type(jit[name]) == 'function' then return jit[name](unpack(arguments)) end\n"
    "require('jit.' .. name).start(unpack(arguments))\n";

static int compiler_option(lua_State *L, const char *option, const char *text)
{
    lua_settop(L, 0);
    int rc = luaL_loadbuffer(L, control_compiler, strlen(control_compiler), "=ulysses-lua");
    lua_pushlstring(L, option, 2);
    lua_pushstring(L, text);
    return run_loaded(L, rc, 2);
}

/* A statement knows what the prompt does; the library is loaded where it asks for that. What opens
 * a script, or the prompt, puts another in this table's place.
 */
static int run_statement(lua_State *L, const char *statement)
{
    static const char *const names =
        "setmetatable(_G, { __index = function(_, name)\n"
        "  if name == 'ul' then return require 'ulysses' end\n"
        "  if name == 'nn' or name == 'F' then return require('ulysses')[name] end\n"
        "end })\n";
    if (run_string(L, names, NULL)) return 1;
    int rc = luaL_loadbuffer(L, statement, strlen(statement), "=(command line)");
    return run_loaded(L, rc, 0);
}

static int missing(const char *option, const char *what)
{
    ranks_complain("%s needs a %s", option, what);
    return 1;
}

/* Wins over UL_DEVICE, which is heeded when the library is loaded; and other programs that this
 * one starts follow. Where the script is planned, it is no matter.
 */
static int set_device(lua_State *L, const char *name)
{
    if (!ranks_plans()) setenv("UL_DEVICE", name, 1);
    return run_string(
        L,
        "local ok, sentence = pcall(require('ulysses.core').set_default_device, ...)\n"
        "if not ok then\n"
        "  require 'ulysses.refuse'('--device: %s', sentence:match 'set_default_device: (.*)')\n"
        "end",
        name);
}

/* Sizes alone from here on; the page is printed behind the last step (plan.lua). */
static int set_plan(lua_State *L, const char *machine)
{
    if (run_string(L, "require('ulysses.plan_machines').check((...))", machine)) return 1;
    return run_string(L, "require('ulysses.plan').begin((...))", machine);
}

static int no_option(lua_State *L, const char *option)
{
    lua_settop(L, 0);
    const char *code =
        "local options = {}\n"
        "for option in ([[-e -i -l -j -O -v -h --device --hosts --plan --ranks --report --threads"
        " --version --help]]):gmatch '%S+' do options[#options + 1] = option end\n"
        "return require 'ulysses.suggest'((...), options)";
    int ok = luaL_loadstring(L, code) == 0;
    lua_pushstring(L, option);
    ok = ok && lua_pcall(L, 1, 1, 0) == 0;
    ranks_complain("no option '%s'%s (--help lists them)", option, ok ? lua_tostring(L, -1) : "");
    return 1;
}

/* Handles options before the script; returns an exit status, or -1 to go on with the script at *at.
 */
static int options(lua_State *L, char **argv, int *at, int *did_something, int *interactive)
{
    if (ranks_plans()) { /* before a device is named */
        setenv("UL_DEVICE", "meta", 1);
        if (run_string(L, "require('ulysses.core').planning(true)", NULL)) return 1;
    }
    for (; argv[*at] && argv[*at][0] == '-' && argv[*at][1]; ++*at) {
        const char *option = argv[*at];
        if (!strcmp(option, "-h") || !strcmp(option, "--help")) return fputs(usage, stdout), 0;
        if (!strcmp(option, "-v") || !strcmp(option, "--version")) return print_version(L);
        if (!strcmp(option, "--threads")) {
            if (set_threads(L, argv[++*at])) return 1;
        } else if (!strcmp(option, "--device")) {
            if (!argv[++*at]) return missing("--device", "name");
            if (set_device(L, argv[*at])) return 1;
        } else if (ranks_is_plan(option)) {
            if (!argv[*at + 1])
                return ranks_complain("--plan needs a script: ulysses-lua --plan recipe.lua .."), 1;
            if (set_plan(L, option[6] ? option + 7 : "h200")) return 1;
        } else if (!strcmp(option, "--report")) {
            if (!argv[++*at]) return missing("--report", "folder");
            return run_string(L, "print(require('ulysses.report').write((...)))", argv[*at]);
        } else if (!strcmp(option, "-i")) {
            *interactive = 1;
            if (run_string(L, "require('ulysses.repl').start()", NULL)) return 1;
        } else if (!strncmp(option, "-e", 2)) {
            const char *statement = option[2] ? option + 2 : argv[++*at];
            if (!statement) return missing("-e", "statement");
            *did_something = 1;
            int rc = run_statement(L, statement);
            if (rc) return rc;
        } else if (!strncmp(option, "-l", 2)) {
            const char *module = option[2] ? option + 2 : argv[++*at];
            if (!module) return missing("-l", "module name");
            lua_getglobal(L, "require");
            lua_pushstring(L, module);
            if (run(L, 1)) return 1;
        } else if (!strncmp(option, "-j", 2) || !strncmp(option, "-O", 2)) {
            const char *text = option[2] || option[1] == 'O' ? option + 2 : argv[++*at];
            if (!text) return missing("-j", "command");
            if (compiler_option(L, option, text)) return 1;
        } else {
            return no_option(L, option);
        }
    }
    return -1;
}

/* busted in this very program */
static int run_tests(lua_State *L, int argc, char **argv, int at)
{
    set_arg(L, argc, argv, at);
    return run_loaded(L, luaL_loadstring(L, "require 'busted.runner' { standalone = false }"), 0);
}

/* Where --plan is among the options, something must have been planned. */
static int finish_plan(lua_State *L)
{
    return ranks_plans() ? run_string(L, "require('ulysses.plan').finish()", NULL) : 0;
}

static int run_script(lua_State *L, int argc, char **argv, int at, int interactive)
{
    const char *name = argv[at] && strcmp(argv[at], "-") ? argv[at] : NULL;
    set_arg(L, argc, argv, at);
    if (name && run_string(L, "require('ulysses.strict').on((...))", name)) return 1;
    if (interactive) {
        static const char *const code = "return require('ulysses.repl').after(...)";
        luaL_loadbuffer(L, code, strlen(code), "=ulysses-lua");
    }
    size_t size;
    const char *text = name ? NULL : ranks_script(&size);
    int rc = text ? luaL_loadbuffer(L, text, size, "=stdin") : luaL_loadfile(L, name);
    int n = argc - at - 1;
    if (rc == 0) {
        if (n < 0) n = 0;
        luaL_checkstack(L, n + 4, "too many arguments");
        for (int i = 0; i < n; i++) lua_pushstring(L, argv[at + 1 + i]);
        if ((rc = run(L, interactive ? n + 1 : n))) return rc;
        return finish_plan(L);
    }
    run_loaded(L, rc, 0);
    return interactive ? run_string(L, "require('ulysses.repl').run()", NULL) : 1;
}

/* The prompt over all ranks, and the exit status of it all. */
static int run_front(lua_State *L)
{
    static const char *const code = "require('ulysses.front').run(...)";
    int rc = luaL_loadstring(L, code);
    if (rc == 0) front_push(L);
    if (run_loaded(L, rc, 1)) launch_end();
    lua_close(L);
    while (launch_errors() >= 0) launch_hear(1);
    return launch_status();
}

/* One of its ranks: prints to it from now on. */
static int open_prompt(lua_State *L)
{
    static const char *const code =
        "require('ulysses.core').remote.open(...) require('ulysses.repl').start()";
    int rc = luaL_loadstring(L, code);
    lua_pushinteger(L, ranks_prompt());
    return run_loaded(L, rc, 1);
}

/* A file that is opened where standard output was closed would get what is printed. */
static void open_standard_files(void)
{
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

/* print() never fails: that the disk is full is found here, however the program ends. */
static void check_output(void)
{
    int failed = ferror(stdout);
    errno = 0;
    if (fflush(stdout) == 0 && !failed) return;
    ranks_complain("cannot write to standard output%s%s", errno ? ": " : "",
                   errno ? strerror(errno) : "");
    _exit(1);
}

int main(int argc, char **argv)
{
    open_standard_files();
    atexit(check_output);
    int status = ranks_start(argv);
    if (status >= 0) return status;
    for (argc = 0; argv[argc];) argc++; /* some may have been taken out */
    lua_State *L = luaL_newstate();
    if (!L) {
        ranks_complain("out of memory");
        return 1;
    }
    open_ulysses(L);
    if (ranks_is_front()) return run_front(L);
    int at = 1, did_something = 0, interactive = ranks_prompt() >= 0;
    set_arg(L, argc, argv, argc);
    if (interactive && open_prompt(L)) return 1;
    status = options(L, argv, &at, &did_something, &interactive);
    if (status < 0 && argv[at] && !strcmp(argv[at], "test"))
        status = run_tests(L, argc, argv, at);
    else if (status < 0 && !argv[at] && (interactive || (!did_something && isatty(STDIN_FILENO))))
        status = run_string(L, "require('ulysses.repl').run()", NULL);
    else if (status < 0 && !argv[at] && did_something)
        status = finish_plan(L);
    else if (status < 0)
        status = run_script(L, argc, argv, at, interactive);
    lua_close(L);
    return status;
}
