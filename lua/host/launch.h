/* launch.h - mpirun and the ranks below it, seen from the front process. */
#ifndef UL_HOST_LAUNCH_H
#define UL_HOST_LAUNCH_H

/* What ranks say on stderr, on lines of their own that nobody sees: rank 0 once it takes signals;
 * any with a group that ends by itself with a status above 128, since mpirun, which tells that from
 * the end by a signal, now and then loses what it says.
 */
enum { RANK_IS_THERE = '\1', RANK_LEAVES = '\2' };

/* Starts n ranks of this program with these arguments; complains and returns 0 where that fails. */
int launch(char *n, char *hosts, char **argv, int has_prompt);
/* Hears and hands on until all ranks have ended; the exit status of it all. */
int launch_attend(void);

/* For the prompt, which does that itself. What mpirun says comes from this file descriptor; -1 when
 * it has ended. */
int launch_errors(void);
/* Reads it where it is ready; 0 when that was the end. */
int launch_hear(int is_ready);
/* SIGTERM and its like, as they have come. */
void launch_hand_on(void);
/* How often Ctrl-C has been pressed. */
int launch_presses(void);
/* Ends all ranks. */
void launch_end(void);
/* Waits for mpirun; the exit status. */
int launch_status(void);

#endif
