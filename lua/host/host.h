/* host.h - what the files of the binding share.
 *
 * A function of the binding goes in this order, so that nothing leaks and nothing dangles when Lua
 * raises an error, or runs a finaliser that frees tensors, at any allocation:
 *   1. numbers, options and whatever else may allocate in Lua or run Lua code;
 *   2. the boxes of its results (host_new);
 *   3. the tensors of its arguments (host_tensor); from here on only the engine is called;
 *   4. host_check(), which raises what the engine refused.
 */
#ifndef UL_HOST_H
#define UL_HOST_H

#include <lauxlib.h>
#include <lua.h>

#include "ulysses.h"

/* ---- tensor.c: the userdata ---- */

typedef struct host_scope host_scope;

/* Why a tensor is gone, for the error that says so; shared by all that went together. */
typedef struct host_reason {
    int64_t refs;
    char text[192];
} host_reason;

/* What a tensor userdata holds: one count of a tensor, and its place in the scope it was made in.
 */
typedef struct host_box {
    ul_tensor *t;      /* NULL once freed */
    host_scope *scope; /* NULL: only the collector and :free() end it */
    struct host_box *next, *previous;
    host_reason *reason; /* why t is, or is to be, NULL; NULL: by :free() */
    int pins;            /* nodes of the tape that need it: ending waits for them */
    int ended;           /* to be freed with the last pin */
} host_box;

/* Pushes a tensor userdata that is still empty, in the scope in force. */
host_box *host_new(lua_State *L);
/* The box at i, or NULL where there is no tensor userdata. */
host_box *host_to_box(lua_State *L, int i);
/* Frees what the box holds, or marks it so while it is pinned. reason may be NULL. */
void host_end(host_box *box, host_reason *reason);
void host_unpin(host_box *box);
/* Makes the metatable, once for each Lua state, and fills core.methods. */
void host_open_tensor(lua_State *L, int core);

/* ---- arguments.c: checks of arguments and the raising of errors ---- */

