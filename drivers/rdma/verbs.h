/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs, opened at run time: a process that meets no RDMA device neither needs nor loads it. The headers of
 * rdma-core give types and the inline functions that call a provider directly (ibv_post_send, ibv_poll_cq, ibv_wr_*);
 * what the library itself exports is called through this table. "verbs(3)" and rdma-core's documentation say what each
 * does; all of them may be called by any thread.
 */
#ifndef LW_RDMA_VERBS_H
#define LW_RDMA_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <infiniband/verbs.h>

/* The macros of the same names call what we don't link. */
#undef ibv_reg_mr
#undef ibv_query_port

/* X(result, name, arguments): the library's ibv_<name>. */
#define RDMA_VERBS(X)                                                                                                  \
	X(int, fork_init, (void))                                                                                      \
	X(struct ibv_device **, get_device_list, (int *count))                                                         \
	X(void, free_device_list, (struct ibv_device * *list))                                                         \
	X(const char *, get_device_name, (struct ibv_device * device))                                                 \
	X(struct ibv_context *, open_device, (struct ibv_device * device))                                             \
	X(int, close_device, (struct ibv_context * context))                                                           \
	X(int, query_device, (struct ibv_context * context, struct ibv_device_attr * attr))                            \
	X(int, query_port, (struct ibv_context * context, uint8_t port, struct _compat_ibv_port_attr * attr))          \
	X(struct ibv_pd *, alloc_pd, (struct ibv_context * context))                                                   \
	X(int, dealloc_pd, (struct ibv_pd * pd))                                                                       \
	X(struct ibv_mr *, reg_mr, (struct ibv_pd * pd, void *addr, size_t length, int access))                        \
	X(int, dereg_mr, (struct ibv_mr * mr))                                                                         \
	X(struct ibv_comp_channel *, create_comp_channel, (struct ibv_context * context))                              \
	X(int, destroy_comp_channel, (struct ibv_comp_channel * channel))                                              \
	X(struct ibv_cq *, create_cq,                                                                                  \
	  (struct ibv_context * context, int cqe, void *user, struct ibv_comp_channel *channel, int vector))           \
	X(int, destroy_cq, (struct ibv_cq * cq))                                                                       \
	X(int, get_cq_event, (struct ibv_comp_channel * channel, struct ibv_cq * *cq, void **user))                    \
	X(void, ack_cq_events, (struct ibv_cq * cq, unsigned int count))                                               \
	X(struct ibv_qp *, create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr * attr))                            \
	X(int, destroy_qp, (struct ibv_qp * qp))                                                                       \
	X(int, modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask))                                   \
	X(int, get_async_event, (struct ibv_context * context, struct ibv_async_event * event))                        \
	X(void, ack_async_event, (struct ibv_async_event * event))

/* Those that only newer libraries have; NULL where they are missing. */
#define RDMA_VERBS_NEWER(X)                                                                                            \
	X(struct ibv_mr *, reg_mr_iova2,                                                                               \
	  (struct ibv_pd * pd, void *addr, size_t length, uint64_t iova, unsigned int access))                         \
	X(struct ibv_qp_ex *, qp_to_qp_ex, (struct ibv_qp * qp))

struct rdma_verbs {
#define X(result, name, arguments) result(*name) arguments;
	RDMA_VERBS(X)
	RDMA_VERBS_NEWER(X)
#undef X
	/* _ibv_query_gid_table: all valid GIDs of all ports in one call; since rdma-core 32 */
	ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
				   uint32_t flags, size_t entry_size);
};

/* Tests set it: devices of theirs instead of the library's. */
extern const struct rdma_verbs *rdma_verbs_instead;

/* The table; opens the library at the first call and keeps it as long as the process lives. Any thread; blocks on
 * files. 0; -ENOENT there is no library; -ENOTSUP it is too old: why gets the reason. */
int rdma_verbs_open(const struct rdma_verbs **out, char *why, size_t why_size);

/* All of the port's attributes. 0 or a negative errno. */
int rdma_verbs_query_port(const struct rdma_verbs *verbs, struct ibv_context *context, uint8_t port,
			  struct ibv_port_attr *attr);

#endif
