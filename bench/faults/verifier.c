// verifier ITERATIONS LOADERS: a network agent loads the same BPF program for each of its endpoints,
// bpf(2). The kernel's verifier walks each iteration of the program's loop, so a load is one call
// that takes a CPU for long.
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int load(int iterations) {
	struct bpf_insn program[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
		{.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 0, .imm = 1},
		{.code = BPF_JMP | BPF_JLT | BPF_K, .dst_reg = 0, .off = -2, .imm = iterations},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr a;
	memset(&a, 0, sizeof a);
	a.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
	a.insns = (unsigned long)program;
	a.insn_cnt = sizeof program / sizeof *program;
	a.license = (unsigned long)"GPL";
	return (int)syscall(SYS_bpf, BPF_PROG_LOAD, &a, sizeof a);
}

int main(int argc, char **argv) {
	int iterations = argc > 2 ? atoi(argv[1]) : 0, loaders = argc > 2 ? atoi(argv[2]) : 0;
	if (iterations < 1 || iterations > 450000 || loaders < 1 || loaders > 8) { fprintf(stderr, "usage: verifier ITERATIONS LOADERS\n"); return 2; }
	int fd = load(iterations);
	if (fd < 0) { perror("bpf"); return 1; }
	close(fd);
	printf("ready\n");
	fflush(stdout);
	for (int i = 1; i < loaders; i++)
		if (fork() == 0) break;
	for (;;) {
		fd = load(iterations);
		if (fd < 0) { perror("bpf"); return 1; }
		close(fd);
	}
}