/* Raises a sentence at the line that called into the library. */
int host_fail(lua_State *L, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Raises what the engine said, or the error object of a failed callback, where rc < 0. */
void host_check(lua_State *L, int rc);
/* The same where the engine names a part of what was called: `op` takes its place in the sentence.
 */
void host_check_as(lua_State *L, const char *op, int rc);
/* Keeps the value on top of the stack for host_check() and pops it. */
void host_keep_error(lua_State *L);
/* Whether the Lua function that called this one is the library's own. */
int host_of_library(lua_State *L);
/* "llama3.lua:41: " of the caller outside of the library, or "", without allocating. */
void host_where(lua_State *L, char *text, int size);
/* The value at i, in words for an error. */
const char *host_describe(lua_State *L, int i, char *text, int size);

/* Refuses more than `most` arguments and fills up with nil. */
void host_arguments(lua_State *L, const char *op, int most);
ul_tensor *host_tensor(lua_State *L, int i, const char *op);
ul_tensor *host_tensor_or_nil(lua_State *L, int i, const char *op);
/* The same for what is no argument of its own: errors call it `what`. */
ul_tensor *host_tensor_named(lua_State *L, int i, const char *op, const char *what);
/* The n tensors of the list at i, in a userdata that is pushed. */
ul_tensor **host_list(lua_State *L, int i, const char *op, int *n);
int host_is_number(lua_State *L, int i);
double host_number(lua_State *L, int i, const char *op, const char *what);
double host_number_or(lua_State *L, int i, const char *op, const char *what, double fallback);
int64_t host_integer(lua_State *L, int i, const char *op, const char *what);
int64_t host_integer_or(lua_State *L, int i, const char *op, const char *what, int64_t fallback);
uint64_t host_seed(lua_State *L, int i, const char *op);
/* A number where it is exact, else the digits. */
void host_push_seed(lua_State *L, uint64_t seed);
int host_boolean(lua_State *L, int i, const char *op, const char *what, int fallback);
void host_function_at(lua_State *L, int i, const char *op);
/* A dim counted from 1 or from the end -> counted from 0; ndim of them. */
int host_dim(lua_State *L, const char *op, int64_t dim, int ndim);
/* The sizes in the table at `first`, or in the arguments first to last; returns how many. */
int host_shape(lua_State *L, int first, int last, const char *op, int64_t *shape);
/* Any integers given in that way; errors call the third of them `what` 3. */
int host_integers(lua_State *L, int first, int last, const char *op, const char *what,
                  int64_t *list);

/* ---- options.c ---- */

/* Refuses what is neither nil nor a table of these keys (a list that NULL ends); `list`: it may
 * hold a list as well.
 */
void host_options(lua_State *L, int i, const char *op, const char *const *names, int list);
/* Pushes the option's value; whether it is there. */
int host_option(lua_State *L, int i, const char *name);
double host_option_number(lua_State *L, int i, const char *op, const char *name, double fallback);
int64_t host_option_integer(lua_State *L, int i, const char *op, const char *name,
                            int64_t fallback);
int host_option_boolean(lua_State *L, int i, const char *op, const char *name, int fallback);
/* Index of the option's string among the choices (NULL ends them). */
int host_option_choice(lua_State *L, int i, const char *op, const char *name,
                       const char *const *choices, int fallback);
/* The same for the string at i. */
int host_choice(lua_State *L, int i, const char *op, const char *what, const char *const *choices);
extern const char *const host_dtypes[], *const host_devices[];
/* Where tensors are made unless a call says otherwise. */
extern ul_device host_device;
/* Whether the script is only planned. */
extern int host_plans;
/* "; did you mean 'x'?", or what there is to choose from. */
void host_suggest(char *text, int size, const char *word, const char *const *names);

/* ---- scope.c ---- */

/* How Lua code is called: in a scope of this name (NULL: none), with gradients on, off or as they
 * are (-1).
 */
typedef struct host_frame {
    const char *scope;
    int grad;
} host_frame;

/* lua_pcall() in such a frame, all results wanted; what the scope does not return is freed. */
int host_call(lua_State *L, const host_frame *frame, int n_args);
host_scope *host_scope_current(lua_State *L);
/* Takes the box out of its scope and puts it into another; NULL: into none. */
void host_move(host_box *box, host_scope *scope);
void host_reason_drop(host_reason *reason);
/* Calls visit for the value at i and, through plain tables, for all it holds (cycles are fine). */
typedef void host_visit(lua_State *L, host_box *box, void *context);
void host_walk(lua_State *L, int i, int skip_objects, host_visit *visit, void *context);

/* ---- the state of a thread ---- */

/* The Lua state that last entered the binding: callbacks of the engine run in it. */
extern _Thread_local lua_State *host_current;
/* Set while the collector runs inside the engine: tensors may then be dropped, not used. */
extern _Thread_local int host_collecting;
/* How many tensors the collector has found so far. */
extern _Thread_local int64_t host_dropped;

/* ---- registration ---- */

enum { HOST_METHOD = 1, HOST_MODULE = 2, HOST_FUNCTIONAL = 4, HOST_OP = 7 };

/* A function of the binding: x:name(), ul.name(), F.name(). `kind` is its first upvalue. */
typedef struct host_function {
    const char *name;
    lua_CFunction call;
    const void *kind;
    int where;
} host_function;

/* Fills core, core.methods and core.functional; `core` is an absolute index. NULL name ends. */
void host_register(lua_State *L, int core, const host_function *functions);

extern const host_function host_create[], host_views[], host_elementwise[], host_reduce[],
    host_layers[], host_losses[], host_optimizer[], host_nodes[], host_fields[], host_scopes[],
    host_engine[], host_json[], host_io[], host_safetensors[], host_group[], host_tokenizer[];

/* create.c: pushes a tensor (box) made from the nested table, or number, at i. */
host_box *host_from_table(lua_State *L, int i, const char *op, int dtype, ul_device device);
/* index.c: x[key] and x[key] = value, arguments x, key(, value) at 1, 2(, 3). */
int host_index(lua_State *L);
int host_assign(lua_State *L);
/* elementwise.c: metamethods of arithmetic into the metatable on top. */
void host_arithmetic(lua_State *L);
/* io.c: pushes nil and a sentence where a file is wrong (UL_EIO) and returns 2; raises what else
 * is; returns 0 where nothing is. */
int host_sentence(lua_State *L, int rc);
int host_push_sum(lua_State *L, const ul_file_sum *sum);
const char *host_path(lua_State *L, int i, const char *op);
/* safetensors.c: the metatable of open files */
void host_open_safetensors(lua_State *L);
/* layers.c: g:ring_attention(q, k, v, { tokens = S, .. }), what attention takes but lse */
int host_ring_attention(lua_State *L);
/* group.c: the metatable of groups; the group that a method is called on; an option, of the table
 * at 3, that lists a number for each rank, in a userdata that is pushed, or NULL; the dim, from 0,
 * that one names, of the tensor at 2: `fallback` is counted from 1
 */
void host_open_group(lua_State *L);
ul_group *host_to_group(lua_State *L);
int64_t *host_sizes_option(lua_State *L, const char *op, const char *name, const ul_group *g);
int host_dim_option(lua_State *L, const char *op, const char *name, int fallback);
/* shard.c: methods of groups */
int host_all_to_all(lua_State *L);
int host_shard_heads(lua_State *L);
int host_arrive(lua_State *L);
int host_shard_tokens(lua_State *L);
int host_head_share(lua_State *L);
/* tokenizer.c: the metatables of tokenizers, their decoders and lists of ids */
void host_open_tokenizer(lua_State *L);
/* scope.c: the metatable of scope_begin()'s tokens */
void host_open_scope(lua_State *L);
/* signal.c: core.signals */
void host_open_signals(lua_State *L, int core);
/* Several ranks: whether a press is noted for a loop that polls; whether the error may come now,
 * and is to; that it is to come (from any thread); and, in a handler of Lua's thread, that Lua
 * notices.
 */
int host_signals_noted(void);
int host_signals_stopping(void);
void host_signals_stop(void);
void host_signals_arm(void);
/* repl.c: core.line */
void host_open_line(lua_State *L, int core);
/* remote.c: core.remote; whether this is a rank below a prompt; whether the error is to be raised
 * now, when all ranks have agreed; hands on what has been printed */
void host_open_remote(lua_State *L, int core);
int host_remote_is_open(void);
int host_remote_park(void);
void host_remote_flush(void);
/* system.c: fills core.system and core.version */
void host_open_system(lua_State *L, int core);
/* core.sharded */
void host_open_sharded(lua_State *L, int core);
/* core.off_device */
void host_open_off_device(lua_State *L, int core);

#endif
