/* Two processes, of which one gives the other descriptors. Neither has opened a driver when they part. */
#ifndef PAIR_H
#define PAIR_H
#include "dlcuda.h"
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* part starts the other process, and returns this one's end of a socket; *child says which this one is. It ends with
 * its parent. */
static inline int part(int *child)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends))
		die("socketpair", "it failed");
	pid_t pid = fork();
	if (pid < 0)
		die("fork", "it failed");
	*child = pid == 0;
	if (*child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(ends[!*child]);
	return ends[*child];
}

/* say sends a message, with a descriptor unless that is negative. */
static inline void say(int to, const void *message, size_t size, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof fd)];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct iovec data = {(void *)message, size};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
	if (fd >= 0) {
		memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
		m.msg_control = &control;
		m.msg_controllen = sizeof control.room;
	}
	if (sendmsg(to, &m, MSG_NOSIGNAL) != (ssize_t)size)
		die("the other process", "it is gone");
}

/* hear receives a message, and the descriptor that came with it, or -1. It ends this process when the other has ended. */
static inline int hear(int from, void *message, size_t size)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec data = {message, size};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
	int fd = -1;
	if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != (ssize_t)size)
		exit(1); /* it has said why */
	if (CMSG_FIRSTHDR(&m))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

#endif
