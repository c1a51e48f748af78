/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of the same host: whether a peer is one, and memory of it by the number of a descriptor. What a descriptor
 * document says of them is a claim of the peer's; nothing here trusts it. Any thread; blocks on /proc at most.
 */
#ifndef LW_NEIGHBOUR_H
#define LW_NEIGHBOUR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Names the kernel and the namespaces that this process' PID belongs to. 0, or a negative errno. */
int lw_neighbour_host(char *text, size_t size);

/* Whether a peer with that name of its host can be met by PID. 0; -ENOTSUP: it lives on another host, which is nothing
 * to speak of; -EXDEV, with the reason: in another PID namespace of this one. */
int lw_neighbour_is(const char *own, const char *host, char *why, size_t why_size);

/* Memory of the process by its descriptor's number, for reading and writing; the caller closes it. -EPROTO it is no
 * memory; another negative errno: the kernel does not let us. */
int lw_neighbour_memory(pid_t pid, int32_t fd);

/* What such an error means, in words. */
void lw_neighbour_denied(int error, pid_t pid, char *why, size_t why_size);

/* Meets the engine of another process: its door (lib/door.h), which has this nonce, by the descriptor's number, and a
 * pidfd, which tells its end. Both become the caller's. The process is the same from the first step to the last. 0, or
 * a negative errno with the reason. */
struct door;
int lw_neighbour_meet(pid_t pid, int32_t fd, const unsigned char *nonce, struct door **door, int *pid_fd, char *why,
		      size_t why_size);

/* Whether the process of a pidfd has ended. */
bool lw_neighbour_ended(int pid_fd);

/* The bytes of 2 * size digits. */
void lw_neighbour_nonce(const char *hex, unsigned char *nonce, size_t size);

#endif
