/* front.h - connections between the front process and its ranks. */
#ifndef UL_HOST_FRONT_H
#define UL_HOST_FRONT_H

#include <stddef.h>

#include <lua.h>

/* Where ranks connect to, from other hosts too where there are some; sets the variable to the
 * address. 0, or -1 with errno.
 */
int front_listen(const char *variable, int ranks, int has_hosts);
/* It waits for connections; -1: nothing does. */
int front_fd(void);
/* A rank's end: connects to the address in the variable; -1 with errno. */
int front_connect(const char *address, int rank);

/* Reads standard input, which front_serve_script() sends to each rank that connects. */
int front_read_script(void);
void front_serve_script(void);

/* Pushes the table that front.lua works with. */
void front_push(lua_State *L);

#endif
