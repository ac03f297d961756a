// captures SOCKETS PACKETS_PER_SECOND: an operator left SOCKETS packet captures in a service,
// packet(7). The kernel runs the filter of each for each packet of the service.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

// The filter compares bytes of the packet with 40 values, as one of 40 hosts does, and takes none.
static int capture(void) {
	struct sock_filter f[81];
	struct sock_fprog filter = {.len = 81, .filter = f};
	for (int i = 0; i < 40; i++) {
		f[2 * i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 26);
		f[2 * i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc0a80000 + i, 0, 0);
	}
	f[80] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	int s = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
	if (s < 0) return -1;
	return setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

int main(int argc, char **argv) {
	long sockets = argc > 2 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t size = sizeof at;
	char packet[200] = {0};
	if (sockets < 1 || sockets > 500 || rate < 1) { fprintf(stderr, "usage: captures SOCKETS PACKETS_PER_SECOND\n"); return 2; }
	for (long i = 0; i < sockets; i++)
		if (capture() != 0) { perror("packet socket"); return 1; }
	int receiver = socket(AF_INET, SOCK_DGRAM, 0), sender = socket(AF_INET, SOCK_DGRAM, 0);
	if (bind(receiver, (struct sockaddr *)&at, sizeof at) != 0) { perror("bind"); return 1; }
	getsockname(receiver, (struct sockaddr *)&at, &size);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		for (long i = 0; i < (rate + 99) / 100; i++) {
			if (sendto(sender, packet, sizeof packet, 0, (struct sockaddr *)&at, sizeof at) < 0) { perror("sendto"); return 1; }
			recv(receiver, packet, sizeof packet, MSG_DONTWAIT);
		}
		usleep(10000);
	}
}
