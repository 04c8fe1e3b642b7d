/* offload.h - what waits off its device, inputs of layers until backward and optimizer state; a
 * part of ulysses.h, which includes it.
 */
#ifndef UL_OFFLOAD_H
#define UL_OFFLOAD_H

/* x's values, contiguous, off its device: those of cuda in pinned memory of the host (the result is
 * on UL_CPU), those of the cpu in an unnamed file in TMPDIR, which its pages go back to. On meta
 * they are counted. */
int ul_off_device(ul_tensor **out, ul_tensor *x);
/* The same for values that backward will want, the last first: the copy goes on behind other work,
 * and x may be freed at once. The host may not read the result. */
int ul_park(ul_tensor **out, ul_tensor *x);
/* x again, on its device and with its history, from what ul_park() has made of it. The values that
 * were parked before these begin their way back as well. */
int ul_unpark(ul_tensor **out, ul_tensor *parked);
/* Waits until optimizer state that is off the device may be read by the host, and frees the memory
 * on the device that it came through. After the last step of an optimizer. */
int ul_off_device_wait(void);
/* For tests: how many events of the device's streams are made, and how many of these nobody has. */
void ul_debug_events(int64_t *made, int64_t *idle);

#endif
