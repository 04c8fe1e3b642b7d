/* ranks.h - the program on several ranks: it starts them, and knows that it is one of them. */
#ifndef UL_HOST_RANKS_H
#define UL_HOST_RANKS_H

/* Takes --ranks and --hosts out of argv. With more than one rank, mpirun runs this program so many
 * times, and the result is the exit status of it all. -1: go on, as the only rank or as one of
 * those that a launcher has started.
 */
int ranks_start(char **argv);

/* Prints "ulysses-lua: " and this to stderr, and which rank says so where there are several. */
void ranks_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
