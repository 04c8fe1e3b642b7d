/* ranks.h - the program on several ranks: it starts them, and knows that it is one of them. */
#ifndef UL_HOST_RANKS_H
#define UL_HOST_RANKS_H

#include <stddef.h>

/* Takes --ranks and --hosts out of argv. With more than one rank, mpirun runs this program so many
 * times, and the result is the exit status of it all. -1: go on, as the only rank, as one of those
 * that a launcher has started, or as the front process of a prompt over all ranks.
 */
int ranks_start(char **argv);

/* Whether an option is --plan or --plan=NAME: ranks are then pretended, none is started. */
int ranks_is_plan(const char *option);
/* Whether ranks_start() has found one. */
int ranks_plans(void);

/* Whether this is that front process. */
int ranks_is_front(void);
/* A rank's connection to it; -1: there is none. */
int ranks_prompt(void);
/* The script that the front process has read for the ranks; NULL: there is none. */
const char *ranks_script(size_t *size);

/* Prints "ulysses-lua: " and this to stderr, and which rank says so where there are several. */
void ranks_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
